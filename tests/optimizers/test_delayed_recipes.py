"""Recipes for late outcomes: without delay their undelayed forms, with delay what they say."""

import itertools
import math

import pytest
import torch
from gpytorch.kernels import RBFKernel
from reference import rbf

from tvbo import recipes, run
from tvbo.models import StreamingGP
from tvbo.optimizers import RefitEvery, RefitNever
from tvbo.optimizers.pending import ConstantLiar, Hallucinate, IgnorePending
from tvbo.test_functions import drifting_gp
from tvbo.test_functions.drifting_gp import unit_grid

CHOICES = torch.rand(15, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
NOISE = 0.02
LOWEST = -2.0


FORMS = {
    "GP-BUCB": (recipes.tv_gp_ucb, Hallucinate()),
    "GP-UCB-SDF": (recipes.tv_gp_ucb, ConstantLiar(LOWEST)),
    "GP-TS-SDF": (recipes.gp_ts, ConstantLiar(LOWEST)),
}


def settings(where, how):
    options = {"choices": CHOICES} if where == "finite" else {"bounds": BOUNDS}
    options["generator"] = torch.Generator().manual_seed(3)
    if how == "given":
        return options | {"covar_module": rbf(), "noise_variance": NOISE}
    every = {"every-round": 1, "every-fourth": 4}[how]
    # Two numbers to learn, lengthscale and mean: the first fit is that of four outcomes.
    return options | {"covar_module": rbf(), "noise_variance": NOISE, "refit": RefitEvery(every)}


def reward(trial):
    return math.sin(5 * trial.X.sum().item()) + 0.1 * math.sin(17.0 * trial.id)


def choices_of(optimizer, n, delay=0, fate=lambda trial: "tell"):
    """Actions of ``n`` rounds, outcomes told so many rounds later, or failed or never answered."""
    waiting, chosen = [], []
    for t in range(1, n + 1):
        trial = optimizer.ask(float(t))
        chosen.append(trial.X)
        waiting.append(trial)
        if len(waiting) > delay:
            answered = waiting.pop(0)
            kind = fate(answered)
            if kind == "tell":
                optimizer.tell(answered, reward(answered))
            elif kind == "fail":
                optimizer.fail(answered, "lost")
    return torch.cat(chosen)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("where", "how"),
    [
        ("finite", "given"),
        ("finite", "every-round"),
        ("finite", "every-fourth"),
        ("box", "given"),
        ("box", "every-round"),
    ],
)
@pytest.mark.combinations
def test_without_delay_the_choices_are_those_of_the_undelayed_form(form, where, how):
    """Bit for bit."""
    recipe, pending = FORMS[form]
    n = 6 if where == "box" else 9
    one, two = (
        recipe(pending=policy, forgetting_rate=0.0, **settings(where, how))
        for policy in (pending, IgnorePending())
    )
    assert torch.equal(choices_of(one, n), choices_of(two, n))
    assert torch.equal(one.generator.get_state(), two.generator.get_state())
    assert one.model_size == two.model_size == n


@pytest.mark.parametrize("policy", [None, Hallucinate(), IgnorePending()])
def test_open_trials_are_not_tried_again(policy):
    """GP-BUCB goes where least is known; the papers' form asks for the best over and over."""
    told = recipes.gp_ucb(beta=4.0, pending=policy, **settings("finite", "given"))
    told.tell(told.attach(CHOICES[0], 0.0), 1.0)
    X = [told.ask(float(t)).X for t in range(1, 9)]
    different = len(torch.unique(torch.cat(X), dim=0))
    assert different == (1 if policy == IgnorePending() else 8)


BOX = {"bounds": torch.tensor([[0.0], [1.0]], dtype=torch.float64)}
ARMS = {"choices": torch.linspace(0, 1, 41, dtype=torch.float64).unsqueeze(-1)}
CONTEXT = {"context_bounds": torch.tensor([[0.0], [1.0]], dtype=torch.float64)}
GIVEN = {"forgetting_rate": 0.05, "noise_variance": 1e-4}
KNOWN = ("given", "learned", "no noise")
BY_DEFAULT = {
    "tv_gp_ucb": (recipes.tv_gp_ucb, {}),
    "gp_ucb": (recipes.gp_ucb, {"forgetting_rate": None}),
    "r_gp_ucb": (recipes.r_gp_ucb, {"every": 50.0, "forgetting_rate": None}),
    "compressed_gp": (recipes.compressed_gp, {"budget": 1e-4}),
    "tv_cgp_ucb": (recipes.tv_cgp_ucb, CONTEXT),
}


def kernel():
    made = RBFKernel().double()
    made.lengthscale = 0.3
    return made


