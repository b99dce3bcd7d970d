"""Batched pure exploration, with and without delay."""

from __future__ import annotations

from numbers import Real

from gpytorch.kernels import Kernel
from torch import Generator, Tensor

from tvbo.optimizers.bpe import BPEDelay, DelayBound, WaitingRule
from tvbo.optimizers.bpe.delays import NO_DELAY
from tvbo.search_space import Bounds, make_search_space
from tvbo.theory.confidence import FixedWidth, WidthRule


def bpe_delay(
    *,
    bounds: Bounds | None = None,
    choices: Tensor | None = None,
    covar_module: Kernel,
    noise_variance: float,
    horizon: int,
    delta: float = 0.1,
    delay: DelayBound | WaitingRule | None = None,
    width: float | WidthRule | None = None,
    generator: Generator | None = None,
) -> BPEDelay:
    r"""BPE-Delay: rounds of pure exploration, long enough for late outcomes (Vakili et al., 2023).

    The authors' runs: ``horizon=1000, delta=0.01, noise_variance=0.02**2, width=6.0,
    delay=SubExponentialDelay(mean, xi=9.0, b=1.0)``.

    Args:
        bounds: ``2 x d`` tensor, or ``d`` pairs (lower, upper), for a box; or
        choices: ``n x d`` for a finite set.
        covar_module: Kernel over actions, held fixed.
        noise_variance: λ², in squared units of the reward.
        horizon: T, the number of asks.
        delta: Probability of failure δ, in (0, 1).
        delay: How late outcomes may be, in rounds of asking, such as
            :class:`tvbo.theory.SubExponentialDelay`, or a rule that says so for each round. None
            learns it from what arrives, by :class:`tvbo.optimizers.EstimatedDelay`.
        width: How wide the bounds are: a number is the multiplier of the standard deviation;
            :class:`tvbo.theory.FiniteSetWidth` and :class:`tvbo.theory.CompactSetWidth` are those
            of Theorems 6.1 and 6.2. None is :class:`tvbo.theory.PriorDrawWidth`, which needs no
            norm of the function, and has no theorem behind it.
        generator: Source of randomness; default a fresh one with seed 0.

    Raises:
        ValueError: unless exactly one of ``bounds`` and ``choices`` is given, if a parameter is
            out of range, or the width is not made for the search space.
        TypeError: if ``delay`` or ``width`` is none.
        BotorchTensorDimensionError: if the kernel has a batch.
    """
    if isinstance(width, Tensor) and width.numel() == 1:
        width = width.item()
    return BPEDelay(
        make_search_space(bounds, choices),
        covar_module,
        noise_variance,
        horizon,
        delta=delta,
        delay=delay,
        width=FixedWidth(width) if isinstance(width, Real) else width,
        generator=generator,
    )


def bpe(
    *,
    bounds: Bounds | None = None,
    choices: Tensor | None = None,
    covar_module: Kernel,
    noise_variance: float,
    horizon: int,
    delta: float = 0.1,
    width: float | WidthRule | None = None,
    generator: Generator | None = None,
) -> BPEDelay:
    """BPE: BPE-Delay that waits for nothing, :math:`u_T = 0` (Li, Scarlett, 2022).

    Arguments and errors as in :func:`bpe_delay`.
    """
    return bpe_delay(
        bounds=bounds,
        choices=choices,
        covar_module=covar_module,
        noise_variance=noise_variance,
        horizon=horizon,
        delta=delta,
        delay=NO_DELAY,
        width=width,
        generator=generator,
    )
