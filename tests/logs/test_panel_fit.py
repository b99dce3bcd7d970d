"""The fit of a panel, its forecasts, files and settings."""

import json
import math
from datetime import datetime

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError

from tvbo import recipes
from tvbo.kernels import TemporalDecayKernel, TemporalMaternKernel
from tvbo.logs import PanelFit, fit_panel
from tvbo.logs.forms import FORMS, exponential
from tvbo.logs.panel_cells import Cells, Units, deviations_of
from tvbo.logs.panel_search import PanelSearch
from tvbo.logs.season import PeriodicSeason, SegmentProfile, WorkweekSeason
from tvbo.serialize import SerializationError, to_data

RATE, NOISE = 0.15, 0.05
"""Forms without a temporal kernel that all arms share."""
MEANS = np.array([0.0, 1.0, 2.0, 3.0, -1.0])
EXPONENTIAL = {"season": None, "temporal_kernel": "exponential"}
ALL = ["exponential", "matern32", "two-scales", "independent", "vector"]


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
    return fit_panel(values, times, **EXPONENTIAL)


def test_rate_means_and_noise_are_found(fit):
    assert fit.settings()["forgetting_rate"] == pytest.approx(RATE, rel=0.5)
    np.testing.assert_allclose(fit.noise_variances, np.full(5, NOISE), rtol=0.4)
    np.testing.assert_allclose(fit.arm_means, MEANS, atol=0.5)
    assert (fit.form, fit.season, len(fit.evidence)) == ("exponential", None, 1)
    assert fit.tuning.multiplier in fit.tuning.multipliers
    low, high = fit.forgetting_rate_interval
    assert low < fit.temporal_kernels[0].forgetting_rate.item() < high


@pytest.mark.slow
def test_a_season_does_not_change_the_rate():
    rng, n, steps = np.random.default_rng(0), 12, 160
    places, times = np.linspace(0, 2, n), np.arange(float(steps))
    root = np.linalg.cholesky(np.exp(-0.5 * (places[:, None] - places) ** 2) + 1e-9 * np.eye(n))
    state, rows = root @ rng.normal(size=n), []
    for _ in times:
        rows.append(state + 0.3 * rng.normal(size=n))
        state = 0.95**0.5 * state + 0.05**0.5 * root @ rng.normal(size=n)
    drift, times = torch.as_tensor(np.array(rows)), torch.as_tensor(times)
    season = 1.5 * torch.sin(2 * torch.pi * times[:, None] / 12 + torch.as_tensor(places))
    without, found = (
        fit_panel(values, times, season=each, temporal_kernel="exponential")
        for values, each in ((drift, None), (drift + season, 12.0))
    )
    rate = without.temporal_kernels[0].forgetting_rate.item()
    assert found.temporal_kernels[0].forgetting_rate.item() == pytest.approx(rate, rel=0.25)


def test_a_tuner_goes_on_from_the_end_of_the_log(fit):
    tuner = fit.optimizer()
    with pytest.raises(InputDataError, match="239"):
        tuner.ask()
    assert tuner.ask(t=240.0).t == 240.0


def test_a_level_that_is_no_probability_is_refused_at_once():
    with pytest.raises(ValueError, match="level"):
        fit_panel(*panel(), level=1.5)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.6])
def test_readings_that_are_missing_do_not_change_the_multiplier_much(share):
    values, times = panel(320, seed=3)
    # A random arm costs far more than one multiplier does beside another.
    values[:, 2:] -= 50.0
    holed = values.clone()
    generator = torch.Generator().manual_seed(0)
    holed[torch.rand(values.shape, generator=generator) < share] = math.nan
    whole, part = (fit_panel(each, times, **EXPONENTIAL).tuning for each in (values, holed))
    # What failures cost is the same for all multipliers.
    np.testing.assert_allclose(part.mean_regret, whole.mean_regret, atol=0.5)


def held(kernel):
    return kernel.requires_grad_(False)


