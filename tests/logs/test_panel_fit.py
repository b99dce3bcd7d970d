"""The fit of a panel, its forecasts, files and settings."""

import json

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError

from tvbo.kernels import (
    TemporalDecayKernel,
    TemporalMaternKernel,
)
from tvbo.logs import PanelFit, fit_panel
from tvbo.logs.forms import exponential
from tvbo.logs.saved import SavedFitError, to_data
from tvbo.logs.season import PeriodicSeason, SegmentProfile, WorkweekSeason

RATE, NOISE = 0.15, 0.05
MEANS = np.array([0.0, 1.0, 2.0, 3.0, -1.0])


def panel(steps=240, period=None, seed=0, rate=RATE):
    """A panel of five arms with means of their own, drift, noise, and a season for each arm."""
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(0.3 * np.eye(5) + 0.2)
    state = root @ rng.normal(size=5)
    values = []
    for _ in range(steps):
        values.append(MEANS + state + NOISE**0.5 * rng.normal(size=5))
        state = (1 - rate) ** 0.5 * state + rate**0.5 * root @ rng.normal(size=5)
    values = np.array(values)
    times = np.arange(float(steps))
    if period is not None:
        values += 1.5 * np.sin(2 * np.pi * times[:, None] / period + np.arange(5))
    return torch.as_tensor(values), torch.as_tensor(times)


@pytest.fixture(scope="module")
def fit():
    values, times = panel()
    return fit_panel(values, times, season=None)


def test_rate_means_and_noise_are_found(fit):
    assert fit.settings()["forgetting_rate"] == pytest.approx(RATE, rel=0.35)
    assert fit.noise_variance == pytest.approx(NOISE, rel=0.4)
    np.testing.assert_allclose(fit.arm_means, MEANS, atol=0.5)
    assert fit.season is None
    assert "only candidate" in fit.reason


@pytest.mark.slow
def test_times_with_missing_values_are_left_out_on_request():
    values, times = panel(60)
    segments = torch.arange(60) // 30
    full = torch.ones(60, dtype=torch.bool)
    full[[3, 4, 40]] = False
    holed = values.clone()
    holed[3:5, 2] = holed[40] = float("nan")
    given = {"season": None, "drop_missing": True}
    fit = fit_panel(holed, times, segments=segments, **given)
    expected = fit_panel(values[full], times[full], segments=segments[full], season=None)
    assert fit.log_likelihood == expected.log_likelihood
    assert fit.messages[0] == (
        "3 of 60 times have an arm without a value, and are left out of the fit."
    )
    assert fit.messages[1:] == expected.messages


@pytest.mark.slow
def test_outcomes_and_times_in_other_units_give_the_same_model():
    values, times = panel(120)
    one = fit_panel(values, times, season=None, temporal_kernel=TemporalMaternKernel())
    # Powers of two, by which products are exact.
    other = fit_panel(1024 * values, 4 * times, season=None, temporal_kernel=TemporalMaternKernel())
    assert other.mean == pytest.approx(1024 * one.mean, rel=1e-4)
    assert other.noise_variance == pytest.approx(1024**2 * one.noise_variance, rel=1e-2)
    (kernel,), (scaled,) = one.temporal_kernels, other.temporal_kernels
    assert scaled.lengthscale.item() == pytest.approx(4 * kernel.lengthscale.item(), rel=1e-2)
    ahead = one.forecast(times[-1] + torch.arange(1.0, 4.0)).mean
    later = other.forecast(4 * (times[-1] + torch.arange(1.0, 4.0))).mean
    torch.testing.assert_close(later, 1024 * ahead, rtol=1e-3, atol=1.0)


@pytest.mark.slow
def test_a_season_is_found_in_the_log_and_kept():
    values, times = panel(240, period=24)
    fit = fit_panel(values, times)
    assert fit.season_length == pytest.approx(24, rel=0.02)
    assert fit.reason.startswith("exponential, season: it has the largest evidence")
    truth = panel(264, period=24, rate=0.0)[0][-24:] - panel(264, rate=0.0)[0][-24:]
    found = torch.as_tensor(
        fit.season.basis(np.arange(240.0, 264.0))
        @ (fit.mode_forecast.arm_coefficients()[:, 1 : 1 + len(fit.season.frequencies)].T)
    )
    assert (found - truth).square().mean() < 0.1 * truth.square().mean()


@pytest.mark.slow
def test_a_log_without_a_season_has_none():
    values, times = panel(seed=3)
    fit = fit_panel(values, times)
    assert fit.season is None
    assert fit.reason.startswith("exponential, no season: it has the largest evidence")
    assert len(fit.evidence) == 2
    assert all(row.predictive_score is not None for row in fit.evidence)


