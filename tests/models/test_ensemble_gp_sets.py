"""The average over sets of hyperparameters, against one GPyTorch model for each set."""

from __future__ import annotations

import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.posteriors import Posterior
from gpytorch.kernels import Kernel, MaternKernel
from torch import Generator, Tensor

from tvbo.kernels import ContextActionKernel, TemporalDecayKernel, TemporalMaternKernel
from tvbo.models import EnsembleGP, TimeVaryingGP
from tvbo.models.closed_form import HyperparameterSets
from tvbo.models.scale import marginals

BOX = torch.tensor([[0.0, -2.0], [1.0, 3.0]], dtype=torch.float64)
N = 12
KERNEL = "RBFKernel"
RATES = [0.02, 0.3]
LENGTHSCALES = [2.0, 9.0, 40.0]


@pytest.fixture(autouse=True, params=["RBFKernel", "MaternKernel", "contexts"])
def kernel(request, monkeypatch):
    """Run each test with either kernel over actions, and with one of a context beside it."""
    monkeypatch.setattr(f"{__name__}.KERNEL", request.param)


def data(known: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    generator = Generator().manual_seed(5)
    unit = torch.rand(N, 3, dtype=torch.float64, generator=generator)
    X = torch.cat([BOX[0] + (BOX[1] - BOX[0]) * unit[:, :2], 20 * unit[:, 2:]], dim=-1)
    Y = torch.randn(N, 1, dtype=torch.float64, generator=generator)
    return X, Y, torch.linspace(0.02, 0.2, N).double().unsqueeze(-1) if known else None


def make_sets() -> HyperparameterSets:
    """Two with exponential decay, three with Matérn-5/2 in time."""
    decay = -0.5 * torch.tensor(RATES, dtype=torch.float64).neg().log1p()
    own = torch.linspace(0.1, 1.5, 15, dtype=torch.float64).view(3, 5).mT
    return HyperparameterSets(
        kernel="RBFKernel" if KERNEL == "RBFKernel" else "MaternKernel",
        num_actions=1 if KERNEL == "contexts" else 2,
        lengthscales=torch.linspace(0.2, 1.5, 10).double().view(5, 2),
        rates=torch.cat([decay, 5**0.5 / torch.tensor(LENGTHSCALES, dtype=torch.float64)]),
        is_smooth=torch.tensor([0, 0, 1, 1, 1], dtype=torch.float64),
        variance=torch.ones(5, dtype=torch.float64),
        mean=torch.linspace(-0.4, 0.6, 5).double(),
        noise=torch.linspace(0.05, 0.4, 5).double(),
        log_weights=torch.tensor([-3.0, -2.0, -3.0, -2.5, -2.0], dtype=torch.float64),
        shares=own / own.sum(-1, keepdim=True)
        if KERNEL == "contexts"
        else torch.ones(5, 1, dtype=torch.float64),
    )


def dense_models(known: bool, X: Tensor | None = None, *pending: Tensor) -> list[TimeVaryingGP]:
    """One dense model for each set, with pending outcomes and their noise variances."""
    models, sets = [], make_sets()
    rows, Y, Yvar = data(known)
    for i in range(5):
        if X is not None:
            noise = sets.noise[i].expand(N, 1)
            Yvar = torch.cat([noise, pending[1]])
        temporal: TemporalDecayKernel | TemporalMaternKernel = TemporalDecayKernel().double()
        if i < 2:
            temporal.forgetting_rate = RATES[i]
        else:
            temporal = TemporalMaternKernel(nu=2.5).double()
            temporal.lengthscale = LENGTHSCALES[i - 2]
        kernel: Kernel = get_covar_module_with_dim_scaled_prior(
            ard_num_dims=2, use_rbf_kernel=KERNEL == "RBFKernel"
        )
        kernel.lengthscale = sets.lengthscales[i]
        if KERNEL == "contexts":
            parts = [MaternKernel(active_dims=[column]).double() for column in (0, 1)]
            for part, lengthscale in zip(parts, sets.lengthscales[i], strict=True):
                part.lengthscale = lengthscale
            kernel = ContextActionKernel(*parts, structure="both").double()
            kernel.outputscales = sets.shares[i]
        model = TimeVaryingGP(
            rows if X is None else torch.cat([rows, X]),
            Y if X is None else torch.cat([Y, pending[0]]),
            Yvar,
            temporal_kernel=temporal,
            covar_module=kernel,
            outcome_transform=None,
        )
        model.mean_module.initialize(constant=sets.mean[i])
        if Yvar is None:
            model.likelihood.noise = sets.noise[i]
        models.append(model.eval())
    return models


def averaged(known: bool) -> EnsembleGP:
    return EnsembleGP.from_sets(make_sets(), *data(known))


def mixture(posteriors: list[Posterior]) -> tuple[Tensor, Tensor]:
    """Mean and covariance by the weights of the sets."""
    weights = make_sets().log_weights.softmax(0)
    means = torch.stack([p.mean.squeeze(-1) for p in posteriors])
    second = torch.stack([p.distribution.covariance_matrix for p in posteriors])
    second = second + means.unsqueeze(-1) * means.unsqueeze(-2)
    mean = torch.einsum("s,s...->...", weights, means)
    covar = torch.einsum("s,s...->...", weights, second)
    return mean, covar - mean.unsqueeze(-1) * mean.unsqueeze(-2)


def rows(*shape: int) -> Tensor:
    unit = torch.rand(*shape, 3, dtype=torch.float64, generator=Generator().manual_seed(8))
    return torch.cat([BOX[0] + (BOX[1] - BOX[0]) * unit[..., :2], 25 * unit[..., 2:]], dim=-1)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("shape", [(4, 1), (3,), (2, 5, 3)])
def test_the_moments_are_those_of_the_mixture(known, shape):
    X = rows(*shape)
    with torch.no_grad():
        mean, covar = mixture([model.posterior(X) for model in dense_models(known)])
    posterior = averaged(known).posterior(X)
    torch.testing.assert_close(posterior.mean.squeeze(-1), mean, rtol=0, atol=1e-8)
    found = posterior.distribution.covariance_matrix
    torch.testing.assert_close(found, covar, rtol=0, atol=1e-8)


def test_pending_trials_condition_each_set():
    model, X = averaged(False), rows(3)
    Y = torch.tensor([[-0.5], [0.2], [1.4]], dtype=torch.float64)
    noise = torch.full_like(Y, 0.04)
    conditioned = model.condition_on_observations(X[:2], Y[:2], noise[:2])
    conditioned = conditioned.condition_on_observations(X[2:], Y[2:], noise[2:])
    at = rows(4, 1)
    with torch.no_grad():
        mean, covar = mixture([each.posterior(at) for each in dense_models(False, X, Y, noise)])
    found = conditioned.posterior(at)
    torch.testing.assert_close(found.mean.squeeze(-1), mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(found.distribution.covariance_matrix, covar, rtol=0, atol=1e-8)


def test_gradients_are_those_of_differences():
    model, X = averaged(False), rows(2, 3).requires_grad_()

    def value(X: Tensor) -> Tensor:
        posterior = model.posterior(X)
        return posterior.mean.sum() + posterior.distribution.covariance_matrix.sum()

    assert torch.autograd.gradcheck(value, (X,), atol=1e-5, rtol=1e-5)
    assert torch.autograd.gradcheck(
        UpperConfidenceBound(model, 1.0), (rows(4, 1).requires_grad_(),)
    )


@pytest.mark.parametrize("same_time", [False, True])
def test_gradients_of_single_rows_are_those_of_the_joint_posterior(same_time):
    """They are in closed form; those of several rows are by PyTorch."""
    model, X = averaged(False), rows(5)
    # At the time of an observation, where the derivative of a decay jumps, it is zero.
    X[:, -1] = data(False)[0][0, -1] if same_time else X[:, -1]
    if same_time:
        # Nor has the square root in Matérn-5/2 a derivative at an observation.
        X[0] = data(False)[0][0]
    single, joint = X.unsqueeze(-2).requires_grad_(), X.clone().requires_grad_()
    mean, variance = marginals(model, single)
    together = model.posterior(joint)
    torch.testing.assert_close(mean, together.mean)
    torch.testing.assert_close(variance, together.variance)
    for value, expected in ((mean, together.mean), (variance, together.variance)):
        (found,) = torch.autograd.grad(value.sum(), single, retain_graph=True)
        (by_torch,) = torch.autograd.grad(expected.sum(), joint, retain_graph=True)
        torch.testing.assert_close(found.squeeze(-2), by_torch, rtol=1e-9, atol=1e-9)


def test_sets_of_several_forms_are_joined():
    sets = make_sets()
    parts = [
        HyperparameterSets(
            sets.kernel, sets.num_actions, *(value[rows] for value in list(vars(sets).values())[2:])
        )
        for rows in (torch.tensor([0, 1]), torch.tensor([2, 3, 4]))
    ]
    joined = HyperparameterSets.joined(parts)
    for name in ("lengthscales", "rates", "is_smooth", "mean", "noise", "log_weights", "shares"):
        assert torch.equal(getattr(joined, name), getattr(sets, name))


def test_the_kernel_is_that_of_the_first_set():
    model, X = averaged(False), rows(3)
    expected = dense_models(False)[0].covar_module(X).to_dense()
    torch.testing.assert_close(model.covar_module(X).to_dense(), expected, rtol=0, atol=1e-12)
