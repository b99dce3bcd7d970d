"""The log posterior in closed form, against GPyTorch's marginal likelihood."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.kernels import MaternKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior

from tvbo.fit.drift import Drift
from tvbo.fit.log_posterior import OPTIONS, LogPosterior
from tvbo.kernels import TemporalMaternKernel
from tvbo.models import TimeVaryingGP
from tvbo.models.scale import UnitCube

BOX = torch.tensor([[0.0, -2.0], [1.0, 3.0]], dtype=torch.float64)
KINDS = {
    "decay": (None, 0, True, False),
    "Matérn": (None, 1, True, False),
    "decay, Matérn in space": (None, 0, False, False),
    "Matérn, also in space": (None, 1, False, False),
    "given rate": (0.1, 0, True, False),
    "no drift": (0.0, 0, True, False),
    "no memory": (1.0, 0, True, False),
    "known noise": (None, 0, True, True),
}
"""Drift rate, form of the drift, whether the kernel over actions is RBF, whether noise is known."""


def make(kind: str, n: int = 25) -> TimeVaryingGP:
    """A model of the optimizer's default kind, of outcomes in no order of time."""
    rate, form, use_rbf, noise_is_known = KINDS[kind]
    generator = torch.Generator().manual_seed(n)
    unit = torch.rand(n, 3, dtype=torch.float64, generator=generator)
    X = torch.cat([BOX[0] + (BOX[1] - BOX[0]) * unit[:, :2], 4 * n * unit[:, 2:]], dim=-1)
    Y = torch.sin(6 * X[:, :1] + 0.05 * X[:, 2:])
    Y = Y + 0.2 * torch.randn(n, 1, dtype=torch.float64, generator=generator)
    drift = Drift(rate, "auto" if form else None)
    model = TimeVaryingGP(
        X,
        Y,
        torch.linspace(0.01, 0.1, n).double().unsqueeze(-1) if noise_is_known else None,
        covar_module=get_covar_module_with_dim_scaled_prior(ard_num_dims=2, use_rbf_kernel=use_rbf),
        input_transform=UnitCube([0, 1], BOX),
        forgetting_rate=drift.forgetting_rate,
        temporal_kernel=deepcopy(drift.forms[form]),
    )
    drift.set_prior(model, X[:, -1])
    return model


def log_density(model: TimeVaryingGP) -> torch.Tensor:
    """GPyTorch's, of all outcomes, with a graph."""
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    return mll(model(*model.train_inputs), model.train_targets) * len(model.train_targets)


@pytest.mark.parametrize("kind", KINDS)
def test_value_gradient_and_mean_are_gpytorchs(kind):
    model = make(kind)
    posterior = LogPosterior(model)
    theta = posterior.present()
    theta += torch.linspace(-0.4, 0.3, len(theta)).double().numpy()
    value, gradient, mean = posterior(theta)
    posterior.assign(theta, mean)
    expected = log_density(model)
    # Priors of BoTorch have parameters in single precision.
    assert value == pytest.approx(expected.item(), abs=1e-6)
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    slopes = dict(zip(parameters, torch.autograd.grad(expected, parameters.values()), strict=True))
    # At the mean that is most likely.
    assert slopes["mean_module.raw_constant"].item() == pytest.approx(0, abs=1e-9)
    # Each by its logarithm, through the transform of the model.
    step, differences = 1e-5, []
    for i in range(len(theta)):
        ends = []
        for sign in (1, -1):
            moved = theta.copy()
            moved[i] += sign * step
            posterior.assign(moved, mean)
            with torch.no_grad():
                ends.append(log_density(model).item())
        differences.append((ends[0] - ends[1]) / (2 * step))
    assert gradient == pytest.approx(differences, rel=1e-6, abs=1e-5)


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.OptimizationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_search_ends_where_botorchs_does(kind):
    ours, other = make(kind, 40), make(kind, 40)
    value = LogPosterior(ours).maximize()
    assert value == pytest.approx(log_density(ours).item(), abs=1e-6)
    mll = ExactMarginalLogLikelihood(other.likelihood, other).train()
    for _ in range(2):
        fit_gpytorch_mll_scipy(mll, options=OPTIONS)
    assert value == pytest.approx(log_density(other).item(), abs=1e-5)
    expected = dict(other.named_parameters())
    for name, found in ours.named_parameters():
        torch.testing.assert_close(found, expected[name], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("kind", ["decay", "Matérn"])
def test_newtons_method_on_many_outcomes_ends_where_the_search_does(kind):
    by_newton, by_search = make(kind, 520), make(kind, 520)
    posterior, other = LogPosterior(by_newton), LogPosterior(by_search)
    assert posterior.part is not None
    posterior.part.maximize()
    start = posterior.present()
    value = posterior.maximize()
    other.part = None
    other.assign(start, 0.0)
    assert other.maximize() == pytest.approx(value, abs=1e-6)
    assert other.present() == pytest.approx(posterior.present(), abs=1e-4)


def test_columns_of_a_category_have_one_lengthscale_and_one_prior():
    """As a column of the same distances: two values of a category differ by the root of two."""
    category = torch.arange(25) % 3
    one_hot = torch.nn.functional.one_hot(category, 3).double()
    model = make("Matérn, also in space")
    X, Y = model.train_inputs[0], model.train_targets.unsqueeze(-1)

    def posterior(columns, widths):
        rows = torch.cat([X[:, :1], columns, X[:, 2:]], dim=-1)
        prior = LogNormalPrior(0.7, 1.2)
        kernel = MaternKernel(ard_num_dims=rows.shape[-1] - 1, lengthscale_prior=prior)
        form = TemporalMaternKernel(nu=2.5).double()
        made = TimeVaryingGP(rows, Y, covar_module=kernel, temporal_kernel=form)
        Drift(None, "auto").set_prior(made, rows[:, -1])
        return LogPosterior(made, widths)

    # Of two values alone, a column of numbers 0 and the root of two is the same.
    two = one_hot[:, :2] + one_hot[:, 2:] * torch.tensor([1.0, 0.0])
    tied = posterior(two, [1, 2])
    number = posterior(two[:, :1] * 2**0.5, [1, 1])
    theta = tied.present() + 0.1
    value, gradient, _ = tied(theta)
    expected, slopes, _ = number(theta)
    assert value == pytest.approx(expected, rel=1e-12)
    assert gradient == pytest.approx(slopes, rel=1e-9)
    tied.assign(theta, 0.0)
    assert tied.present() == pytest.approx(theta, rel=1e-12)


def test_bounds_are_kept_and_bad_starts_fail():
    model = make("decay")
    posterior = LogPosterior(model)
    low, high = posterior.bounds.T
    for theta in (low, high):
        posterior.assign(theta, 0.0)
        for name, constraint in model.named_constraints():
            raw = dict(model.named_parameters())[name.removesuffix("_constraint")]
            assert constraint.check_raw(raw), name
    with torch.no_grad():
        model.covar_module.kernels[0].base_kernel.raw_lengthscale.fill_(torch.nan)
    assert posterior.maximize() == float("-inf")
