"""The prior of each model in raw units, against its formula and against posteriors."""

import pytest
import torch
from botorch.models.transforms import Normalize, Standardize
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ZeroMean

from tvbo.models import ContextualGP, EnsembleGP, TimeVaryingGP

RATE = 0.03
NOISE = 0.04


@pytest.fixture
def pair(small):
    """Rows on the 3 x 3 grid, of different numbers and at times in no order."""
    return small.data([3.0, 0.5, 7.25, 1.0])[0], small.data([2.0, 9.0, 2.0], seed=1)[0]


def by_hand(X1, X2, scale=1.0, lengthscale=0.4):
    """A double loop over rows [x1, x2, t]."""
    covar = torch.empty(len(X1), len(X2), dtype=torch.float64)
    for i, one in enumerate(X1.tolist()):
        for j, two in enumerate(X2.tolist()):
            square = sum((a - b) ** 2 for a, b in zip(one[:-1], two[:-1], strict=True))
            space = torch.tensor(-square / (2 * lengthscale**2), dtype=torch.float64).exp()
            covar[i, j] = scale * space * (1 - RATE) ** (abs(one[-1] - two[-1]) / 2)
    return covar


def scaled(small, scale):
    kernel = ScaleKernel(small.rbf()).double()
    kernel.outputscale = scale
    return kernel


def models(small, scale=1.0):
    X, Y = small.data([1.0, 2.0, 3.0], seed=4)
    kernel = scaled(small, scale)
    dense = small.dense(X, Y, RATE, kernel=kernel).eval()
    streaming = small.streaming(RATE, kernel=kernel)
    incremental = EnsembleGP.from_model(dense).condition_on_observations(X, Y)
    streaming.observe(X, Y)
    return {"incremental": incremental, "streaming": streaming}


@pytest.mark.parametrize("name", ["incremental", "streaming"])
@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_each_model_gives_the_formula(small, pair, name, scale):
    model = models(small, scale)[name]
    covar = model.prior_covariance(*pair)
    torch.testing.assert_close(covar, by_hand(*pair, scale), rtol=0, atol=1e-12)
    assert not covar.requires_grad
    assert model.noise_variance.item() == pytest.approx(NOISE, rel=1e-12)


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_streaming_at_the_ends_of_the_rate(small, pair, rate):
    X1, X2 = pair
    covar = small.streaming(rate).prior_covariance(X1, X2)
    dense = small.dense(X1, X1[:, :1], rate).eval()
    expected = EnsembleGP.from_model(dense).prior_covariance(X1, X2)
    torch.testing.assert_close(covar, expected, rtol=0, atol=1e-12)
    assert (covar > 0).any() == (rate == 0)
    assert small.streaming(rate).prior_covariance(X1, X1).diagonal().eq(1).all()


def test_transforms_are_undone(generator):
    """Scaled actions and standardized outcomes: against a posterior far from all data."""
    X = torch.rand(20, 3, dtype=torch.float64, generator=generator) * 10
    Y = 50 + 7 * torch.randn(20, 1, dtype=torch.float64, generator=generator)
    bounds = torch.tensor([[0.0] * 3, [10.0] * 3], dtype=torch.float64)
    model = TimeVaryingGP(
        X,
        Y,
        forgetting_rate=0.5,
        covar_module=RBFKernel().double(),
        outcome_transform=Standardize(m=1),
        input_transform=Normalize(3, indices=[0, 1], bounds=bounds),
    ).eval()
    model.likelihood.noise = torch.tensor(0.3, dtype=torch.float64)
    # 2^-1000 of the data is left after 2,000 units of time: a posterior that is the prior.
    ahead = X.clone()
    ahead[:, -1] += 2000.0
    with torch.no_grad():
        expected = model.posterior(ahead).distribution.covariance_matrix
    raw = EnsembleGP.from_model(model)
    covar = raw.prior_covariance(ahead, ahead)
    torch.testing.assert_close(covar, expected, rtol=1e-8, atol=1e-8)
    assert raw.noise_variance.item() == pytest.approx(0.3 * Y.var().item(), rel=1e-10)


def test_a_model_with_contexts(generator):
    X = torch.rand(15, 4, dtype=torch.float64, generator=generator)
    kernels = {"action_kernel": RBFKernel().double(), "context_kernel": RBFKernel().double()}
    model = ContextualGP(
        X,
        X[:, :1],
        torch.full_like(X[:, :1], 0.1),
        context_features=[2],
        time_feature=3,
        forgetting_rate=RATE,
        mean_module=ZeroMean(),
        outcome_transform=None,
        **kernels,
    ).eval()
    with torch.no_grad():
        action = kernels["action_kernel"](X[:, :2]).to_dense()
        context = kernels["context_kernel"](X[:, 2:3]).to_dense()
    lag = (X[:, -1:] - X[:, -1]).abs()
    expected = action * context * (1 - RATE) ** (lag / 2)
    covar = EnsembleGP.from_model(model).prior_covariance(X, X)
    torch.testing.assert_close(covar, expected, rtol=0, atol=1e-12)
