"""How late outcomes may be: a known bound on the delay, or one estimated from those observed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tvbo.optimizers.bpe.delay_estimate import estimate_delay
from tvbo.optimizers.bpe.sub_exponential import SubExponentialDelay

NO_DELAY = SubExponentialDelay.constant(0.0)


@runtime_checkable
class DelayBound(Protocol):
    """Upper bound on delays, such as :class:`tvbo.optimizers.bpe.SubExponentialDelay`."""

    def upper_bound(self, horizon: int, delta: float) -> float:
        """Return the number of asks within which each of ``horizon`` outcomes should arrive."""


@dataclass(frozen=True)
class EstimatedDelay:
    r"""Estimate :math:`E[\tau], \xi, b` again at the start of each round.

    A delay is counted in asks: the number of asks after the trial's own, up to the outcome. The
    first round uses ``first``. If that bound is zero, the round is :math:`\lceil\sqrt T\rceil`
    trials long; where delays are longer than that, no action is removed at its end, and the round
    only serves to observe them. Later rounds use :func:`estimate_delay`, in which a trial that
    failed or expired was pending until then. An outcome that is lost without notice looks like a
    very long delay; let its trial expire.

    The lengths of rounds depend on delays alone, never on the values of outcomes, so that the
    bounds stay valid. Their number is not known in advance; the widths use the number of rounds
    without delay, which is larger.

    Args:
        first: Bound of the first round.
        bound: Map from the estimate to a bound, such as :class:`SubExponentialTail`, which holds
            for all outcomes at once. None is the paper's, as printed.

    Example:
        >>> EstimatedDelay(bound=SubExponentialTail)
    """

    first: DelayBound = NO_DELAY
    bound: Callable[[SubExponentialDelay], DelayBound] | None = None

    def given(self, arrived: Sequence[int], awaited: Sequence[int]) -> DelayBound:
        """Return the bound of the next round.

        Args:
            arrived: Delays of the outcomes that arrived, in asks.
            awaited: How long each pending trial has been pending, in asks.
        """
        if not arrived and not awaited:
            return self.first
        estimate = estimate_delay(arrived, awaited)
        return estimate if self.bound is None else self.bound(estimate)
