"""Trials that fail, and crashes told as penalties: what the next actions make of them."""

import copy
import logging
import math

import pytest
import torch
from botorch.acquisition import qLogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import RBFKernel, ScaleKernel

from tvbo import recipes
from tvbo.acquisition import LogEI, ThompsonSampling
from tvbo.acquisition.success import SuccessModel
from tvbo.evaluation.backtesting.rivals import DriftUCB, LastBest
from tvbo.optimizers import Optimizer
from tvbo.spaces import FiniteSpace, InputLayout
from tvbo.spaces.observations import Observations

GRID = torch.linspace(0.0, 1.0, 21, dtype=torch.float64).unsqueeze(-1)
SPACES = {
    "box": {"bounds": [(0.0, 1.0)]},
    "grid": {"choices": GRID},
    "mixed": {"bounds": {"x": (0.0, 1.0), "mode": ["a", "b"]}},
}


def make(recipe=recipes.tv_gp_ucb, **options):
    kernel = ScaleKernel(RBFKernel())
    kernel.outputscale, kernel.base_kernel.lengthscale = 0.25, 0.3
    given = {"covar_module": kernel, "noise_variance": 0.0025}
    if recipe is recipes.tv_gp_ucb:
        given["forgetting_rate"] = 0.01
    return recipe(**given, **options)


def play(optimizer, rounds, end, best=0.9):
    """Return how often a machine trips that stands no more than 0.6."""
    trips = 0
    for _ in range(rounds):
        trial = optimizer.ask()
        x = trial.X[0, 0].item()
        if x > 0.6:
            trips += 1
            end(optimizer, trial)
        else:
            optimizer.tell(trial, 1 - 4 * (x - best) ** 2)
    return trips


def fail(optimizer, trial):
    optimizer.fail(trial, "tripped")


def expire(optimizer, trial):
    optimizer.expire(trial)


@pytest.mark.parametrize(
    ("space", "end", "rounds", "most"),
    [("box", fail, 12, 4), ("grid", fail, 40, 8), ("grid", expire, 40, 8), ("mixed", fail, 10, 5)],
)
def test_an_action_that_failed_is_not_asked_for_again_and_again(space, end, rounds, most):
    assert play(make(**SPACES[space]), rounds, end) <= most


ACQUISITIONS = {
    "ucb": {},
    "improvement": {"acquisition": LogEI()},
    "draws": {"acquisition": ThompsonSampling()},
    "botorch": {"acquisition": qLogNoisyExpectedImprovement},
    "batch": {"acquisition": qLogExpectedImprovement},
}


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_failures_count_for_any_acquisition(name):
    def trips(**options):
        return play(make(choices=GRID, **ACQUISITIONS[name], **options), 25, fail)

    assert trips() <= 8 < trips(failures="ignore")


@pytest.mark.parametrize("space", ["box", "grid"])
def test_the_probability_of_success_is_shown_and_forgotten(space):
    optimizer = make(**SPACES[space])
    optimizer.tell(optimizer.attach([0.2], t=1.0), 0.5)
    assert optimizer.recommend(t=2.0).probability_of_success is None
    for t in (2.0, 3.0, 4.0):
        optimizer.fail(optimizer.attach([0.9], t=t), "tripped")
    here, soon, late = (
        optimizer.recommend(t=t, choices=[[x]]).probability_of_success
        for x, t in ((0.2, 5.0), (0.9, 5.0), (0.9, 200.0))
    )
    assert soon < 0.3 < late < here
    assert optimizer.recommend(t=5.0).to_row()["probability_of_success"] > 0.7