@pytest.mark.slow
@pytest.mark.parametrize(("rates", "name"), [([0.2], "exponential"), ([0.7, 0.02], "two-scales")])
def test_noise_is_not_taken_for_a_time_scale(rates, name):
    rng = np.random.default_rng(4)
    arms, steps = 30, 300
    places = rng.uniform(size=(arms, 2))
    squares = ((places[:, None] - places) ** 2).sum(-1)
    root = np.linalg.cholesky(np.exp(-0.5 * squares / 0.3**2) + 1e-9 * np.eye(arms))
    values = rng.normal(size=arms) + 0.3 * rng.normal(size=(steps, arms))
    for rate in rates:
        state = rng.normal(size=arms)
        for t in range(steps):
            values[t] += len(rates) ** -0.5 * root @ state
            state = (1 - rate) ** 0.5 * state + rate**0.5 * rng.normal(size=arms)
    fit = fit_panel(
        torch.as_tensor(values), torch.arange(float(steps)), season=None, temporal_kernel="auto"
    )
    assert fit.evidence[fit.chosen].temporal_kernel == name
    found = [kernel.forgetting_rate.item() for kernel in fit.temporal_kernels]
    np.testing.assert_allclose(sorted(found), sorted(rates), rtol=0.5)
    assert fit.noise_variance == pytest.approx(0.09, rel=0.3)


def weeks(steps):
    """A panel from a Thursday on, in steps of 3 hours: a daily profile on working days only."""
    values, times = panel(steps, rate=0.5)
    working = (3 + np.arange(steps) // 8) % 7 < 5
    profile = 2 * np.sin(2 * np.pi * np.arange(steps) / 8)[:, None] * np.array([1, 0, 0, 0, -1])
    return values + torch.as_tensor(working[:, None] * profile), times


@pytest.mark.slow
def test_working_days_are_told_from_weekends(tmp_path):
    values, times = weeks(136)
    fit = fit_panel(values, times, time_unit="3h", origin="2026-01-01 00:00+01:00")
    assert isinstance(fit.season, WorkweekSeason)
    assert "working days apart from weekends, period 8 × 3h" in str(fit)
    # The log ends on a Saturday; the peak is the third step of a day, the trough the seventh.
    sunday, monday = (136 + 8.0 * day + torch.tensor([2.0, 6.0]) for day in (0, 1))
    peak, trough = fit.forecast(monday).mean
    assert (peak - trough)[[0, 4]].tolist() == pytest.approx([4.0, -4.0], abs=1.2)
    peak, trough = fit.forecast(sunday).mean
    assert (peak - trough)[[0, 4]].tolist() == pytest.approx([0.0, 0.0], abs=1.2)
    fit.save(tmp_path / "fit.json")
    loaded = PanelFit.load(tmp_path / "fit.json")
    torch.testing.assert_close(loaded.forecast(monday).mean, fit.forecast(monday).mean)


@pytest.mark.slow
def test_segments_have_a_profile_in_common():
    parts = [panel(40, seed=seed) for seed in range(6)]
    bump = torch.sin(torch.arange(40.0) / 39 * torch.pi)[:, None] * torch.tensor([3.0, 0, 0, 0, -3])
    values = torch.cat([values + bump for values, _ in parts])
    times = torch.cat([times for _, times in parts])
    segments = torch.arange(6).repeat_interleave(40)
    fit = fit_panel(values, times, segments=segments)
    assert isinstance(fit.season, SegmentProfile)
    assert fit.last_time is None
    middle, start = fit.forecast(torch.tensor([20.0, 0.0])).mean
    assert (middle - start)[0] == pytest.approx(3.0, abs=1.0)
    assert (middle - start)[4] == pytest.approx(-3.0, abs=1.0)


def test_forecast_begins_at_the_newest_values_and_returns_to_the_means(fit):
    values, times = panel()
    near, far = fit.forecast(torch.tensor([times[-1].item(), 1e4])).mean
    assert (near - values[-1]).abs().max() < 4 * NOISE**0.5
    torch.testing.assert_close(far, fit.arm_means, rtol=1e-6, atol=1e-6)
    band = fit.forecast(times[-1] + torch.tensor([1.0, 5.0, 50.0]), level=0.9)
    assert (band.standard_deviation.diff(dim=0) > 0).all()
    assert ((band.lower < band.mean) & (band.mean < band.upper)).all()


def test_mean_module_is_the_forecast(fit):
    later = torch.tensor([240.0, 243.5])
    rows = torch.cartesian_prod(torch.arange(5.0), later).double()
    expected = fit.forecast(later).mean.T.flatten()
    torch.testing.assert_close(fit.mean_module(rows), expected)
    torch.testing.assert_close(
        fit.mean_module(rows.reshape(5, 2, 2)), expected.reshape(5, 2), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize(
    "kernels",
    [
        [TemporalMaternKernel(), TemporalDecayKernel()],
        [exponential(0.5), exponential(0.05)],
    ],
    ids=["sum", "scales"],
)
def test_a_file_holds_all_of_a_fit(kernels, tmp_path):
    values, times = panel(80)
    fit = fit_panel(values, times, season=PeriodicSeason(20.0, 2), temporal_kernel=kernels)
    fit.save(tmp_path / "fit.json")
    loaded = PanelFit.load(tmp_path / "fit.json")
    assert loaded.to_dict() == fit.to_dict()
    json.dumps(loaded.to_dict(), allow_nan=False)
    later = times[-1] + torch.arange(1.0, 9.0)
    for name in ("mean", "lower", "upper"):
        one, other = (getattr(f.forecast(later), name) for f in (fit, loaded))
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)
    assert str(loaded) == str(fit)
    assert set(loaded.settings()) == set(fit.settings())


FORECAST = ("fit", "mode_forecast")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("format",), "tvbo.DriftFit"),
        (("version",), 7),
        (("fit", "noise_variance"), -1.0),
        (("fit", "noise_variance"), None),
        (("fit", "evidence"), [{}]),
        (("fit", "chosen"), 99),
        ((*FORECAST, "last_time"), "NaN"),
        ((*FORECAST, "modes"), to_data(np.full((5, 5), np.nan))),
        ((*FORECAST, "modes"), to_data(np.zeros((0, 0)))),
        ((*FORECAST, "modes", "shape"), [5, 10**9]),
        ((*FORECAST, "modes", "base64"), "word"),
        ((*FORECAST, "amplitudes"), to_data(np.zeros((1, 3)))),
        ((*FORECAST, "posterior", "mean"), to_data(np.zeros(4))),
        ((*FORECAST, "posterior", "covariance"), "text"),
        ((*FORECAST, "season"), {"class": "PeriodicSeason", "length": 7.0, "num_harmonics": 10**9}),
        ((*FORECAST, "season"), {"class": "Season", "length": 7.0, "num_harmonics": 2}),
        ((*FORECAST, "kernels"), [{"class": "SeasonalKernel"}]),
        ((*FORECAST, "kernels", 0, "form", "class"), "RBFKernel"),
    ],
)
def test_a_forged_file_is_refused(fit, place, value, tmp_path):
    fit.save(tmp_path / "fit.json")
    content = json.loads((tmp_path / "fit.json").read_text())
    inner = content
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    (tmp_path / "forged.json").write_text(json.dumps(content))
    with pytest.raises(SavedFitError):
        PanelFit.load(tmp_path / "forged.json")


