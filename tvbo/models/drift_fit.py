"""The drift rate of a log, with its uncertainty."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.constraints import Positive
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from scipy.stats import chi2
from torch import Tensor

from tvbo.likelihood import (
    DenseLikelihood,
    DriftLog,
    LikelihoodMaximizer,
    Panel,
    PanelLikelihood,
    Profile,
    profile_rate,
)
from tvbo.theory import block_length

MAX_DENSE = 3000
"""Observations up to which the dense likelihood is used: 3,000 take some seconds a step."""

FLAT = 0.1
"""A profile that changes by less than this (in nats) from no drift to no memory says nothing."""


class DriftFitError(RuntimeError):
    """The likelihood could not be maximized from any start."""


@dataclass(frozen=True)
class DriftFit:
    r"""The drift rate of a log and what goes with it.

    Args:
        forgetting_rate: Maximum likelihood ε, per ``time_unit``.
        forgetting_rate_interval: Its profile-likelihood interval; 0 or 1 where open to that side.
        level: Confidence of the interval.
        time_unit: The unit of the times that were given, in words.
        half_life: Lag at which the correlation is one half, :math:`2 \ln 2 / \rho` with
            :math:`\rho = -\ln(1 - \varepsilon)`, in ``time_unit``; infinite at ε = 0.
        noise_variance: σ², learned or given; None where the log knew its noise.
        mean: The prior mean.
        lengthscales: Of the kernel over actions, in units of the actions; empty if it has none.
        outputscale: Of the kernel over actions; None if it has none.
        log_likelihood: At the maximum.
        lr_statistic: Twice the log likelihood ratio against ε = 0.
        lr_pvalue: Its p-value. ε = 0 is on the boundary, so half the tail of a χ² with one degree.
        block_length: N that the paper's rule gives R-GP-UCB, in ``time_unit``.
        n_observations: Number of observations.
        messages: What a reader must know before trusting the numbers; empty if nothing.
        profile: ``(ε, log likelihood)`` along the profile, by ε.
        covar_module: The kernel over actions, at the maximum.
    """

    forgetting_rate: float
    forgetting_rate_interval: tuple[float, float]
    level: float
    time_unit: str
    half_life: float
    noise_variance: float | None
    mean: float
    lengthscales: list[float]
    outputscale: float | None
    log_likelihood: float
    lr_statistic: float
    lr_pvalue: float
    block_length: int
    n_observations: int
    messages: list[str]
    profile: list[tuple[float, float]] = field(repr=False)
    covar_module: Kernel = field(repr=False)

    @property
    def mean_module(self) -> ConstantMean:
        """The prior mean as a module, held fixed: what a recipe takes beside ``covar_module``."""
        mean_module = ConstantMean().double()
        mean_module.constant = torch.tensor(self.mean, dtype=torch.float64)
        return mean_module.requires_grad_(False)

    def to_dict(self) -> dict:
        """Everything but the kernel object, in JSON's types; an infinite half-life is None."""
        names = [name for name in self.__dataclass_fields__ if name != "covar_module"]
        values = {name: getattr(self, name) for name in names}
        if math.isinf(self.half_life):
            values["half_life"] = None
        return values

    def to_json(self, path: str | Path) -> None:
        """Write :meth:`to_dict` as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")


def fit_drift(
    train_X: Tensor,
    train_Y: Tensor,
    train_Yvar: Tensor | None = None,
    *,
    time_feature: int = -1,
    covar_module: Kernel | None = None,
    noise_variance: float | None = None,
    mean: float | None = None,
    time_unit: str = "1",
    level: float = 0.95,
    num_starts: int = 4,
    on_step: Callable[[str], None] = lambda step: None,
) -> DriftFit:
    r"""Learn ε from a log by maximum marginal likelihood (Bogunovic et al., 2016, Appendix B).

    Rows in any order, many at one time, unequal steps. A log that holds every action at every time
    is a panel, whose likelihood is nearly linear in its length; any other log is factorized
    densely, up to 3,000 observations. Both are exact.

    Args:
        train_X: ``n x d`` rows, one column of them time.
        train_Y: ``n x 1`` rewards.
        train_Yvar: ``n x 1`` known noise variances, or None.
        time_feature: Index of the time column.
        covar_module: Kernel over the non-time columns; those of its parameters that require
            gradients are learned on a copy, priors not counted. Default: scaled RBF with a
            length-scale per column.
        noise_variance: A fixed σ²; None learns it.
        mean: A fixed prior mean; None takes the generalized least squares mean.
        time_unit: Name of the unit of time, for reports; ε is per this unit.
        level: Confidence of the interval.
        num_starts: Starts of the maximization, spread over the rates the log can tell apart.
        on_step: Called with a few words at each step, for a progress bar.

    Returns:
        A :class:`DriftFit`. An ε at the edge of what the log can tell, a flat likelihood, noise at
        its bound and starts that failed are said in its ``messages``.

    Raises:
        InputDataError: if a value is not finite; there are fewer than three observations, only
            one time, or a constant reward; or a log that is no panel is longer than 3,000.
        BotorchTensorDimensionError: if shapes do not agree.
        ValueError: if ``noise_variance`` is not positive or given beside ``train_Yvar``, or
            ``level`` lies outside (0, 1), or ``num_starts`` is not positive.
        DriftFitError: if no start ends at a finite likelihood.

    Example:
        >>> fit = fit_drift(train_X, train_Y, time_unit="minute")  # rows [x1, x2, t]
        >>> fit.forgetting_rate, fit.forgetting_rate_interval, fit.half_life
    """
    if noise_variance is not None and train_Yvar is not None:
        raise ValueError("Expected noise_variance or train_Yvar. Got both.")
    if noise_variance is not None and not 0 < noise_variance < math.inf:
        raise ValueError(f"Expected noise_variance > 0. Got {noise_variance}.")
    if not 0 < level < 1 or num_starts < 1:
        raise ValueError(
            f"Expected level in (0, 1) and num_starts >= 1. Got {level}, {num_starts}."
        )
    log = DriftLog.from_rows(train_X, train_Y, train_Yvar, time_feature)
    if covar_module is None:
        kernel = scaled_kernel(RBFKernel, log.actions, log.Y)
    else:
        kernel = deepcopy(covar_module).double()
    times = log.distinct_times
    span, finest = (times[-1] - times[0]).item(), times.diff().min().item()
    maximizer = LikelihoodMaximizer(
        make_likelihood(log, kernel, mean),
        kernel,
        noise_variance=1.0 if log.Yvar is not None else noise_variance,
        reward_variance=log.Y.var().item(),
        # From a correlation of 1 - 1e-3 over the whole log to one of 1e-7 over its finest step.
        rate_bounds=(2e-3 / span, 32 / finest),
    )
    profile = profile_rate(maximizer, num_starts, level, on_step)
    if not math.isfinite(profile.best.log_likelihood):
        raise DriftFitError(
            f"The likelihood was not finite from any of {num_starts} starts: "
            f"{'; '.join(profile.failed_starts)}."
        )
    return _report(profile, maximizer, log, kernel, noise_variance, level, time_unit, span)


def scaled_kernel(base: type[RBFKernel] | type[MaternKernel], actions: Tensor, Y: Tensor) -> Kernel:
    """``base`` with a length-scale per action column and an output scale, started at the data.

    The start is the standard deviation of each column and the variance of the rewards. Both are
    kept as logarithms, in which a likelihood is closest to quadratic.
    """

    def positive() -> Positive:
        return Positive(transform=torch.exp, inv_transform=torch.log)

    kernel = ScaleKernel(
        base(ard_num_dims=actions.shape[-1], lengthscale_constraint=positive()),
        outputscale_constraint=positive(),
    ).double()
    spread = actions.std(dim=0, correction=0)
    kernel.base_kernel.lengthscale = torch.where(spread > 0, spread, 1.0)
    kernel.outputscale = Y.var(correction=0)
    return kernel


def make_likelihood(
    log: DriftLog, covar_module: Kernel, mean: float | None
) -> DenseLikelihood | PanelLikelihood:
    """The likelihood that fits the shape of the log.

    Raises:
        InputDataError: if the log is no full panel and longer than ``MAX_DENSE``.
    """
    panel = Panel.from_log(log)
    # A panel of one action, or of two times, gains nothing from its modes.
    if panel is not None and len(log) > len(panel.times):
        return PanelLikelihood(panel, covar_module, mean)
    if len(log) > MAX_DENSE:
        raise InputDataError(
            f"Expected at most {MAX_DENSE} observations, unless every action was observed at every "
            f"time. Got {len(log)}; fit a stretch of the log."
        )
    return DenseLikelihood(log, covar_module, mean)


def _report(
    profile: Profile,
    maximizer: LikelihoodMaximizer,
    log: DriftLog,
    kernel: Kernel,
    noise_variance: float | None,
    level: float,
    time_unit: str,
    span: float,
) -> DriftFit:
    best, at_zero = profile.best, profile.at_zero
    sigma2, mean = maximizer.place(best)
    rate = _rate(profile, best.log_rate)
    epsilon = -math.expm1(-rate)
    statistic = max(0.0, 2 * (best.log_likelihood - at_zero.log_likelihood))
    smooth = [k for k in kernel.modules() if isinstance(k, Kernel) and k.has_lengthscale]
    scaled = [k for k in kernel.modules() if isinstance(k, ScaleKernel)]
    nu = next((k.nu for k in smooth if isinstance(k, MaternKernel)), math.inf)
    return DriftFit(
        forgetting_rate=epsilon,
        forgetting_rate_interval=tuple(-math.expm1(-end) for end in profile.interval),
        level=level,
        time_unit=time_unit,
        half_life=2 * math.log(2) / rate if rate > 0 else math.inf,
        noise_variance=None if log.Yvar is not None else sigma2,
        mean=mean,
        lengthscales=[x for k in smooth for x in k.lengthscale.detach().flatten().tolist()],
        outputscale=scaled[0].outputscale.item() if scaled else None,
        log_likelihood=best.log_likelihood,
        lr_statistic=statistic,
        lr_pvalue=0.5 * float(chi2.sf(statistic, df=1)) if statistic > 0 else 1.0,
        block_length=block_length(epsilon, max(1.0, span), dim=log.actions.shape[-1], nu=nu),
        n_observations=len(log),
        messages=_messages(profile, maximizer, log, noise_variance, sigma2, level, time_unit),
        profile=[(-math.expm1(-_rate(profile, x)), y) for x, y in profile.points],
        covar_module=kernel,
    )


def _rate(profile: Profile, log_rate: float) -> float:
    """ρ, exactly zero and infinite at the two limits."""
    if log_rate == profile.at_zero.log_rate:
        return 0.0
    return math.inf if log_rate == profile.at_infinity.log_rate else math.exp(log_rate)


def _messages(
    profile: Profile,
    maximizer: LikelihoodMaximizer,
    log: DriftLog,
    noise_variance: float | None,
    sigma2: float,
    level: float,
    time_unit: str,
) -> list[str]:
    """What a reader must know before trusting the numbers."""
    messages = []
    low, high = maximizer.rate_bounds
    best = profile.best
    values = [y for _, y in profile.points]
    if max(values) - min(values) < FLAT:
        messages.append(
            "The likelihood is flat: from no drift to no memory it changes by "
            f"{max(values) - min(values):.2g} nats, so this log says nothing about ε."
        )
    elif best.log_rate <= low:
        messages.append("ε is at its lower bound: the log shows no drift.")
    elif best.log_rate >= high:
        messages.append(
            "ε is at its upper bound: the function shares nothing between times, or the times are "
            "too far apart to see what it shares."
        )
    elif profile.interval[0] == 0 and profile.interval[1] == math.inf:
        messages.append(
            f"The {level:.0%} interval is all of [0, 1]: the log is too short, or too sparse in "
            "time, to tell the drift."
        )
    if profile.interval[0] > 40:
        messages.append(
            f"ε rounds to 1 per {time_unit}: state time in a shorter unit to tell it from 1."
        )
    if log.Yvar is None and noise_variance is None:
        floor, ceiling = (math.exp(bound) for bound in maximizer.nuisance_bounds[0])
        if sigma2 <= 1.01 * floor:
            messages.append(f"The noise variance is at its lower bound, {floor:.3g}.")
        elif sigma2 >= 0.99 * ceiling:
            messages.append(f"The noise variance is at its upper bound, {ceiling:.3g}.")
    if not best.converged:
        messages.append(f"The maximization did not converge: {best.message}.")
    if profile.failed_starts:
        messages.append(
            f"{len(profile.failed_starts)} starts did not end at a maximum: "
            f"{profile.failed_starts[0]}."
        )
    return messages
