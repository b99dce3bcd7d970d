"""Filters of independent processes, against their covariance matrices."""

import numpy as np
import pytest

from tvbo.logs.modes import ModeFilter, recursion

GAPS = np.array([1.0, 0.5, np.inf, 2.0, 0.25])


@pytest.mark.parametrize("backwards", [False, True])
def test_recursion_equals_a_loop(backwards):
    rng = np.random.default_rng(0)
    factors, driven = rng.normal(size=(3, 4)), rng.normal(size=(2, 3, 5))
    expected = driven.copy()
    for k in range(3, -1, -1) if backwards else range(4):
        if backwards:
            expected[..., k] += factors[:, k] * expected[..., k + 1]
        else:
            expected[..., k + 1] += factors[:, k] * expected[..., k]
    np.testing.assert_allclose(recursion(factors, driven, backwards), expected, rtol=1e-12)


@pytest.mark.parametrize("rate", [0.0, 0.1, 50.0])
def test_each_mode_has_its_normal_density(rate):
    rng = np.random.default_rng(1)
    eigenvalues, noise = np.array([0.0, 0.3, 2.0]), 0.2
    series = rng.normal(size=(3, 6))
    filters = ModeFilter(eigenvalues, GAPS, rate, noise)
    position = np.array([0.0, 1.0, 1.5, 0.0, 2.0, 2.25])
    segment = np.array([0, 0, 0, 1, 1, 1])
    correlation = np.exp(-0.5 * rate * np.abs(position[:, None] - position))
    correlation *= segment[:, None] == segment
    expected = 0.0
    for variance, y in zip(eigenvalues, series, strict=True):
        covar = variance * correlation + noise * np.eye(6)
        expected -= 0.5 * (
            y @ np.linalg.solve(covar, y) + np.linalg.slogdet(2 * np.pi * covar).logabsdet
        )
    assert filters.log_likelihood(filters.innovations(series)) == pytest.approx(expected, rel=1e-12)


def test_an_infinite_gap_has_a_finite_gradient():
    series = np.random.default_rng(2).normal(size=(3, 6))
    for rate in (0.0, 1.0, 1e9):
        filters = ModeFilter(np.array([0.0, 0.3, 2.0]), GAPS, rate, 0.2)
        gradient = filters.gradient(series, filters.innovations(series))
        assert np.isfinite([gradient.rate, gradient.noise_variance]).all()
        assert np.isfinite(gradient.covar).all()