def test_the_interval_ends_where_the_likelihood_has_fallen_by_half_the_quantile():
    values, times = panel(120)
    given = {"season": None, "level": 0.9}
    fit = fit_panel(values, 4 * times, temporal_kernel="exponential", **given)
    for end in fit.forgetting_rate_interval:
        kernel = TemporalDecayKernel().double()
        kernel.forgetting_rate = torch.tensor(end, dtype=torch.float64)
        fixed = fit_panel(values, 4 * times, temporal_kernel=held(kernel), **given)
        # Half the quantile of chi squared.
        assert fit.log_likelihood - fixed.log_likelihood == pytest.approx(1.3528, rel=0.1)
        assert kernel.forgetting_rate.item() == pytest.approx(end)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_rates_that_noise_would_explain_lie_in_the_interval(seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(60, 3))
    for t in range(1, 60):
        values[t] = 0.9 * values[t - 1] + 0.4 * values[t]
    hours = torch.arange(60.0)
    values += np.sin(2 * np.pi * (hours.numpy()[:, None] / 24 + np.arange(3) / 3))
    fit = fit_panel(torch.as_tensor(values), hours, season=24, temporal_kernel="exponential")
    low, high = fit.forgetting_rate_interval
    for rate in (0.02, 0.05, 0.6):
        kernel = TemporalDecayKernel().double()
        kernel.forgetting_rate = torch.tensor(rate, dtype=torch.float64)
        # This search begins with more noise.
        found = fit_panel(torch.as_tensor(values), hours, season=24, temporal_kernel=held(kernel))
        fallen = fit.log_likelihood - found.log_likelihood
        assert abs(fallen - 1.92) > 0.1
        assert (low < rate < high) == (fallen < 1.92)


@pytest.mark.slow
def test_what_noise_hides_does_not_raise_the_rate():
    ratios = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        places = rng.uniform(size=(30, 2))
        squares = ((places[:, None] - places) ** 2).sum(-1)
        root = np.linalg.cholesky(np.exp(-5 * squares) + 1e-9 * np.eye(30))
        state, rows = root @ rng.normal(size=30), []
        for _ in range(400):
            rows.append(state + 0.3 * rng.normal(size=30))
            state = 0.95**0.5 * state + 0.05**0.5 * root @ rng.normal(size=30)
        fit = fit_panel(torch.as_tensor(np.array(rows)), torch.arange(400.0), **EXPONENTIAL)
        ratios.append(math.log(fit.settings()["forgetting_rate"] / 0.05))
    # A prior that shrinks all directions alike makes it 1.4 times as large.
    assert abs(np.mean(ratios)) < 0.2


def test_a_fold_does_not_know_what_it_plays():
    values, times = (x.numpy() for x in panel(120, period=12))
    starts, models = times == 0, []
    for later in (values[90:], -values[90:]):
        rows = np.concatenate([values[:90], later])
        cells, units = Cells.of(rows, times, starts), Units(np.zeros(5), 1.0, 1.0)
        search = PanelSearch(cells, FORMS, units, lambda step: None)
        search.fit("matern32", PeriodicSeason(12.0, 6))
        models.append(search.fold("matern32", PeriodicSeason(12.0, 6), 0.75).model)
    np.testing.assert_allclose(models[0].coefficients, models[1].coefficients, atol=0.01)


def simulated(form, seed, steps=150, arms=4):
    """A panel of a form of drift, drawn with parameters that differ from seed to seed."""
    rng = np.random.default_rng([seed, ALL.index(form)])
    lags = torch.as_tensor(np.abs(np.subtract.outer(np.arange(steps), np.arange(steps))))
    if form == "matern32":
        kernel = TemporalMaternKernel().double()
        kernel.lengthscale = rng.uniform(3, 20)
        kernels = [kernel]
    else:
        kernels = [exponential(rng.uniform(0.01, 0.3))]
    if form == "two-scales":
        kernels = [exponential(rng.uniform(0.4, 1.2)), exponential(rng.uniform(0.01, 0.05))]
    root = np.linalg.cholesky(0.5 * np.eye(arms) + 0.5)
    values = rng.normal(size=arms) + rng.uniform(0.1, 0.5) * rng.normal(size=(steps, arms))
    for kernel in kernels:
        with torch.no_grad():
            covar = kernel.correlation(lags.double()).numpy() + 1e-9 * np.eye(steps)
        in_time = np.linalg.cholesky(covar)
        values += in_time @ rng.normal(size=(steps, arms)) @ root.T
    return torch.as_tensor(values), torch.arange(float(steps)).double()


