"""What the stale cut-off can cost, against dense posteriors with and without what it drops."""

import math

import pytest
import torch

from experiments.theory.stale import stale_error_bound
from tvbo.retention import StaleCutoff
from tvbo.spaces.observations import Observations

NOW = 20.0


def covariance(X, Z, rate, lengthscale=0.3, scale=1.0):
    """The drifting kernel over rows [x1, x2, t], written out."""
    space = torch.cdist(X[:, :-1], Z[:, :-1]) / lengthscale
    lag = (X[:, -1:] - Z[:, -1]).abs()
    return scale * torch.exp(-space.square() / 2) * (1 - rate) ** (lag / 2)


def posterior(X, noise, at, **kernel):
    """Weights of outcomes in the mean, and the variance, at rows."""
    cross = covariance(X, at, **kernel)
    outcomes = covariance(X, X, **kernel) + noise.diag()
    weights = torch.linalg.solve(outcomes, cross)
    prior = covariance(at, at, **kernel).diagonal()
    return weights, prior - (weights * cross).sum(dim=0)


def rows(n, generator, oldest=0.0):
    X = torch.rand(n, 3, dtype=torch.float64, generator=generator)
    X[:, -1] = oldest + (NOW - oldest) * X[:, -1]
    return X


def kept(policy, X):
    return policy.keep(Observations(X, torch.zeros(len(X), 1, dtype=torch.float64)), None, NOW)


def candidates(generator, t=NOW):
    at = torch.rand(12, 3, dtype=torch.float64, generator=generator)
    at[:, -1] = t
    return at


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.4])
@pytest.mark.parametrize("tol", [0.5, 0.1, 0.01])
@pytest.mark.combinations
def test_no_variance_grows_by_more(generator, rate, tol):
    policy = StaleCutoff(rate, tol=tol)
    bound = stale_error_bound(tol, prior_variance=2.0)
    largest = 0.0
    for trial in range(60):
        # Few or many, close together or far apart, with hardly any noise or much.
        num_rows = int(torch.randint(2, 40, (1,), generator=generator))
        X = rows(num_rows, generator, oldest=NOW - 1.5 * math.log(tol) / math.log(1 - rate))
        noise = 10 ** (-5 * torch.rand(len(X), dtype=torch.float64, generator=generator))
        kernel = {"rate": rate, "lengthscale": (0.1, 0.5, 3.0)[trial % 3], "scale": 2.0}
        stay = kept(policy, X)
        # Now, and later on, when the dropped ones weigh even less.
        for t in (NOW, NOW + 3.0):
            at = candidates(generator, t)
            _, everything = posterior(X, noise, at, **kernel)
            _, less = posterior(X[stay], noise[stay], at, **kernel)
            growth = less - everything
            assert growth.min() >= -1e-9
            largest = max(largest, growth.max().item())
    assert 0.2 * bound.variance_growth < largest <= bound.variance_growth + 1e-9


@pytest.mark.parametrize("rate", [0.07, 0.1])
def test_the_mean_shifts_by_no_more_on_average(generator, rate):
    """Outcomes drawn from the model: the average is the growth of the variance, and bounded."""
    policy = StaleCutoff(rate, tol=0.3)
    X = rows(25, generator)
    noise = torch.full((25,), 0.05, dtype=torch.float64)
    stay = kept(policy, X)
    assert 3 <= stay.sum() < 22
    at = candidates(generator)
    all_weights, everything = posterior(X, noise, at, rate=rate)
    weights, less = posterior(X[stay], noise[stay], at, rate=rate)
    root = torch.linalg.cholesky(covariance(X, X, rate) + noise.diag())
    draws = 40_000
    Y = root @ torch.randn(25, draws, dtype=torch.float64, generator=generator)
    shift = all_weights.T @ Y - weights.T @ Y[stay]
    square = shift.square().mean(dim=-1)
    # The mean of squares of normal variables: a relative standard error of sqrt(2 / draws).
    torch.testing.assert_close(square, less - everything, rtol=5 * math.sqrt(2 / draws), atol=1e-9)
    assert square.max().sqrt() <= stale_error_bound(policy.tol).mean_shift


def test_bound_of_the_model_that_forgets_faster_holds_too(generator):
    policy = StaleCutoff(0.1, tol=0.2)
    X = rows(30, generator)
    noise = torch.full((30,), 1e-4, dtype=torch.float64)
    stay = kept(policy, X)
    at = candidates(generator)
    _, everything = posterior(X, noise, at, rate=0.15)
    _, less = posterior(X[stay], noise[stay], at, rate=0.15)
    assert 0 < (less - everything).max() <= stale_error_bound(policy.tol).variance_growth


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_bad_prior_variance(bad):
    with pytest.raises(ValueError):
        stale_error_bound(0.1, prior_variance=bad)
