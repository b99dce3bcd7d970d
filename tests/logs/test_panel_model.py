"""The model of a panel by modes against dense Gaussian processes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tvbo.kernels import (
    DampedOscillationKernel,
    SeasonalKernel,
    TemporalKernel,
    TemporalMaternKernel,
)
from tvbo.logs.panel_coefficients import CoefficientModel, prior_variances
from tvbo.logs.panel_data import ArmCovariance, panel_data, regressors
from tvbo.logs.panel_em import improved_covariance
from tvbo.logs.panel_evidence import exponential
from tvbo.logs.panel_mean import mode_forecast
from tvbo.logs.panel_search import FittedPanel
from tvbo.logs.panel_terms import Component, in_unit_of_time, spectrum
from tvbo.logs.season import PeriodicSeason, SegmentProfile, WorkweekSeason
from tvbo.logs.state_filter import StateSpace, filter_modes, log_likelihoods

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
    return FittedPanel(
        season, components, covariance, np.array(theta), phi, 0.0, 0.0, np.zeros((1, ARMS))
    )


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
    "oscillation": lambda: [DampedOscillationKernel(7.0).double()],
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


def test_season_has_the_prior_of_the_seasonal_kernel():
    kernel = SeasonalKernel(9.0, num_harmonics=4).double()
    # Tensors, since GPyTorch rounds numbers to single precision.
    kernel.period, kernel.lengthscale = torch.tensor([9.0, 0.6], dtype=torch.float64)
    season, times = PeriodicSeason(9.0, 4), np.linspace(0, 20, 7)
    B = season.basis(times)
    covar = (B * season.weights(np.log([0.6]))) @ B.T
    lags = torch.as_tensor(np.abs(times[:, None] - times))
    np.testing.assert_allclose(
        covar, kernel.correlation(lags).detach().numpy(), rtol=1e-9, atol=1e-12
    )


def test_working_days_and_weekends_have_the_prior_of_two_profiles():
    # A Monday begins at time 2; a day has 4 steps.
    season, shape = WorkweekSeason(4.0, 2, monday=2.0), np.array([-0.5, 0.8])
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


def test_spectrum_is_the_transform_of_the_covariances():
    kernel = TemporalMaternKernel().double()
    kernel.lengthscale = 2.0
    model = fitted([exponential(0.7), kernel], None)
    data = panel_data([(np.arange(5.0), np.zeros((5, ARMS)))])
    space = model.terms(data).spaces(model.theta[None])
    frequencies = np.array([0.0, 0.3, 2.0])
    lags = np.arange(400.0)
    expected = np.full((ARMS, 3), math.exp(model.theta[-1]))
    amplitudes = model.terms(data).amplitudes(model.theta)
    for component, amplitude in zip(model.components, amplitudes, strict=True):
        tau = component.kernel.correlation(torch.as_tensor(lags)).detach().numpy()
        transform = tau[0] + 2 * np.cos(np.outer(frequencies, lags[1:])) @ tau[1:]
        expected += np.outer(amplitude, transform)
    np.testing.assert_allclose(spectrum(space, frequencies)[0], expected, rtol=1e-8)


def test_steady_variances_are_those_of_every_step():
    rng = np.random.default_rng(3)
    eigenvalues = np.array([2.0, 0.3, 1e-6])
    transitions = np.exp(-np.array([0.2, 0.5]))[None, :, None, None]
    space = StateSpace(transitions, eigenvalues[None, None, None], np.ones(1), np.array([0.1]))
    series = rng.normal(size=(300, 3, 2))
    gaps = [0] * 150 + [1] + [0] * 148
    filtered = filter_modes(series, gaps, space)
    P, m = eigenvalues.copy(), np.zeros((3, 2))
    for k in range(300):
        np.testing.assert_allclose(filtered.variances[k, 0], P + 0.1, rtol=1e-12)
        np.testing.assert_allclose(filtered.innovations[k, 0], series[k] - m, rtol=1e-9, atol=1e-12)
        gain = P / (P + 0.1)
        m, P = m + gain[:, None] * (series[k] - m), P * (1 - gain)
        if k < 299:
            a = transitions[0, gaps[k], 0, 0]
            m, P = a * m, a**2 * P + (1 - a**2) * eigenvalues


def test_temporal_kernels_in_another_unit_of_time_are_the_same():
    lags = torch.tensor([0.0, 0.5, 3.0], dtype=torch.float64)
    for make in (exponential, TemporalMaternKernel, lambda: DampedOscillationKernel(7.0)):
        kernel = make().double()
        changed = in_unit_of_time(kernel, 5.0)
        expected = kernel.correlation(lags)
        torch.testing.assert_close(changed.correlation(lags / 5.0), expected, rtol=1e-9, atol=0)


def test_coefficients_of_a_constant_panel_are_its_level():
    times = np.arange(30.0)
    values = np.tile([1.0, 2.0, 6.0], (30, 1))
    data = panel_data([(times, values)])
    model = fitted([exponential(5.0)], None)
    regression = CoefficientModel(
        data.turned(model.covariance.modes),
        None,
        model.terms(data).spaces(model.theta[None]),
        model.covariance.loadings,
    )
    coefficients, _ = regression.coefficients(np.full((ARMS, 1), 1e8))
    np.testing.assert_allclose(model.covariance.modes @ coefficients[:, 0], [1, 2, 6], rtol=1e-5)


def test_a_step_of_em_equals_that_of_a_dense_gp():
    rng = np.random.default_rng(5)
    times = np.cumsum(rng.choice([1.0, 2.5], size=9))
    blocks = [(times, rng.normal(size=(9, ARMS))), (times, rng.normal(size=(9, ARMS)))]
    data = panel_data(blocks)
    model = fitted([exponential(0.4)], None)
    terms = model.terms(data)
    # A single component equal to the covariance itself.
    model.theta[1:-1] = 0.0, 1.0
    improved = improved_covariance(model.covariance, terms, model.theta, data.groups)
    U, noise = model.covariance.modes, math.exp(model.theta[-1])
    K = (U * terms.amplitudes(model.theta)[0]) @ U.T
    model.components[0].set(model.theta[:1])
    lags = torch.as_tensor(np.abs(times[:, None] - times))
    tau = model.components[0].kernel.correlation(lags).detach().numpy()
    prior = np.kron(tau, K)
    gain = prior @ np.linalg.inv(prior + noise * np.eye(len(prior)))
    expected = np.zeros((ARMS, ARMS))
    for _, values in blocks:
        mean = gain @ values.ravel()
        moments = (np.outer(mean, mean) + prior - gain @ prior).reshape(9, ARMS, 9, ARMS)
        expected += np.einsum("st,satb->ab", np.linalg.inv(tau), moments) / 18
    found = (improved.modes * improved.eigenvalues) @ improved.modes.T
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_a_step_for_several_components_follows_the_gradient():
    rng = np.random.default_rng(6)
    times = np.arange(12.0)
    data = panel_data([(times, rng.normal(size=(12, ARMS)))])
    model = fitted([exponential(0.9), TemporalMaternKernel().double()], None)
    power = model.theta[-2]
    steps = improved_covariance(model.covariance, model.terms(data), model.theta, data.groups)
    # The power of the covariance as a covariance of its own.
    covar = ArmCovariance(model.covariance.eigenvalues**power, model.covariance.modes)
    model.theta[-2] = 1.0

    def log_likelihood(K):
        eigenvalues, modes = np.linalg.eigh(K)
        moved = replace(model, covariance=ArmCovariance(eigenvalues, modes))
        space = moved.terms(data).spaces(moved.theta[None])
        (group,) = data.turned(modes)
        return log_likelihoods(group.values, group.gaps, space)[0]

    K = (covar.modes * covar.eigenvalues) @ covar.modes.T
    gradient = np.zeros((ARMS, ARMS))
    for i in range(ARMS):
        for j in range(ARMS):
            change = np.zeros((ARMS, ARMS))
            change[i, j] += 5e-6
            change[j, i] += 5e-6
            gradient[i, j] = (log_likelihood(K + change) - log_likelihood(K - change)) / 2e-5
    expected = K + 2 / 12 * K @ gradient @ K
    found = (steps.modes * steps.eigenvalues**power) @ steps.modes.T
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_spectrum_over_a_length_is_that_of_the_best_estimate_of_a_constant():
    rates = np.array([1e-9, 1e-4, 0.02])
    T = 2000
    space = StateSpace(
        np.exp(-rates)[:, None, None, None], np.full((3, 1, 1, 1), 2.0), np.ones(1), np.zeros(3)
    )
    density = spectrum(space, np.zeros(1), T)[:, 0, 0]
    lags = np.abs(np.arange(T)[:, None] - np.arange(T))
    for rate, found in zip(rates, density, strict=True):
        if rate * T < 1e-3:
            variance = 2.0  # of a constant, which no series tells from its mean
        else:
            precision = np.linalg.solve(2.0 * np.exp(-rate * lags), np.ones(T))
            variance = 1 / precision.sum()
        np.testing.assert_allclose(found / T, variance, rtol=2e-3)


def test_noise_does_not_enter_the_first_estimate_of_the_covariance():
    rng = np.random.default_rng(8)
    root = np.array([[2.0, 0, 0], [1, 1, 0], [0, 0.5, 0.5]])
    expected = root @ root.T
    noise = np.array([3.0, 0.5, 1.0])
    state, segments = rng.normal(size=3), [[], []]
    for t in range(40_000):
        state = 0.9 * state + (1 - 0.9**2) ** 0.5 * rng.normal(size=3)
        segments[t // 20_000].append(root @ state + noise * rng.normal(size=3))
    covar = ArmCovariance.estimate([np.array(rows) for rows in segments])
    found = (covar.modes * covar.eigenvalues) @ covar.modes.T
    np.testing.assert_allclose(found / np.trace(found), expected / np.trace(expected), atol=0.03)


def test_residuals_without_memory_give_their_own_covariance():
    rng = np.random.default_rng(9)
    root = np.array([[2.0, 0, 0], [1, 1, 0], [0, 0.5, 0.5]])
    covar = ArmCovariance.estimate([rng.normal(size=(20_000, 3)) @ root.T])
    found = (covar.modes * covar.eigenvalues) @ covar.modes.T
    np.testing.assert_allclose(found, root @ root.T, atol=0.1)