def scale_times(kernel, factor):
    """Return a kernel whose first parameter is held at a multiple, and the others are free."""
    if isinstance(kernel, TemporalMaternKernel):
        changed = TemporalMaternKernel().double()
        changed.lengthscale = factor * kernel.lengthscale.item()
        return held(changed)
    return held(exponential(-factor * math.log1p(-kernel.forgetting_rate.item())))


def check_maximum(form, seed):
    values, times = simulated(form, seed)
    found = fit_panel(values, times, season=None, temporal_kernel=form)
    first, *others = found.temporal_kernels
    for factor in (0.3, 0.8, 1.25, 3.0):
        kernels = [scale_times(first, factor)] + [exponential(0.03) for _ in others]
        fixed = fit_panel(values, times, season=None, temporal_kernel=kernels)
        assert fixed.log_likelihood < found.log_likelihood + 0.1, (form, seed, factor)


@pytest.mark.slow_cases("matern32")
@pytest.mark.parametrize("form", ["exponential", "matern32"])
def test_no_held_rate_is_better_than_the_fit(form):
    check_maximum(form, 0)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["exponential", "matern32", "two-scales"])
@pytest.mark.parametrize("seed", range(1, 8))
def test_no_held_rate_is_better_than_the_fit_on_many_panels(form, seed):
    check_maximum(form, seed)


@pytest.mark.slow
def test_a_vector_autoregression_reaches_its_maximum_in_any_order_of_arms():
    # Arms that move together, nearly without noise, and a season: the likelihood is a ridge.
    rng, n = np.random.default_rng(0), 16
    root = 0.1 * (1 + 0.2 * rng.normal(size=(n, n)))
    transition = 0.95 * np.eye(n) + 0.1 * rng.normal(size=(n, n)) / n**0.5
    transition *= 0.97 / abs(np.linalg.eigvals(transition)).max()
    swing, state, rows = rng.normal(size=(2, n)), np.zeros(n), []
    for phase in np.arange(216.0) * np.pi / 12:
        state = transition @ state + root @ rng.normal(size=n)
        level = state + np.array([np.cos(phase), np.sin(phase)]) @ swing
        rows.append(level + 3e-3 * rng.normal(size=n))
    values, times = torch.tensor(np.array(rows)), torch.arange(216.0).double()
    one, other = (
        fit_panel(each, times, season=24.0, temporal_kernel="vector")
        for each in (values, values.flip(-1))
    )
    # The prior of the season, from a rough fit, differs by a nat or two.
    assert one.log_likelihood == pytest.approx(other.log_likelihood, rel=0, abs=3.0)
    assert not any("converge" in message for message in one.messages)


def holed_panel():
    """Return a panel with a fifth of its cells and two of its rows missing, and its times."""
    values, times = panel(36)
    values[torch.rand(values.shape, generator=torch.Generator().manual_seed(0)) < 0.2] = math.nan
    values[[3, 30]] = math.nan
    return values, times


def test_missing_cells_are_ordinary():
    holed, times = holed_panel()
    full = fit_panel(panel(36)[0], times, **EXPONENTIAL)
    found = fit_panel(holed, times, **EXPONENTIAL)
    assert found.num_times == 34
    torch.testing.assert_close(found.arm_means, full.arm_means, rtol=0, atol=0.2)
    later = times[-1] + torch.tensor([1.0, 20.0])
    one, other = (each.forecast(later) for each in (found, full))
    assert ((one.mean - other.mean).abs() < other.standard_deviation).all()


