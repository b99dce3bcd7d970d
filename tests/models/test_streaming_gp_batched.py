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


def test_rates_that_broadcast_with_noises(small):
    X, Y = batch_data(small, (2, 2))
    rates, noises = torch.tensor([[0.0], [0.2]]), torch.tensor([0.01, 1.0])

    def make(place):
        return small.streaming(rates[place[0], 0].item(), noise=noises[place[1]].item())

    assert_one_by_one(small, small.streaming(rates, noise=noises), make, X, Y)


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


def test_own_noise_of_each_outcome(small):
    X, Y = batch_data(small, (3,))
    Yvar = 0.01 + torch.rand(Y.shape, generator=torch.Generator().manual_seed(4))
    model = small.streaming(0.03, batch_shape=torch.Size([3]))
    assert_one_by_one(small, model, lambda _: small.streaming(0.03), X, Y, Yvar)


def test_shared_rows(small):
    _, Y = batch_data(small, (2, 2))
    X, _ = small.data(TIMES)
    model, same = (small.streaming(0.03, batch_shape=torch.Size([2, 2])) for _ in range(2))
    model.observe(X, Y)
    same.observe(X.expand(2, 2, -1, -1), Y)
    small.assert_same(model, same, small.rows(10), atol=0.0)


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


def test_marginals_at_a_time_of_each_trial(small):
    X, Y = batch_data(small, (3,))
    model = small.streaming(0.03, batch_shape=torch.Size([3]))
    model.observe(X, Y)
    times = model.now + torch.tensor([0.0, 1.0, 9.0])
    mean, variance = model.marginals(times)
    for k in range(3):
        one = small.dense(X[k], Y[k], 0.03).posterior(small.rows(times[k]))
        torch.testing.assert_close(mean[k], one.mean[:, 0], rtol=0, atol=1e-10)
        torch.testing.assert_close(variance[k], one.variance[:, 0], rtol=0, atol=1e-10)


def test_own_kernels_of_as_many_trials_as_choices(small):
    """b x n variances of n = b choices are not a matrix."""
    count = len(small.choices)
    lengths = torch.linspace(0.2, 0.9, count)
    batched = small.streaming(0.1, kernel=small.rbf(lengths, (count,)))
    X, Y = small.data(range(5))
    batched.observe(X, Y.expand(count, 5, 1))
    mean, variance = batched.marginals(5.0)
    for k in range(count):
        single = small.streaming(0.1, kernel=small.rbf(lengths[k]))
        single.observe(X, Y)
        expected = single.marginals(5.0)
        torch.testing.assert_close((mean[k], variance[k]), expected, rtol=0, atol=1e-12)