def four_asks(recipe, options, space, how, num_told):
    """Four actions in a row without an outcome, after some with."""
    options = (GIVEN if how == "given" else {}) | {"beta": 9.0} | options
    told = {}
    if how == "given":
        options["covar_module"] = kernel()
    if how == "no noise":
        options |= {"covar_module": kernel(), "refit": RefitNever()}
        options.setdefault("forgetting_rate", 0.05)
        told = {"Yvar": 1e-4}
    options = {name: value for name, value in options.items() if value is not None}
    optimizer = recipe(**space, **options)
    context = None if optimizer.contexts is None else torch.tensor([0.5], dtype=torch.float64)
    for t in range(1, num_told + 1):
        trial = optimizer.ask(t, context)
        optimizer.tell(trial, math.exp(-((trial.X.item() - 0.3) ** 2) / 0.1), **told)
    X = torch.cat([optimizer.ask(num_told + 1 + i, context).X for i in range(4)])
    return X.flatten().sort().values, optimizer


@pytest.mark.parametrize(
    ("name", "space", "how", "num_told"),
    [
        *itertools.product(["tv_gp_ucb"], ["box", "finite"], KNOWN, [0, 3]),
        *itertools.product(["tv_cgp_ucb"], ["box", "finite"], KNOWN, [3]),
        *itertools.product(list(BY_DEFAULT)[1:], ["box"], ["given"], [3]),
    ],
)
def test_by_default_several_asks_in_a_row_differ(name, space, how, num_told):
    recipe, options = BY_DEFAULT[name]
    X, optimizer = four_asks(recipe, options, BOX if space == "box" else ARMS, how, num_told)
    # With open trials ignored they are nearer to each other than 1e-3.
    assert X.diff().min() > 0.01
    assert len(optimizer.open_trials) == 4
    assert not optimizer.repeats_open_trials


@pytest.mark.parametrize("how", KNOWN)
@pytest.mark.parametrize("num_open", [0, 2])
@pytest.mark.parametrize("space", [BOX, ARMS], ids=["box", "finite"])
def test_the_model_can_be_read_with_open_trials(space, num_open, how):
    """What users read of it does not hang on whether trials are open."""
    options = dict(GIVEN) if how == "given" else {"forgetting_rate": 0.05}
    if how != "learned":
        options["covar_module"] = kernel()
    if how == "no noise":
        options["refit"] = RefitNever()
    optimizer = recipes.tv_gp_ucb(**space, **options)
    trial = optimizer.ask(1.0)
    optimizer.tell(trial, 0.5, Yvar=1e-4 if how == "no noise" else None)
    for _ in range(num_open + 1):
        optimizer.ask(2.0)
    model = optimizer.model
    assert model.forgetting_rate.item() == pytest.approx(0.05, rel=1e-6)
    row = torch.tensor([[0.5, 3.0]], dtype=torch.float64)
    assert model.posterior(row).variance.item() > 0
    if space is BOX:
        assert model.covar_module(row).to_dense().shape == (1, 1)
        noise = model.likelihood.noise.mean().item()
        assert noise == pytest.approx(1e-4, rel=1e-9) if how == "given" else noise > 0


def test_the_papers_form_repeats_itself():
    X, optimizer = four_asks(
        recipes.tv_gp_ucb, {"pending": IgnorePending()}, BOX, "given", num_told=3
    )
    assert X.diff().max() < 0.02
    assert optimizer.repeats_open_trials


@pytest.mark.parametrize(
    "recipe",
    [recipes.tv_gp_ucb, recipes.gp_ucb, recipes.gp_ts, recipes.compressed_gp],
)
def test_open_trials_are_hallucinated_by_default(recipe):
    assert recipe(**ARMS).pending == Hallucinate()


@pytest.fixture
def problem():
    return drifting_gp(unit_grid(4), rbf(), 0.1, horizon=40, noise_variance=NOISE)


@pytest.mark.parametrize("form", FORMS)
def test_outcomes_that_never_come(problem, form):
    """Every third is lost; the loop goes on, and says so."""
    recipe, pending = FORMS[form]
    optimizer = recipe(
        choices=problem.choices,
        covar_module=rbf(),
        forgetting_rate=0.1,
        noise_variance=NOISE,
        pending=pending,
    )

    def delay(trial):
        return math.inf if trial.id % 3 == 0 else 2.5 * (trial.id % 4)

    history = run(problem, optimizer, horizon=40, delay=delay, progress=False)
    lost = [each.trial.id for each in history.rounds if math.isnan(each.reward)]
    on_time = {i for i in range(1, 41) if i + delay_of(i) <= 40}
    assert set(lost) == set(range(1, 41)) - on_time
    assert {trial.id for trial in optimizer.open_trials} == set(lost)
    assert optimizer.trial_log.num_told == len(on_time)
    assert isinstance(optimizer.model, StreamingGP)
    expired = optimizer.expire_overdue(1000.0, 10.0)
    assert {trial.id for trial in expired} == set(lost)
    assert optimizer.open_trials == ()


def delay_of(i):
    return math.inf if i % 3 == 0 else 2.5 * (i % 4)


@pytest.mark.parametrize("bad", [-1.0, math.nan, -math.inf])
def test_a_delay_that_is_none(problem, bad):
    optimizer = recipes.gp_ucb(choices=problem.choices, covar_module=rbf(), noise_variance=NOISE)
    with pytest.raises(ValueError):
        run(problem, optimizer, horizon=3, delay=lambda trial: bad, progress=False)