def test_rows_without_a_value_say_nothing_wherever_they_stand():
    holed, times = holed_panel()
    rows = [row for row in range(36) if row not in (3, 30)]
    found, same = (
        fit_panel(holed[part], times[part], season=None, temporal_kernel="independent")
        for part in (slice(None), rows)
    )
    assert same.to_dict() == found.to_dict()


@pytest.mark.parametrize("name", ["exponential", "independent", "vector"])
def test_an_arm_may_come_late_or_vanish(name):
    values, times = panel(60)
    values[:50, 1] = values[20:, 3] = math.nan
    found = fit_panel(values, times, season=None, temporal_kernel=name)
    assert found.arm_means.isfinite().all()
    assert (found.noise_variances > 0).all()
    forecast = found.forecast(times[-1] + 1.0)
    assert forecast.standard_deviation.isfinite().all()
    # What is not read for long is known less well.
    if name == "exponential":
        [covar] = found.covariances
        share = forecast.standard_deviation[0].square() / covar.diagonal()
        assert share[3] > 1.3 * share[[0, 2, 4]].max()


@pytest.mark.parametrize("wrong", [1e6, -1e6])
def test_one_wrong_cell_is_named_and_changes_little(fit, wrong):
    values, times = panel()
    spoiled = values.clone()
    spoiled[77, 2] = wrong
    found = fit_panel(spoiled, times, **EXPONENTIAL, arms=["a", "b", "the third", "d", "e"])
    [outlier] = found.outliers
    assert (outlier.time, outlier.arm, outlier.value) == (77.0, 2, wrong)
    assert abs(outlier.deviations) > 8
    assert any("06 of arm the third at 77" in message for message in found.messages)
    assert f"arm {found.arms[int(found.arm_means.argmax())]}" in found.summary()["largest mean"]
    assert fit.outliers == []
    rates = [each.settings()["forgetting_rate"] for each in (found, fit)]
    assert rates[0] == pytest.approx(rates[1], rel=0.1)
    later = times[-1] + torch.arange(1.0, 20.0)
    one, other = (each.forecast(later) for each in (found, fit))
    assert ((one.mean - other.mean).abs() < 0.2 * other.standard_deviation).all()
    ratio = one.standard_deviation / other.standard_deviation
    assert ((ratio > 0.9) & (ratio < 1.3)).all()


def test_one_wrong_cell_of_a_short_log_is_named():
    values, times = panel(20)
    values[7, 1] += 100.0
    [outlier] = fit_panel(values, times, season=None, temporal_kernel="independent").outliers
    assert (outlier.time, outlier.arm) == (7.0, 1)


def test_two_wrong_cells_in_a_row_are_named():
    values, times = panel(240)
    cells = [(9 * k, k % 5) for k in range(1, 21)]
    cells.append((cells[10][0] + 1, cells[10][1]))
    for row, arm in cells:
        values[row, arm] += 1e3
    found = fit_panel(values, times, season=None, temporal_kernel="independent")
    assert {(int(each.time), each.arm) for each in found.outliers} == set(cells)


def test_many_readings_far_out_count_as_they_are_and_are_said():
    values, times = panel(240)
    rng = np.random.default_rng(0)
    values[rng.choice(240, 19, replace=False), 2] += 100.0
    found = fit_panel(values, times, season=None, temporal_kernel="independent")
    assert found.outliers == []
    [message] = [each for each in found.messages if "far out" in each]
    assert message.startswith("Many values of 1 of 5 arms")
    assert message.endswith("2 (8%).")


def test_daily_peaks_are_no_outliers():
    values, times = panel(240)
    values[:, 1] += torch.where(times % 24 < 2, 60.0, 0.0)
    found = fit_panel(values, times, season=24, temporal_kernel="independent")
    assert found.outliers == []
    assert not any("far out" in each for each in found.messages)
    forecast = found.forecast(torch.arange(240.0, 264.0)).mean[:, 1]
    assert forecast[:2].min() - forecast[2:].max() > 40


def late(values):
    values[:-2, 3] = math.nan


