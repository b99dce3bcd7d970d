"""Algorithms for outcomes that come late."""

from __future__ import annotations

from numbers import Real
from typing import Unpack

from gpytorch.kernels import Kernel
from torch import Generator, Tensor

from tvbo.optimizers.bpe import BPEDelay, DelayBound, WaitingRule
from tvbo.optimizers.bpe.confidence import FixedWidth, WidthRule
from tvbo.optimizers.recipes.recipe import recipe
from tvbo.optimizers.units import UnitOptions
from tvbo.spaces import MixedSpace, Space, Table, make_search_space

PURE_EXPLORATION = {
    "acquisition": "it tries the action whose posterior variance in its round is largest",
    "beta": "its bounds are as wide as width says",
    "retention": "it keeps the observations of its rounds",
    "pending": "outcomes play no part in its choices within a round",
    "refit": "its hyperparameters are given, and held fixed",
}
"""What the rule of pure exploration defines."""


@recipe(**PURE_EXPLORATION)
def bpe_delay(
    *,
    bounds: Space | None = None,
    choices: Table | None = None,
    covar_module: Kernel,
    noise_variance: float,
    horizon: int,
    delta: float = 0.1,
    delay: DelayBound | WaitingRule | None = None,
    width: float | WidthRule | None = None,
    generator: Generator | None = None,
    **units: Unpack[UnitOptions],
) -> BPEDelay:
    r"""Build BPE-Delay: rounds of pure exploration, long enough for late outcomes.

    The algorithm of Vakili et al. (2023). The authors' runs: ``horizon=1000, delta=0.01,
    noise_variance=0.02**2, width=6.0, delay=SubExponentialDelay(mean, xi=9.0, b=1.0)``.
    ``acquisition``, ``beta``, ``retention``, ``pending`` and ``refit`` are defined by its rule, and
    refused.

    Args:
        bounds: Box of actions: a ``2 x d`` tensor, or ``d`` pairs (lower, upper); or parameters by
            name. Give either this or ``choices``.
        choices: Finite set of actions, ``n x d``, or a table with a row for each, or integers and
            categories by name.
        covar_module: Kernel over actions, held fixed.
        noise_variance: Variance λ² of the noise, in squared units of the outcome.
        horizon: Number T of asks.
        delta: Probability of failure δ, in (0, 1).
        delay: How late outcomes may be, in rounds of asking, such as
            :class:`~tvbo.optimizers.bpe.SubExponentialDelay`, or a rule that says so for each
            round. None learns it from what arrives, by :class:`tvbo.optimizers.EstimatedDelay`.
        width: How wide the bounds are: a number is the multiplier of the standard deviation;
            :class:`~tvbo.optimizers.bpe.FiniteSetWidth` and
            :class:`~tvbo.optimizers.bpe.CompactSetWidth` are those of Theorems 6.1 and 6.2. None is
            :class:`~tvbo.optimizers.bpe.PriorDrawWidth`, which needs no norm of the function, and
            has no theorem behind it.
        generator: Source of randomness. None is a fresh one with seed 0.
        **units: Units of times and outcomes, :class:`tvbo.optimizers.UnitOptions`.

    Raises:
        ValueError: unless exactly one of ``bounds`` and ``choices`` is given, if a parameter is
            out of range, the width is not made for the search space, or floats come with integers
            or categories.
        TypeError: if ``delay`` or ``width`` is none.
        BotorchTensorDimensionError: if the kernel has a batch.
    """
    if isinstance(width, Tensor) and width.numel() == 1:
        width = width.item()
    search_space = make_search_space(bounds, choices)
    if isinstance(search_space, MixedSpace):
        raise ValueError(
            "Expected floats, or up to 1,000 combinations of integers and categories. Got both, or "
            "more combinations: name those to explore as choices."
        )
    return BPEDelay(
        search_space,
        covar_module,
        noise_variance,
        horizon,
        delta=delta,
        delay=delay,
        width=FixedWidth(width) if isinstance(width, float | int | Real) else width,
        generator=generator,
    )
