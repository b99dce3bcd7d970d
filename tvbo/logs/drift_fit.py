"""Fitting the drift rate of a log, with its uncertainty."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from botorch.exceptions.errors import ModelFittingError
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from tvbo.kernels import TemporalKernel
from tvbo.logs.block_length import block_length
from tvbo.logs.dataset import DriftLog
from tvbo.logs.drift_forms import compare_drift
from tvbo.logs.drift_result import DriftFit, forgetting_rate
from tvbo.logs.forms import Forms, forms_of
from tvbo.logs.likelihood import BLOCK, GIVEN, is_exact, likelihood_of
from tvbo.logs.maximize import (
    NOISE,
    OUTLIERS,
    RATE,
    START_STEPS,
    STEPS,
    LikelihoodMaximizer,
    Optimum,
    Profile,
)
from tvbo.logs.outliers import MAX_REFITS, LogModel, clipped, is_outlier, outlier_messages
from tvbo.logs.parameters import scaled_kernel
from tvbo.terminal import patient_steps
from tvbo.values import as_number, check_count, check_positive, check_probability

logger = logging.getLogger("tvbo.logs")

FROM_STARTS, OF_WHOLE = 20, 18
"""Evaluations of the likelihood in a fit, for each parameter, as measured: from the starts, on a
subsample if the log is long, and then on the whole log."""

SUBSAMPLE_SIZE, LONG = 300, 600
"""Observations of the subsample from which the starts of a long log are maximized, and those above
which a log is long."""


NOISE_FACTORS = (2.0, 10.0)
"""Factors of the noise variance, and of its inverse, for which ε is reported as well."""

EXTRAPOLATED = 10.0
"""Half-life, as a multiple of the longest segment, above which ε is an extrapolation."""

FLAT = 0.1
"""Range of the profile, in nats, below which the likelihood counts as flat."""


class DriftFitError(ModelFittingError, RuntimeError):
    """The likelihood could not be maximized from any start."""


def fit_drift(
    train_X: Tensor,
    train_Y: Tensor,
    train_Yvar: Tensor | None = None,
    *,
    segments: Tensor | None = None,
    time_feature: int = -1,
    covar_module: Kernel | None = None,
    noise_variance: float | None = None,
    mean: float | None = None,
    time_unit: str = "1",
    level: float = 0.95,
    num_starts: int = 4,
    outliers: bool = True,
    row_numbers: Sequence[int] | None = None,
    temporal_kernel: TemporalKernel | Sequence[TemporalKernel] | str | None = None,
    progress: bool = True,
) -> DriftFit:
    r"""Learn ε from a log by maximum marginal likelihood (Bogunovic et al., 2016, Appendix B).

    Rows may be in any order, at equal or different times, with unequal steps. The likelihood is
    exact, in the fastest form for the log, but for a log of more than 1,000
    rows over more than 200 actions: its rows are then taken in blocks, each given 100 earlier ones
    (:class:`~tvbo.logs.likelihood.LogLikelihood`), which ``messages`` says.

    For a log of more than 600 rows the starts are maximized on 300 of them, in runs spread over the
    log; maximum, test and interval use all rows.

    Args:
        train_X: ``n x d`` rows, one column of them time.
        train_Y: ``n x 1`` outcomes.
        train_Yvar: ``n x 1`` known noise variances, or None.
        segments: ``n`` labels of independent segments of the log, such as days: the functions of
            different segments are independent, with the same parameters. None: one segment.
        time_feature: Index of the time column.
        covar_module: Kernel over the other columns; those parameters that require gradients are
            learned on a copy, without priors. Default: scaled RBF with a lengthscale per column.
        noise_variance: A fixed σ²; None learns it.
        mean: A fixed prior mean; None integrates it out, and reports its generalized least squares
            value.
        time_unit: Name of the unit of time in reports; ε is per this unit.
        level: Confidence of the interval.
        num_starts: Number of starts, spread over the rates that the log can distinguish.
        outliers: Whether rows far from what the others predict are left out, and named in
            ``messages``.
        row_numbers: ``n`` numbers by which outliers are named, such as lines of a file; None counts
            from 0.
        temporal_kernel: Forms of drift to fit too, as in :func:`fit_panel`: ``"auto"`` compares
            three. ``DriftFit.comparison`` says which was chosen, ``settings()`` has its model.
        progress: Show a progress bar, if the fit takes longer than two seconds.

    Returns:
        A :class:`DriftFit`. Its ``messages`` state outliers, an ε at the limit of what the log can
        distinguish, a flat likelihood, noise at its bound, an approximation, and a maximization
        that failed.

    Raises:
        InputDataError: if a value is not finite or a label missing, or there are fewer than three
            observations, only one time, or a constant outcome, or if the standard deviation of the
            outcomes is not between 1e-30 and 1e30.
        BotorchTensorDimensionError: if shapes do not agree.
        ValueError: if ``noise_variance`` is not positive or given beside ``train_Yvar``, if
            ``level`` lies outside (0, 1), or ``num_starts`` is not positive.
        DriftFitError: if no start leads to a finite likelihood.

    Example:
        >>> fit = fit_drift(train_X, train_Y, time_unit="minute")  # rows [x1, x2, t]
        >>> fit.forgetting_rate, fit.forgetting_rate_interval, fit.half_life
    """
    if noise_variance is not None and train_Yvar is not None:
        raise ValueError("Expected noise_variance or train_Yvar. Got both.")
    if noise_variance is not None:
        noise_variance = as_number("noise_variance", noise_variance)
        check_positive(noise_variance=noise_variance)
    check_probability(level=level)
    check_count(num_starts=num_starts)
    forms: Forms = {} if temporal_kernel is None else forms_of(temporal_kernel)
    log = DriftLog.from_rows(train_X, train_Y, train_Yvar, time_feature, segments, row_numbers)
    messages = []
    if not is_exact(log):
        messages.append(
            f"The likelihood of {len(log):,} rows over {log.num_actions:,} actions is approximate: "
            f"each {BLOCK} rows are given some {GIVEN} earlier ones, not all."
        )
    with patient_steps([*STEPS, *forms], "fit_drift", progress) as on_step:
        task = _Fit(covar_module, noise_variance, mean, time_unit, level, num_starts, on_step)
        if logger.isEnabledFor(logging.INFO):
            logger.info(task.prospect(log))
        fit = task.robust(log) if outliers else task.whole(log)[0]
        fit = replace(fit, messages=[*messages, *fit.messages])
        if forms:
            kept = log.without(fit.outliers)
            comparison = compare_drift(kept, forms, fit, noise_variance, mean, on_step)
            fit = replace(fit, comparison=comparison)
        return fit


@dataclass(frozen=True)
class _Fit:
    """Arguments of :func:`fit_drift`, to be applied to a log or a part of it."""

    covar_module: Kernel | None
    noise_variance: float | None
    mean: float | None
    time_unit: str
    level: float
    num_starts: int
    on_step: Callable[[str], None]

    def prospect(self, log: DriftLog) -> str:
        """Return how many rows there are, and how long their fit may take."""
        whole, subsample = self._prepared(log)
        total = OF_WHOLE * whole.seconds() + FROM_STARTS * subsample.seconds()
        total *= int(whole.free().sum())
        return f"fitting {len(log):,} rows: about {max(1.0, total):.0f} s of CPU"

    def robust(self, log: DriftLog) -> DriftFit:
        """Fit a log without its outliers, which are named by the numbers of their rows.

        A row is an outlier if its outcome is too far from its prediction by all other rows that are
        none (leave-one-out; Rasmussen, Williams, 2006, Section 5.4.2), with the parameters fitted
        to these rows. Fit and prediction are repeated until the same rows are found again, so that
        a row which only looked bad beside a worse one returns. The first fit is of outcomes moved
        to within four standard deviations of the median, both robust.
        """
        self.on_step(OUTLIERS)
        fit, given, kept = None, clipped(log.Y), torch.ones(len(log), dtype=torch.bool)
        if torch.equal(given, log.Y):
            fit, model = self.whole(log)
        else:
            model = self.rough(replace(log, Y=given), None)
        residuals, settled = model.residuals(log, kept, given), False
        for _ in range(MAX_REFITS):
            usual = ~is_outlier(residuals, kept)
            rest = log.rows(usual)
            if not rest.can_be_fitted:
                # If all outcomes but the outliers are equal, say, nothing tells what is usual.
                usual = kept = torch.ones_like(kept)
            if settled := torch.equal(usual, kept):
                break
            kept, model = usual, self.rough(rest, model)
            residuals = model.residuals(log, kept, log.Y)
        if fit is None or not kept.all():
            fit, _ = self.whole(log.rows(kept))
        named = sorted(zip(log.numbers[~kept].tolist(), residuals[~kept].tolist(), strict=True))
        messages = outlier_messages(named, len(log), settled)
        return replace(fit, outliers=named, messages=[*messages, *fit.messages])

    def whole(self, log: DriftLog) -> tuple[DriftFit, LogModel]:
        """Fit a log, with interval and test; return its model, too, which has the same kernel."""
        maximizer, subsample = self._prepared(log)
        # Without memory, outcomes each at a time of its own have a variance, and no more.
        is_mostly_alone = 2 * len(log.instants) > len(log)
        lost = max(1, int(maximizer.free(RATE).sum())) if is_mostly_alone else 1
        profile = Profile(maximizer, self.num_starts, self.level, self.on_step, subsample, lost)
        best, by_noise = profile.best, []
        if log.Yvar is None:
            pairs = profile.rates_by_noise(NOISE_FACTORS)
            by_noise = [(variance, forgetting_rate(rate)) for variance, rate in pairs]
        # After the other noise variances, which have moved the kernel.
        model = _model(maximizer, best)
        kernel, rate = model.covar_module, profile.rate(best.log_rate)
        statistic = max(0.0, 2 * (best.log_likelihood - profile.at_zero.log_likelihood))
        smooth = [k for k in kernel.modules() if isinstance(k, Kernel) and k.has_lengthscale]
        scaled = [k for k in kernel.modules() if isinstance(k, ScaleKernel)]
        nu = next((k.nu for k in smooth if isinstance(k, MaternKernel)), math.inf)
        round_length = log.gaps.median().item()
        horizon, dim = log.span / round_length + 1, log.actions.shape[-1]
        low, high = profile.interval
        fit = DriftFit(
            forgetting_rate=forgetting_rate(rate),
            forgetting_rate_interval=(forgetting_rate(low), forgetting_rate(high)),
            level=self.level,
            time_unit=self.time_unit,
            half_life=2 * math.log(2) / rate if rate > 0 else math.inf,
            noise_variance=None if log.Yvar is not None else math.exp(best.theta[NOISE]),
            mean=model.mean,
            lengthscales=[x for k in smooth for x in k.lengthscale.detach().flatten().tolist()],
            outputscale=scaled[0].outputscale.item() if scaled else None,
            log_likelihood=best.log_likelihood,
            lr_statistic=statistic,
            lr_pvalue=0.5 * math.erfc(math.sqrt(0.5 * statistic)) if statistic > 0 else 1.0,
            round_length=round_length,
            block_length=block_length(
                forgetting_rate(rate * round_length), horizon, dim=dim, nu=nu
            ),
            n_observations=len(log),
            messages=self._messages(profile, log, by_noise),
            profile=[
                (forgetting_rate(profile.rate(log_rate)), point.log_likelihood)
                for log_rate, point in sorted(profile.points.items())
            ],
            covar_module=kernel,
            forgetting_rate_by_noise=by_noise,
        )
        return fit, model

    def rough(self, log: DriftLog, before: LogModel | None) -> LogModel:
        """Fit a log from starts alone, or a model of nearly the same, on a subsample if long."""
        self.on_step(OUTLIERS)
        _, subsample = self._prepared(log)
        starts = [before.theta] if before is not None else subsample.starts(self.num_starts)
        optima = [subsample.explore(start, max_steps=START_STEPS) for start in starts]
        return _model(subsample, max(optima, key=lambda optimum: optimum.log_likelihood))

    def _prepared(self, log: DriftLog) -> tuple[LikelihoodMaximizer, LikelihoodMaximizer]:
        """Return the maximizers of the likelihood of a log and of a subsample, with one kernel."""
        kernel = self.covar_module or scaled_kernel(RBFKernel, log.actions, log.Y)
        kernel = deepcopy(kernel).double()
        # From a correlation of 1 - 1e-6 over the whole log to one of 1e-7 over its smallest gap.
        rate_bounds = (2e-6 / log.span, 32 / log.gaps.min().item())

        known = self.noise_variance if log.Yvar is None else 1.0

        def maximizer_of(part: DriftLog) -> LikelihoodMaximizer:
            likelihood = likelihood_of(part, kernel, self.mean)
            return LikelihoodMaximizer(likelihood, kernel, known, log.Y.var().item(), rate_bounds)

        maximizer = subsample = maximizer_of(log)
        if len(log) > LONG:
            subsample = maximizer_of(log.subsample(SUBSAMPLE_SIZE))
        return maximizer, subsample

    def _messages(
        self, profile: Profile, log: DriftLog, by_noise: list[tuple[float, float]]
    ) -> list[str]:
        """Return warnings on the reliability of the numbers."""
        messages, maximizer = [], profile.maximizer
        best, (low, high) = profile.best, profile.interval
        values = [point.log_likelihood for point in profile.points.values()]
        change = max(values) - min(values)
        if change < FLAT:
            messages.append(
                f"The likelihood is flat: from no drift to no memory it changes by {change:.2g} "
                "nats, so this log says nothing about ε."
            )
        elif low == 0 and high == math.inf:
            messages.append(
                f"The {self.level:.0%} interval is all of [0, 1]: the log is too short, or too "
                "sparse in time, to tell the drift."
            )
        elif best.log_rate <= maximizer.rate_bounds[0] and low == 0:
            messages.append("ε is at its lower bound: the log shows no drift.")
        elif best.log_rate >= maximizer.rate_bounds[1]:
            messages.append(
                "ε is at its upper bound: the function shares nothing between times, or the times "
                "are too far apart to see what it shares."
            )
        elif 2 * math.log(2) / math.exp(best.log_rate) > EXTRAPOLATED * log.span and low > 0:
            messages.append(
                f"The half-life is more than {EXTRAPOLATED:g} times the length of the log: the "
                "function drifts, but so slowly for its variance that ε and the signal variance "
                "cannot be told apart. Trust neither alone; a fixed kernel, or a longer log, tells "
                "ε."
            )
        if low > 40:
            messages.append(
                f"ε rounds to 1 per {self.time_unit}: state time in a shorter unit to tell it from "
                "1."
            )
        at_bounds = maximizer.at_bounds(best.theta)
        if at_bounds:
            messages.append(f"At an end of its range: {', '.join(at_bounds)}.")
        if by_noise and ("noise variance" in at_bounds or not maximizer.learns_noise):
            rates = ", ".join(f"{rate:.3g} with {variance:.3g}" for variance, rate in by_noise)
            how = "is at an end of its range" if maximizer.learns_noise else "was given"
            messages.append(f"The noise variance {how}. ε rests on it: {rates}.")
        if not best.converged:
            messages.append(f"The maximization did not converge: {best.message}.")
        return messages


def _model(maximizer: LikelihoodMaximizer, optimum: Optimum) -> LogModel:
    """Return the model at an optimum, to which its kernel is set."""
    if not math.isfinite(optimum.log_likelihood):
        raise DriftFitError("The likelihood was not finite from any start.")
    _, mean = maximizer.assign(optimum.theta)
    return LogModel(maximizer.covar_module, mean, optimum.theta)
