"""Fits of several forms of drift to a log with one action at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace

import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel

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
from tvbo.logs.likelihood import LogLikelihood
from tvbo.logs.maximize import NOISE, RATE, LikelihoodMaximizer, Optimum
from tvbo.logs.panel_forms import in_unit_of_time
from tvbo.logs.parameters import positive, times_factor

MOST = 1000
"""Newest rows of a log on which forms of drift are compared; a fit of 1,000 takes some seconds."""

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

    Each is a Gaussian process whose exact likelihood is maximized, without priors.
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
    gap, columns = log.gaps.median().item(), log.actions.shape[-1]
    # The time is a further column, over which the kernel has the drift; the rate of the likelihood
    # itself is zero.
    log = replace(log, actions=torch.cat([log.actions, log.times.unsqueeze(-1) / gap], dim=-1))
    noise = 1.0 if fit.noise_variance is None else fit.noise_variance / unit**2
    fixed_noise = noise if noise_is_fixed or log.Yvar is not None else None
    fixed_mean = fit.mean / unit if mean_is_fixed else None

    def fitted(
        candidate: Candidate, part: DriftLog
    ) -> tuple[ProductKernel, LikelihoodMaximizer, Optimum]:
        """Return the maximum of a part of the log, or where the search ended."""
        kernel = _kernel(
            _temporal_kernels(candidate, fit.forgetting_rate, gap), fit.covar_module, unit, columns
        )
        likelihood = LogLikelihood(part, kernel, fixed_mean)
        variance = part.Y.var().item()
        maximizer = LikelihoodMaximizer(likelihood, kernel, fixed_noise, variance, (1.0, 1.0))
        start = maximizer.start.copy()
        start[[RATE, NOISE]] = -math.inf, math.log(noise)
        return kernel, maximizer, maximizer.explore(start, RATE)

    times = log.instants[:, 1]
    first = log.rows(log.times <= times[math.ceil((1 - LAST_PART) * len(times)) - 1])
    later = len(log) - len(first)
    rows, models = [], []
    for candidate in candidates:
        on_step(candidate.name)
        kernel, maximizer, optimum = fitted(candidate, log)
        count = int(maximizer.free(RATE).sum()) - _num_redundant(kernel) + (not mean_is_fixed)
        score = penalized = None
        if later > 0 and first.can_be_fitted:
            part_kernel, part, at = fitted(candidate, first)
            sigma2, mean = part.assign(at.theta)
            whole = LogLikelihood(log, part_kernel, mean)
            with torch.no_grad():
                density, _ = whole(*torch.tensor([0.0, sigma2], dtype=torch.float64))
            gained = density.item() - at.log_likelihood
            score = gained / later - math.log(unit)
            penalized = gained - 0.5 * count * math.log(later)
        value = optimum.log_likelihood - len(log) * math.log(unit)
        evidence = value - 0.5 * count * math.log(len(log))
        rows.append(PanelCandidate(candidate.name, False, count, value, evidence, score, penalized))
        models.append((kernel, *maximizer.assign(optimum.theta)))
        if not optimum.converged:
            messages.append(f"The search for {candidate.name} did not converge.")
    best, reason = choose(rows)
    chosen = rows.index(best)
    kernel, sigma2, mean = models[chosen]
    over_actions, in_time = kernel.kernels
    return DriftComparison(
        evidence=rows,
        chosen=chosen,
        reason=reason,
        messages=messages,
        temporal_kernels=[
            in_unit_of_time(each.base_kernel.base_kernel, 1 / gap).requires_grad_(False)
            for each in in_time.kernels
        ],
        covar_modules=[
            # Without the factor that brought it into units.
            times_factor(deepcopy(over_actions.base_kernel.base_kernel), each.outputscale.item())
            for each in in_time.kernels
        ],
        noise_variance=fit.noise_variance if fixed_noise is not None else sigma2 * unit**2,
        mean=mean * unit,
    )


def _temporal_kernels(candidate: Candidate, epsilon: float, gap: float) -> list[TemporalKernel]:
    """Return the temporal kernels of a candidate, starting from ε where they are its own."""
    kernels = candidate.kernels()
    if candidate not in CANDIDATES:
        return [in_unit_of_time(kernel, gap) for kernel in kernels]
    rate = min(max(-math.log1p(-min(epsilon, 1 - 1e-9)) * gap, 1e-4), 5.0)
    if isinstance(kernels[0], TemporalMaternKernel):
        kernels[0].lengthscale = 2 * math.log(2) / rate / MATERN_HALF
        return kernels
    if len(kernels) == 2:
        return [exponential(min(APART * rate, 10.0)), exponential(rate / APART)]
    return [exponential(rate)]


def _kernel(
    kernels: list[TemporalKernel], covar_module: Kernel, unit: float, columns: int
) -> ProductKernel:
    """Return the kernel over actions times a sum of temporal kernels, each with an amplitude.

    Positive parameters are searched as logarithms, in which a likelihood is closest to quadratic.
    """
    over_actions, in_time = times_factor(deepcopy(covar_module), unit**-2), []
    for kernel in kernels:
        for name in [name.removeprefix("raw_") for name, _ in kernel.named_parameters()]:
            if isinstance(getattr(kernel, f"raw_{name}_constraint"), Positive):
                value = getattr(kernel, name).detach()
                kernel.register_constraint(f"raw_{name}", positive())
                setattr(kernel, name, value)
        over_time = ColumnKernel(kernel, [columns])
        scaled = ScaleKernel(over_time, outputscale_constraint=positive()).double()
        scaled.outputscale = 1 / len(kernels)
        scaled.raw_outputscale.requires_grad_(len(kernels) > 1)
        in_time.append(scaled)
    return ProductKernel(ColumnKernel(over_actions, list(range(columns))), AdditiveKernel(*in_time))


def _num_redundant(kernel: ProductKernel) -> int:
    """Return one if of amplitudes and the scale over actions one follows from the others."""
    is_scaled = any(
        isinstance(part, ScaleKernel) and part.raw_outputscale.requires_grad
        for part in kernel.kernels[0].modules()
    )
    return int(is_scaled and len(kernel.kernels[1].kernels) > 1)
