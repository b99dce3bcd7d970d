import itertools

import pytest
import torch
from botorch.acquisition import AcquisitionFunction

from tvbo.models import TimeVaryingGP
from tvbo.optim.maximize import maximize
from tvbo.optim.space_filling import space_filling_action
from tvbo.spaces import (
    AskContext,
    MixedSpace,
    Parameters,
)
from tvbo.spaces.observations import InputLayout, Observations

SPACE = {"x": (-1.0, 1.0), "n": (1, 6), "kind": ["a", "b", "c"], "flag": [True, False]}
BONUS = {"a": 0.0, "b": 0.3, "c": 0.1}


def value(x, n, kind, flag, t):
    """A function whose best x depends on all others."""
    peak = 0.2 * n - 0.7 + (0.3 if flag else 0.0) + 0.05 * t
    return -((x - peak) ** 2) - 0.1 * (n - 4) ** 2 + BONUS[kind] + 0.05 * flag


class Function(AcquisitionFunction):
    """:func:`value` of rows, times a scale."""

    def __init__(self, model, scale=1.0):
        super().__init__(model)
        self.scale = scale

    def forward(self, X):
        x, n, kind, flag, t = X[:, 0].split([1, 1, 3, 1, 1], dim=-1)
        bonus = kind @ kind.new_tensor(list(BONUS.values())).unsqueeze(-1)
        peak = 0.2 * n - 0.7 + 0.3 * (1 - flag) + 0.05 * t
        found = -((x - peak) ** 2) - 0.1 * (n - 4) ** 2 + bonus + 0.05 * (1 - flag)
        return self.scale * found.squeeze(-1)


@pytest.fixture
def space():
    return MixedSpace(Parameters.of(SPACE))


@pytest.fixture
def ask_context(space):
    return AskContext(1, 2.0, None, InputLayout(space.dim), Observations.empty(space.dim + 1))


@pytest.fixture
def model(space, generator):
    X = torch.rand(4, space.dim + 1, dtype=torch.float64, generator=generator)
    return TimeVaryingGP(X, X[:, :1], forgetting_rate=0.1)


@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e9])
def test_it_finds_the_maximum_of_all_combinations(space, ask_context, model, generator, scale):
    found = maximize(Function(model, scale), space, ask_context, generator)
    values = space.parameters.decode(found)
    combinations = itertools.product(range(1, 7), BONUS, (True, False))
    x = torch.linspace(-1, 1, 2001, dtype=torch.float64).tolist()
    best = max(value(each, *rest, 2.0) for rest in combinations for each in x)
    assert value(*values.values(), 2.0) >= best - 1e-5
    assert values["n"] == 4
    assert values["kind"] == "b"
    assert values["flag"]
    assert torch.equal(space.snap(found), found)


def test_categories_that_are_tied_are_chosen_at_random(space, ask_context, model):
    class Flat(Function):
        def forward(self, X):
            X = X.clone()
            X[..., 2:5] = 0
            return super().forward(X)

    def chosen(seed):
        generator = torch.Generator().manual_seed(seed)
        return space.parameters.decode(maximize(Flat(model), space, ask_context, generator))["kind"]

    assert {chosen(seed) for seed in range(12)} == set(BONUS)
    assert chosen(3) == chosen(3)


def test_of_a_constant_any_action_is_drawn(space, ask_context, model):
    class Constant(AcquisitionFunction):
        def forward(self, X):
            return X.new_zeros(len(X))

    def drawn(seed):
        generator = torch.Generator().manual_seed(seed)
        return tuple(maximize(Constant(model), space, ask_context, generator)[0].tolist())

    assert len({drawn(seed) for seed in range(10)}) == 10


def test_a_large_integer_is_searched_as_a_number(generator):
    space = MixedSpace(Parameters.of({"n": (0, 10**6), "kind": ["a", "b"], "x": (0.0, 1.0)}))

    class Peak(AcquisitionFunction):
        def forward(self, X):
            n, kind, x = X[:, 0, :3].unbind(-1)
            return -(((n - 123_456.3) / 1e6) ** 2) + 0.1 * kind - x**2

    X = torch.rand(4, 4, dtype=torch.float64, generator=generator)
    model = TimeVaryingGP(X, X[:, :1], forgetting_rate=0.1)
    context = AskContext(1, 2.0, None, InputLayout(3), Observations.empty(4))
    found = maximize(Peak(model), space, context, generator)
    values = space.parameters.decode(found)
    assert abs(values["n"] - 123_456) <= 100
    assert values["kind"] == "b"
    assert values["x"] < 1e-3


def test_actions_that_fill_the_space_differ(space):
    tried = torch.empty(0, space.dim, dtype=torch.float64)
    rows = torch.cat([space_filling_action(space, tried, n, 0) for n in range(1, 17)])
    assert torch.equal(space.snap(rows), rows)
    values = [space.parameters.decode(row) for row in rows]
    assert {each["kind"] for each in values} == set(BONUS)
    assert {each["n"] for each in values} == set(range(1, 7))
    assert len({each["x"] for each in values}) == 16


class Product(AcquisitionFunction):
    """The product of both columns, with a penalty above a limit."""

    def forward(self, X):
        product = X[:, 0, 0] * X[:, 0, 1]
        return product - 10 * (product - 29.5).clamp_min(0.0) ** 2


def test_floats_are_searched_again_beside_a_rounded_integer(model, generator):
    """Of 64 values, which are searched as numbers: the limit holds after they are rounded."""
    space = MixedSpace(Parameters.of({"n": (1, 64), "x": (0.0, 1.0)}))
    ask = AskContext(1, 2.0, None, InputLayout(2), Observations.empty(3))
    n, x = maximize(Product(model), space, ask, generator)[0].tolist()
    assert n == round(n)
    # The maximum is 1 / 20 above the limit.
    assert n * x == pytest.approx(29.55, abs=1e-3)
