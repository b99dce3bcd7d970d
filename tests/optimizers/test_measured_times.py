"""When an outcome is measured: evaluations of some length, and times that are told."""

import copy
import math
import random
from datetime import timedelta

import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import RBFKernel

from tvbo import recipes
from tvbo.optimizers import Optimizer
from tvbo.storage import read_run

BOX = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
CHOICES = torch.linspace(0, 1, 21, dtype=torch.float64).unsqueeze(-1)
GIVEN = {
    "covar_module": RBFKernel().double(),
    "forgetting_rate": 0.05,
    "noise_variance": 0.01,
}
SPACES = {
    "box": {"bounds": BOX, "initial": 4},
    "given": {"bounds": BOX, **GIVEN},
    "choices": {"choices": CHOICES, **GIVEN},
    "learned choices": {"choices": CHOICES, "initial": 4},
}
any_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)


def moving(x, t):
    return math.exp(-((x - 0.5 - 0.3 * math.sin(t / 6)) ** 2) / 0.05)


def rows(optimizer):
    return optimizer.observations.X, optimizer.observations.Y


@any_space
def test_an_outcome_told_with_its_time_is_that_of_a_trial_then(space):
    told, attached = (recipes.tv_gp_ucb(**space) for _ in range(2))
    for t in range(1, 9):
        trial = told.ask(t=t)
        measured = t + 0.75 * (-1) ** t
        told.tell(trial, moving(trial.X.item(), measured), t=measured)
        attached.tell(attached.attach(trial.X, measured), moving(trial.X.item(), measured))
    for one, other in zip(rows(told), rows(attached), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    one, other = told.recommend(t=9.0), attached.recommend(t=9.0)
    assert one.mean == pytest.approx(other.mean, rel=1e-6)


@any_space
def test_the_action_is_chosen_for_the_end_of_the_evaluation(space):
    early, late = (recipes.tv_gp_ucb(**space) for _ in range(2))
    for t in range(4, 36, 4):
        trial = early.ask(t=float(t), duration=3.0)
        assert trial.t == t + 3.0
        same = late.ask(t=t + 3.0)
        assert torch.equal(same.X, trial.X)
        for each in (early, late):
            each.tell(trial.id, moving(trial.X.item(), trial.t))
    with pytest.raises(InputDataError):
        early.ask(t=34.0)  # The newest outcome was measured at 35.


def test_evaluations_of_several_lengths_side_by_side():
    optimizer = recipes.tv_gp_ucb(**SPACES["choices"], duration=2.0)
    long = optimizer.ask(t=1.0, duration=10.0)
    short = optimizer.ask(t=1.5)
    assert (long.t, short.t) == (11.0, 3.5)
    optimizer.tell(short, 0.5)
    # The longer one is still under way, and holds no time.
    assert optimizer.ask(t=3.5).t == 5.5


@pytest.mark.parametrize("name", ["given", "choices", "box"])
def test_a_recorded_run_goes_on_with_times_that_were_told(tmp_path, name):
    url, draw = tmp_path / "run.db", random.Random(0)
    optimizer = recipes.tv_gp_ucb(**SPACES[name], duration=2.0)
    optimizer.record(url)
    pending = []
    for t in range(1, 21):
        length = draw.choice([0.0, 5.0]) if t % 3 == 0 else None
        pending.append(optimizer.ask(t=float(t), duration=length))
        if len(pending) > 3:
            trial = pending.pop(draw.randrange(len(pending)))
            measured = min(trial.t + draw.choice([0.0, 0.5]), float(t))
            optimizer.tell(trial, moving(trial.X.item(), measured), t=measured)
        if t % 10 == 0:
            opened = Optimizer.open(url, read_only=True)
            for one, other in zip(rows(optimizer), rows(opened), strict=True):
                assert torch.equal(one, other)
            following = copy.deepcopy(optimizer).ask(t=t + 0.25)
            torch.testing.assert_close(opened.ask(t=t + 0.25).X, following.X, rtol=0, atol=1e-6)
    times = optimizer.observations.X[:, -1].tolist()
    told = read_run(url).to_frame().query("state == 'told'")
    assert sorted(told["t"]) == sorted(times)


def test_timestamps(tmp_path):
    optimizer = recipes.tv_gp_ucb(**SPACES["given"], time_unit="1h", duration="30min")
    optimizer.record(tmp_path / "run.db")
    trial = optimizer.ask(t="2026-01-01T08:00:00.000000001")
    assert trial.time == pd.Timestamp("2026-01-01T08:30:00.000000001")
    other = optimizer.ask(t="2026-01-01T08:10", duration=timedelta(hours=2))
    assert other.time == pd.Timestamp("2026-01-01T10:10")
    optimizer.tell(trial, 1.0)
    optimizer.tell(other, 1.0, t="2026-01-01T10:20")
    frame = read_run(tmp_path / "run.db").to_frame()
    assert frame["t"].tolist() == [trial.time, pd.Timestamp("2026-01-01T10:20")]
    assert len(Optimizer.open(tmp_path / "run.db").observations) == 2


@pytest.mark.parametrize("duration", [-1.0, math.inf, math.nan, "10min", timedelta(1)])
def test_no_such_duration(duration):
    optimizer = recipes.tv_gp_ucb(**SPACES["given"])
    with pytest.raises(InputDataError):
        optimizer.ask(t=1.0, duration=duration)
    with pytest.raises(InputDataError):
        recipes.tv_gp_ucb(**SPACES["given"], duration=duration)
    trial = optimizer.ask(t=1.0)
    assert trial.id == 1
    with pytest.raises(InputDataError):
        optimizer.tell(trial, 1.0, t=math.nan)
    assert optimizer.open_trials == (trial,)
