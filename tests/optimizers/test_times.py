"""Times as a caller states them: texts, exact timestamps, and what holds the present."""

from datetime import UTC, datetime

import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import RBFKernel

from tvbo import recipes
from tvbo.evaluation.backtesting.rivals import DriftUCB
from tvbo.optimizers import GPOptimizer, IgnorePending, Optimizer
from tvbo.retention import Reset, SizeLimit, SlidingWindow
from tvbo.spaces import FiniteSpace
from tvbo.storage import read_run

SPACE = {"x": (0.0, 1.0)}
CHOICES = torch.linspace(0, 1, 21, dtype=torch.float64).unsqueeze(-1)
GIVEN = {"covar_module": RBFKernel().double(), "noise_variance": 0.01}
NOT_ISO = [
    "08/01/2025",
    "08:00",
    "now",
    "today",
    "2025-13-01",
    "",
    "1e9",
    "-2025",
    "20250131080000",
]
UNITS = ["1ns", "1us", "7us", "1ms", "1s", "13s", "1min", "15min", "1h", "1D", "7D", "365D"]
ZONES = [None, "UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kathmandu"]


def stamps(count, zone, seed=0):
    """Return times from 1970 to 2100, half of them about changes of the clocks."""
    generator = torch.Generator().manual_seed(seed)
    years = torch.randint(1970, 2101, (count // 2,), generator=generator).tolist()
    moments = [pd.Timestamp(f"{year}-{10 if year % 2 else 4}-01").value for year in years]
    days = 40 * 86400 * 10**9
    spread = torch.randint(-days, days, (count // 2,), generator=generator)
    end = pd.Timestamp("2100-01-01").value
    any_time = torch.randint(0, end, (count - count // 2,), generator=generator).tolist()
    values = [a + b for a, b in zip(moments, spread.tolist(), strict=True)] + any_time
    # As coarse as logs are: to the nanosecond, microsecond, second and hour.
    steps = [10**n for n in (0, 3, 9)] + [3600 * 10**9]
    values = [value // steps[i % 4] * steps[i % 4] for i, value in enumerate(values)]
    index = pd.to_datetime(pd.Series(values), unit="ns")
    return (index if zone is None else index.dt.tz_localize("UTC").dt.tz_convert(zone)).tolist()


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("count", [100, pytest.param(2_000, marks=pytest.mark.slow)])
def test_a_timestamp_comes_back_to_the_nanosecond(unit, count):
    for seed, zone in enumerate(ZONES):
        optimizer = recipes.random_search(choices=CHOICES, time_unit=unit, time_zone=zone)
        labels, given = optimizer.labels, stamps(count, zone, seed)
        back = [labels.stamp(labels.number(t)) for t in given]
        assert back == given
        assert [t.isoformat() for t in back] == [t.isoformat() for t in given]
        assert [optimizer.attach(CHOICES[0], t).time for t in given[:8]] == given[:8]
        # A number alone is one to the microsecond.
        coarse = [t for t in given if t.value % 1000 == 0]
        assert [labels.stamp(float(labels.number(t))) for t in coarse] == coarse


def test_a_timestamp_stays_exact_in_tables_and_records(tmp_path):
    times = pd.date_range("2026-10-25", periods=8, freq="17min", tz="Europe/Berlin")
    times += pd.to_timedelta(range(8), unit="ns")
    units = {"time_unit": "1D", "time_zone": "Europe/Berlin"}
    with recipes.tv_gp_ucb(**FINITE, **units) as optimizer:
        optimizer.record(tmp_path / "run.db")
        for t in times:
            optimizer.ask(t)
        assert optimizer.recommend(t=times[-1]).to_row()["t"] == times[-1]
    for path in (None, tmp_path / "run.db"):
        with optimizer if path is None else Optimizer.open(path) as found:
            assert found.open_frame().merge(pd.DataFrame({"t": times}), on="t").shape[0] == 8
    assert read_run(tmp_path / "run.db").to_frame().t.tolist() == times.tolist()


def test_texts_are_times_in_iso_8601():
    optimizer = recipes.tv_gp_ucb(bounds=SPACE, time_unit="1h", time_zone="UTC")
    table = pd.DataFrame({"t": ["20270303T10Z", "2027-03-03T12:00+01:00"], "x": 0.5, "outcome": 1})
    assert optimizer.attach_frame(table) == 2
    trial = optimizer.ask("2027-03-04T10:00Z")
    assert trial.time == datetime(2027, 3, 4, 10, tzinfo=UTC)
    assert optimizer.recommend(t="2027-03-04 13:00:00+03:00").t == trial.t
    assert optimizer.expire_overdue("2027-03-05T00:00Z", 10) == (trial,)


@pytest.mark.parametrize("text", NOT_ISO)
def test_other_texts_are_refused(text):
    optimizer = recipes.tv_gp_ucb(bounds=SPACE, time_unit="1h")
    table = pd.DataFrame({"t": ["2025-01-20", text], "x": 0.5, "outcome": 1.0})
    for call in (
        lambda: optimizer.ask(text),
        lambda: optimizer.recommend(t=text),
        lambda: optimizer.attach({"x": 0.5}, text),
        lambda: optimizer.attach_frame(table),
    ):
        with pytest.raises(InputDataError) as error:
            call()
        assert repr(text) in str(error.value)
    assert optimizer.num_trials == 0


KNOWN = {**GIVEN, "forgetting_rate": 0.02}
FINITE = {"choices": CHOICES, **KNOWN}
MAKERS = {
    "finite": lambda: recipes.tv_gp_ucb(**FINITE),
    "ignoring": lambda: recipes.tv_gp_ucb(**FINITE, pending=IgnorePending()),
    "window": lambda: recipes.tv_gp_ucb(**FINITE, retention=SlidingWindow(4)),
    "limit": lambda: recipes.tv_gp_ucb(**FINITE, retention=SizeLimit(3)),
    "box": lambda: recipes.tv_gp_ucb(bounds=[(0.0, 1.0)], **KNOWN, retention=Reset(30)),
    "constrained": lambda: recipes.tv_gp_ucb(
        **FINITE, retention=SlidingWindow(4), constraints={"load": (None, 9.0)}
    ),
    "sw_ucb": lambda: DriftUCB(FiniteSpace(CHOICES), (-2, 2), 4.0),
    "random_search": lambda: recipes.random_search(bounds=[(0.0, 1.0)]),
}


def tell(optimizer, X, t):
    Y = -((X.item() - 0.3) ** 2) + t / 100
    names = optimizer.labels.outcomes
    optimizer.tell(optimizer.attach(X, t), {name: Y for name in names} if names else Y)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_lost_trial_holds_no_time(make):
    optimizer, other = make(), make()
    for each in (optimizer, other):
        for t in range(1, 9):
            tell(each, each.ask(float(t - 1)).X, float(t))
            each.expire(t * 2 - 1)
    late = other.attach(CHOICES[5], 5.5)
    optimizer.attach(CHOICES[5], 5.5)
    far = optimizer.ask(1e6)
    with pytest.raises(InputDataError) as error:
        optimizer.ask(9.0)
    assert f"trial {far.id}" in str(error.value)
    optimizer.fail(far, "the clock was wrong")
    for each in (optimizer, other):
        if not isinstance(each, GPOptimizer):
            continue
        each.tell(late.id, {"outcome": -0.1, "load": 1.0} if each.labels.outcomes else -0.1)
        assert each.recommend().t == 8.0
    for t in (8.5, 10.0):
        if isinstance(optimizer, GPOptimizer):
            means = [each.recommend(t=t).mean for each in (optimizer, other)]
            assert means[0] == pytest.approx(means[1], rel=1e-6)
        for each in (optimizer, other):
            each.expire(each.ask(t))
        if isinstance(optimizer, GPOptimizer):
            assert len(optimizer.observations) == len(other.observations)
        for each in (optimizer, other):
            tell(each, CHOICES[7], t)


def test_an_outcome_holds_its_time():
    optimizer = recipes.random_search(bounds=SPACE)
    told = optimizer.ask(8.0)
    optimizer.tell(told, 1.0)
    optimizer.fail(optimizer.ask(9.0), "broken")
    with pytest.raises(InputDataError) as error:
        optimizer.ask(7.0)
    assert f"trial {told.id}" in str(error.value)
    assert optimizer.ask(8.0).t == 8.0
