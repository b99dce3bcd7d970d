"""The average over sets of hyperparameters, against one GPyTorch model for each set."""

from __future__ import annotations

import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.posteriors import Posterior
from torch import Generator, Tensor

from tvbo.kernels import TemporalDecayKernel, TemporalMaternKernel
from tvbo.models import EnsembleGP, TimeVaryingGP
from tvbo.models.closed_form import HyperparameterSets
from tvbo.models.scale import UnitCube, marginals, outcome_scale

BOX = torch.tensor([[0.0, -2.0], [1.0, 3.0]], dtype=torch.float64)
N = 12
USE_RBF = True


@pytest.fixture(autouse=True, params=[True, False], ids=["RBF", "Matérn"])
def use_rbf(request, monkeypatch):
    """Run each test with either kernel over actions."""
    monkeypatch.setattr(f"{__name__}.USE_RBF", request.param)


def data(known: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    generator = Generator().manual_seed(5)
    unit = torch.rand(N, 3, dtype=torch.float64, generator=generator)
    X = torch.cat([BOX[0] + (BOX[1] - BOX[0]) * unit[:, :2], 20 * unit[:, 2:]], dim=-1)
    Y = 30 + 7 * torch.randn(N, 1, dtype=torch.float64, generator=generator)
    return X, Y, torch.linspace(1, 9, N).double().unsqueeze(-1) if known else None


def make_sets(known: bool) -> list[HyperparameterSets]:
    decay = TemporalDecayKernel(batch_shape=torch.Size([2])).double()
    decay.forgetting_rate = torch.tensor([[0.02], [0.3]], dtype=torch.float64)
    matern = TemporalMaternKernel(nu=2.5, batch_shape=torch.Size([3])).double()
    matern.lengthscale = torch.tensor([2.0, 9.0, 40.0], dtype=torch.float64)[:, None, None]
    sets = []
    for kernel, s in ((decay, 2), (matern, 3)):
        sets.append(
            HyperparameterSets(
                lengthscales=torch.linspace(0.2, 1.5, 2 * s).double().view(s, 2),
                temporal_kernel=kernel.requires_grad_(False),
                mean=torch.linspace(-0.4, 0.6, s).double(),
                noise=None if known else torch.linspace(0.05, 0.4, s).double(),
                log_weights=torch.linspace(-3.0, -2.0, s).double(),
            )
        )
    return sets


def dense_models(known: bool) -> list[TimeVaryingGP]:
    """One dense model for each set."""
    models = []
    for each in make_sets(known):
        for i in range(len(each.mean)):
            X, Y, Yvar = data(known)
            model = TimeVaryingGP(
                X,
                Y,
                Yvar,
                temporal_kernel=each.temporal_kernel[i],
                covar_module=get_covar_module_with_dim_scaled_prior(
                    ard_num_dims=2, use_rbf_kernel=USE_RBF
                ),
                input_transform=UnitCube([0, 1], BOX),
            )
            model.covar_module.kernels[0].base_kernel.lengthscale = each.lengthscales[i]
            model.mean_module.initialize(constant=each.mean[i])
            if each.noise is not None:
                model.likelihood.noise = each.noise[i]
            models.append(model.eval())
    return models


def averaged(known: bool) -> EnsembleGP:
    X, Y, _ = data(known)
    return EnsembleGP.from_sets(dense_models(known)[0], X, Y, make_sets(known))


def mixture(posteriors: list[Posterior]) -> tuple[Tensor, Tensor]:
    """Mean and covariance by the weights of the sets."""
    weights = torch.cat([each.log_weights for each in make_sets(False)]).exp()
    weights = weights / weights.sum()
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
    # Relative to outcomes of 30 and variances of 49; BoTorch's standardization adds a jitter.
    torch.testing.assert_close(posterior.mean.squeeze(-1), mean, rtol=0, atol=3e-6)
    torch.testing.assert_close(
        posterior.distribution.covariance_matrix, covar, rtol=0, atol=5e-6 * 49
    )


def test_pending_trials_condition_each_set():
    model, X = averaged(False), rows(3)
    Y = torch.tensor([[25.0], [31.0], [40.0]], dtype=torch.float64)
    noise = torch.full_like(Y, 2.0)
    conditioned = model.condition_on_observations(X[:2], Y[:2], noise[:2])
    conditioned = conditioned.condition_on_observations(X[2:], Y[2:], noise[2:])
    expected = []
    for dense in dense_models(False):
        shift, scale = outcome_scale(dense)
        noises = dense.likelihood.noise.expand(N)
        noises = torch.cat([noises, noise.squeeze(-1) / scale**2])
        all_X, all_Y = torch.cat([data(False)[0], X]), torch.cat([data(False)[1], Y])
        new = TimeVaryingGP(
            all_X,
            (all_Y - shift) / scale,
            noises.unsqueeze(-1),
            temporal_kernel=dense.temporal_kernels[0].requires_grad_(False),
            covar_module=dense.covar_module.kernels[0].base_kernel,
            mean_module=dense.mean_module,
            outcome_transform=None,
            input_transform=UnitCube([0, 1], BOX),
        )
        expected.append((new.eval(), shift, scale))
    at = rows(4, 1)
    with torch.no_grad():
        posteriors = [(model.posterior(at), shift, scale) for model, shift, scale in expected]
    weights = conditioned.weights
    means = torch.stack([shift + scale * p.mean[..., 0, 0] for p, shift, scale in posteriors])
    variances = torch.stack([scale**2 * p.variance[..., 0, 0] for p, _, scale in posteriors])
    mean = weights @ means
    variance = weights @ (variances + (means - mean).square())
    found = conditioned.posterior(at)
    torch.testing.assert_close(found.mean[..., 0, 0], mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.variance[..., 0, 0], variance, rtol=0, atol=5e-4)


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


@pytest.mark.parametrize("known", [False, True])
def test_part_of_the_sets(known):
    X, Y, _ = data(known)
    first, second = make_sets(known)
    part = second.part(torch.tensor([True, False, True]))
    found = EnsembleGP.from_sets(dense_models(known)[0], X, Y, [first, part])
    whole = averaged(known)
    for i, j in enumerate((0, 1, 2, 4)):
        kept = found.member(i).posterior(rows(3))
        torch.testing.assert_close(kept.mean, whole.member(j).posterior(rows(3)).mean)
        torch.testing.assert_close(
            found.weights[i] / found.weights[0], whole.weights[j] / whole.weights[0]
        )
