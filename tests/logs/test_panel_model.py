"""The likelihood, forecast and tuner of a panel against dense Gaussian processes."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError

from tvbo.kernels import SeasonalKernel, TemporalMaternKernel
from tvbo.logs import fit_panel, state_space
from tvbo.logs.forms import exponential, in_unit_of_time
from tvbo.logs.panel_cells import Cells, Units
from tvbo.logs.panel_dynamics import CommonDynamics, IndependentDynamics
from tvbo.logs.panel_forms import CommonForm, IndependentForm, VectorForm
from tvbo.logs.season import PeriodicSeason, WorkweekSeason

ARMS, GAP, SCALE = 3, 2.0, 4.0
FORMS = ["exponential", "matern32", "two-scales", "independent", "vector"]


def covariance(dynamics, times, segments):
    """Return the covariance of what drifts at rows ``(time, arm)``, without noise."""
    lags = np.abs(times[:, None] - times)
    same = (segments[:, None] == segments).astype(float)
    if isinstance(dynamics, CommonDynamics):
        return sum(
            np.kron(same * kernel.correlation(torch.as_tensor(lags)).detach().numpy(), K)
            for kernel, K in zip(dynamics.kernels, dynamics.covariances, strict=True)
        )
    if isinstance(dynamics, IndependentDynamics):
        pairs = zip(dynamics.forgetting_rates, dynamics.variances, strict=True)
        arms = [v * same * (1 - e) ** (lags / 2) for e, v in pairs]
        return sum(np.kron(K, np.diag(np.eye(len(arms))[i])) for i, K in enumerate(arms))
    # The states are linear in the first one of their segment and all innovations since.
    n, A = len(dynamics.initial), dynamics.transition
    total = np.zeros((len(times) * n,) * 2)
    for label in np.unique(segments):
        at = np.flatnonzero(segments == label)
        steps = np.round((times[at] - times[at[0]]) / dynamics.gap).astype(int)
        sources = range(steps.max() + 1)
        powers = np.stack([np.linalg.matrix_power(A, k) for k in sources])
        weights = np.block(
            [[powers[k - j] if j <= k else np.zeros((n, n)) for j in sources] for k in steps]
        )
        rest = np.kron(np.eye(steps.max()), dynamics.innovation)
        variances = np.zeros((len(sources) * n,) * 2)
        variances[:n, :n], variances[n:, n:] = np.diag(dynamics.initial), rest
        rows = (at[:, None] * n + np.arange(n)).ravel()
        total[np.ix_(rows, rows)] = weights @ variances @ weights.T
    return total


def log_density(values, covar):
    return -0.5 * (
        values @ np.linalg.solve(covar, values) + np.linalg.slogdet(2 * math.pi * covar)[1]
    )


def condition(dynamics, residuals, times, later):
    """Return mean and variance of the arms at later times, given residuals with NaN."""
    every = np.concatenate([times, later])
    covar = covariance(dynamics, every, np.zeros(len(every)))
    known = np.append(~np.isnan(residuals.ravel()), np.zeros(len(later) * ARMS, dtype=bool))
    noise = np.tile(dynamics.noise, len(every))
    new = np.arange(len(every) * ARMS) >= residuals.size
    crossed = covar[np.ix_(new, known)]
    weights = np.linalg.solve(covar[np.ix_(known, known)] + np.diag(noise[known]), crossed.T).T
    mean = weights @ residuals.ravel()[known[: residuals.size]]
    variance = np.diag(covar)[new] - (weights * crossed).sum(1)
    return mean.reshape(-1, ARMS), variance.reshape(-1, ARMS)


def case(name, missing):
    """Return a form, parameters that are at no maximum, a panel of two segments, and labels."""
    rng = np.random.default_rng(0)
    lags = rng.choice([1.0, 2.0] if name == "vector" else [1.0, 1.0, 2.5], size=24)
    times, starts = np.cumsum(lags), np.isin(np.arange(24), [0, 10])
    values = rng.normal(size=(24, ARMS)).cumsum(0) * 0.3
    values[rng.uniform(size=values.shape) < missing] = np.nan
    cells = Cells.of(values, times, starts)
    if name in ("independent", "vector"):
        form = IndependentForm(cells)
    if name == "vector":
        form = VectorForm(cells, form.start)
    if name not in ("independent", "vector"):
        matern = TemporalMaternKernel().double()
        matern.lengthscale = 5.0
        kernels = {"exponential": [exponential()], "matern32": [matern]}
        both = [exponential(1.0), exponential(0.03)]
        K = 0.3 * np.eye(ARMS) + 0.4
        form = CommonForm(name, kernels.get(name, both), cells, K, 3.0, 0.1)
    theta = form.start + 0.1 * rng.normal(size=form.start.shape)
    low, high = form.bounds().T
    theta = theta.clip(low + 0.1, high - 0.1)
    return form, theta, cells, cells.starts.cumsum()


@pytest.mark.parametrize("most", [32, 0], ids=["in pieces", "one by one"])
@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("name", FORMS)
def test_likelihood_is_that_of_a_dense_gaussian_in_any_unit(name, missing, most, monkeypatch):
    monkeypatch.setattr(state_space, "MAX_PRODUCT", most)
    form, theta, cells, segments = case(name, missing)
    filtered, outputs = form.filter(theta, cells.values)
    value = filtered.log_likelihood(outputs).sum()
    dynamics = form.dynamics(theta, Units(np.zeros(ARMS), SCALE, GAP))
    covar = covariance(dynamics, GAP * cells.times, segments)
    covar += np.diag(np.tile(dynamics.noise, len(segments)))
    known = ~np.isnan(cells.values.ravel())
    expected = log_density(SCALE * cells.values.ravel()[known], covar[np.ix_(known, known)])
    assert value.item() == pytest.approx(expected + known.sum() * math.log(SCALE), rel=1e-9)


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("name", FORMS)
def test_restricted_likelihood_integrates_a_level_of_each_arm_out(name, missing):
    form, theta, cells, segments = case(name, missing)
    filtered, outputs = form.filter(theta, cells.values)
    value = filtered.log_likelihood(outputs, restricted=True).sum()
    dynamics = form.dynamics(theta)
    covar = covariance(dynamics, cells.times, segments)
    covar += np.diag(np.tile(dynamics.noise, len(segments)))
    known = ~np.isnan(cells.values.ravel())
    levels = np.tile(np.eye(ARMS), (len(segments), 1))[known]
    information = levels.T @ np.linalg.solve(covar[np.ix_(known, known)], levels)
    expected = filtered.log_likelihood(outputs).sum()
    expected -= 0.5 * np.linalg.slogdet(information)[1]
    assert value.item() == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("restricted", [False, True])
@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("name", FORMS)
def test_gradient_is_that_of_differences(name, missing, restricted):
    form, theta, cells, _ = case(name, missing)
    form.integrates_means, values = restricted, torch.as_tensor(cells.values)

    def value(point):
        return form.log_likelihood(point, values) + form.log_prior(point)

    at = torch.tensor(theta, requires_grad=True)
    (gradient,) = torch.autograd.grad(value(at), at)
    steps = 1e-5 * torch.eye(len(theta), dtype=torch.float64)
    expected = torch.stack([(value(at + h) - value(at - h)) / 2e-5 for h in steps]).detach()
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("length", [400, 401])
def test_steady_covariances_change_nothing(length):
    """Long panels, in which the filter takes covariances as constant; one cell is missing."""
    rng = np.random.default_rng(1)
    values = rng.normal(size=(length, ARMS)).cumsum(0) * 0.1
    values[200, 1] = np.nan if length % 2 else values[200, 1]
    cells = Cells.of(values, np.arange(float(length)), np.arange(length) == 0)
    form = CommonForm("exponential", [exponential()], cells, np.eye(ARMS), 3.0, 0.1)
    filtered, outputs = form.filter(form.start, values)
    value = filtered.log_likelihood(outputs).sum()
    dynamics = form.dynamics(form.start)
    covar = covariance(dynamics, cells.times, np.zeros(length))
    covar += np.diag(np.tile(dynamics.noise, length))
    known = ~np.isnan(values.ravel())
    expected = log_density(values.ravel()[known], covar[np.ix_(known, known)])
    assert value.item() == pytest.approx(float(expected), rel=1e-9)


def drifting(steps=40, seed=3):
    """Return a panel of three arms with noise, gaps and missing cells, and its times."""
    rng = np.random.default_rng(seed)
    state, values = np.zeros(ARMS), []
    for _ in range(steps):
        state = 0.9 * state + 0.4 * rng.normal(size=ARMS)
        values.append(np.arange(ARMS) + state + 0.2 * rng.normal(size=ARMS))
    values = np.array(values)
    values[rng.uniform(size=values.shape) < 0.1] = np.nan
    return values, GAP * (np.arange(steps) + (np.arange(steps) > 25) * 3.0)


@pytest.fixture(scope="module", params=FORMS)
def fit(request):
    values, times = drifting()
    season = PeriodicSeason(8 * GAP, 2) if request.param != "vector" else None
    options = {"season": season, "temporal_kernel": request.param}
    return fit_panel(torch.as_tensor(values), torch.as_tensor(times), **options)


def levels(fit, times):
    """Return means and season."""
    if fit.season is None:
        return np.tile(fit.arm_means.numpy(), (len(times), 1))
    return fit.arm_means.numpy() + fit.season.basis(times) @ fit.model.coefficients[1:]


def test_forecast_is_that_of_a_dense_gp(fit):
    values, times = drifting()
    later = times[-1] + GAP * np.array([1.0, 3.0, 40.0])
    mean, variance = condition(fit.model.dynamics, values - levels(fit, times), times, later)
    forecast = fit.forecast(torch.as_tensor(later), level=0.9)
    np.testing.assert_allclose(forecast.mean, levels(fit, later) + mean, rtol=1e-8)
    np.testing.assert_allclose(forecast.standard_deviation**2, variance, rtol=1e-8)
    half = 1.6448536269514722 * variance**0.5
    np.testing.assert_allclose(forecast.upper - forecast.mean, half, rtol=1e-8)
    np.testing.assert_allclose(forecast.mean - forecast.lower, half, rtol=1e-8)


def test_a_tuner_predicts_as_a_dense_gp_of_log_and_outcomes_in_any_order(fit):
    values, times = drifting()
    arms, ages = [2, 0, 2, 1, 2, 2], GAP * np.array([1.0, 2.0, 3.0, 5.0, 5.0, 9.0])
    told = levels(fit, times[-1] + ages)[np.arange(6), arms] + [0.3, -0.2, 0.1, 0.0, 0.5, -0.4]
    extra = np.full((6, ARMS), np.nan)
    extra[np.arange(6), arms] = told
    known, now = np.concatenate([times, times[-1] + ages]), times[-1] + 10 * GAP
    residuals = np.concatenate([values, extra]) - levels(fit, known)
    mean, variance = condition(fit.model.dynamics, residuals, known, np.array([now]))
    for order in ([0, 1, 2, 3, 4, 5], [5, 0, 4, 2, 1, 3]):
        tuner = fit.optimizer(beta=4.0)
        trials = [
            tuner.attach([float(arm)], times[-1] + age) for arm, age in zip(arms, ages, strict=True)
        ]
        for i in order:
            tuner.tell(trials[i], told[i])
        found, deviation = tuner.predict(now)
        np.testing.assert_allclose(found, (levels(fit, np.array([now])) + mean)[0], rtol=1e-8)
        np.testing.assert_allclose(deviation**2, variance[0], rtol=1e-8)
        bound = found + 2 * deviation
        assert tuner.ask(t=now).X.item() == bound.argmax().item()


@pytest.mark.parametrize("fit", ["independent"], indirect=True)
def test_an_arm_that_fails_is_left_out_until_that_has_lost_what_its_failures_cost(fit):
    fit = replace(fit, missing=np.zeros(ARMS), missing_correlation=1.0)
    t, tuner = fit.last_time + GAP, fit.optimizer(beta=0.0)
    best, taken, losses, cost = tuner.ask(t=t).X.item(), [], [], []
    for step in range(60):
        trial = tuner.ask(t=t + GAP * step)
        mean, _ = tuner.predict(trial.t)
        losses.append((mean - mean[torch.arange(ARMS) != best].max()).max().item())
        if trial.X.item() == best:
            taken.append(step)
            cost.append((mean.max() - mean.min()).item())
            tuner.fail(trial, "no reading")
        else:
            tuner.tell(trial, mean[int(trial.X)].item())
    assert len(taken) >= 3
    for count, (start, stop) in enumerate(pairwise(taken), 1):
        owed, lost = count * cost[count - 1], sum(losses[start:stop])
        # It comes back in the round in which this is passed.
        assert lost - losses[stop - 1] <= owed * (1 + 1e-9)
        assert lost >= owed * (1 - 1e-9) - losses[stop]
    # What has failed most often is left out though all fail, until it has an outcome.
    for arm in range(ARMS):
        tuner.fail(tuner.attach([float(arm)], t + 60 * GAP), "no reading")
    assert tuner.ask(t=t + 60.25 * GAP).X.item() != best
    trial = tuner.attach([best], t + 60.5 * GAP)
    tuner.tell(trial, tuner.predict(trial.t)[0].max().item() + 1.0)
    assert tuner.ask(t=t + 62 * GAP).X.item() == best


@pytest.mark.parametrize("fit", ["independent"], indirect=True)
def test_one_of_the_arms_is_taken_where_all_are_left_out(fit):
    t, tuner = fit.last_time + GAP, replace(fit, missing_correlation=1.0).optimizer(beta=1.0)
    for arm in 3 * [*range(ARMS)]:
        tuner.fail(tuner.attach([float(arm)], t), "no reading")
    mean, deviation = tuner.predict(t)
    assert tuner.ask(t=t).X.item() == (mean + deviation).argmax().item()


@pytest.mark.parametrize("fit", ["independent"], indirect=True)
def test_an_arm_is_left_out_longer_where_a_failure_costs_more_than_it_gains(fit):
    fit = replace(fit, missing=np.zeros(ARMS), missing_correlation=1.0)
    worst = int(fit.arm_means.argmin())
    counts = []
    for loss in (0.0, 1e3):
        level = fit.model.coefficients.copy()
        level[0, worst] -= loss * np.ptp(level[0])
        tuner = replace(fit, model=replace(fit.model, coefficients=level)).optimizer(beta=0.0)
        arms = []
        for step in range(1, 100):
            trial = tuner.ask(t=fit.last_time + step * GAP)
            arms.append(int(trial.X))
            if arms[-1] == arms[0]:
                tuner.fail(trial, "no reading")
            else:
                tuner.tell(trial, tuner.predict(trial.t)[0][arms[-1]].item())
        counts.append(arms.count(arms[0]))
    assert counts[1] == 1 < counts[0]


@pytest.mark.parametrize("fit", ["independent"], indirect=True)
def test_an_arm_that_often_has_no_reading_is_left_out_if_it_fails_more_often_than_by_chance(fit):
    tuner = replace(fit, missing=np.full(ARMS, 0.6), missing_correlation=0.005).optimizer(beta=0.0)
    trials = [tuner.ask(t=fit.last_time + GAP)]
    for step in range(2, 40):
        tuner.fail(trials[-1], "no reading")
        trials.append(tuner.ask(t=fit.last_time + step * GAP))
    arms = [trial.X.item() for trial in trials]
    assert arms[:4] == [arms[0]] * 4
    assert set(arms) != {arms[0]}


@pytest.mark.parametrize(("length", "expected"), [(0, 1.0), (1, 0.2), (8, 0.85)])
def test_missing_readings_of_successive_times_correlate_in_outages(length, expected):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(100, ARMS))
    for start in range(4, 100, 25):
        values[start : start + length, rng.integers(ARMS)] = math.nan
    fit = fit_panel(
        torch.tensor(values), torch.arange(100.0), season=None, temporal_kernel="independent"
    )
    assert fit.missing_correlation == pytest.approx(expected, abs=0.1)


def test_arms_with_few_readings_are_named():
    values = np.random.default_rng(0).normal(size=(40, ARMS))
    values[3:, 1] = math.nan
    fit = fit_panel(
        torch.tensor(values), torch.arange(40.0), season=None, temporal_kernel="independent"
    )
    assert any("few readings" in message and "1 (3 of 40)" in message for message in fit.messages)


@pytest.mark.parametrize("fit", ["independent"], indirect=True)
def test_an_outcome_far_from_its_prediction_counts_as_one_at_six_deviations(fit):
    t = fit.last_time + GAP
    (mean, deviation), noise = fit.optimizer().predict(t), fit.noise_variances
    limit = mean[1] + 6 * (deviation[1] ** 2 + noise[1]).sqrt()
    found = []
    for outcome in (limit.item(), 1e6):
        tuner = fit.optimizer()
        tuner.tell(tuner.attach([1.0], t), outcome)
        found.append(tuner.predict(t + GAP)[0])
    torch.testing.assert_close(*found, rtol=1e-9, atol=0)


@pytest.mark.parametrize("fit", ["independent"], indirect=True)
def test_an_outcome_counts_at_the_time_at_which_it_was_measured(fit):
    t, found = fit.last_time + GAP, []
    for measured in (None, t + 5 * GAP):
        tuner = fit.optimizer()
        trial = tuner.attach([1.0], t + 5 * GAP if measured is None else t)
        tuner.tell(trial, fit.arm_means[1].item() + 5.0, t=measured)
        found.append(tuner.predict(t + 6 * GAP))
    torch.testing.assert_close(*found, rtol=0, atol=0)
    trial = tuner.attach([1.0], t)
    for wrong in ({"Yvar": 0.1}, {"t": fit.last_time - GAP}):
        with pytest.raises(InputDataError):
            tuner.tell(trial, 0.0, **wrong)
    assert tuner.open_trials == (trial,)


def test_a_tuner_of_independent_segments_begins_a_new_one():
    values, times = (np.concatenate([part, part]) for part in drifting(20))
    segments = torch.arange(40) // 20
    options = {"segments": segments, "season": None, "temporal_kernel": "exponential"}
    fit = fit_panel(torch.as_tensor(values), torch.as_tensor(times), **options)
    mean, deviation = fit.optimizer().predict(100.0)
    torch.testing.assert_close(mean, fit.arm_means)
    torch.testing.assert_close(deviation**2, fit.covariances[0].diagonal())
    torch.testing.assert_close(fit.forecast(3.0).mean[0], mean)


def test_working_days_and_weekends_have_the_prior_of_two_profiles():
    # A Monday begins at time 2; a day has 4 steps.
    season, shape = WorkweekSeason(4.0, 2, start=2.0), np.array([-0.5, 0.8])
    times = np.arange(2.0, 58.0)
    weekend = (np.arange(56) // 4) % 7 >= 5
    np.testing.assert_array_equal(season.is_weekend(times), weekend)
    np.testing.assert_array_equal(season.is_weekend(times - 28 * 1e5 + 1e-7), weekend)
    covar = (season.basis(times) * season.weights(shape)) @ season.basis(times).T
    day = PeriodicSeason(4.0, 2)
    profile = (day.basis(times) * day.weights(shape[:1])) @ day.basis(times).T
    share = 1 / (1 + np.exp(-0.8))
    sign = np.where(weekend[:, None] == weekend, 1.0, -1.0)
    expected = (1 - share) * profile + sign * share * (profile + 0.5)
    np.testing.assert_allclose(covar, expected, rtol=1e-12, atol=1e-12)
    slower = season.in_unit_of_time(0.5)
    np.testing.assert_array_equal(slower.is_weekend(2 * times), weekend)


def test_temporal_kernels_in_another_unit_of_time_are_the_same():
    lags = torch.tensor([0.0, 0.5, 3.0], dtype=torch.float64)
    for make in (exponential, TemporalMaternKernel, lambda: SeasonalKernel(7.0)):
        kernel = make().double()
        changed = in_unit_of_time(kernel, 5.0)
        expected = kernel.correlation(lags)
        torch.testing.assert_close(changed.correlation(lags / 5.0), expected, rtol=1e-9, atol=0)
