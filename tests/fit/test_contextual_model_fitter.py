"""What a contextual loop learns, scales and refuses."""

import math

import pytest
import torch
from botorch.models.kernels import CategoricalKernel
from gpytorch.kernels import RBFKernel, ScaleKernel
from reference import rbf

from tvbo import recipes
from tvbo.fit.model_fitter import ModelFitter
from tvbo.models import ContextualGP
from tvbo.optimizers import RefitEvery, RefitNever
from tvbo.spaces import InputLayout
from tvbo.spaces.observations import Observations

learns = pytest.mark.filterwarnings(
    "ignore::botorch.exceptions.warnings.OptimizationWarning",
)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


CHOICES = torch.rand(11, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
LISTED = tensor([10.0], [13.5], [15.0], [20.0])
FINITE = {"choices": CHOICES, "contexts": LISTED}
BOUNDED = {"bounds": tensor([100.0], [300.0]), "context_bounds": tensor([10.0], [20.0])}


def kernels():
    return {"action_kernel": rbf(0.4), "context_kernel": rbf(4.0)}


def told(optimizer, rounds):
    """Outcomes of actions and contexts drawn at random, one at each time."""
    generator = torch.Generator().manual_seed(2)
    lower, upper = optimizer.search_space.bounds
    for t in range(1, rounds + 1):
        z = LISTED[int(torch.randint(4, (1,), generator=generator))]
        X = optimizer.search_space.sample(generator)
        y = math.sin(3 * ((X - lower) / (upper - lower)).sum().item() + z.item() / 4 + t / 9)
        scatter = 0.1 * math.sin(7.0 * t)
        optimizer.tell(optimizer.attach(X, float(t), z), y + scatter)
    return optimizer


def fitter(**options):
    layout = InputLayout(2, 1)
    return ModelFitter(layout, tensor([0.0, 0.0, 10.0], [1.0, 1.0, 20.0]), **options)


@learns
@pytest.mark.parametrize("declared", [FINITE, BOUNDED], ids=["finite", "bounded"])
@pytest.mark.parametrize("structure", ["product", "additive", "both"])
@pytest.mark.combinations
def test_everything_is_learned_by_default(declared, structure):
    """Ten observations or more for five to eight numbers; raw units far from the unit cube."""
    optimizer = told(recipes.tv_cgp_ucb(**declared, structure=structure), 20)
    trial = optimizer.ask(context=LISTED[2], t=21.0)
    optimizer.search_space.snap(trial.X)
    model = optimizer.outcome_models[0].dense
    if declared is BOUNDED and structure == "product":
        # That is learned by one kernel over both, and averaged over.
        assert len(optimizer.model.weights) > 1
        return
    assert isinstance(model, ContextualGP)
    assert model.context_action_kernel.structure == structure
    # Constraints of the defaults: what was learned has moved off its start.
    fresh = recipes.tv_cgp_ucb(**declared, structure=structure)
    fresh.ask(context=LISTED[2])
    old = dict(fresh.outcome_models[0].dense.named_parameters())
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, old[name])}
    assert moved == set(old)
    # Between the outcomes it fits: the model explains most of them.
    observed = optimizer.observations
    residual = observed.Y - optimizer.model.posterior(observed.X).mean
    assert residual.var() < 0.5 * observed.Y.var()


@pytest.mark.slow
@learns
def test_refit_at_every_third_outcome():
    optimizer = recipes.tv_cgp_ucb(
        **FINITE,
        action_kernel=ScaleKernel(rbf(0.4)),
        context_kernel=rbf(4.0),
        refit=RefitEvery(3),
    )
    told(optimizer, 14)
    rates, sizes = [], []
    for i in range(8):
        trial = optimizer.ask(t=15.0 + i, context=LISTED[i % 4])
        rates.append(optimizer.model.forgetting_rate.item())
        sizes.append(optimizer.model_size)
        optimizer.tell(trial, math.sin(i))
    changes = [n for n, one, two in zip(sizes[1:], rates, rates[1:], strict=False) if one != two]
    # Fitted at 14, since 12 is enough for six numbers; then at 17 and 20.
    assert changes == [17, 20]


