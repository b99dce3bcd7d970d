"""Independent trials in one model equal models one by one."""

import pytest
import torch

pytestmark = pytest.mark.usefixtures("double_by_default")

TIMES = [0, 1, 1, 2.5, 4, 3, 7, 8, 8, 9]


def batch_data(small, batch_shape):
    """Own rows and outcomes for each trial."""
    count = torch.Size(batch_shape).numel()
    parts = [small.data(torch.tensor(TIMES) * (1 + k), seed=k) for k in range(count)]
    X, Y = (torch.stack(part) for part in zip(*parts, strict=True))
    return X.reshape(*batch_shape, *X.shape[1:]), Y.reshape(*batch_shape, *Y.shape[1:])


def places(batch_shape):
    return [tuple(place) for place in torch.ones(batch_shape).nonzero().tolist()]


def assert_one_by_one(small, model, make, X, Y, Yvar=None, t=100.0):
    """``make(place)`` is the unbatched model of the trial at ``place``."""
    ones = {place: make(place) for place in places(model.batch_shape)}
    for part in torch.arange(X.shape[-2]).split([1, 4, 5]):
        noise = None if Yvar is None else Yvar[..., part, :]
        model.observe(X[..., part, :], Y[..., part, :], noise)
        for place, one in ones.items():
            own = None if Yvar is None else noise[place]
            one.observe(X[place][part], Y[place][part], own)
    posterior, (mean, variance) = model.posterior(small.rows(t)), model.marginals(t)
    for place, one in ones.items():
        single = one.posterior(small.rows(t))
        pairs = [
            (posterior.mean[place], single.mean),
            (
                posterior.distribution.covariance_matrix[place],
                single.distribution.covariance_matrix,
            ),
            (mean[place], one.marginals(t)[0]),
            (variance[place], one.marginals(t)[1]),
        ]
        for got, expected in pairs:
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("batch_shape", [(3,), (2, 2)])
def test_own_data(small, batch_shape):
    X, Y = batch_data(small, batch_shape)
    model = small.streaming(0.03, batch_shape=torch.Size(batch_shape))
    assert model.now.shape == batch_shape
    assert_one_by_one(small, model, lambda _: small.streaming(0.03), X, Y)


@pytest.mark.parametrize("batch_shape", [(3,), (2, 2)])
def test_own_rates_and_noises(small, batch_shape):
    X, Y = batch_data(small, batch_shape)
    rates = torch.tensor([0.0, 0.03, 1.0, 0.5])[: Y.shape[:-2].numel()].reshape(batch_shape)
    noises = torch.tensor([0.01, 0.1, 1.0, 4.0])[: Y.shape[:-2].numel()].reshape(batch_shape)
    model = small.streaming(rates, noise=noises)
    assert torch.equal(model.forgetting_rate, rates)
    assert torch.equal(model.noise_variance, noises)

    def make(place):
        return small.streaming(rates[place].item(), noise=noises[place].item())

    assert_one_by_one(small, model, make, X, Y)


@pytest.mark.parametrize("batch_shape", [(3,), (2, 3)])
def test_own_kernels(small, batch_shape):
    lengthscales = torch.tensor([0.2, 0.5, 1.0])
    X, Y = batch_data(small, batch_shape)
    model = small.streaming(
        0.03, kernel=small.rbf(lengthscales, (3,)), batch_shape=torch.Size(batch_shape)
    )

    def make(place):
        return small.streaming(0.03, kernel=small.rbf(lengthscales[place[-1]]))

    assert_one_by_one(small, model, make, X, Y)


@pytest.mark.parametrize("rate", [1e-3, 0.4])
def test_trials_whose_clocks_differ_lose_rows_together(small, rate):
    """The slowest trial decides which rows go."""
    n = 200
    X, Y = (torch.stack(x) for x in zip(*(small.data(range(n), k) for k in range(2)), strict=True))
    X[1, :, -1] *= 0.25
    model = small.streaming(rate, batch_shape=torch.Size([2]), max_lateness=3.0)
    for part in torch.arange(n).split(5):
        model.observe(X[:, part], Y[:, part])
    assert model.num_rows < n
    posterior = model.posterior(small.rows(n))
    for k in range(2):
        expected = small.dense(X[k], Y[k], rate).posterior(small.rows(n))
        torch.testing.assert_close(posterior.mean[k], expected.mean, rtol=0, atol=1e-9)
        torch.testing.assert_close(posterior.variance[k], expected.variance, rtol=0, atol=1e-9)


def test_posterior_broadcasts_rows_with_trials(small):
    X, Y = batch_data(small, (3,))
    model = small.streaming(0.03, batch_shape=torch.Size([3]))
    model.observe(X, Y)
    each = small.rows(50.0).reshape(9, 1, 1, 3)
    posterior = model.posterior(each)
    assert posterior.mean.shape == (9, 3, 1, 1)
    mean, variance = model.marginals(50.0)
    torch.testing.assert_close(posterior.mean[..., 0, 0], mean.T, rtol=0, atol=1e-12)
    torch.testing.assert_close(posterior.variance[..., 0, 0], variance.T, rtol=0, atol=1e-12)
    # Pairs of rows too: q = 2.
    pairs = torch.stack([small.rows(50.0), small.rows(51.0)], dim=1).reshape(9, 1, 2, 3)
    assert model.posterior(pairs).distribution.covariance_matrix.shape == (9, 3, 2, 2)
    torch.testing.assert_close(model.posterior(pairs).mean[..., 0, 0], mean.T, rtol=0, atol=1e-12)
