"""Whole tables told and attached: as row by row, and all or nothing."""

import io
import math

import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import RBFKernel

from tvbo import recipes
from tvbo.optimizers import TrialError
from tvbo.spaces.observations import Observations

SPACE = {"x": (0.0, 1.0), "n": (1, 40), "rule": ["a", "b", "c"]}
BEGIN = pd.Timestamp("2026-01-01", tz="UTC")


def make(**changes):
    given = {"minimize": True, "time_unit": "1h", "time_zone": "UTC"}
    return recipes.tv_cgp_ucb(bounds=SPACE, context_bounds={"load": (0.0, 5.0)}, **given | changes)


def known():
    kernel = RBFKernel().double()
    return recipes.cgp_ucb(
        bounds=[(0.0, 1.0)], contexts=[[0.0], [1.0]], covar_module=kernel, noise_variance=0.1
    )


@pytest.fixture
def log():
    n = 30
    return pd.DataFrame(
        {
            "rule": ["a", "b", "c"] * (n // 3),
            "t": [BEGIN - pd.Timedelta(hours=n - i) for i in range(n)],
            "load": [i % 5 + 0.5 for i in range(n)],
            "x": [i / n for i in range(n)],
            "n": [i + 1 for i in range(n)],
            "outcome": [math.sin(i) for i in range(n)],
            "note": "of another program",
        }
    )


def assert_same(one: Observations, two: Observations):
    assert torch.equal(one.X, two.X)
    assert torch.equal(one.Y, two.Y)
    assert (one.Yvar is None) == (two.Yvar is None)


def test_a_log_enters_as_row_by_row(log):
    whole, single = make(), make()
    assert whole.attach_frame(log) == 30
    for row in log.to_dict("records"):
        action = {name: row[name] for name in SPACE}
        trial = single.attach(action, row["t"], {"load": row["load"]})
        single.tell(trial, row["outcome"])
    assert_same(whole.observations, single.observations)
    assert whole.trial_log.num_told == whole.num_trials == 30


@pytest.mark.parametrize("form", ["csv", "shuffled", "text"])
def test_a_log_as_people_have_it(log, form):
    expected = make()
    expected.attach_frame(log)
    if form == "csv":
        log = pd.read_csv(io.StringIO(log.to_csv(index=False)))
    elif form == "text":
        log["t"] = log.t.map(str)
    else:
        log = log[list(reversed(log.columns))].set_index("note")
    found = make()
    assert found.attach_frame(log) == 30
    assert_same(found.observations, expected.observations)


def test_columns_of_numbers_without_names():
    table = pd.DataFrame({"action_0": [0.1, 0.9], "context_0": [0, 1], "t": [1, 2], "y": [3, 4]})
    optimizer = known()
    assert optimizer.attach_frame(table.assign(noise=0.5), outcome="y", variance="noise") == 2
    assert optimizer.observations.X.tolist() == [[0.1, 0.0, 1.0], [0.9, 1.0, 2.0]]
    assert optimizer.observations.Y.flatten().tolist() == [3, 4]
    assert optimizer.observations.Yvar.flatten().tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    "change",
    [
        {"rule": "d"},
        {"x": 1.5},
        {"load": 7.0},
        {"outcome": math.nan},
        {"outcome": "good"},
        {"outcome": None},
        {"outcome": 1e60},
        {"t": "yesterday"},
        {"t": None},
        {"t": 5.0},
        {"t": pd.Timestamp("2026-01-01")},
        {"n": 2.5},
    ],
)
def test_a_log_with_a_bad_row_changes_nothing(log, change):
    optimizer = make()
    log = log.astype(object)
    for name, value in change.items():
        log.loc[17, name] = value
    with pytest.raises(InputDataError):
        optimizer.attach_frame(log)
    assert optimizer.num_trials == len(optimizer.observations) == 0


