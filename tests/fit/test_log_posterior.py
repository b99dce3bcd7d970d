"""The log posterior in closed form, against GPyTorch's marginal likelihood."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from botorch.optim.fit import fit_gpytorch_mll_scipy
from default_model import assign, default_model
from gpytorch.mlls import ExactMarginalLogLikelihood

from tvbo.fit.density import OPTIONS
from tvbo.fit.log_posterior import (
    MAIN_EFFECT,
    MAIN_EFFECT_SPREAD,
    DefaultForm,
    LogPosterior,
)
from tvbo.kernels import ContextActionKernel
from tvbo.models import TimeVaryingGP
from tvbo.spaces.observations import Observations

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
CONTEXT = "a context, Matérn"


def make(kind: str, n: int = 25) -> tuple[TimeVaryingGP, LogPosterior]:
    """A model of the optimizer's default kind, of outcomes in no order of time."""
    rate, form, use_rbf, noise_is_known = KINDS.get(kind, (None, 1, False, False))
    generator = torch.Generator().manual_seed(n)
    unit = torch.rand(n, 3, dtype=torch.float64, generator=generator)
    X = torch.cat([BOX[0] + (BOX[1] - BOX[0]) * unit[:, :2], 4 * n * unit[:, 2:]], dim=-1)
    Y = torch.sin(6 * X[:, :1] + 0.05 * X[:, 2:])
    Y = Y + 0.2 * torch.randn(n, 1, dtype=torch.float64, generator=generator)
    Yvar = torch.linspace(0.01, 0.1, n).double().unsqueeze(-1) if noise_is_known else None
    observations = Observations(X, (Y - Y.mean()) / Y.std(), Yvar)
    kernel = "RBFKernel" if use_rbf else "MaternKernel"
    return default_model(observations, BOX, kernel, bool(form), rate, int(kind == CONTEXT))


def log_density(model: TimeVaryingGP) -> torch.Tensor:
    """GPyTorch's, of all outcomes, with a graph, and the prior of main effects."""
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    density = mll(model(*model.train_inputs), model.train_targets) * len(model.train_targets)
    kernel = model.covar_module.kernels[0].base_kernel
    if isinstance(kernel, ContextActionKernel):
        *effects, both = kernel.outputscales.log()
        prior = torch.distributions.Normal(math.log(MAIN_EFFECT), MAIN_EFFECT_SPREAD)
        density = density + sum(prior.log_prob(each - both) for each in effects)
    return density


@pytest.mark.parametrize("kind", [*KINDS, CONTEXT])
def test_value_gradient_and_mean_are_gpytorchs(kind):
    model, posterior = make(kind)
    theta = posterior.default + np.linspace(-0.4, 0.3, len(posterior.default))
    value, gradient, _ = posterior(theta)
    assign(model, posterior, theta)
    expected = log_density(model)
    # Priors of BoTorch have parameters in single precision.
    assert value == pytest.approx(expected.item(), abs=1e-6)
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    slopes = dict(zip(parameters, torch.autograd.grad(expected, parameters.values()), strict=True))
    # At the mean that is most likely.
    assert slopes["mean_module.raw_constant"].item() == pytest.approx(0, abs=1e-8)
    # Each by its logarithm, through the transform of the model.
    step, differences = 1e-5, []
    for i in range(len(theta)):
        ends = []
        for sign in (1, -1):
            moved = theta.copy()
            moved[i] += sign * step
            assign(model, posterior, moved)
            with torch.no_grad():
                ends.append(log_density(model).item())
        differences.append((ends[0] - ends[1]) / (2 * step))
    assert gradient == pytest.approx(differences, rel=1e-6, abs=1e-5)


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.OptimizationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_search_ends_where_botorchs_does(kind):
    (ours, posterior), (other, _) = make(kind, 40), make(kind, 40)
    value, found = posterior.maximize(None)
    assign(ours, posterior, found)
    assert value == pytest.approx(log_density(ours).item(), abs=1e-6)
    # From another place near by: BoTorch's own defaults may lead to a worse optimum.
    assign(other, posterior, found + 0.2)
    mll = ExactMarginalLogLikelihood(other.likelihood, other).train()
    for _ in range(2):
        fit_gpytorch_mll_scipy(mll, options=OPTIONS)
    assert value == pytest.approx(log_density(other).item(), abs=1e-5)
    expected = dict(other.named_parameters())
    for name, found in ours.named_parameters():
        torch.testing.assert_close(found, expected[name], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("kind", ["decay", "Matérn"])
def test_many_outcomes_begin_at_the_newest_and_end_where_all_do(kind):
    _, posterior = make(kind, 520)
    value, found = posterior.maximize(None)
    expected, other = posterior.maximize(posterior.default)
    assert value == pytest.approx(expected, abs=1e-6)
    assert found == pytest.approx(other, abs=1e-4)


def test_columns_of_a_category_have_one_lengthscale_and_one_prior():
    """As a column of the same distances: two values of a category differ by the root of two."""
    # Of two values alone, a column of numbers 0 and the root of two is the same.
    _, plain = make("Matérn, also in space")
    n = len(plain.y)
    X = torch.stack([torch.arange(n) * 0.37 % 1, torch.arange(n)], dim=-1).double()
    is_one = (torch.arange(n) % 3 != 1).double().unsqueeze(-1)
    Y = torch.from_numpy(plain.y).unsqueeze(-1)

    def of_columns(columns, widths):
        form = DefaultForm("MaternKernel", torch.ones(sum(widths)), torch.tensor(widths), True)
        return LogPosterior(form, Observations(torch.cat([X[:, :1], columns, X[:, 1:]], -1), Y))

    tied = of_columns(torch.cat([is_one, 1 - is_one], dim=-1), [1, 2])
    number = of_columns(is_one * 2**0.5, [1, 1])
    theta = tied.default + 0.1
    value, gradient, _ = tied(theta)
    expected, slopes, _ = number(theta)
    assert value == pytest.approx(expected, rel=1e-12)
    assert gradient == pytest.approx(slopes, rel=1e-9)
    assert tied.sets(theta[None]).lengthscales.shape == (1, 3)


def test_places_at_bounds_are_named():
    _, posterior = make("decay")
    for side, theta in zip(("lower", "upper"), posterior.bounds.T, strict=True):
        reached = list(posterior.at_bounds(theta))
        assert {each.side for each in reached} == {side}
        assert {each.path for each in reached} == set(posterior.names)