def ends(values):
    values[1:-1, 3] = math.nan
    values[-1, 3] = values[0, 3]


def all_but_one(values):
    values[:-4, 1:] = math.nan


@pytest.mark.parametrize("lose", [late, ends, all_but_one])
def test_arms_with_few_readings_vary_as_others_do(fit, lose):
    values, times = panel(60)
    lose(values)
    found = fit_panel(values, times, **EXPONENTIAL).forecast(times[-1] + 50.0)
    whole = fit.forecast(fit.last_time + 50.0)
    ratio = found.standard_deviation[0, 3] / whole.standard_deviation[0].median()
    assert 0.6 < ratio < 1.7


def test_the_deviation_of_an_arm_is_in_its_own_unit():
    values = panel(120)[0].numpy()
    values[:60, 2] = math.nan
    one = deviations_of(values)
    values[:, 2] *= 0.01
    np.testing.assert_allclose(deviations_of(values), one * [1, 1, 0.01, 1, 1], rtol=1e-9)


def test_a_short_stretch_counts_for_as_much_as_others_vary_beside_it():
    # Arms that rise to the same height, of which one is read in a tenth of the log.
    values = np.arange(400.0)[:, None] * np.ones(4)
    values[40:, 1] = math.nan
    np.testing.assert_allclose(deviations_of(values), 400 / 12**0.5, rtol=0.02)
    # One that is always read has its own.
    np.testing.assert_allclose(deviations_of(values[:, :1]), values[:, 0].std(), rtol=1e-12)


