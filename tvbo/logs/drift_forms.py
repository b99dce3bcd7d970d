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
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from tvbo.kernels import TemporalKernel, TemporalMaternKernel
from tvbo.kernels.batch import ColumnKernel
from tvbo.logs.dataset import DriftLog, outcome_unit
from tvbo.logs.drift_comparison import DriftComparison
from tvbo.logs.drift_result import DriftFit
from tvbo.logs.panel_evidence import (
    CANDIDATES,
    LAST_PART,
    Candidate,
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
        log: The observations, of one segment.
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
    unit, gap = outcome_unit(log.Y), log.gaps.median().item()
    start = _Start(
        log.divided_by(unit),
        gap,
        fit.forgetting_rate,
        times_factor(fit.covar_module, unit**-2),
        fit.noise_variance and fit.noise_variance / unit**2,
        noise_is_fixed,
        fit.mean / unit,
        mean_is_fixed,
    )
    rows, models = [], []
    for candidate in candidates:
        on_step(candidate.name)
        model = start.fit(candidate)
        k = _num_parameters(model)
        value = start.log_likelihood(model, None) - len(log) * math.log(unit)
        score, penalized = start.prediction(candidate, k)
        rows.append(
            PanelCandidate(
                candidate.name,
                False,
                k,
                value,
                value - 0.5 * k * math.log(len(log)),
                None if score is None else score - math.log(unit),
                penalized,
                None,
            )
        )
        models.append(model)
    best, reason = choose(rows)
    chosen = rows.index(best)
    model = models[chosen]
    noise_variance = fit.noise_variance
    if log.Yvar is None and not noise_is_fixed:
        noise_variance = model.likelihood.noise.item() * unit**2
    messages += [f"The search for {name} did not converge." for name in dict.fromkeys(start.failed)]
    return DriftComparison(
        rows,
        chosen,
        reason,
        messages,
        *_in_units(model, gap),
        noise_variance,
        model.mean_module.constant.item() * unit,
    )


@dataclass(frozen=True)
class _Start:
    """A log in units, and what the search for other forms of drift begins with.

    Args:
        log: The observations, outcomes in units.
        gap: Unit of time.
        forgetting_rate: ε per unit of the user.
        covar_module: Kernel over actions, in units.
        noise_variance: σ² in units; None if each outcome has a known one.
        noise_is_fixed: Whether σ² is not learned.
        mean: The prior mean, in units.
        mean_is_fixed: Whether it is not learned.

    Attributes:
        failed: Names of the candidates whose search did not converge.
    """

    log: DriftLog
    gap: float
    forgetting_rate: float
    covar_module: Kernel
    noise_variance: float | None
    noise_is_fixed: bool
    mean: float
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
        gained = self.log_likelihood(part, None) - self.log_likelihood(part, first)
        return gained / count, gained - 0.5 * k * math.log(count)

    def kernels(self, candidate: Candidate) -> list[TemporalKernel]:
        """Return the temporal kernels of a candidate, starting from ε where they are its own."""
        kernels = candidate.kernels()
        if candidate not in CANDIDATES:
            return [in_unit_of_time(kernel, self.gap) for kernel in kernels]
        rate = -math.log1p(-min(self.forgetting_rate, 1 - 1e-9)) * self.gap
        rate = min(max(rate, 1e-4), 5.0)
        if isinstance(kernels[0], TemporalMaternKernel):
            kernels[0].lengthscale = 2 * math.log(2) / rate / MATERN_HALF
        elif len(kernels) == 2:
            kernels = [exponential(min(APART * rate, 10.0)), exponential(rate / APART)]
        else:
            kernels = [exponential(rate)]
        return kernels

    def model(self, kernels: list[TemporalKernel], rows: Tensor | None) -> SingleTaskGP:
        """Return a model of some rows, not fitted."""
        log = self.log if rows is None else self.log.rows(rows)
        d = log.actions.shape[-1]
        in_time: list[Kernel] = [ColumnKernel(kernel, [d]) for kernel in kernels]
        if len(kernels) > 1:
            in_time = [ScaleKernel(kernel).double() for kernel in in_time]
            for scaled in in_time:
                scaled.outputscale = 1 / len(kernels)
        likelihood = None
        if log.Yvar is None:
            least = LEAST_NOISE * log.Y.var().item()
            constraint = GreaterThan(least, transform=torch.exp, inv_transform=torch.log)
            likelihood = GaussianLikelihood(noise_constraint=constraint).double()
            likelihood.noise = max(self.noise_variance or 0.0, 2 * least)
            likelihood.raw_noise.requires_grad_(not self.noise_is_fixed)
        mean_module = ConstantMean().double()
        mean_module.constant = torch.tensor(self.mean, dtype=torch.float64)
        mean_module.raw_constant.requires_grad_(not self.mean_is_fixed)
        # Outcomes and times are in units; actions are as the user has them.
        with validate_input_scaling(False):
            return SingleTaskGP(
                torch.cat([log.actions, log.times.unsqueeze(-1) / self.gap], dim=-1),
                log.Y.unsqueeze(-1),
                None if log.Yvar is None else log.Yvar.unsqueeze(-1),
                covar_module=ProductKernel(
                    ColumnKernel(deepcopy(self.covar_module), list(range(d))),
                    in_time[0] if len(in_time) == 1 else AdditiveKernel(*in_time),
                ),
                likelihood=likelihood,
                mean_module=mean_module,
                outcome_transform=None,
            )

    @torch.no_grad()
    def log_likelihood(self, model: SingleTaskGP, rows: Tensor | None) -> float:
        """Return the log marginal likelihood of some rows, at the parameters of a model."""
        other = self.model([deepcopy(kernel) for kernel in _temporal_kernels(model)], rows)
        other.load_state_dict(model.state_dict())
        other.train()
        X = other.train_inputs[0]
        return float(other.likelihood(other(X), X).log_prob(other.train_targets))


def _amplitudes(model: SingleTaskGP) -> list[ScaleKernel]:
    """Return the scales of several temporal kernels; none for a single one."""
    in_time = model.covar_module.kernels[1]
    return list(in_time.kernels) if isinstance(in_time, AdditiveKernel) else []


def _temporal_kernels(model: SingleTaskGP) -> list[TemporalKernel]:
    scaled = _amplitudes(model)
    columns = [each.base_kernel for each in scaled] if scaled else [model.covar_module.kernels[1]]
    return [column.base_kernel for column in columns]


def _num_parameters(model: SingleTaskGP) -> int:
    """Return the number of parameters that were learned and tell models apart."""
    count = sum(each.numel() for each in model.parameters() if each.requires_grad)
    # Of amplitudes and the scale of the kernel over actions, one follows from the others.
    is_scaled = any(
        isinstance(kernel, ScaleKernel) and kernel.raw_outputscale.requires_grad
        for kernel in model.covar_module.kernels[0].modules()
    )
    return count - int(is_scaled and len(_amplitudes(model)) > 0)


def _in_units(model: SingleTaskGP, gap: float) -> tuple[list[TemporalKernel], list[Kernel]]:
    """Return temporal kernels, and the kernel over actions of each, in the units of the user."""
    temporal = [in_unit_of_time(each, 1 / gap) for each in _temporal_kernels(model)]
    # Within the factor that brought it into units.
    kernel = model.covar_module.kernels[0].base_kernel.base_kernel
    amplitudes = [scaled.outputscale.item() for scaled in _amplitudes(model)] or [1.0]
    modules = [times_factor(deepcopy(kernel), amplitude) for amplitude in amplitudes]
    return [each.requires_grad_(False) for each in temporal], modules
