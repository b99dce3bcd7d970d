"""Fitting the drift rate of a log, with its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.constraints import Positive
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from tvbo.fitting.blocks import BLOCK, BlockLikelihood
from tvbo.fitting.dataset import DriftLog, Panel, outcome_unit
from tvbo.fitting.dense import DenseLikelihood
from tvbo.fitting.drift_report import DriftFit, report
from tvbo.fitting.maximize import LikelihoodMaximizer, NuisanceParameters
from tvbo.fitting.panel import PanelLikelihood
from tvbo.fitting.profile import profile_rate
from tvbo.fitting.vecchia import VecchiaLikelihood

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


SUBSAMPLE_SIZE = 1000
"""Observations of the subsample from which the starts of a long log are maximized."""

SUBSAMPLE_FACTOR = 2
"""A log is long if it has more than this many times as many observations and is not a panel, whose
likelihood is fast at any length."""

LARGEST_NOISE = 1e100
"""Largest noise variance, as a multiple of the variance of the outcomes; far above it, squares of
the likelihood's derivatives overflow."""

SMALLEST_COLUMN = 1e-300
"""Smallest standard deviation of an action column; lengthscales may be much smaller."""


class DriftFitError(RuntimeError):
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
    on_step: Callable[[str], None] = lambda step: None,
) -> DriftFit:
    r"""Learn ε from a log by maximum marginal likelihood (Bogunovic et al., 2016, Appendix B).

    Rows may be in any order, at equal or different times, with unequal steps. The likelihood is
    exact, in the fastest form for the log (:func:`~tvbo.fitting.make_likelihood`): by modes if
    every action was observed at every time, by blocks if there are few distinct actions, else
    dense. Only a log of more than 3,000 rows over more than 1,000 actions is approximated: each
    block is conditioned on the rows just before it, and ``messages`` states the error.

    Outcomes may be of any size between 1e-150 and 1e150: they are divided by a power of two next
    to their standard deviation, so that outcomes times a power of two give the same ε, bit for bit,
    with the default kernel.

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
        on_step: Called with the name of each step, for a progress bar.

    Returns:
        A :class:`DriftFit`. Its ``messages`` state an ε at the limit of what the log can
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
    if noise_variance is not None and not 0 < noise_variance < math.inf:
        raise ValueError(f"Expected noise_variance > 0. Got {noise_variance}.")
    if not 0 < level < 1 or num_starts < 1:
        raise ValueError(
            f"Expected level in (0, 1) and num_starts >= 1. Got {level}, {num_starts}."
        )
    log = DriftLog.from_rows(train_X, train_Y, train_Yvar, time_feature, segments)
    # All computations are with outcomes of a standard deviation of about one.
    unit = outcome_unit(log.Y)
    log = log.divided_by(unit)
    _check_noise(noise_variance, log, unit)
    if covar_module is None:
        kernel = in_unit = scaled_kernel(RBFKernel, log.actions, log.Y)
    else:
        kernel = deepcopy(covar_module).double()
        in_unit = _times(kernel, unit**-2)
    # From a correlation of 1 - 1e-6 over the whole log to one of 1e-7 over its smallest gap.
    rate_bounds = (2e-6 / log.span, 32 / log.gaps.min().item())
    noise = 1.0 if log.Yvar is not None else noise_variance and noise_variance / unit**2
    nuisance = NuisanceParameters(kernel, noise, log.Y.var().item())

    def maximizer_of(part: DriftLog) -> LikelihoodMaximizer:
        likelihood = make_likelihood(part, in_unit, None if mean is None else mean / unit)
        return LikelihoodMaximizer(likelihood, nuisance, rate_bounds)

    maximizer, subsample = maximizer_of(log), None
    if len(log) > SUBSAMPLE_FACTOR * SUBSAMPLE_SIZE and not isinstance(
        maximizer.likelihood, PanelLikelihood
    ):
        subsample = maximizer_of(log.subsample(SUBSAMPLE_SIZE))
    profile = profile_rate(maximizer, num_starts, level, on_step, subsample)
    if not math.isfinite(profile.best.log_likelihood):
        raise DriftFitError(
            f"The likelihood was not finite from any of {num_starts} starts: "
            f"{'; '.join(profile.failed_starts)}."
        )
    fit = report(profile, maximizer, log, kernel, level, time_unit, unit)
    if covar_module is None:
        kernel.outputscale = kernel.outputscale * unit**2
        fit = replace(fit, outputscale=kernel.outputscale.item())
    return fit


def _check_noise(noise_variance: float | None, log: DriftLog, unit: float) -> None:
    """Raise unless the noise variances, in units of the outcomes, are within double precision."""
    fixed = [] if noise_variance is None else [noise_variance / unit**2]
    known = [] if log.Yvar is None else [log.Yvar.max().item()]
    if not all(0 <= ratio <= LARGEST_NOISE for ratio in fixed + known) or 0 in fixed:
        raise ValueError(
            f"Expected a noise variance of at most {LARGEST_NOISE:g} times the variance of the "
            f"outcomes, which is about {unit**2:.2g}, and not so far below it that the quotient is "
            f"0. Got {max(fixed + known):.3g} times that variance."
        )


def _times(kernel: Kernel, factor: float) -> Kernel:
    """Return ``factor`` times a kernel, which is shared; the factor is not learned."""
    scaled = ScaleKernel(kernel, outputscale_constraint=Positive(transform=None)).double()
    scaled.outputscale = torch.tensor(factor, dtype=torch.float64)
    scaled.raw_outputscale.requires_grad_(False)
    return scaled


def scaled_kernel(base: type[RBFKernel] | type[MaternKernel], actions: Tensor, Y: Tensor) -> Kernel:
    """Return a kernel with a lengthscale per action column and an output scale.

    Their initial values are the standard deviation of each column and the variance of the outcomes.
    The raw parameters are logarithms, in which a likelihood is closest to quadratic.

    Args:
        base: Class of the kernel that is scaled.
        actions: ``n x d``.
        Y: ``n``.

    Raises:
        InputDataError: if a standard deviation is too large or too small for double precision.
    """

    def positive() -> Positive:
        return Positive(transform=torch.exp, inv_transform=torch.log)

    kernel = ScaleKernel(
        base(ard_num_dims=actions.shape[-1], lengthscale_constraint=positive()),
        outputscale_constraint=positive(),
    ).double()
    # Divided by a power of two first, because squares of very large or small numbers overflow.
    exponent = torch.frexp(actions.abs().amax(dim=0)).exponent - 1
    spread = torch.ldexp(torch.ldexp(actions, -exponent).std(dim=0, correction=0), exponent)
    if ((spread > 0) & ((spread < SMALLEST_COLUMN) | (spread > 1 / SMALLEST_COLUMN))).any():
        raise InputDataError(
            f"Expected action columns with standard deviations between {SMALLEST_COLUMN:g} and "
            f"{1 / SMALLEST_COLUMN:g}, or constant ones. Got {spread.tolist()}."
        )
    kernel.base_kernel.lengthscale = torch.where(spread > 0, spread, 1.0)
    unit = outcome_unit(Y)
    kernel.outputscale = (Y / unit).var(correction=0) * unit**2
    return kernel
