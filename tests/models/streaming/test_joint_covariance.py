"""The joint covariance of many rows: evaluated when needed, as of when it was asked for."""

import pickle
from copy import deepcopy

import pytest
import torch
from botorch.models import ModelListGP
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_dense
from reference import dense_gp, rbf
from torch import Size

from tvbo.models import StreamingGP
from tvbo.models.streaming.joint_covariance import EventCovariance, JointCovariance

pytestmark = [
    pytest.mark.usefixtures("double_by_default"),
    pytest.mark.draws_globally,  # GPyTorch's samples do
]

SIDE = torch.linspace(0, 1, 6, dtype=torch.float64)
CHOICES = torch.cartesian_prod(SIDE, SIDE)
NOISE = 0.04


def streaming(rate=0.03, **options):
    return StreamingGP(CHOICES, rbf(), rate, NOISE, **options)


def rows(t):
    return torch.cat([CHOICES, torch.full((36, 1), float(t), dtype=torch.float64)], dim=-1)


def data(times, seed=0):
    generator = torch.Generator().manual_seed(seed)
    times = torch.as_tensor(times, dtype=torch.float64)
    place = torch.randint(36, (len(times),), generator=generator)
    Y = torch.randn(len(times), 1, dtype=torch.float64, generator=generator)
    return torch.cat([CHOICES[place], times.unsqueeze(-1)], dim=-1), Y


def observe(model, times):
    X, Y = data(times)
    for part in torch.arange(len(X)).split(2):
        model.observe(X[part], Y[part].expand(*model.batch_shape, -1, -1))


def covariance(posterior):
    return posterior.distribution.covariance_matrix


def close(one, two, atol=1e-10):
    torch.testing.assert_close(one, two, rtol=0, atol=atol)


def test_equal_to_the_dense_model():
    X, Y = data([0, 0, 1, 2.5, 4, 4, 3, 7])
    model = streaming()
    model.observe(X, Y)
    posterior = model.posterior(rows(8))
    assert isinstance(posterior.distribution.lazy_covariance_matrix, JointCovariance)
    expected = dense_gp(X, Y, NOISE, 0.03, rbf()).eval().posterior(rows(8))
    close(posterior.mean, expected.mean)
    close(posterior.variance, expected.variance)
    close(covariance(posterior), covariance(expected))


def test_mean_and_variance_need_no_covariance(monkeypatch):
    model = streaming()
    observe(model, range(5))
    expected = model.posterior(rows(6).unsqueeze(-2))
    noise = torch.linspace(0.1, 1.0, 36).unsqueeze(-1)

    def evaluate(*_):
        raise AssertionError

    monkeypatch.setattr(EventCovariance, "__call__", evaluate)
    posterior = model.posterior(rows(6))
    close(posterior.mean, expected.mean.squeeze(-2))
    close(posterior.variance, expected.variance.squeeze(-2))
    for given, added in ((True, NOISE), (noise, noise)):
        noisy = model.posterior(rows(6), observation_noise=given)
        close(noisy.variance, posterior.variance + added)
    both = ModelListGP(model, model).posterior(rows(6))
    close(both.mean, posterior.mean.expand(36, 2))


CASES = {
    "few rows": {},
    "rows shifted": {"max_rows": 30},
    "before merging": {"rate": 0.0, "max_lateness": 5.0},
    "rows grow": {"rate": 1e-3, "max_lateness": 0.0},
    "batch": {"batch_shape": Size([2])},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("before", [10, 80, 150])
def test_later_observations_do_not_reach_it(case, before):
    model = streaming(**CASES[case])
    observe(model, range(before))
    posterior, expected = (each.posterior(rows(before)) for each in (model, deepcopy(model)))
    expected = covariance(expected).clone()
    observe(model, range(before, before + 120))
    model.reset()
    observe(model, range(5))
    close(covariance(posterior), expected)


def test_blocks_and_batches():
    model = streaming(batch_shape=Size([2]))
    observe(model, range(5))
    X = torch.stack([rows(6), rows(7), rows(8)]).unsqueeze(1)
    posterior = model.posterior(X)
    assert posterior.mean.shape == posterior.variance.shape == (3, 2, 36, 1)
    covar = covariance(posterior)
    assert covar.shape == (3, 2, 36, 36)
    lazy = model.posterior(X).distribution.lazy_covariance_matrix
    close(to_dense(lazy[..., :5, 7:]), covar[..., :5, 7:])
    close(to_dense(lazy[2, 1]), covar[2, 1])
    close(to_dense(lazy.mT), covar)
    close(lazy @ torch.ones(36, 1), covar.sum(dim=-1, keepdim=True))
    some = model.posterior(X).distribution[1, 0]
    assert isinstance(some, MultivariateNormal)
    close(some.covariance_matrix, covar[1, 0])


def test_draws_and_solves():
    model = streaming()
    observe(model, range(5))
    posterior = model.posterior(rows(6), observation_noise=True)
    assert posterior.rsample(Size([3])).shape == (3, 36, 1)
    y = posterior.mean.squeeze(-1) + 1.0
    expected = torch.distributions.MultivariateNormal(
        posterior.mean.squeeze(-1), covariance(posterior)
    ).log_prob(y)
    close(posterior.distribution.log_prob(y), expected)


def test_pickled():
    model = streaming()
    observe(model, range(5))
    posterior = model.posterior(rows(6))
    close(covariance(pickle.loads(pickle.dumps(posterior))), covariance(posterior))
