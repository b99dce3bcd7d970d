"""The model of a panel by modes against dense Gaussian processes."""

import math

import numpy as np
import pytest
import torch

from tvbo.kernels import (
    SeasonalKernel,
    TemporalKernel,
    TemporalMaternKernel,
)
from tvbo.logs.forms import exponential
from tvbo.logs.panel_coefficients import prior_variances
from tvbo.logs.panel_data import ArmCovariance, panel_data, regressors
from tvbo.logs.panel_mean import mode_forecast
from tvbo.logs.panel_search import FittedPanel
from tvbo.logs.panel_terms import Component, in_unit_of_time
from tvbo.logs.season import PeriodicSeason, SegmentProfile, WorkweekSeason

ARMS = 3


def fitted(kernels: list[TemporalKernel], season, seed: int = 0) -> FittedPanel:
    """Return a model with arbitrary parameters, not at any maximum."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(ARMS, ARMS))
    eigenvalues, modes = np.linalg.eigh(root @ root.T)
    components = [Component(kernel) for kernel in kernels]
    theta = []
    for component in components:
        theta += [*component.get(), rng.normal()]
    theta += [rng.uniform(0.5, 1.5), -1.2]
    phi = np.array([0.4, -0.3, 0.8, -0.5])[: 1 if season is None else 4]
    covariance = ArmCovariance(eigenvalues, modes)
    means = np.zeros((1, ARMS))
    return FittedPanel(season, components, covariance, means, np.array(theta), phi)


def dense(model: FittedPanel, data, ages: np.ndarray, later: np.ndarray):
    """Return covariances of rows ``(time, arm)`` with themselves and each other, without noise."""
    covar = model.covariance
    lags = torch.as_tensor(np.abs(ages[:, None] - later))
    amplitudes = model.terms(data).amplitudes(model.theta)
    total = 0.0
    for component, part, amplitude in zip(
        model.components, model.terms(data).parts, amplitudes, strict=True
    ):
        component.set(model.theta[part][:-1])
        K = (covar.modes * amplitude) @ covar.modes.T
        total = total + np.kron(component.kernel.correlation(lags).detach().numpy(), K)
    priors = prior_variances(model.season, model.phi, np.log(covar.eigenvalues))
    B, C = (regressors(model.season, times) for times in (ages, later))
    for j in range(priors.shape[1]):
        K = (covar.modes * priors[:, j]) @ covar.modes.T
        total = total + np.kron(np.outer(B[:, j], C[:, j]), K)
    return total


KERNELS = {
    "exponential": lambda: [exponential(0.4)],
    "three": lambda: [exponential(0.9), TemporalMaternKernel().double(), exponential(0.05)],
    "season": lambda: [SeasonalKernel(7.0).double()],
}


@pytest.mark.parametrize("kernels", KERNELS.values(), ids=KERNELS.keys())
@pytest.mark.parametrize("season", [None, PeriodicSeason(9.0, 3)], ids=["flat", "season"])
def test_likelihood_and_forecast_equal_those_of_a_dense_gp(kernels, season):
    rng = np.random.default_rng(1)
    times = np.cumsum(rng.choice([1.0, 1.0, 2.5], size=14))
    values = rng.normal(size=(14, ARMS)) + 3.0
    data = panel_data([(times, values)])
    model = fitted(kernels(), season)
    regression, priors = model.coefficient_model(data)
    log_likelihood, mean, _ = regression.solve(priors)

    noise = math.exp(model.theta[-1])
    covar = dense(model, data, times, times) + noise * np.eye(values.size)
    y, ones = values.ravel(), np.ones(values.size)
    expected_mean = ones @ np.linalg.solve(covar, y) / (ones @ np.linalg.solve(covar, ones))
    assert mean == pytest.approx(expected_mean, rel=1e-9)
    residual = y - expected_mean
    expected = -0.5 * (
        residual @ np.linalg.solve(covar, residual) + np.linalg.slogdet(2 * math.pi * covar)[1]
    )
    assert log_likelihood == pytest.approx(expected, rel=1e-9)

    later = times[-1] + np.array([0.0, 0.7, 3.0, 40.0])
    forecast = mode_forecast(model, data, unit=1.0, gap=1.0, is_segmented=False)
    crossed = dense(model, data, later, times)
    posterior = expected_mean + crossed @ np.linalg.solve(covar, residual)
    np.testing.assert_allclose(forecast.means(later).ravel(), posterior, rtol=1e-8)
    prior = dense(model, data, later, later)
    variances = np.diag(prior - crossed @ np.linalg.solve(covar, crossed.T))
    np.testing.assert_allclose(forecast.variances(later).ravel(), variances, rtol=1e-7)


def test_independent_segments_share_means_and_profile():
    rng = np.random.default_rng(2)
    times = [np.arange(6.0), np.arange(6.0), np.arange(6.0) + 0.5]
    blocks = [(t, rng.normal(size=(6, ARMS)) - 2.0) for t in times]
    data = panel_data(blocks)
    assert [group.values.shape[2] for group in data.groups] == [2, 1]
    model = fitted([exponential(0.3)], SegmentProfile(6.0, 3))
    regression, priors = model.coefficient_model(data)
    log_likelihood, mean, _ = regression.solve(priors)

    # A segment far in time from the others has nothing but means and profile in common with them.
    def covariance(rows, columns):
        far = [t + 1e6 * k for k, t in enumerate(rows)]
        others = [t + 1e6 * k for k, t in enumerate(columns)]
        drift = dense(fitted([exponential(0.3)], None), data, *map(np.concatenate, (far, others)))
        level = dense(model, data, *map(np.concatenate, (rows, columns)))
        without = dense(
            fitted([exponential(0.3)], None), data, *map(np.concatenate, (rows, columns))
        )
        return drift + level - without

    noise = math.exp(model.theta[-1])
    covar = covariance(times, times) + noise * np.eye(3 * 6 * ARMS)
    y = np.concatenate([values.ravel() for _, values in blocks])
    residual = y - mean
    expected = -0.5 * (
        residual @ np.linalg.solve(covar, residual) + np.linalg.slogdet(2 * math.pi * covar)[1]
    )
    assert log_likelihood == pytest.approx(expected, rel=1e-9)
    forecast = mode_forecast(model, data, unit=1.0, gap=1.0, is_segmented=True)
    new = [*times, np.array([2.0, 5.0])]
    crossed = covariance(new, times)[-2 * ARMS :]
    posterior = mean + crossed @ np.linalg.solve(covar, residual)
    np.testing.assert_allclose(forecast.means(new[-1]).ravel(), posterior, rtol=1e-8)


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
