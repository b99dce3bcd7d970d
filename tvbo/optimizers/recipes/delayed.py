"""Algorithms for outcomes that come late."""

from __future__ import annotations

from numbers import Real
from typing import Unpack

from gpytorch.kernels import Kernel
from torch import Generator, Tensor

from tvbo.optimizers.bpe import BPEDelay, DelayBound, WaitingRule
from tvbo.optimizers.bpe.delays import NO_DELAY
from tvbo.optimizers.builder import GPOptions
from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.pending import ConstantLiar, Hallucinate
from tvbo.optimizers.recipes.drifting import tv_gp_ucb
from tvbo.optimizers.recipes.others import gp_ts
from tvbo.optimizers.recipes.recipe import recipe
from tvbo.optimizers.units import UnitOptions
from tvbo.spaces import MixedSpace, Space, Table, make_search_space
from tvbo.theory.confidence import FixedWidth, WidthRule

STANDS_IN = "minimum stands in for the outcomes of pending trials"

PURE_EXPLORATION = {
    "acquisition": "it tries the action whose posterior variance in its round is largest",
    "beta": "its bounds are as wide as width says",
    "retention": "it keeps the observations of its rounds",
    "pending": "outcomes play no part in its choices within a round",
    "refit": "its hyperparameters are given, and held fixed",
}
"""What the rule of pure exploration defines."""


@recipe(pending="it is GP-UCB with Hallucinate(); gp_ucb takes another rule")
def gp_bucb(*, forgetting_rate: float | None = 0.0, **options: Unpack[GPOptions]) -> GPOptimizer:
    r"""Build GP-BUCB: pending trials are hallucinated (Desautels, Krause, Burdick, 2014).

    Their Algorithm 2: UCB whose mean is that of the outcomes that have come, and whose variance is
    as if all had. Their theorem widens β by :math:`\exp(2C)` for ``C`` the information that pending
    trials may hold; their experiments, and the default here, do not. It is :func:`gp_ucb` by
    another name, since ``pending=Hallucinate()`` is the default of the recipes; here it cannot be
    changed.

    Args:
        forgetting_rate: Drift ε per unit of time, in [0, 1]. None learns it.
        **options: Options of every recipe with a GP,
            :class:`tvbo.optimizers.builder.GPOptions`; ``pending`` is refused.
    """
    options["pending"] = Hallucinate()
    return tv_gp_ucb(forgetting_rate=forgetting_rate, **options)


@recipe(pending=STANDS_IN)
def gp_ucb_sdf(
    *, minimum: float, forgetting_rate: float | None = 0.0, **options: Unpack[GPOptions]
) -> GPOptimizer:
    """Build GP-UCB-SDF: the least value stands in for late outcomes (Verma, Dai, Low, 2022).

    In the paper an outcome that is later than ``m`` rounds keeps its stand-in for ever. Here it
    does as long as the trial is pending: to give up on trials, expire them.

    Args:
        minimum: Least value of the function, which must be known, in units of the outcome.
        forgetting_rate: Drift ε per unit of time, in [0, 1]. None learns it.
        **options: Options of every recipe with a GP,
            :class:`tvbo.optimizers.builder.GPOptions`; ``pending`` is refused.

    Raises:
        ValueError: if ``minimum`` is not finite.
    """
    options["pending"] = ConstantLiar(minimum)
    return tv_gp_ucb(forgetting_rate=forgetting_rate, **options)


@recipe(pending=STANDS_IN)
def gp_ts_sdf(
    *, minimum: float, forgetting_rate: float | None = 0.0, **options: Unpack[GPOptions]
) -> GPOptimizer:
    """Build GP-TS-SDF: :func:`gp_ts` with the least value for late outcomes (Verma et al., 2022).

    As long as a trial is pending, its outcome counts as the least value of the function.

    Args:
        minimum: Least value of the function, which must be known, in units of the outcome.
        forgetting_rate: Drift ε per unit of time, in [0, 1]. None learns it, with the defaults of
            :func:`gp_ts` on a box.
        **options: Options of every recipe with a GP,
            :class:`tvbo.optimizers.builder.GPOptions`; ``pending`` is refused.

    Raises:
        ValueError: if ``minimum`` is not finite.
    """
    options["pending"] = ConstantLiar(minimum)
    return gp_ts(forgetting_rate=forgetting_rate, **options)


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
            :class:`tvbo.theory.SubExponentialDelay`, or a rule that says so for each round. None
            learns it from what arrives, by :class:`tvbo.optimizers.EstimatedDelay`.
        width: How wide the bounds are: a number is the multiplier of the standard deviation;
            :class:`tvbo.theory.FiniteSetWidth` and :class:`tvbo.theory.CompactSetWidth` are those
            of Theorems 6.1 and 6.2. None is :class:`tvbo.theory.PriorDrawWidth`, which needs no
            norm of the function, and has no theorem behind it.
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


@recipe(**PURE_EXPLORATION)
def bpe(
    *,
    bounds: Space | None = None,
    choices: Table | None = None,
    covar_module: Kernel,
    noise_variance: float,
    horizon: int,
    delta: float = 0.1,
    width: float | WidthRule | None = None,
    generator: Generator | None = None,
    **units: Unpack[UnitOptions],
) -> BPEDelay:
    """Build BPE: BPE-Delay that waits for nothing, :math:`u_T = 0` (Li, Scarlett, 2022).

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
        width: How wide the bounds are: a number, the multiplier of the standard deviation, or one
            of the rules that :func:`bpe_delay` takes. None is
            :class:`tvbo.theory.PriorDrawWidth`.
        generator: Source of randomness. None is a fresh one with seed 0.
        **units: Units of times and outcomes, :class:`tvbo.optimizers.UnitOptions`.

    Raises:
        ValueError: unless exactly one of ``bounds`` and ``choices`` is given, if a parameter is
            out of range, the width is not made for the search space, or floats come with integers
            or categories.
        TypeError: if ``width`` is none.
        BotorchTensorDimensionError: if the kernel has a batch.
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
