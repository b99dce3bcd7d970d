"""Fitting the drift rate of a log, with its uncertainty."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, ModelFittingError
from gpytorch.kernels import Kernel, RBFKernel
from torch import Tensor

from tvbo.kernels import TemporalKernel
from tvbo.logs.blocks import BLOCK, BlockLikelihood
from tvbo.logs.dataset import DriftLog, Panel, outcome_unit
from tvbo.logs.dense import DenseLikelihood
from tvbo.logs.drift_report import report
from tvbo.logs.drift_result import DriftFit
from tvbo.logs.maximize import LikelihoodMaximizer
from tvbo.logs.outliers import LogModel, OutlierSearch, clipped, find_outliers
from tvbo.logs.panel import PanelLikelihood
from tvbo.logs.parameters import NuisanceParameters, Optimum, scaled_kernel, times_factor
from tvbo.logs.profile import OUTLIERS, explore_starts, profile_rate, steps
from tvbo.logs.vecchia import VecchiaLikelihood
from tvbo.terminal import patient_steps
from tvbo.values import as_number, check_positive

logger = logging.getLogger("tvbo.logs")

MAX_DENSE = 3000
"""Observations up to which the dense likelihood is used; 3,000 take some seconds per evaluation."""

MAX_ACTIONS = 1000
"""Distinct actions up to which exact blocks are used for a log too long for the dense likelihood.
At 600 they take as long as the Vecchia approximation; at this many, some times longer."""

BLOCKS_PAY = 2
"""Blocks are faster than the dense factorization in logs more than this many times as long as the
sum of block size and distinct actions, as measured; the operations are N (b + n)² and N³."""

DriftLikelihood = DenseLikelihood | PanelLikelihood | BlockLikelihood | VecchiaLikelihood
"""A callable of ρ and σ² that returns the log likelihood and the mean at which it was evaluated."""


def make_likelihood(log: DriftLog, covar_module: Kernel, mean: float | None) -> DriftLikelihood:
    """Build the fastest exact likelihood of a log, or an approximate one if none is fast enough.

    Args:
        log: The observations.
        covar_module: The kernel over actions.
        mean: The prior mean; None takes its maximum likelihood value (generalized least squares).
    """
    panel = Panel.from_log(log)
    # For a panel of one action, the modes save nothing.
    if panel is not None and len(log) > len(panel.values):
        return PanelLikelihood(panel, covar_module, mean)
    n_actions = len(torch.unique(log.actions, dim=0))
    if n_actions <= MAX_ACTIONS and len(log) > BLOCKS_PAY * (BLOCK + n_actions):
        return BlockLikelihood(log, covar_module, mean)
    if len(log) <= MAX_DENSE:
        return DenseLikelihood(log, covar_module, mean)
    return VecchiaLikelihood(log, covar_module, mean)


FROM_STARTS, OF_WHOLE = 45, 20
"""Evaluations of the likelihood in a fit, for each parameter, as measured on logs of up to 2,500
rows: from the starts, on a subsample if the log is long, and then on the whole log."""

FORMS = {
    DenseLikelihood: "the dense likelihood",
    PanelLikelihood: "the exact likelihood, mode by mode of the panel",
    BlockLikelihood: "the exact likelihood, block by block",
    VecchiaLikelihood: "an approximate likelihood, by blocks given the rows before them",
}
"""Name of each form of the likelihood, as it is printed."""

SUBSAMPLE_SIZE, LONG = 1000, 2000
"""Observations of the subsample from which the starts of a long log are maximized, and those above
which a log is long, unless it is a panel, whose likelihood is fast at any length."""


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
    outliers: bool | OutlierSearch = True,
    row_numbers: Sequence[int] | None = None,
    temporal_kernel: TemporalKernel | Sequence[TemporalKernel] | str | None = None,
    on_step: Callable[[str], None] = lambda step: None,
    progress: bool = True,
) -> DriftFit:
    r"""Learn ε from a log by maximum marginal likelihood (Bogunovic et al., 2016, Appendix B).

    Rows may be in any order, at equal or different times, with unequal steps. The likelihood is
    exact, in the fastest form for the log (``make_likelihood``): by modes if
    every action was observed at every time, by blocks if there are few distinct actions, else
    dense. Only a log of more than 3,000 rows over more than 1,000 actions is approximated: each
    block is conditioned on the rows just before it, and ``messages`` states the error.

    Outcomes may be of any size between 1e-150 and 1e150; times a power of two, they give the same
    ε, bit for bit, with the default kernel.

    For a log of more than 2,000 rows that is not a full panel, the starts are maximized on 1,000 of
    them, in runs spread over the log; maximum, test and interval use all rows.

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
        mean: A fixed prior mean; None takes the generalized least squares mean.
        time_unit: Name of the unit of time in reports; ε is per this unit.
        level: Confidence of the interval.
        num_starts: Number of starts, spread over the rates that the log can distinguish.
        outliers: Whether rows far from what the others predict are left out, and named in
            ``messages``; or an :class:`OutlierSearch` that says how they are found. True does not
            search full panels of more than 3,000 rows, whose fit without some cells is slower.
        row_numbers: ``n`` numbers by which outliers are named, such as lines of a file; None counts
            from 0.
        temporal_kernel: Forms of drift to fit too, as in :func:`fit_panel`: ``"auto"`` compares
            three. ``DriftFit.comparison`` says which was chosen, ``settings()`` has its model.
        on_step: Called with the name of each step, of ``steps``.
        progress: Show a progress bar, if the fit takes longer than two seconds.

    Returns:
        A :class:`DriftFit`. Its ``messages`` state outliers, an ε at the limit of what the log can
        distinguish, a flat likelihood, noise at its bound, an approximation, and a maximization
        that failed.

    Raises:
        InputDataError: if a value is not finite or a label missing, or there are fewer than three
            observations, only one time, or a constant outcome, or if outcomes or times are so large
            or so small that variances or rates exceed the range of double precision.
        BotorchTensorDimensionError: if shapes do not agree.
        ValueError: if ``noise_variance`` is not positive or given beside ``train_Yvar``, if the
            noise variance is too large or too small compared with the outcomes, if ``level`` lies
            outside (0, 1), or ``num_starts`` is not positive.
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
    if not 0 < level < 1 or num_starts < 1:
        raise ValueError(
            f"Expected level in (0, 1) and num_starts >= 1. Got {level}, {num_starts}."
        )
    forms = []
    if temporal_kernel is not None:
        # Imported here, since few logs are compared.
        from tvbo.logs.drift_forms import compare_drift
        from tvbo.logs.panel_evidence import candidates_of

        forms = candidates_of(temporal_kernel)
    log = DriftLog.from_rows(train_X, train_Y, train_Yvar, time_feature, segments)
    numbers = range(len(log)) if row_numbers is None else row_numbers
    if len(numbers) != len(log):
        raise BotorchTensorDimensionError(
            f"Expected a number for each of {len(log)} rows. Got {len(numbers)} row_numbers."
        )
    search = OutlierSearch.asked(outliers, log)
    names = [*steps(num_starts), *(form.name for form in forms)]
    with patient_steps(names, "fit_drift", progress) as show:

        def told(step: str) -> None:
            show(step)
            on_step(step)

        task = _Fit(covar_module, noise_variance, mean, time_unit, level, num_starts, told)
        if logger.isEnabledFor(logging.INFO):
            logger.info(task.prospect(log))
        fit = task.whole(log)[0] if search is None else task.robust(log, search, numbers)
        if forms:
            left_out = dict(fit.outliers)
            kept = torch.tensor([number not in left_out for number in numbers])
            fixed = noise_variance is not None, mean is not None
            fit = replace(fit, comparison=compare_drift(log.rows(kept), forms, fit, *fixed, told))
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
        """Return how many rows there are, the form of the likelihood, and how long it may take."""
        parts = self._parts(log)
        whole = parts.maximizer
        seconds = OF_WHOLE * _seconds(whole) + FROM_STARTS * _seconds(parts.subsample)
        seconds *= 1 + len(whole.nuisance.start)
        words = "some seconds" if seconds < 10 else f"about {seconds:.0f} s"
        if seconds > 120:
            words = f"about {seconds / 60:.0f} min"
        return f"fitting {len(log)} rows by {FORMS[type(whole.likelihood)]}: {words}"

    def robust(self, log: DriftLog, search: OutlierSearch, numbers: Sequence[int]) -> DriftFit:
        """Fit a log without its outliers, which are named by the numbers of their rows."""
        self.on_step(OUTLIERS)
        fit = model = None
        if torch.equal(clipped(log.Y), log.Y):
            fit, model = self.whole(log)
        found = find_outliers(log, self.rough, search, model)
        if fit is None or not found.kept.all():
            fit, _ = self.whole(log.rows(found.kept))
        messages = [*found.messages(numbers), *fit.messages]
        return replace(fit, outliers=found.named(numbers), messages=messages)

    def whole(self, log: DriftLog) -> tuple[DriftFit, LogModel]:
        """Fit a log, with interval and test."""
        parts = self._parts(log)
        # Without memory, outcomes each at a time of its own have a variance, and no more.
        lost = len(parts.maximizer.nuisance.names) if log.is_mostly_alone else 1
        profile = profile_rate(
            parts.maximizer,
            self.num_starts,
            self.level,
            self.on_step,
            parts.subsample,
            memory_parameters=max(1, lost),
        )
        if not math.isfinite(profile.best.log_likelihood):
            raise _no_finite_start(profile.failed_starts)
        fit = report(
            profile,
            parts.maximizer,
            parts.log,
            parts.kernel,
            self.level,
            self.time_unit,
            parts.unit,
        )
        model = parts.model(parts.maximizer, profile.best)
        if self.covar_module is None:
            # The kernel of the result is in the unit of the user, that of the model is not.
            kernel = deepcopy(parts.kernel)
            kernel.outputscale = kernel.outputscale * parts.unit**2
            fit = replace(fit, covar_module=kernel, outputscale=kernel.outputscale.item())
        return fit, model

    def rough(self, log: DriftLog) -> LogModel:
        """Fit a log from its starts alone, on a subsample if it is long."""
        self.on_step(OUTLIERS)
        parts = self._parts(log)
        optima = explore_starts(parts.subsample, self.num_starts, lambda step: None)
        best = max(optima, key=lambda optimum: optimum.log_likelihood)
        if not math.isfinite(best.log_likelihood):
            raise _no_finite_start([optimum.message for optimum in optima])
        return parts.model(parts.subsample, best)

    def _parts(self, log: DriftLog) -> _Parts:
        """Return the log in units of its outcomes, and the maximizers of its likelihood."""
        unit = outcome_unit(log.Y)
        log = log.divided_by(unit)
        log.check_noise(self.noise_variance, unit)
        if self.covar_module is None:
            kernel = in_unit = scaled_kernel(RBFKernel, log.actions, log.Y)
        else:
            kernel = deepcopy(self.covar_module).double()
            in_unit = times_factor(kernel, unit**-2)
        # From a correlation of 1 - 1e-6 over the whole log to one of 1e-7 over its smallest gap.
        rate_bounds = (2e-6 / log.span, 32 / log.gaps.min().item())
        fixed = self.noise_variance
        noise = 1.0 if log.Yvar is not None else fixed and fixed / unit**2
        nuisance = NuisanceParameters(kernel, noise, log.Y.var().item())

        def maximizer_of(part: DriftLog) -> LikelihoodMaximizer:
            mean = None if self.mean is None else self.mean / unit
            return LikelihoodMaximizer(make_likelihood(part, in_unit, mean), nuisance, rate_bounds)

        maximizer = subsample = maximizer_of(log)
        if len(log) > LONG and not isinstance(maximizer.likelihood, PanelLikelihood):
            subsample = maximizer_of(log.subsample(SUBSAMPLE_SIZE))
        return _Parts(log, unit, kernel, in_unit, maximizer, subsample)


@dataclass(frozen=True)
class _Parts:
    """A log in units of its outcomes, the kernel, and the maximizers of its likelihood."""

    log: DriftLog
    unit: float
    kernel: Kernel
    in_unit: Kernel
    maximizer: LikelihoodMaximizer
    subsample: LikelihoodMaximizer

    def model(self, maximizer: LikelihoodMaximizer, optimum: Optimum) -> LogModel:
        """Return the model of the log at an optimum, to which the kernel is set."""
        sigma2, mean = maximizer.assign(optimum)
        return LogModel(self.in_unit, math.exp(optimum.log_rate), sigma2, mean, self.unit)


def _seconds(maximizer: LikelihoodMaximizer) -> float:
    """Return how long an evaluation takes; the second, unless the first is long."""
    low, high = maximizer.rate_bounds
    seconds = 0.0
    for share in (0.4, 0.6):
        begun = time.monotonic()
        maximizer.value(low + share * (high - low), maximizer.nuisance.start)
        seconds = time.monotonic() - begun
        if seconds > 1:
            break
    return seconds


def _no_finite_start(failures: list[str]) -> DriftFitError:
    return DriftFitError(f"The likelihood was not finite from any start: {'; '.join(failures)}.")