@pytest.mark.slow
def test_wrong_cells_do_not_change_which_form_is_taken():
    values, times = simulated("matern32", 1, steps=200)
    clean = fit_panel(values, times)
    spoiled = values.clone()
    spoiled[50, 1] = 1e6
    assert fit_panel(spoiled, times).form == clean.form == "matern32"
    rng = np.random.default_rng(0)
    cells = rng.choice(values.numel(), 8, replace=False)
    spoiled.view(-1)[cells] = values.view(-1)[cells] + 100 * values.std() * torch.as_tensor(
        rng.choice([-1.0, 1.0], 8)
    )
    many = fit_panel(spoiled, times)
    assert many.form == "matern32"
    places = {(int(each.time), each.arm) for each in many.outliers}
    assert {(int(cell) // 4, int(cell) % 4) for cell in cells} <= places


def test_a_step_of_an_arm_is_no_outlier():
    values, times = panel(120, rate=0.02)
    values[60:, 1] += 12.0
    found = fit_panel(values, times, season=None, temporal_kernel="independent")
    assert all((each.time, each.arm) == (60.0, 1) for each in found.outliers)


@pytest.mark.parametrize("name", ["exponential", "vector"])
def test_a_tuner_is_better_than_rules_without_a_model(name):
    values, times = panel(400, seed=2, rate=0.05)
    values = values - torch.as_tensor(MEANS)
    given = {"season": None, "temporal_kernel": name}
    fit = fit_panel(values[:200], times[:200], **given)
    tuner, later = fit.optimizer(), values[200:]
    arms = []
    for t, row in zip(times[200:].tolist(), later, strict=True):
        trial = tuner.ask(t=t)
        arms.append(int(trial.X))
        tuner.tell(trial, row[arms[-1]].item())
    best = later.amax(dim=1)
    regret = (best - later.gather(1, torch.tensor(arms).unsqueeze(1)).squeeze(1)).mean()
    always = (best - later[:, values[:200].mean(dim=0).argmax()]).mean()
    assert regret < 0.8 * always
    assert regret < 0.8 * (best - later.mean(dim=1)).mean()


def test_beta_is_the_square_of_the_multiplier_unless_given(fit):
    assert fit.optimizer().beta == fit.tuning.multiplier**2
    assert fit.optimizer(beta=4.0).beta == 4.0
    assert fit.settings()["beta"] == fit.tuning.multiplier**2
    with pytest.raises(ValueError, match="-1"):
        fit.optimizer(beta=-1.0)
    tuner = recipes.tv_gp_ucb(**fit.settings())
    assert tuner.ask(t=241.0).X.item() in range(5)


def test_temporal_kernels_are_in_the_unit_of_time_and_stay_as_they_were():
    values, times = panel(60)
    kernel, slower = (TemporalMaternKernel().double() for _ in range(2))
    kernel.lengthscale, slower.lengthscale = 12.0, 48.0
    one = fit_panel(values, times, season=None, temporal_kernel=held(kernel))
    other = fit_panel(values, 4 * times, season=None, temporal_kernel=held(slower))
    assert other.log_likelihood == pytest.approx(one.log_likelihood, rel=1e-9)
    assert other.temporal_kernels[0].lengthscale.item() == pytest.approx(48.0)
    free = TemporalMaternKernel().double()
    free.lengthscale = 12.0
    learned = fit_panel(values, times, season=None, temporal_kernel=free)
    assert learned.log_likelihood > one.log_likelihood
    assert free.lengthscale.item() == pytest.approx(12.0)
    assert free.raw_lengthscale.requires_grad


@pytest.mark.slow_cases("two-scales")
@pytest.mark.parametrize("name", ALL)
def test_outcomes_and_times_in_other_units_give_the_same_model(name):
    values, times = panel(60)
    one = fit_panel(values, times, season=None, temporal_kernel=name)
    # Powers of two, by which products are exact.
    other = fit_panel(1024 * values, 4 * times, season=None, temporal_kernel=name)
    torch.testing.assert_close(other.arm_means, 1024 * one.arm_means, rtol=1e-6, atol=1e-3)
    variances = 1024**2 * one.noise_variances
    torch.testing.assert_close(other.noise_variances, variances, rtol=1e-4, atol=0)
    shift = values.numel() * math.log(1024)
    assert other.log_likelihood == pytest.approx(one.log_likelihood - shift, abs=1e-6)
    ahead = one.forecast(times[-1] + torch.arange(1.0, 4.0)).mean
    later = other.forecast(4 * (times[-1] + torch.arange(1.0, 4.0))).mean
    torch.testing.assert_close(later, 1024 * ahead, rtol=1e-4, atol=1e-1)


@pytest.mark.slow
def test_a_season_is_found_in_the_log_and_kept():
    values, times = panel(240, period=24)
    fit = fit_panel(values, times)
    assert fit.season.length == pytest.approx(24, rel=0.02)
    assert all(row.has_season for row in fit.evidence)
    truth = panel(264, period=24, rate=0.0)[0][-24:] - panel(264, rate=0.0)[0][-24:]
    later = torch.arange(240.0, 264.0)
    found = fit.forecast(later + 400 * fit.season.length).mean - fit.arm_means
    assert (found - truth).square().mean() < 0.1 * truth.square().mean()


@pytest.mark.slow
def test_a_period_is_found_between_the_frequencies_of_the_periodogram():
    # Its neighbours there are .6 % away.
    period = 8 * 240 / 82.5
    values, times = panel(240, period=period)
    assert fit_panel(values, times).season.length == pytest.approx(period, rel=4e-3)


@pytest.mark.slow
def test_a_season_that_has_ended_is_not_taken():
    values, times = panel(240, period=24)
    values[180:] = panel(240)[0][180:]
    assert fit_panel(values, times).season is None


@pytest.mark.slow
def test_smooth_drift_is_no_season():
    # Exponential decay has 84 nats more evidence with a period of 111, the true form 2 less.
    rng, n, times = np.random.default_rng([108, 1]), 50, np.arange(500.0)
    places = rng.uniform(size=(n, 2))
    squares = ((places[:, None] - places) ** 2).sum(-1)
    root = np.linalg.cholesky(np.exp(-squares / 0.18) + 1e-9 * np.eye(n))
    means, noise = rng.normal(size=n), 0.1**0.5 * rng.normal(size=(500, n))
    lags = 3**0.5 * np.abs(times[:, None] - times) / rng.uniform(5, 20)
    in_time = np.linalg.cholesky((1 + lags) * np.exp(-lags) + 1e-9 * np.eye(500))
    values = means + noise + in_time @ rng.normal(size=(500, n)) @ root.T
    fit = fit_panel(torch.as_tensor(values), torch.as_tensor(times), temporal_kernel="matern32")
    assert fit.season is None


@pytest.mark.slow
def test_a_log_without_a_season_has_none():
    values, times = panel(seed=3)
    fit = fit_panel(values, times)
    assert fit.season is None
    assert {row.temporal_kernel for row in fit.evidence} == set(ALL)
    assert not any(row.has_season for row in fit.evidence)
    scored = {row.temporal_kernel for row in fit.evidence if row.predictive_score is not None}
    assert {"independent", "vector"} < scored


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
    fit = fit_panel(torch.as_tensor(values), torch.arange(float(steps)), season=None)
    assert fit.form == name
    found = [kernel.forgetting_rate.item() for kernel in fit.temporal_kernels]
    assert sorted(found) == pytest.approx(sorted(rates), rel=0.5)
    assert fit.noise_variances[0].item() == pytest.approx(0.09, rel=0.3)


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


def test_a_timestamp_is_a_time_of_the_fit(fit, tmp_path):
    values, times = panel(24)
    given = {"season": None, "temporal_kernel": "independent", "time_unit": "2h"}
    fit_panel(values, times, origin="2026-01-01T00:00", **given).save(tmp_path / "fit.json")
    found = PanelFit.load(tmp_path / "fit.json")
    assert found.time_of("2026-01-03T01:00") == 24.5
    assert found.optimizer().ask(t=found.time_of("2026-01-03")).t == 24
    with pytest.raises(ValueError, match="offset"):
        found.time_of("2026-01-03T01:00+01:00")
    zoned = fit_panel(values, times, origin="2026-03-01T00:00+01:00", **given)
    assert zoned.time_of("2026-03-03T02:00+02:00") == 24.5
    # Without an offset it has that of the origin.
    assert zoned.time_of(datetime(2026, 3, 3, 1)) == 24.5
    with pytest.raises(ValueError, match="today"):
        zoned.time_of("today")
    with pytest.raises(ValueError, match="origin"):
        fit.time_of("2026-01-03")


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
    [[TemporalMaternKernel(), TemporalDecayKernel()], "two-scales", "independent", "vector"],
    ids=["sum", "scales", "independent", "vector"],
)
def test_a_file_holds_all_of_a_fit(kernels, tmp_path):
    values, times = panel(80)
    values[7, 1], values[9, 2] = math.nan, 1e6
    fit = fit_panel(values, times, season=PeriodicSeason(20.0, 2), temporal_kernel=kernels)
    fit.save(tmp_path / "fit.json")
    loaded = PanelFit.load(tmp_path / "fit.json")
    fit.to_json(tmp_path / "numbers.json")
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    # To the last digit, in whatever form.
    assert numbers == json.loads(json.dumps(loaded.to_dict(), allow_nan=False))
    assert numbers["noise_variances"] == fit.noise_variances.tolist()
    assert numbers["log_likelihood"] == fit.log_likelihood
    assert f"{numbers['log_likelihood']:.2f}" in str(fit)
    assert str(loaded) == str(fit)
    later = times[-1] + torch.arange(1.0, 9.0)
    for name in ("mean", "lower", "upper"):
        one, other = (getattr(f.forecast(later), name) for f in (fit, loaded))
        assert torch.equal(one, other)
    one, other = (each.optimizer().predict(85.0) for each in (fit, loaded))
    assert all(map(torch.equal, one, other))
    if kernels == "vector":
        with pytest.raises(ValueError, match="vector"):
            fit.settings()
    else:
        assert set(loaded.settings()) == set(fit.settings())


DYNAMICS, SEASON = ("fit", "model", "dynamics"), ("fit", "model", "season")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("format",), "tvbo.DriftFit"),
        (("version",), 6),
        (("fit", "log_likelihood"), None),
        (("fit", "evidence"), [{}]),
        (("fit", "chosen"), 99),
        (("fit", "last_time"), "NaN"),
        (("fit", "belief", "mean"), to_data(np.zeros(4))),
        (("fit", "belief", "covariance"), to_data(np.zeros((5, 4)))),
        (("fit", "model", "coefficients"), to_data(np.zeros((1, 4)))),
        (SEASON, {"class": "PeriodicSeason", "length": 7.0, "num_harmonics": 10**9}),
        (SEASON, {"class": "Season", "length": 7.0, "num_harmonics": 2}),
        ((*DYNAMICS, "class"), "VectorDynamics"),
        ((*DYNAMICS, "noise"), [-1.0] * 5),
        ((*DYNAMICS, "covariance"), [[math.nan] * 5] * 5),
        ((*DYNAMICS, "covariance"), []),
        ((*DYNAMICS, "covariance"), [[0.0] * 3] * 3),
        ((*DYNAMICS, "shares"), [0.5, 0.5]),
        (("fit", "model", "coefficients"), "word"),
        (("fit", "model", "coefficients"), [[math.inf] * 4] * 5),
        ((*DYNAMICS, "kernels"), [{"class": "SeasonalKernel"}]),
        ((*DYNAMICS, "kernels", 0, "class"), "RBFKernel"),
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
    with pytest.raises(SerializationError):
        PanelFit.load(tmp_path / "forged.json")