def test_gradients_of_the_probability():
    X = torch.rand(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    trials = Observations(X, (X[:, :1] < 0.6).double())
    bounds = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    success = SuccessModel(trials, bounds)
    assert torch.autograd.gradcheck(success.log_probability, X.clone().requires_grad_() + 0.05)


def test_many_choices_are_evaluated_as_few_are():
    X = torch.rand(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    trials = Observations(X, (X[:, :1] < 0.6).double())
    bounds = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    choices = InputLayout(2).rows(
        torch.rand(600, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3)), 2.0
    )
    success = SuccessModel(trials, bounds)
    few = torch.cat([success.log_probability(part) for part in choices.split(50)])
    torch.testing.assert_close(success.log_probability(choices), few, rtol=1e-10, atol=0)


def test_a_region_that_fails_is_told_from_failures_by_chance():
    t = torch.arange(60.0, dtype=torch.float64).unsqueeze(-1)
    X, random = t * 0.618 % 1, torch.Generator().manual_seed(3)
    spreads = []
    for fails in (torch.rand(60, 1, generator=random) < 0.25, X > 0.75):
        trials = Observations(torch.cat([X, t], dim=-1), (~fails).double())
        success = SuccessModel(trials, torch.tensor([[0.0], [1.0]], dtype=torch.float64))
        probability = success.log_probability(InputLayout(1).rows(GRID, 60.0)).exp()
        spreads.append((probability.max() - probability.min()).item())
    assert spreads[0] < 0.4 < 0.6 < spreads[1]


def test_a_nan_is_a_failure_where_the_caller_says_so():
    optimizer = make(choices=GRID, failures="nan", objectives=["speed", "heat"])
    optimizer.tell(optimizer.ask(), {"speed": 1.0, "heat": math.nan})
    assert optimizer.trial_log.num_failed == 1
    refused = make(choices=GRID)
    trial = refused.ask()
    with pytest.raises(InputDataError, match="nan"):
        refused.tell(trial, math.nan)
    assert refused.open_trials == (trial,)
    with pytest.raises(ValueError, match="never"):
        make(choices=GRID, failures="never")


def test_nor_with_learned_hyperparameters():
    assert play(recipes.tv_gp_ucb(choices=GRID), 30, fail) <= 10


def test_nor_by_a_bandit():
    arms = FiniteSpace(GRID)
    for optimizer in (
        DriftUCB(arms, (0.0, 1.0), 100.0),
        DriftUCB(arms, (0.0, 1.0), discount=0.99),
        LastBest(arms),
    ):
        assert play(optimizer, 40, fail, best=0.3) <= 18


def test_nor_for_one_of_several_outcomes():
    optimizer = make(choices=GRID, objectives=["speed"], constraints={"heat": (None, 2.0)})
    failed = optimizer.attach(GRID[20], t=0.0)
    optimizer.tell(optimizer.attach(GRID[10], t=0.0), {"speed": 0.5, "heat": 1.0})
    optimizer.fail(failed, "tripped")
    assert all(abs(optimizer.ask(t=1.0).X.item() - 1.0) > 0.1 for _ in range(3))


@pytest.mark.parametrize("recipe", [recipes.cgp_ucb, recipes.tv_cgp_ucb])
def test_nor_in_the_context_in_which_it_failed(recipe):
    optimizer = recipe(choices=GRID, context_bounds=[(0.0, 1.0)])
    for t in range(20):
        z = t % 2
        trial = optimizer.attach(GRID[t], float(t), [z])
        if z == 0 and t > 10:
            optimizer.fail(trial, "tripped")
        else:
            optimizer.tell(trial, 0.1 * t)
    low, high = (
        optimizer.recommend([z], choices=GRID[[18]]).probability_of_success for z in (0.0, 1.0)
    )
    assert low < 0.5 < 0.8 < high


@pytest.mark.slow
@pytest.mark.parametrize("space", SPACES)
def test_a_run_goes_on_alike_after_failures_and_penalties(space, tmp_path):
    optimizer = make(**SPACES[space])
    optimizer.record(tmp_path / "run.db")
    play(optimizer, 3, fail)
    play(optimizer, 3, lambda optimizer, trial: optimizer.tell(trial, -1e6))
    same = copy.deepcopy(optimizer)
    optimizer.close()
    with Optimizer.open(tmp_path / "run.db") as again:
        torch.testing.assert_close(again.ask().X, same.ask().X, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("minimize", [False, True])
@pytest.mark.parametrize("space", ["box", "grid"])
def test_the_size_of_a_penalty_does_not_matter(space, minimize, caplog):
    sign = -1 if minimize else 1
    asked = {}
    for penalty in (1e3, 1e6):
        optimizer = make(**SPACES[space], minimize=minimize)
        rows = asked[penalty] = []
        for x in (0.9, 0.1, 0.8, 0.5, 0.2, 0.7, 0.3):
            Y = -penalty if x > 0.6 else 1 - 4 * (x - 0.4) ** 2
            optimizer.tell(optimizer.attach([x], t=1.0 + x), sign * Y)
            if len(optimizer.observations) in (1, 4, 7):
                rows.append(optimizer.recommend().X.item())
                rows.append(optimizer.ask(t=2.0).X.item())
        assert optimizer.observations.Y.min() == -penalty
        assert abs(rows[-2] - 0.4) < 0.1
    assert asked[1e3][2:] == asked[1e6][2:]
    said = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert [f"{-sign * penalty:g}" in text for text, penalty in zip(said, asked, strict=True)]


def test_nor_with_learned_hyperparameters_or_noise_told(caplog):
    recommended = []
    for penalty in (1e3, 1e6):
        optimizer = recipes.tv_gp_ucb(bounds=[(0.0, 1.0)])
        for i in range(12):
            x = (0.05 + 0.37 * i) % 1
            Y = -penalty if x > 0.6 else 1 - 4 * (x - 0.4) ** 2
            optimizer.tell(optimizer.attach([x], t=float(i)), Y, Yvar=0.01)
        recommended.append(optimizer.recommend().X.item())
    assert recommended[0] == recommended[1] == pytest.approx(0.4, abs=0.1)


def test_a_level_that_falls_is_no_crash():
    optimizer = make(choices=GRID)
    for t in range(24):
        level = 0.0 if t < 12 else -1e3
        optimizer.tell(optimizer.attach(GRID[t * 8 % 21], t=float(t)), level + 0.1 * (t % 3))
    assert optimizer.recommend(t=24.0).mean < -100
    # By its own outcomes alone.
    assert optimizer.recommend(t=24.0).mean < optimizer.recommend(t=30.0).mean


def test_a_context_that_is_worse_is_no_crash():
    contexts = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    optimizer = recipes.tv_cgp_ucb(choices=GRID, contexts=contexts)
    for i in range(24):
        X, context = GRID[i * 8 % 21], contexts[i % 2]
        level = -1e3 * context.item()
        Y = level - (X.item() - 0.3) ** 2
        optimizer.tell(optimizer.attach(X, t=float(i), context=context), Y)
    assert optimizer.recommend(context=contexts[1], t=24.0).mean < -900


def test_a_loop_that_has_converged_is_left_alone():
    """Its newest outcomes are alike, and the rest of the function is far below them."""
    optimizer = recipes.tv_gp_ucb(choices=GRID, forgetting_rate=0.0)
    for t, x in enumerate((0, 5, 8, 12, 16, 20, *[10] * 24)):
        Y = -((GRID[x].item() - 0.5) ** 2) + 1e-9 * (t % 3)
        optimizer.tell(optimizer.attach(GRID[x], t=float(t)), Y)
    assert optimizer.recommend(choices=GRID[[0]]).mean == pytest.approx(-0.25, abs=0.05)
