"""Fits of several forms of drift to a log with one action at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.settings import validate_input_scaling
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import AdditiveKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from tvbo.kernels import TemporalKernel, TemporalMaternKernel
from tvbo.kernels.batch import ColumnKernel
from tvbo.logs.dataset import DriftLog
from tvbo.logs.drift_result import DriftFit
from tvbo.logs.forms import (
    CANDIDATES,
    LAST_PART,
    Candidate,
    DriftComparison,
    PanelCandidate,
    choose,
    exponential,
)
from tvbo.logs.panel_terms import in_unit_of_time
from tvbo.logs.parameters import times_factor

MOST = 1000
"""Newest rows of a log on which forms of drift are compared; a fit of 1,000 takes some seconds."""

LEAST_NOISE = 1e-6
"""Smallest noise variance, as a share of the variance of the outcomes."""

APART = 3.0
"""Factor from the one rate to each of the two from which two scales are searched."""

MATERN_HALF = 0.969
"""Lag at which Matérn-3/2 has the correlation one half, in lengthscales."""


def compare_drift(
    log: DriftLog,
    unit: float,
    candidates: Sequence[Candidate],
    fit: DriftFit,
    noise_is_fixed: bool,
    mean_is_fixed: bool,
    on_step: Callable[[str], None] = lambda step: None,
) -> DriftComparison:
    """Compare forms of drift, each learned with the kernel over actions, from a fit of ε.

    Each is a Gaussian process whose exact likelihood is maximized by BoTorch, without priors.
    They are compared by their evidence, the log marginal likelihood less ``k / 2 log n``, and by
    the log density of the last quarter of the log, one step ahead, with what was learned from the
    first three.

    Args:
        log: The observations, of one segment, with outcomes divided by ``unit``.
        unit: Unit of the outcomes, in that of the user.
        candidates: The forms of drift.
        fit: The fit of ε to them.
        noise_is_fixed: Whether σ² is not learned.
        mean_is_fixed: Whether the prior mean is not learned.
        on_step: Called with the name of each step.

    Raises:
        ValueError: if the log has several segments.
    """
    if log.segments.any():
        raise ValueError(
            "Expected a log of one segment to compare forms of drift. Got "
            f"{int(log.segments.max()) + 1} segments."
        )
    log, messages = log.rows(log.order), []
    if len(log) > MOST:
        messages.append(
            f"Forms of drift were compared on the newest {MOST:,} of {len(log):,} rows."
        )
        log = log.rows(slice(len(log) - MOST, None))
    models = _Models(log, log.gaps.median().item(), unit, fit, noise_is_fixed, mean_is_fixed)
    rows, found = [], []
    for candidate in candidates:
        on_step(candidate.name)
        model = models.fit(candidate)
        k = _num_parameters(model)
        value = models.log_likelihood(model) - len(log) * math.log(unit)
        score, penalized = models.prediction(candidate, k)
        evidence = value - 0.5 * k * math.log(len(log))
        rows.append(
            PanelCandidate(candidate.name, False, k, value, evidence, score, penalized, None)
        )
        found.append(model)
    best, reason = choose(rows)
    chosen = rows.index(best)
    model = found[chosen]
    noise_variance = fit.noise_variance
    if log.Yvar is None and not noise_is_fixed:
        noise_variance = model.likelihood.noise.item() * unit**2
    # The kernel over actions within the factor that brought it into units.
    over_actions = model.covar_module.kernels[0].base_kernel.base_kernel
    temporal_kernels = [in_unit_of_time(each, 1 / models.gap) for _, each in _components(model)]
    return DriftComparison(
        evidence=rows,
        chosen=chosen,
        reason=reason,
        messages=messages
        + [f"The search for {name} did not converge." for name in dict.fromkeys(models.failed)],
        temporal_kernels=[kernel.requires_grad_(False) for kernel in temporal_kernels],
        covar_modules=[
            times_factor(deepcopy(over_actions), amplitude) for amplitude, _ in _components(model)
        ],
        noise_variance=noise_variance,
        mean=model.mean_module.constant.item() * unit,
    )


@dataclass(frozen=True)
class _Models:
    """Models of a log with forms of drift, which begin with a fit of ε.

    Args:
        log: The observations, outcomes divided by ``unit``.
        gap: Unit of time.
        unit: Unit of the outcomes.
        start: The fit of ε, in the units of the user.
        noise_is_fixed: Whether σ² is not learned.
        mean_is_fixed: Whether the prior mean is not learned.

    Attributes:
        failed: Names of the candidates whose search did not converge.
    """

    log: DriftLog
    gap: float
    unit: float
    start: DriftFit
    noise_is_fixed: bool
    mean_is_fixed: bool
    failed: list[str] = field(default_factory=list, init=False)

    def fit(self, candidate: Candidate, rows: Tensor | None = None) -> SingleTaskGP:
        """Return a model of some rows at its maximum, or where the search ended."""
        model = self.model(self.kernels(candidate), rows)
        try:
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        except ModelFittingError:
            # Where the search ended is a model too; its likelihood is compared as it is.
            self.failed.append(candidate.name)
        return model

    def prediction(self, candidate: Candidate, k: int) -> tuple[float | None, float | None]:
        """Return the mean log density of the last quarter, and the sum less a penalty, or None.

        Args:
            candidate: The form of drift, fitted to the first three quarters.
            k: Its number of parameters.
        """
        cut = self.log.instants[math.ceil((1 - LAST_PART) * len(self.log.instants)) - 1, 1]
        first = self.log.times <= cut
        count = int((~first).sum())
        if count == 0 or not self.log.rows(first).can_be_fitted:
            return None, None
        part = self.fit(candidate, first)
        gained = self.log_likelihood(part) - self.log_likelihood(part, first)
        return gained / count - math.log(self.unit), gained - 0.5 * k * math.log(count)

    def kernels(self, candidate: Candidate) -> list[TemporalKernel]:
        """Return the temporal kernels of a candidate, starting from ε where they are its own."""
        kernels = candidate.kernels()
        if candidate not in CANDIDATES:
            return [in_unit_of_time(kernel, self.gap) for kernel in kernels]
        rate = -math.log1p(-min(self.start.forgetting_rate, 1 - 1e-9)) * self.gap
        rate = min(max(rate, 1e-4), 5.0)
        if isinstance(kernels[0], TemporalMaternKernel):
            kernels[0].lengthscale = 2 * math.log(2) / rate / MATERN_HALF
            return kernels
        if len(kernels) == 2:
            return [exponential(min(APART * rate, 10.0)), exponential(rate / APART)]
        return [exponential(rate)]

    def model(self, kernels: list[TemporalKernel], rows: Tensor | None) -> SingleTaskGP:
        """Return a model of some rows, not fitted."""
        log = self.log if rows is None else self.log.rows(rows)
        d = log.actions.shape[-1]
        in_time = [ScaleKernel(ColumnKernel(kernel, [d])).double() for kernel in kernels]
        for scaled in in_time:
            scaled.outputscale = 1 / len(kernels)
            scaled.raw_outputscale.requires_grad_(len(kernels) > 1)
        likelihood = None
        if log.Yvar is None:
            least = LEAST_NOISE * log.Y.var().item()
            constraint = GreaterThan(least, transform=torch.exp, inv_transform=torch.log)
            likelihood = GaussianLikelihood(noise_constraint=constraint).double()
            noise = (self.start.noise_variance or 0.0) / self.unit**2
            likelihood.noise = max(noise, 2 * least)
            likelihood.raw_noise.requires_grad_(not self.noise_is_fixed)
        mean_module = ConstantMean().double()
        mean_module.constant = torch.tensor(self.start.mean / self.unit, dtype=torch.float64)
        mean_module.raw_constant.requires_grad_(not self.mean_is_fixed)
        over_actions = times_factor(deepcopy(self.start.covar_module), self.unit**-2)
        # Outcomes and times are in units; actions are as the user has them.
        with validate_input_scaling(False):
            return SingleTaskGP(
                torch.cat([log.actions, log.times.unsqueeze(-1) / self.gap], dim=-1),
                log.Y.unsqueeze(-1),
                None if log.Yvar is None else log.Yvar.unsqueeze(-1),
                covar_module=ColumnKernel(over_actions, list(range(d))) * AdditiveKernel(*in_time),
                likelihood=likelihood,
                mean_module=mean_module,
                outcome_transform=None,
            )

    @torch.no_grad()
    def log_likelihood(self, model: SingleTaskGP, rows: Tensor | None = None) -> float:
        """Return the log marginal likelihood of some rows, at the parameters of a model."""
        other = self.model([deepcopy(kernel) for _, kernel in _components(model)], rows)
        other.load_state_dict(model.state_dict())
        other.train()
        X = other.train_inputs[0]
        return float(other.likelihood(other(X), X).log_prob(other.train_targets))


def _components(model: SingleTaskGP) -> list[tuple[float, TemporalKernel]]:
    """Return amplitude and temporal kernel of each component."""
    in_time = model.covar_module.kernels[1].kernels
    return [(each.outputscale.item(), each.base_kernel.base_kernel) for each in in_time]


def _num_parameters(model: SingleTaskGP) -> int:
    """Return the number of parameters that were learned and tell models apart."""
    count = sum(each.numel() for each in model.parameters() if each.requires_grad)
    # Of amplitudes and the scale of the kernel over actions, one follows from the others.
    is_scaled = any(
        isinstance(kernel, ScaleKernel) and kernel.raw_outputscale.requires_grad
        for kernel in model.covar_module.kernels[0].modules()
    )
    return count - int(is_scaled and len(_components(model)) > 1)