def test_a_damaged_file_is_refused(fit, tmp_path):
    fit.save(tmp_path / "fit.json")
    whole = (tmp_path / "fit.json").read_bytes()
    for content in (b"", whole[:500], whole[:-30], whole.replace(b"modes", b"nodes")):
        (tmp_path / "damaged.json").write_bytes(content)
        with pytest.raises(SavedFitError):
            PanelFit.load(tmp_path / "damaged.json")


def test_bad_input_is_refused():
    values, times = panel(20)
    with pytest.raises(InputDataError):
        fit_panel(values[:5], times[:5])
    holed = values.clone()
    holed[3, 2] = float("nan")
    with pytest.raises(InputDataError):
        fit_panel(holed, times)
    holed[4, 0] = float("inf")
    with pytest.raises(InputDataError):
        fit_panel(holed, times, drop_missing=True)
    with pytest.raises(InputDataError):
        fit_panel(values, times.flip(0))
    with pytest.raises(InputDataError, match="constant"):
        fit_panel(torch.ones(20, 3), times)
    with pytest.raises(InputDataError):
        fit_panel(values, times, season=11.0)
    with pytest.raises(ValueError, match="yesterdays"):
        fit_panel(values, times, origin="yesterdays")
    with pytest.raises(ValueError):
        fit_panel(values, times, season="daily")
    with pytest.raises(ValueError, match="rbf"):
        fit_panel(values, times, temporal_kernel="rbf")
    with pytest.raises(BotorchTensorDimensionError):
        fit_panel(values, times[:-1])
    with pytest.raises(InputDataError):
        fit_panel(values, times, season=None).forecast(3.0)
