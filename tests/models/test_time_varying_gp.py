import math

import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.acquisition import (
    LogExpectedImprovement,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qLogNoisyExpectedImprovement,
    qUpperConfidenceBound,
)
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.datasets import SupervisedDataset
from gpytorch.kernels import RBFKernel
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood

from tvbo.kernels import CovarianceMatrixKernel
from tvbo.models import TimeVaryingGP

pytestmark = [
    pytest.mark.usefixtures("double_by_default"),
    pytest.mark.draws_globally,  # BoTorch's optimizers and samplers do
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning"),
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.OptimizationWarning"),
]


def make_data(batch_shape=(), n=12, m=1, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    X = torch.rand(*batch_shape, n, 3, generator=generator, dtype=dtype)
    # Unequal steps, and several observations at one time.
    times = torch.tensor([0, 0, 0, 1, 1.5, 4, 4, 7, 8, 8.25, 9, 12][:n], dtype=dtype)
    X[..., 2] = times
    Y = torch.stack([torch.sin(3 * X[..., 0] + k) + 0.1 * X[..., 2] for k in range(m)], dim=-1)
    return X, Y


def paper_posterior(X, Y, x, t, rate, noise, kernel):
    """Equations (7)-(8) by double loops over rows [x1, x2, t]."""
    n = len(X)
    K = torch.zeros(n, n)
    for i in range(n):
        for j in range(n):
            decay = (1 - rate) ** (abs(X[i, 2] - X[j, 2]).item() / 2)
            K[i, j] = kernel(X[i, :2], X[j, :2]) * decay
    k = torch.tensor(
        [kernel(X[i, :2], x) * (1 - rate) ** (abs(t - X[i, 2].item()) / 2) for i in range(n)]
    )
    inverse = torch.linalg.inv(K + noise * torch.eye(n))
    return (k @ inverse @ Y[:, 0]).item(), (kernel(x, x) - k @ inverse @ k).item()


@pytest.mark.parametrize("rate", [0.0, 1e-3, 0.03, 0.5, 1.0])
def test_posterior_equals_the_paper(rate):
    X, Y = make_data()
    model = TimeVaryingGP(
        X,
        Y,
        torch.full_like(Y, 0.04),
        forgetting_rate=rate,
        covar_module=_rbf(0.4),
        mean_module=ZeroMean(),
        outcome_transform=None,
    )

    def kernel(a, b):
        return math.exp(-((a - b).square().sum().item()) / (2 * 0.4**2))

    # Beyond the newest observation, at it, and between earlier ones.
    for t in (15.0, 12.0, 5.0):
        x = torch.tensor([0.3, 0.6])
        mean, variance = paper_posterior(X, Y, x, t, rate, 0.04, kernel)
        posterior = model.posterior(torch.tensor([[0.3, 0.6, t]]))
        assert posterior.mean.item() == pytest.approx(mean, abs=1e-10)
        assert posterior.variance.item() == pytest.approx(variance, abs=1e-10)


def test_no_observations_is_the_prior():
    X, Y = make_data(n=0)
    model = TimeVaryingGP(
        X,
        Y,
        torch.empty(0, 1),
        forgetting_rate=0.1,
        covar_module=_rbf(0.4),
        mean_module=ZeroMean(),
        outcome_transform=None,
    )
    posterior = model.posterior(torch.rand(4, 1, 3))
    assert torch.equal(posterior.mean, torch.zeros(4, 1, 1))
    torch.testing.assert_close(posterior.variance, torch.ones(4, 1, 1))


@pytest.mark.parametrize("batch_shape", [(), (2,)])
@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("fixed_noise", [False, True])
@pytest.mark.parametrize("transforms", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.combinations
def test_shapes_dtypes_and_transforms(batch_shape, m, fixed_noise, transforms, dtype):
    X, Y = make_data(batch_shape, m=m, dtype=dtype)
    model = TimeVaryingGP(
        X,
        Y,
        torch.full_like(Y, 0.01) if fixed_noise else None,
        outcome_transform=Standardize(m=m, batch_shape=torch.Size(batch_shape))
        if transforms
        else None,
        input_transform=Normalize(
            3, indices=[0, 1], bounds=torch.tensor([[0.0, 0, 0], [1, 1, 1]], dtype=dtype)
        )
        if transforms
        else None,
    )
    test_X = torch.rand(*batch_shape, 5, 3, dtype=dtype)
    posterior = model.posterior(test_X)
    assert posterior.mean.shape == (*batch_shape, 5, m)
    assert posterior.mean.dtype == dtype
    assert model.posterior(test_X, observation_noise=True).variance.shape == (*batch_shape, 5, m)
    assert model.forgetting_rate.shape[-1] == 1
    for parameter in model.parameters():
        assert parameter.dtype == dtype
    if m > 1:
        one = model.subset_output([1])
        torch.testing.assert_close(one.posterior(test_X).mean, posterior.mean[..., 1:])
        torch.testing.assert_close(one.posterior(test_X).variance, posterior.variance[..., 1:])


def test_constructed_from_a_data_set():
    X, Y = make_data()
    data = SupervisedDataset(X, Y, feature_names=["x1", "x2", "t"], outcome_names=["y"])
    inputs = TimeVaryingGP.construct_inputs(data, time_feature=2, forgetting_rate=0.2)
    assert TimeVaryingGP(**inputs).forgetting_rate.item() == pytest.approx(0.2)


def test_learns_the_rate_and_leaves_a_fixed_one():
    generator = torch.Generator().manual_seed(3)
    X = torch.rand(60, 2, generator=generator)
    X[:, 1] = torch.arange(60)
    Y = torch.sin(2 * torch.pi * X[:, 1:] / 40) + 0.05 * torch.randn(60, 1, generator=generator)
    learned, fixed = TimeVaryingGP(X, Y), TimeVaryingGP(X, Y, forgetting_rate=0.0)
    for model in (learned, fixed):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert learned.forgetting_rate.item() > 1e-3
    assert fixed.forgetting_rate.item() == 0.0
    assert learned.temporal_kernel.raw_forgetting_rate.requires_grad


def test_time_may_stand_in_any_column():
    X, Y = make_data()
    common = {"forgetting_rate": 0.1, "outcome_transform": None}
    last = TimeVaryingGP(X, Y, covar_module=_rbf(0.4), **common)
    first = TimeVaryingGP(X[:, [2, 0, 1]], Y, time_feature=0, covar_module=_rbf(0.4), **common)
    test_X = torch.rand(4, 3)
    torch.testing.assert_close(
        first.posterior(test_X[:, [2, 0, 1]]).mean, last.posterior(test_X).mean
    )


def test_arms_by_a_covariance_matrix():
    rows = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    Y = torch.tensor([[1.0], [-1.0], [0.5]])
    covar = torch.tensor([[1.0, 0.5], [0.5, 2.0]])
    model = TimeVaryingGP(
        rows,
        Y,
        torch.full_like(Y, 0.1),
        forgetting_rate=0.1,
        covar_module=CovarianceMatrixKernel(covar),
        outcome_transform=None,
    )
    far = model.posterior(torch.tensor([[0.0, 1e4], [1.0, 1e4]]))
    torch.testing.assert_close(far.variance.flatten(), torch.tensor([1.0, 2.0]))


ACQUISITIONS = {
    "UCB": lambda model: UpperConfidenceBound(model, beta=2.0),
    "LogEI": lambda model: LogExpectedImprovement(model, best_f=0.5),
    "qUCB": lambda model: qUpperConfidenceBound(model, 2.0, sampler=_sampler(16)),
    "qLogNEI": lambda model: qLogNoisyExpectedImprovement(
        model, model.train_inputs[0][..., :3, :], sampler=_sampler(16), prune_baseline=False
    ),
    "qKG": lambda model: qKnowledgeGradient(model, num_fantasies=4, sampler=_sampler(4)),
}


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_acquisitions_optimize_with_time_held_fixed(name):
    X, Y = make_data()
    model = TimeVaryingGP(X, Y, forgetting_rate=0.1)
    acquisition = ACQUISITIONS[name](model)
    bounds = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    # Time lies far outside its bounds: fixed features need not respect them.
    found, value = optimize_acqf(
        acquisition, bounds, q=1, num_restarts=2, raw_samples=8, fixed_features={-1: 13.0}
    )
    assert found.shape == (1, 3)
    assert found[0, 2] == 13.0
    assert torch.isfinite(value)


@pytest.mark.parametrize("which", ["train_X", "train_Y", "time"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_must_be_finite(which, bad):
    X, Y = make_data()
    if which == "train_Y":
        Y[3] = bad
    else:
        X[3, 2 if which == "time" else 0] = bad
    with pytest.raises(InputDataError):
        TimeVaryingGP(X, Y)


@pytest.mark.parametrize("bad", [-0.01, 1.5])
def test_fixed_rate_must_be_a_share(bad):
    X, Y = make_data()
    with pytest.raises(ValueError, match=str(bad)):
        TimeVaryingGP(X, Y, forgetting_rate=bad)


def _rbf(lengthscale):
    kernel = RBFKernel().double()
    kernel.lengthscale = lengthscale
    return kernel


def _sampler(n):
    return SobolQMCNormalSampler(torch.Size([n]), seed=0)


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (BotorchTensorDimensionError, lambda: TimeVaryingGP(torch.rand(5, 1), torch.rand(5, 1))),
        (BotorchTensorDimensionError, lambda: TimeVaryingGP(torch.rand(5, 3), torch.rand(4, 1))),
        (BotorchTensorDimensionError, lambda: TimeVaryingGP(torch.rand(5, 3), torch.rand(5))),
    ],
)
def test_what_is_refused(error, call):
    with pytest.raises(error):
        call()
