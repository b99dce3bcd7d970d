"""Draws of whole functions: their covariance is that of the dense posterior."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from gpytorch.means import ConstantMean

from tvbo.models import EnsembleGP
from tvbo.models.pathwise import draw_function

pytestmark = pytest.mark.usefixtures("double_by_default")

TIMES = [0, 0, 1, 1.5, 4, 4, 7, 3, 8, 8.25, 2, 9, 9]


def posterior(X, Y, rate, noise, at, lengthscale=0.4):
    """Mean and joint covariance by the formulas, in numpy."""
    X, Y, at = X.numpy(), Y.numpy()[:, 0], at.numpy()

    def covariance(A, B):
        square = ((A[:, None, :-1] - B[None, :, :-1]) ** 2).sum(-1)
        lag = np.abs(A[:, None, -1] - B[None, :, -1])
        kept = np.where(lag == 0, 1.0, (1.0 - rate) ** (lag / 2))
        return np.exp(-square / (2 * lengthscale**2)) * kept

    K = covariance(X, X) + np.diag(np.broadcast_to(noise, len(X)))
    k = covariance(X, at)
    return k.T @ np.linalg.solve(K, Y), covariance(at, at) - k.T @ np.linalg.solve(K, k)


def law(model, rows, scale=1.0):
    """Mean and covariance of a draw, exact: it is affine in the standard normals it is made of, so
    one call with each unit vector in their place gives all."""

    def with_normals(source):
        taken = 0

        def normals(size, dtype=None, generator=None):
            nonlocal taken
            part = torch.zeros(size, dtype=dtype)
            if source is not None and taken <= source < taken + size:
                part[source - taken] = 1.0
            taken += size
            return part

        with patch.object(torch, "randn", normals):
            return draw_function(model, rows, torch.Generator(), scale), taken

    mean, num_normals = with_normals(None)
    root = torch.stack([with_normals(i)[0] - mean for i in range(num_normals)]).numpy()
    return mean.numpy(), root.T @ root


def assert_drawn_from(model, rows, mean, covar, scale=1.0, atol=1e-8):
    found = law(model, rows, scale)
    np.testing.assert_allclose(found[0], mean, rtol=0, atol=atol)
    np.testing.assert_allclose(found[1], covar, rtol=0, atol=atol)


@pytest.mark.parametrize("rate", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("t", [9.0, 11.5])
def test_from_the_events(small, rate, t):
    X, Y = small.data(TIMES)
    X[5] = X[4]
    generator = torch.Generator().manual_seed(2)
    noise = 0.01 + torch.rand(len(X), 1, generator=generator) / 5
    model = small.streaming(rate)
    for i in range(len(X)):
        model.observe(X[i : i + 1], Y[i : i + 1], noise[i : i + 1])
    rows = small.rows(t)
    assert model.draw(t, torch.Generator().manual_seed(0)) is not None
    mean, covar = posterior(X, Y, rate, noise.numpy()[:, 0], rows)
    assert_drawn_from(model, rows, mean, covar)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_where_rows_were_merged(small, rate):
    """Merged, the events are gone: then from the joint posterior, which is still exact."""
    X, Y = small.data(torch.arange(100.0))
    model = small.streaming(rate)
    model.observe(X[:60], Y[:60])
    for i in range(60, 100):
        model.observe(X[i : i + 1], Y[i : i + 1])
    rows = small.rows(100)
    assert_drawn_from(model, rows, *posterior(X, Y, rate, small.noise, rows))


@pytest.mark.parametrize("rate", [0.0, 0.1, 1.0])
def test_conditioned_models(small, rate):
    X, Y = small.data(TIMES)
    rows = small.rows(10)
    expected = posterior(X, Y, rate, small.noise, rows)
    streaming = small.streaming(rate)
    streaming.observe(X[:6], Y[:6])
    incremental = EnsembleGP.from_model(small.dense(X[:6], Y[:6], rate).eval())
    incremental = incremental.condition_on_observations(X[:6], Y[:6])
    for model in (streaming, incremental):
        more = model.condition_on_observations(X[6:], Y[6:])
        assert_drawn_from(more, rows, *expected)


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_without_pending_trials(small, rate):
    X, Y = small.data(TIMES)
    model = small.streaming(rate)
    model.observe(X[:6], Y[:6])
    model.set_X_pending(small.rows(9)[:3])
    rows = small.rows(10)
    expected = posterior(X[:6], Y[:6], rate, small.noise, rows)
    assert_drawn_from(model, rows, *expected)


def test_dense_and_prior_mean(small):
    constant = ConstantMean()
    constant.constant.data.fill_(0.7)
    X, Y = small.data(TIMES)
    rows = small.rows(10)
    mean, covar = posterior(X, Y - 0.7, 0.1, small.noise, rows)
    model = small.streaming(0.1, mean_module=constant)
    model.observe(X, Y)
    assert_drawn_from(model, rows, mean + 0.7, covar)
    other = small.dense(X, Y - 0.7, 0.1).eval()
    assert_drawn_from(other, rows, mean, covar)


def drawn(model, rows, seed, n):
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([draw_function(model, rows, generator) for _ in range(n)])


def test_seeds_repeat_and_the_model_stays(small):
    X, Y = small.data(TIMES)
    model = small.streaming(0.1)
    model.observe(X, Y)
    before = model.posterior(small.rows(10)).mean
    one, two = (drawn(model, small.rows(10), seed=7, n=3) for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one[0], one[1])
    assert not torch.equal(one, drawn(model, small.rows(10), seed=8, n=3))
    assert torch.equal(before, model.posterior(small.rows(10)).mean)
