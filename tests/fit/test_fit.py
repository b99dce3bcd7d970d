"""Fits from several starts, and what is logged of them."""

from __future__ import annotations

import logging

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP
from botorch.models.transforms import Standardize
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood

from tvbo.fit.density import ModelPosterior
from tvbo.fit.fitted_forms import fit_from
from tvbo.fit.model_fitter import ModelFitter
from tvbo.kernels import TemporalDecayKernel
from tvbo.models import ContextualGP, TimeVaryingGP
from tvbo.spaces import InputLayout
from tvbo.spaces.observations import Observations
from tvbo.test_functions import MovingPeak

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
LOGGER = "tvbo.fit.fitted_forms"


def seen(n: int) -> Observations:
    """Outcomes of a moving peak at random actions, as from a loop that has collapsed."""
    generator = torch.Generator().manual_seed(3)
    peak = MovingPeak(width=0.15)
    X = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    rows = torch.cat([X, torch.arange(1, n + 1, dtype=torch.float64).unsqueeze(-1)], dim=-1)
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    Y = (peak.evaluate_true(rows) - 0.14) / 0.24 + 0.22 * noise
    return Observations(rows, Y.unsqueeze(-1))


def misleading() -> Observations:
    """Few outcomes that say: new at each time, alike at all actions. From a fit of them, L-BFGS
    does not find back.
    """
    rows = seen(12).X
    rows[:, -1] = torch.arange(12) // 2
    Y = torch.tensor([1.0, 1.0, -1.0, -1.0] * 3, dtype=torch.float64)
    return Observations(rows, Y.unsqueeze(-1))


def fitter() -> ModelFitter:
    """By maximum likelihood of ε, without the prior that it has by default."""
    return ModelFitter(InputLayout(2), BOUNDS, temporal_kernel=TemporalDecayKernel().double())


def fit(learning: ModelFitter, *given) -> TimeVaryingGP:
    """The model after a fit."""
    learning.fit(*given)
    return learning.last_model


def log_posterior(model: TimeVaryingGP) -> float:
    """Of the hyperparameters, for all observations."""
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    with torch.no_grad():
        value = mll(model(*model.train_inputs), model.train_targets)
    mll.eval()
    return value.item() * len(model.train_targets)


def fitted(observations: Observations, **start: float) -> TimeVaryingGP:
    """By BoTorch, from one start."""
    model = TimeVaryingGP(observations.X, observations.Y, outcome_transform=Standardize(m=1))
    model.temporal_kernel.forgetting_rate = start.get("rate", 0.05)
    if "lengthscale" in start:
        model.covar_module.kernels[0].base_kernel.lengthscale = start["lengthscale"]
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def test_a_collapsed_fit_does_not_hold_the_next_ones():
    """From where the first fit ends, climbing stays at ε = 0.9999."""
    learning = fitter()
    first = fit(learning, misleading(), 12, torch.Generator())
    assert first.forgetting_rate.item() > 0.9
    model = fit(learning, seen(24), 24, torch.Generator())
    best = fit(fitter(), seen(24), 24, torch.Generator())
    assert model.forgetting_rate.item() < 0.2
    assert log_posterior(model) == pytest.approx(log_posterior(best), rel=1e-9)


def test_the_better_of_two_optima_is_kept_whatever_the_order():
    model = TimeVaryingGP(seen(24).X, seen(24).Y, outcome_transform=Standardize(m=1))
    good = ModelPosterior(model).default
    bad = ModelPosterior(fitted(seen(24), rate=0.7, lengthscale=3.0)).default
    ends = []
    for starts in ([good, bad], [bad, good], [good]):
        ends.append(fit_from(ModelPosterior(model), starts, torch.Generator())[1])
    for end in ends[1:]:
        assert end == pytest.approx(ends[0], abs=1e-5)


def test_a_fit_from_the_same_data_ends_in_the_same_place_wherever_it_starts():
    """Tolerances are tight enough that the way to an optimum does not show in it."""
    model = TimeVaryingGP(seen(24).X, seen(24).Y, outcome_transform=Standardize(m=1))
    posterior = ModelPosterior(model)
    ends = []
    for shift in (0.0, 0.01, 0.02):
        near = posterior.default * (1 + shift)
        ends.append(fit_from(posterior, [near], torch.Generator())[1])
    assert ends[1] == pytest.approx(ends[0], abs=2e-6)
    assert ends[2] == pytest.approx(ends[0], abs=2e-6)


def test_noise_that_is_known_for_a_while_is_learned_afterwards():
    learning, plain = fitter(), seen(24)
    known = Observations(plain.X, plain.Y, torch.full_like(plain.Y, 0.05))
    first = fit(learning, plain, 24, torch.Generator())
    assert "likelihood.noise_covar.raw_noise" in learning.fitted.newest
    learning.fit(known, 25, torch.Generator())
    assert "likelihood.noise_covar.raw_noise" not in learning.fitted.newest
    last = fit(learning, plain, 26, torch.Generator())
    assert last.likelihood.noise.item() == pytest.approx(first.likelihood.noise.item(), rel=1e-4)


def messages(caplog) -> list[tuple[int, str]]:
    return [(r.levelno, r.getMessage()) for r in caplog.records if r.name == LOGGER]


def test_a_fit_at_a_bound_is_logged_once(caplog):
    learning = fitter()
    with caplog.at_level(logging.INFO, "tvbo"):
        model = fit(learning, misleading(), 12, torch.Generator())
        logged = messages(caplog)
        assert model.forgetting_rate.item() == pytest.approx(1 - 1e-4)
        about = [m for m in logged if "forgetting_rate" in m[1]]
        assert len(about) == 1
        assert about[0][0] == logging.WARNING
        assert "of 12 observations" in about[0][1]
        assert "= 0.9999 is at the upper bound" in about[0][1]
        assert "too long a unit" in about[0][1]
        learning.fit(misleading(), 13, torch.Generator())
        assert messages(caplog) == logged


@pytest.mark.parametrize("kind", [TimeVaryingGP, ContextualGP])
def test_a_fit_by_botorch_at_a_bound_is_logged(caplog, kind):
    """As one of a recipe, also in a list of models."""
    kernel = TemporalDecayKernel().double()
    of_columns = {"context_features": [1], "time_feature": 2} if kind is ContextualGP else {}
    X, Y = misleading().X, misleading().Y
    model = kind(X, Y, temporal_kernel=kernel, **of_columns)
    both = ModelListGP(model)
    fit_gpytorch_mll(SumMarginalLogLikelihood(both.likelihood, both))
    assert kernel.forgetting_rate.item() == pytest.approx(1 - 1e-4)
    about = [m for m in messages(caplog) if "forgetting_rate" in m[1]]
    assert len(about) == 1
    assert about[0][0] == logging.WARNING
    assert "0.9999" in about[0][1]
    caplog.clear()
    assert fitted(seen(24)).forgetting_rate.item() < 0.2
    assert not messages(caplog)