def test_a_damaged_file_is_refused(fit, tmp_path):
    fit.save(tmp_path / "fit.json")
    whole = (tmp_path / "fit.json").read_bytes()
    for content in (b"", whole[:500], whole[:-30], whole.replace(b"dynamics", b"dynamite")):
        (tmp_path / "damaged.json").write_bytes(content)
        with pytest.raises(SerializationError):
            PanelFit.load(tmp_path / "damaged.json")


def test_bad_input_is_refused():
    values, times = panel(20)
    for bad in (values[:5], values[:, :1]):
        with pytest.raises(InputDataError):
            fit_panel(bad, times[: len(bad)])
    holed = values.clone()
    holed[1:, 2] = math.nan
    with pytest.raises(InputDataError, match="arm 2"):
        fit_panel(holed, times)
    holed[4, 0] = math.inf
    with pytest.raises(InputDataError, match="inf"):
        fit_panel(holed, times)
    with pytest.raises(InputDataError):
        fit_panel(values, times.flip(0))
    with pytest.raises(InputDataError):
        fit_panel(torch.ones(20, 3), times)
    with pytest.raises(InputDataError, match="11"):
        fit_panel(values, times, season=11.0)
    with pytest.raises(InputDataError):
        fit_panel(values, times.exp2(), temporal_kernel="vector")
    with pytest.raises(ValueError, match="yesterdays"):
        fit_panel(values, times, origin="yesterdays")
    with pytest.raises(ValueError, match="daily"):
        fit_panel(values, times, season="daily")
    with pytest.raises(ValueError, match="rbf"):
        fit_panel(values, times, temporal_kernel="rbf")
    for wrong in ((values, times[:-1]), (values[0, 0], times[0])):
        with pytest.raises(BotorchTensorDimensionError):
            fit_panel(*wrong)
    with pytest.raises(BotorchTensorDimensionError, match="4 arms"):
        fit_panel(values, times, arms="abcd")
    for labels in (["Monday"] * len(times), [math.nan] + [0] * (len(times) - 1)):
        with pytest.raises(InputDataError, match="segments"):
            fit_panel(values, times, segments=labels)
    with pytest.raises(InputDataError, match="3"):
        fit_panel(values, times, **EXPONENTIAL).forecast(3.0)


def test_forms_that_a_panel_does_not_allow_are_left_out_and_said():
    values, times = panel(40)
    found = fit_panel(values, times + 0.3 * torch.sin(times), season=None)
    assert "vector" not in {row.temporal_kernel for row in found.evidence}
    assert any("vector" in message for message in found.messages)
