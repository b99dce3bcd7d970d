"""Fits of several forms of drift to a log with one action at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import Kernel, ScaleKernel
from torch import Size

from tvbo.kernels import TemporalKernel
from tvbo.logs.dataset import DriftLog
from tvbo.logs.drift_result import DriftFit
from tvbo.logs.forms import (
    LAST_PART,
    START,
    DriftComparison,
    Forms,
    PanelCandidate,
    in_unit_of_time,
)
from tvbo.logs.likelihood import MAX_DENSE, LogLikelihood
from tvbo.logs.maximize import NOISE, LikelihoodMaximizer, Optimum, at_rate
from tvbo.logs.parameters import positive
from tvbo.models.raw import times_factor
from tvbo.models.time_varying_gp import make_drifting_kernel


def compare_drift(
    log: DriftLog,
    forms: Forms,
    fit: DriftFit,
    noise_variance: float | None,
    mean: float | None,
    on_step: Callable[[str], None],
) -> DriftComparison:
    """Compare forms of drift, each learned with the kernel over actions, from a fit of ε.

    Each is a Gaussian process whose exact likelihood is maximized, without priors.
    They are compared by their evidence, the log marginal likelihood less ``k / 2 log n``, and by
    the log density of the last quarter of the log, one step ahead, with what was learned from the
    first three.

    Args:
        log: The observations, of one segment.
        forms: The forms of drift.
        fit: The fit of ε to them.
        noise_variance: A fixed σ²; None learns it.
        mean: A fixed prior mean; None learns it.
        on_step: Called with the name of each step.

    Raises:
        ValueError: if the log has several segments.
    """
    if log.segments.any():
        raise ValueError(
            "Expected a log of one segment to compare forms of drift. Got "
            f"{int(log.segments.max()) + 1} segments."
        )
    messages = []
    if len(log) > MAX_DENSE:
        messages.append(
            f"Forms of drift were compared on the newest {MAX_DENSE:,} of {len(log):,} rows."
        )
        log = log.rows(slice(len(log) - MAX_DENSE, None))
    # A unit of time in which the forms start from the rate of the fit.
    gap, rate = log.gaps.median().item(), -math.log1p(-min(fit.forgetting_rate, 1 - 1e-9))
    step = START * gap / min(max(rate * gap, 1e-4), 5.0)
    # The time is a further column, over which the kernel has the drift; the rate of the likelihood
    # itself is zero.
    columns = log.actions.shape[-1]
    log = replace(log, actions=torch.cat([log.actions, log.times.unsqueeze(-1) / step], dim=-1))
    fixed_noise = noise_variance if log.Yvar is None else 1.0

    def fitted(name: str, part: DriftLog) -> tuple[LikelihoodMaximizer, Optimum]:
        """Return the maximum of a part of the log, or where the search ended."""
        over_actions, kernels = deepcopy(fit.covar_module), forms[name](step)
        for kernel in kernels:
            _search_logarithms(kernel)
        whole = make_drifting_kernel(over_actions, kernels, range(columns), columns, Size())
        amplitudes = _scales(whole.kernels[1])
        if amplitudes and any(each.raw_outputscale.requires_grad for each in _scales(over_actions)):
            # It follows from the scale over actions.
            amplitudes[0].raw_outputscale.requires_grad_(False)
        likelihood = LogLikelihood(part, whole, mean)
        variance = part.Y.var().item()
        maximizer = LikelihoodMaximizer(likelihood, whole, fixed_noise, variance, (1.0, 1.0))
        start = at_rate(maximizer.start, -math.inf)
        if fixed_noise is None and fit.noise_variance is not None:
            start[NOISE] = math.log(fit.noise_variance)
        return maximizer, maximizer.explore(start)

    times = log.instants[:, 1]
    first = log.rows(log.times <= times[math.ceil((1 - LAST_PART) * len(times)) - 1])
    later = len(log) - len(first)
    rows, fits, evidence = [], [], {}
    for name in forms:
        on_step(name)
        maximizer, optimum = fitted(name, log)
        score = None
        if later > 0 and first.can_be_fitted:
            past, of_past = fitted(name, first)
            sigma2, level = past.assign(of_past.theta)
            at = torch.tensor([0.0, sigma2], dtype=torch.float64)
            with torch.no_grad():
                of_all, of_first = (
                    LogLikelihood(part, past.covar_module, level)(*at)[0].item()
                    for part in (log, first)
                )
            score = (of_all - of_first) / later
        count, value = int(maximizer.free().sum()), optimum.log_likelihood
        evidence[name] = value - 0.5 * count * math.log(len(log))
        rows.append(PanelCandidate(name, False, count, value, evidence[name], score))
        fits.append((maximizer, optimum))
        if not optimum.converged:
            messages.append(f"The search for {name} did not converge.")
    best, *others = sorted(evidence, key=lambda name: -evidence[name])
    reason = f"{best}: the only candidate."
    if others:
        lead = evidence[best] - evidence[others[0]]
        reason = f"{best}: it has the largest evidence, {lead:.1f} nats more than {others[0]}."
    predicted = max(rows, key=lambda row: row.predictive_score or -math.inf)
    if predicted.predictive_score is not None and predicted.temporal_kernel != best:
        reason += f" {predicted.temporal_kernel} predicts the last part of the log better."
    chosen = list(evidence).index(best)
    maximizer, optimum = fits[chosen]
    sigma2, level = maximizer.assign(optimum.theta)
    over_actions, over_time = maximizer.covar_module.kernels
    kernels = [each for each in over_time.modules() if isinstance(each, TemporalKernel)]
    return DriftComparison(
        evidence=rows,
        chosen=chosen,
        reason=reason,
        messages=messages,
        temporal_kernels=[
            in_unit_of_time(kernel, 1 / step).requires_grad_(False) for kernel in kernels
        ],
        covar_modules=[
            times_factor(deepcopy(over_actions.base_kernel), each.outputscale.item())
            for each in _scales(over_time)
        ]
        or [over_actions.base_kernel],
        noise_variance=sigma2 if log.Yvar is None else None,
        mean=level,
    )


def _scales(kernel: Kernel) -> list[ScaleKernel]:
    return [each for each in kernel.modules() if isinstance(each, ScaleKernel)]


def _search_logarithms(kernel: TemporalKernel) -> None:
    """Search positive parameters as logarithms, in which a likelihood is closest to quadratic."""
    for name in [name.removeprefix("raw_") for name, _ in kernel.named_parameters()]:
        if isinstance(getattr(kernel, f"raw_{name}_constraint"), Positive):
            value = getattr(kernel, name).detach()
            kernel.register_constraint(f"raw_{name}", positive())
            setattr(kernel, name, value)
