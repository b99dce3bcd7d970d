"""Draws of whole functions: their covariance is that of the dense posterior."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from gpytorch.kernels import RBFKernel
from gpytorch.means import ConstantMean

from tvbo.models import IncrementalGP, StreamingGP
from tvbo.models.draws import draw_function
from tvbo.models.streaming.paths import TRUNCATION, covariance_modes
from tvbo.rounding import floored_posterior

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


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_where_rows_were_merged_or_dropped(small, rate, monkeypatch):
    """Merged, the events are gone: then from the joint posterior, which is still exact."""
    monkeypatch.setattr("tvbo.models.streaming.eviction_policy.RESERVE_ENTRIES", 0)
    monkeypatch.setattr("tvbo.models.streaming.eviction_policy.RESERVE_ROWS", (10, 11))
    X, Y = small.data(torch.arange(100.0))
    model = small.streaming(rate)
    model.observe(X[:60], Y[:60])
    for i in range(60, 100):
        model.observe(X[i : i + 1], Y[i : i + 1])
    rows = small.rows(100)
    assert_drawn_from(model, rows, *posterior(X, Y, rate, small.noise, rows))


@pytest.mark.slow
def test_where_rows_without_weight_were_dropped(monkeypatch):
    """A set too large to merge for; what weighed 1e-12 is not seen in a draw."""
    monkeypatch.setattr("tvbo.models.streaming.eviction_policy.RESERVE_ENTRIES", 0)
    monkeypatch.setattr("tvbo.models.streaming.eviction_policy.RESERVE_ROWS", (5, 6))
    monkeypatch.setattr("tvbo.models.streaming.eviction_policy.INITIAL_CAPACITY", 16)
    choices = torch.linspace(0, 1, 40).unsqueeze(-1)
    kernel = RBFKernel()
    kernel.lengthscale = 0.4
    model = StreamingGP(choices, kernel, 0.95, 0.04)
    generator = torch.Generator().manual_seed(5)
    place = torch.randint(40, (60,), generator=generator)
    X = torch.cat([choices[place], torch.arange(60.0).unsqueeze(-1)], -1)
    Y = torch.randn(60, 1, generator=generator)
    for i in range(60):
        model.observe(X[i : i + 1], Y[i : i + 1])
    assert model.innovations.store.num_evicted > 0
    assert model.innovations.evicted.merged is None
    rows = torch.cat([choices, torch.full((40, 1), 59.5)], -1)
    assert model.draw(59.5, torch.Generator()) is not None
    assert_drawn_from(model, rows, *posterior(X, Y, 0.95, 0.04, rows))


def test_where_rows_that_weigh_were_dropped(small):
    """With max_rows the model's own covariance is what a draw has to have."""
    X, Y = small.data(torch.arange(30.0))
    model = small.streaming(0.0, max_rows=5)
    for i in range(30):
        model.observe(X[i : i + 1], Y[i : i + 1])
    rows = small.rows(30)
    own = model.posterior(rows)
    covar = own.distribution.covariance_matrix.numpy()
    assert_drawn_from(model, rows, own.mean.flatten().numpy(), covar)


@pytest.mark.parametrize("rate", [0.0, 0.1, 1.0])
def test_conditioned_models(small, rate):
    X, Y = small.data(TIMES)
    rows = small.rows(10)
    expected = posterior(X, Y, rate, small.noise, rows)
    streaming = small.streaming(rate)
    streaming.observe(X[:6], Y[:6])
    incremental = IncrementalGP.from_model(small.dense(X[:6], Y[:6], rate).eval())
    incremental.observe(X[:6], Y[:6])
    for model in (streaming, incremental):
        more = model.condition_on_observations(X[6:], Y[6:])
        assert_drawn_from(more, rows, *expected)


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


@pytest.mark.parametrize("scale", [0.0, 2.5])
def test_a_wider_draw(small, scale):
    X, Y = small.data(TIMES)
    rows = small.rows(10)
    mean, covar = posterior(X, Y, 0.1, small.noise, rows)
    model = small.streaming(0.1)
    model.observe(X, Y)
    assert_drawn_from(model, rows, mean, scale**2 * covar, scale=scale)


def test_some_of_the_choices_or_several_times(small):
    """What is not all choices at one time is drawn from the joint posterior."""
    X, Y = small.data(TIMES)
    model = small.streaming(0.1)
    model.observe(X, Y)
    mixed = small.rows(10)
    mixed[::2, -1] += 3
    for rows in (small.rows(10)[[5, 2]], mixed, small.rows(10).flip(0)):
        assert not model.covers(rows)
        assert_drawn_from(model, rows, *posterior(X, Y, 0.1, small.noise, rows))


def test_before_any_observation(small):
    model = small.streaming(0.3)
    rows = small.rows(-4)
    covar = small.rbf()(small.choices).to_dense().detach().numpy()
    assert_drawn_from(model, rows, np.zeros(9), covar)


def drawn(model, rows, seed, n):
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([draw_function(model, rows, generator) for _ in range(n)])


def test_normals_are_normal(small):
    """400 real draws: squared distances from the mean, in units of the covariance, have 9 degrees
    of freedom each; their sum within four standard deviations."""
    X, Y = small.data(TIMES)
    model = small.streaming(0.1)
    model.observe(X, Y)
    mean, covar = posterior(X, Y, 0.1, small.noise, small.rows(10))
    off = drawn(model, small.rows(10), seed=1, n=400).numpy() - mean
    total = (off @ np.linalg.inv(covar) * off).sum()
    assert abs(total - 3600) < 4 * np.sqrt(2 * 3600)


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


@pytest.mark.parametrize("n", [40, 200])
def test_the_modes_lack_little(n):
    """A smooth kernel on a fine grid needs few columns."""
    choices = torch.linspace(0, 1, n).unsqueeze(-1)
    kernel = RBFKernel()
    kernel.lengthscale = 0.3
    model = StreamingGP(choices, kernel, 0.1, 0.1)
    U, s = covariance_modes(model.innovations.prior.covariance)
    K = kernel(choices).to_dense().detach()
    assert (K - (U * s**2) @ U.T).abs().max() <= 2 * TRUNCATION
    assert U.shape[1] < 20


def test_a_batch_cannot_be_drawn_from(small):
    model = small.streaming(torch.tensor([0.1, 0.2]))
    with pytest.raises(UnsupportedError, match=r"batch_shape=\(2,\)"):
        model.draw(1.0, torch.Generator())


@pytest.mark.parametrize("t", [8.0, float("nan")])
def test_a_time_that_cannot_be_drawn_at(small, t):
    X, Y = small.data(TIMES)
    model = small.streaming(0.1)
    model.observe(X, Y)
    with pytest.raises(InputDataError, match="Expected"):
        model.draw(t, torch.Generator())


def test_a_covariance_that_is_none():
    class Broken:
        def posterior(self, rows):
            covar = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
            return floored_posterior(torch.zeros(2), covar, None)

    with pytest.raises(ValueError):
        draw_function(Broken(), torch.zeros(2, 2), torch.Generator())
