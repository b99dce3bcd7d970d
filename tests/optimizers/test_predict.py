"""What to expect of actions, and which parameters matter."""

import math

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import RBFKernel, ScaleKernel

from tvbo import recipes
from tvbo.optimizers.importance import total_effects
from tvbo.spaces import Box, FiniteSpace
from tvbo.spaces.search_space import make_search_space

MIXED = {"x": (0.0, 1.0), "rate": (1, 9), "kind": ["a", "b", "c"]}
GRID = torch.cartesian_prod(*[torch.linspace(0, 1, 6, dtype=torch.float64)] * 2)
KNOWN = {"forgetting_rate": 0.02, "noise_variance": 0.01}


def kernel():
    return ScaleKernel(RBFKernel()).double()


def made(**options):
    has_contexts = "context_bounds" in options
    recipe = recipes.tv_cgp_ucb if has_contexts else recipes.tv_gp_ucb
    name = "action_kernel" if has_contexts else "covar_module"
    return recipe(**{name: kernel(), **KNOWN, **options})


CASES = {
    "box": {"bounds": [(0.0, 1.0), (0.0, 2.0)]},
    "mixed": {"bounds": MIXED, "minimize": True},
    "finite": {"choices": GRID},
    "contexts": {
        "bounds": [(0.0, 1.0)],
        "context_bounds": [(0.0, 1.0)],
        "context_kernel": RBFKernel().double(),
    },
    "several": {"bounds": [(0.0, 1.0)] * 2, "constraints": {"cost": (None, 1.0)}},
}


def played(case, rounds=12):
    """Return an optimizer that was told of random actions, one of which failed."""
    optimizer, generator = made(**CASES[case]), torch.Generator().manual_seed(1)
    for t in range(rounds):
        context = None
        if optimizer.contexts is not None:
            context = optimizer.contexts.sample(generator)[0]
        trial = optimizer.attach(optimizer.search_space.sample(generator), float(t), context)
        value = math.sin(3 * trial.X[0, 0]) + 0.1 * t
        names = optimizer.labels.outcomes
        if t == 3:
            optimizer.fail(trial, "crashed")
        else:
            optimizer.tell(trial, {name: value for name in names} if names else value)
    return optimizer


@pytest.mark.parametrize("case", CASES)
def test_a_prediction_is_that_of_a_recommendation(case):
    optimizer = played(case)
    context = None if optimizer.contexts is None else torch.tensor([0.3])
    best = optimizer.recommend(context, 13.0)
    table = optimizer.predict(best.X.repeat(2, 1), 13.0, context)
    assert len(table) == 2
    for _, row in table.iterrows():
        expected = best.to_row()
        assert set(row.keys()) == set(expected)
        for name, value in expected.items():
            assert row[name] == (
                value if isinstance(value, str) else pytest.approx(value, rel=1e-9)
            )


@pytest.mark.parametrize("case", CASES)
def test_neither_changes_the_optimizer(case):
    one, two = played(case), played(case)
    context = None if one.contexts is None else torch.tensor([0.3])
    one.predict(one.search_space.sample(torch.Generator()), 20.0, context)
    one.importance()
    assert torch.equal(one.ask(20.0, context).X, two.ask(20.0, context).X)


def test_values_by_name_are_all_combinations():
    table = played("mixed").predict({"x": [0.1, 0.9], "rate": [3], "kind": ["a", "c"]})
    assert table[["x", "kind"]].to_numpy().tolist() == [
        [0.1, "a"],
        [0.1, "c"],
        [0.9, "a"],
        [0.9, "c"],
    ]
    assert (table["standard_deviation"] > 0).all()


def test_what_cannot_be_predicted():
    optimizer = played("box")
    with pytest.raises(InputDataError, match="7"):
        optimizer.predict([[7.0, 0.0]])
    with pytest.raises(BotorchTensorDimensionError):
        optimizer.predict([[0.5, 0.0]], context=torch.tensor([0.0]))
    with pytest.raises(BotorchTensorDimensionError):
        played("contexts").predict([[0.5]])
    with pytest.raises(ValueError, match="speed"):
        optimizer.importance("speed")
    with pytest.raises(InputDataError):
        made(**CASES["box"]).importance()


SPACES = {
    "box": lambda: [Box([(0.0, 1.0), (0.0, 2.0)])],
    "two spaces": lambda: [Box([(0.0, 1.0)]), Box([(0.0, 2.0)], name="context")],
    "finite": lambda: [FiniteSpace(torch.cartesian_prod(*[torch.arange(0.0, 1.01, 0.02)] * 2))],
}


@pytest.mark.parametrize("space", SPACES)
def test_total_effects_are_those_known(space):
    spaces = SPACES[space]()
    width = spaces[-1].bounds[1, -1].item()  # Variance of a uniform number: width² / 12.
    effects = total_effects(lambda X: X[:, 0] + 2 * X[:, 1] / width, spaces, seed=0)
    assert [*effects.values()] == pytest.approx([0.2, 0.8], rel=0.05)
    # f = (x - 1/2)(z - 1/2): no effect of one alone, all of both together.
    effects = total_effects(lambda X: (X[:, 0] - 0.5) * (X[:, 1] / width - 0.5), spaces, seed=0)
    assert [*effects.values()] == pytest.approx([1.0, 1.0], abs=0.08)


def test_total_effects_of_numbers_and_categories():
    space = make_search_space({"kind": ["a", "b", "c", "d"], "n": (0, 3), "x": (0.0, 1.0)}, None)
    # Of four values 0, 1, 2, 3 the variance is 5/4; x does nothing.
    effects = total_effects(lambda X: X[:, :4] @ torch.arange(4.0).double() + X[:, 4], [space], 3)
    assert effects == pytest.approx({"kind": 0.5, "n": 0.5, "x": 0.0}, rel=0.05)
    assert total_effects(lambda X: X[:, 0] * 0, [space], 3) == dict.fromkeys(effects, 0.0)


def test_what_matters_is_found():
    optimizer, generator = recipes.tv_gp_ucb(bounds=[(0.0, 1.0)] * 3), torch.Generator()
    for t in range(40):
        trial = optimizer.attach(optimizer.search_space.sample(generator), float(t))
        optimizer.tell(trial, 3 * (trial.X[0, 2].item() - 0.4) ** 2 + 0.2 * trial.X[0, 0].item())
    shares = optimizer.importance()
    assert [*shares] == ["action_2", "action_0", "action_1"]
    assert shares["action_1"] < 0.02 < shares["action_0"] < 0.5 < shares["action_2"]