def test_late_outcomes_of_several_trials():
    optimizer, same = make(), make()
    for each in (optimizer, same):
        for hour in range(4):
            each.ask(BEGIN + pd.Timedelta(hours=hour), {"load": hour})
    table = optimizer.open_frame()
    assert table.columns.tolist() == ["trial", "t", "x", "n", "rule", "load"]
    assert table.load.tolist() == [0, 1, 2, 3]
    # A column of whole numbers with a gap becomes one of floats; the gap is not told.
    table["outcome"] = [1.0, None, 3.0, 4.0]
    assert optimizer.tell_frame(table.iloc[::-1]) == 3
    assert [trial.id for trial in optimizer.open_trials] == [2]
    for number, Y in ((4, 4.0), (3, 3.0), (1, 1.0)):
        same.tell(number, Y)
    assert_same(optimizer.observations, same.observations)
    assert optimizer.tell_frame(pd.DataFrame({"trial": [2.0], "outcome": [2.0]})) == 1
    assert optimizer.open_frame().columns.tolist() == table.columns.tolist()[:-1]


@pytest.mark.parametrize(
    ("trials", "outcomes", "error"),
    [
        ([1, 1], [1.0, 2.0], InputDataError),
        ([1, 9], [1.0, 2.0], TrialError),
        ([1, 2], [1.0, "x"], InputDataError),
        ([1, 2], [1.0, math.inf], InputDataError),
        ([1, None], [1.0, 2.0], TrialError),
        ([1, 3], [1.0, 2.0], TrialError),
        ([1, 1.7], [1.0, 2.0], TrialError),
        ([1, 2], [1.0, ""], InputDataError),
    ],
)
def test_a_bad_outcome_tells_none(trials, outcomes, error):
    optimizer = known()
    for number in range(3):
        optimizer.ask(t=float(number), context=[0.0])
    optimizer.tell(3, 0.5)
    with pytest.raises(error):
        optimizer.tell_frame(pd.DataFrame({"trial": trials, "outcome": outcomes}))
    assert [trial.id for trial in optimizer.open_trials] == [1, 2]
    with pytest.raises(InputDataError):
        optimizer.tell_frame(pd.DataFrame({"trial": [1], "outcome": [1.0]}), outcome="y")


def test_variances_come_with_all_outcomes_or_none(tmp_path):
    table = pd.DataFrame({"action_0": [0.1, 0.9], "context_0": [0, 1], "t": [1, 2], "y": [3, 4]})
    optimizer = known()
    optimizer.record(tmp_path / "run.db")
    with pytest.raises(InputDataError):
        optimizer.attach_frame(table.assign(noise=[0.1, None]), outcome="y", variance="noise")
    optimizer.attach_frame(table, outcome="y")
    with pytest.raises(InputDataError):
        optimizer.attach_frame(table.assign(noise=0.1), outcome="y", variance="noise")
    # Nothing has changed, and the record goes on.
    assert optimizer.num_trials == 2
    assert optimizer.ask(t=3.0, context=[0.0]).id == 3


def test_text_times_over_a_change_of_clocks():
    def made():
        return recipes.tv_gp_ucb(
            bounds={"x": (0.0, 1.0)}, time_unit="1h", time_zone="Europe/Berlin"
        )

    times = pd.date_range("2026-03-28", periods=4, freq="12h", tz="Europe/Berlin")
    log = pd.DataFrame({"t": times, "x": 0.5, "outcome": [1.0, 2.0, 3.0, 4.0]})
    one, two = made(), made()
    one.attach_frame(log)
    two.attach_frame(pd.read_csv(io.StringIO(log.to_csv(index=False))))
    assert_same(one.observations, two.observations)


def test_empty_tables():
    optimizer = recipes.tv_gp_ucb(bounds={"x": (0.0, 1.0)})
    assert optimizer.attach_frame(pd.DataFrame({"x": [], "t": [], "outcome": []})) == 0
    assert optimizer.tell_frame(pd.DataFrame({"trial": [], "outcome": []})) == 0
    with pytest.raises(InputDataError):
        recipes.tv_gp_ucb(choices=pd.DataFrame({"x": []}))
