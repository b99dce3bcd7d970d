"""Limits on the step from one trial to the next."""

import itertools
import math

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from gpytorch.kernels import RBFKernel

from tvbo import recipes
from tvbo.acquisition import LogEI
from tvbo.optimizers import Optimizer

BOX = torch.tensor([[0.0, -2.0], [1.0, 2.0]], dtype=torch.float64)
GRID = torch.cartesian_prod(torch.linspace(0, 1, 11), torch.linspace(0, 5, 6)).double()
MIXED = {"x": (0.0, 1.0), "n": (0, 40), "rate": (1e-4, 1.0), "kind": ["a", "b", "c"]}
GIVEN = {"covar_module": RBFKernel().double(), "noise_variance": 0.01, "forgetting_rate": 0.03}
ROUNDING = 1e-6
"""Of a step, the share by which it may be longer: numbers are equal to single precision."""
CASES = {
    "box": (recipes.tv_gp_ucb, {"bounds": BOX, "max_step": [0.1, 0.3]}),
    "given kernel": (recipes.tv_gp_ucb, {"bounds": BOX, **GIVEN, "max_step": 0.1}),
    "draws": (recipes.gp_ts, {"bounds": BOX, "max_step": 0.1}),
    "improvement": (recipes.tv_gp_ucb, {"bounds": BOX, "max_step": 0.1, "acquisition": LogEI()}),
    "contexts": (
        recipes.tv_cgp_ucb,
        {"bounds": BOX, "context_bounds": [(0.0, 1.0)], "max_step": 0.1},
    ),
    "constraint": (
        recipes.tv_gp_ucb,
        {"bounds": BOX, "constraints": {"load": (None, 0.5)}, "max_step": 0.1},
    ),
    "choices": (recipes.tv_gp_ucb, {"choices": GRID, **GIVEN, "max_step": [0.1, 1.0]}),
    "mixed": (
        recipes.tv_gp_ucb,
        {"bounds": MIXED, "max_step": {"x": 0.1, "n": 3, "rate": 0.05}},
    ),
    "products": (
        recipes.tv_gp_ucb,
        {"bounds": {"n": (0, 9), "kind": ["a", "b", "c"]}, "max_step": {"n": 1}},
    ),
}


def steps_beyond(optimizer, steps, num_asks, has_context=False, elapsed=1.0, has_load=False):
    """Play some rounds of a moving peak, and return those whose step is too long."""
    beyond, newest = [], None
    for i in range(1, num_asks + 1):
        t = i * elapsed
        trial = optimizer.ask(t=t, context=[(i % 5) / 5] if has_context else None)
        named = trial.labels.actions is not None
        values = trial.parameters if named else dict(enumerate(trial.X[0].tolist()))
        if newest is not None:
            for name, step in steps.items():
                if abs(values[name] - newest[name]) > step * (1 + ROUNDING):
                    beyond.append((i, name))
        newest = values
        first = next(value for value in values.values() if not isinstance(value, str))
        value = math.exp(-((first - 0.5 - 0.4 * math.sin(t / 9)) ** 2) / 0.1)
        optimizer.tell(trial, {"outcome": value, "load": first} if has_load else value)
    return beyond


@pytest.mark.parametrize(
    ("name", "num_asks"),
    [(name, 30) for name in CASES]
    + [pytest.param(name, 200, marks=pytest.mark.slow) for name in CASES],
)
def test_no_step_is_longer_than_its_limit(name, num_asks):
    recipe, options = CASES[name]
    optimizer, limit = recipe(**options), options["max_step"]
    if not isinstance(limit, dict):
        limit = dict(enumerate(torch.tensor(limit).expand(2).tolist()))
    has_load = "constraints" in options
    contexts = "context_bounds" in options
    assert steps_beyond(optimizer, limit, num_asks, contexts, has_load=has_load) == []


@pytest.mark.parametrize("elapsed", [0.5, 3.0])
def test_a_rate_is_a_step_in_the_time_between(elapsed):
    optimizer = recipes.tv_gp_ucb(bounds=MIXED, max_rate={"x": 0.05, "n": 2.5})
    steps = {"x": 0.05 * elapsed, "n": 2.5 * elapsed}
    assert steps_beyond(optimizer, steps, 20, elapsed=elapsed) == []
    # No time, no step.
    newest = optimizer.ask(t=100.0)
    again = optimizer.ask(t=100.0)
    assert again.parameters["x"] == pytest.approx(newest.parameters["x"], rel=1e-9)
    assert again.parameters["n"] == newest.parameters["n"]


def test_the_time_between_is_that_of_the_asks(tmp_path):
    """An evaluation that takes long keeps no machine from moving."""
    url = tmp_path / "run.db"
    optimizer = recipes.tv_gp_ucb(bounds=MIXED, max_rate={"x": 0.05}, duration=5.0)
    optimizer.record(url)
    places = [optimizer.ask(t=float(t)).parameters["x"] for t in range(1, 8)]
    moves = [abs(b - a) for a, b in itertools.pairwise(places)]
    assert 0.01 < max(moves) <= 0.05 * (1 + ROUNDING)
    opened = Optimizer.open(url, read_only=True)
    assert opened.ask(t=8.0).parameters == optimizer.ask(t=8.0).parameters


def test_the_limit_is_reached():
    optimizer = recipes.tv_gp_ucb(bounds=[(0.0, 1.0), (0.0, 1.0)], **GIVEN, max_step=0.05)
    optimizer.tell(optimizer.attach([0.0, 0.0], t=0.0), 0.0)
    for t in range(1, 30):
        trial = optimizer.ask(t=t)
        optimizer.tell(trial, trial.X.sum().item())
    # A loop that climbs is at the top after twenty steps of .05.
    assert trial.X.min() > 0.9


def test_a_recorded_run_keeps_its_limit(tmp_path):
    for name in ("mixed", "choices"):
        recipe, options = CASES[name]
        optimizer = recipe(**options)
        optimizer.record(tmp_path / name)
        for t in range(1, 6):
            optimizer.tell(optimizer.ask(t=t), 0.1 * t)
        opened = Optimizer.open(tmp_path / name, read_only=True)
        torch.testing.assert_close(opened.ask(t=6).X, optimizer.ask(t=6).X, rtol=0, atol=1e-6)


def test_choices_out_of_reach_and_batches_are_refused():
    optimizer = recipes.tv_gp_ucb(choices=GRID, **GIVEN, max_step=0.1)
    optimizer.attach(GRID[0], t=0.0)
    with pytest.raises(InputDataError):
        optimizer.ask(t=1.0, choices=GRID[-5:])
    with pytest.raises(UnsupportedError):
        optimizer.ask(t=1.0, q=2)
    assert torch.equal(optimizer.ask(t=1.0, choices=GRID[:1]).X, GRID[:1])


@pytest.mark.parametrize(
    ("bounds", "limits", "error"),
    [
        (BOX, {"max_step": 0.0}, InputDataError),
        (BOX, {"max_rate": -1.0}, InputDataError),
        (BOX, {"max_step": math.nan}, InputDataError),
        (BOX, {"max_step": [0.1, 0.1, 0.1]}, BotorchTensorDimensionError),
        (BOX, {"max_step": {"x": 0.1}}, InputDataError),
        (MIXED, {"max_step": {"kind": 1}}, InputDataError),
        (MIXED, {"max_step": {"y": 0.1}}, InputDataError),
        (MIXED, {"max_step": {"n": 0.5}}, InputDataError),
    ],
)
def test_no_such_limit(bounds, limits, error):
    with pytest.raises(error):
        recipes.tv_gp_ucb(bounds=bounds, **limits)