@learns
def test_what_is_given_is_learned_on_a_copy_and_used_in_raw_units():
    action, context = ScaleKernel(rbf(0.4)), rbf(4.0)
    before = [p.detach().clone() for k in (action, context) for p in k.parameters()]
    optimizer = recipes.tv_cgp_ucb(
        **FINITE, action_kernel=action, context_kernel=context, refit=RefitEvery(1)
    )
    told(optimizer, 13).ask(t=14.0, context=LISTED[0])
    after = [p for k in (action, context) for p in k.parameters()]
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))
    model = optimizer.outcome_models[0].dense
    assert not hasattr(model, "outcome_transform")
    assert not hasattr(model, "input_transform")
    learned = list(model.context_action_kernel.parameters())
    assert not any(torch.equal(one, two) for one, two in zip(before, learned, strict=True))


def test_only_the_columns_of_default_kernels_are_scaled():
    rows = torch.cat([CHOICES[:4], LISTED, tensor([1.0], [2.0], [3.0], [4.0])], dim=-1)
    observations = Observations(rows, tensor([1.0], [2.0], [0.5], [0.0]))
    scaled = {
        (True, True): [],
        (False, True): [0, 1],
        (True, False): [2],
        (False, False): [0, 1, 2],
    }
    for (action, context), layout in scaled.items():
        given = {
            "action_kernel": rbf(0.4) if action else None,
            "context_kernel": rbf(0.4) if context else None,
        }
        made = fitter(**given)
        made.fit(observations, 4, torch.Generator())
        seen = made.last_model.transform_inputs(rows)
        expected = rows.clone()
        if 2 in layout:
            expected[:, 2] = (rows[:, 2] - 10) / 10
        torch.testing.assert_close(seen, expected)
        assert (made.transform.stdvs.item() != 1) == bool(layout)


def test_scales_of_both_must_be_learned():
    known = {**FINITE, **kernels(), "structure": "both", "noise_variance": 0.1}
    with pytest.raises(ValueError):
        recipes.cgp_ucb(**known, refit=RefitNever())
    # Without a rule, they are learned in each round: everything else is given.
    optimizer = recipes.cgp_ucb(**known)
    optimizer.ask(context=LISTED[0])
    scales = optimizer.outcome_models[0].dense.context_action_kernel.outputscales
    assert scales.tolist() == [1.0] * 3


@pytest.mark.parametrize(
    "missing",
    [
        {"action_kernel": None},
        {"context_kernel": None},
        {"forgetting_rate": None},
        {"action_kernel": None, "context_kernel": None},
    ],
)
def test_what_is_missing_is_named(missing):
    options = {**kernels(), "forgetting_rate": 0.1, "noise_variance": 0.1, **missing}
    with pytest.raises(ValueError):
        recipes.tv_cgp_ucb(**FINITE, **options, refit=RefitNever())


@pytest.mark.parametrize(
    "part",
    [
        {"action_kernel": rbf(0.4)},
        {"context_kernel": rbf(0.4)},
        {"structure": "additive"},
        {"structure": "both"},
    ],
    ids=str,
)
def test_a_whole_kernel_beside_a_part_of_it(part):
    with pytest.raises(ValueError, match="both"):
        recipes.cgp_ucb(**FINITE, covar_module=RBFKernel(), **part)


@pytest.mark.parametrize(
    "options",
    [
        {"structure": "sum"},
        {"noise_variance": -1.0},
        {"forgetting_rate": 1.5},
    ],
)
def test_bad_options_are_refused_when_the_loop_is_made(options):
    known = {**kernels(), "forgetting_rate": 0.1, "noise_variance": 0.1, **options}
    with pytest.raises(ValueError):
        recipes.tv_cgp_ucb(**FINITE, **known)


def test_a_kernel_that_takes_labels_as_numbers_is_refused_where_they_have_columns():
    kernel = CategoricalKernel(active_dims=[0]) * RBFKernel(active_dims=[1])
    bounds = {"mat": ["Al", "Cu", "Fe"], "x": (0.0, 1.0)}
    with pytest.raises(ValueError, match="CategoricalKernel"):
        recipes.tv_gp_ucb(bounds=bounds, covar_module=kernel, forgetting_rate=0.1)
    # Of two labels there is one column, of numbers.
    bounds["mat"] = ["Al", "Cu"]
    recipes.tv_gp_ucb(bounds=bounds, covar_module=kernel, forgetting_rate=0.1)
