"""Waiting rules: a known bound on the delay, or one estimated from the delays observed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tvbo.optimizers.bpe.delay_estimate import estimate_delay
from tvbo.optimizers.bpe.sub_exponential import SubExponentialDelay

NO_DELAY = SubExponentialDelay.constant(0.0)


@runtime_checkable
class DelayBound(Protocol):
    """Upper bound on delays, such as :class:`SubExponentialDelay`."""

    def upper_bound(self, horizon: int, delta: float) -> float:
        """Return the number of asks within which each of ``horizon`` outcomes should arrive."""


@runtime_checkable
class WaitingRule(Protocol):
    """Rule that sets, at the start of a round, how long to wait for outcomes."""

    def shortest(self, horizon: int, delta: float) -> float:
        """Return a lower bound on every wait, which bounds the number of rounds."""

    def wait(
        self, horizon: int, delta: float, arrived: Sequence[int], awaited: Sequence[int]
    ) -> float:
        """Return the number of asks to wait.

        Args:
            horizon: Number of asks T.
            delta: Probability with which the bound may fail.
            arrived: Delays of the outcomes that arrived, in asks.
            awaited: How long each pending trial has been pending, in asks.
        """


@dataclass(frozen=True)
class KnownDelay:
    """Wait for the same bound in all rounds.

    Args:
        delay: The bound.
    """

    delay: DelayBound

    def shortest(self, horizon: int, delta: float) -> float:
        """Return the bound itself."""
        return self.delay.upper_bound(horizon, delta)

    def wait(
        self, horizon: int, delta: float, arrived: Sequence[int], awaited: Sequence[int]
    ) -> float:
        """Return the bound itself, whatever delays were observed."""
        return self.delay.upper_bound(horizon, delta)


def waiting_rule(delay: DelayBound | WaitingRule) -> WaitingRule:
    """Return a waiting rule as it is, and a bound on delays as :class:`KnownDelay`.

    Raises:
        TypeError: if ``delay`` is neither.
    """
    if isinstance(delay, WaitingRule):
        return delay
    if isinstance(delay, DelayBound):
        return KnownDelay(delay)
    raise TypeError(
        "Expected how late outcomes may be, such as SubExponentialDelay.poisson(50) or "
        f"SubExponentialDelay.constant(50) of tvbo.optimizers.bpe. Got {delay!r}."
    )


def as_printed(delay: SubExponentialDelay) -> SubExponentialDelay:
    """Return the delay as it is: its bound is the paper's, as printed."""
    return delay


@dataclass(frozen=True)
class EstimatedDelay:
    r"""Estimate :math:`E[\tau], \xi, b` anew at the start of each round.

    A delay is counted in asks: the number of asks after the trial's own, up to the outcome. The
    first round uses ``first``. If that bound is zero, the round is :math:`\lceil\sqrt T\rceil`
    trials long; where delays are longer than that, no action is removed at its end, and the round
    only serves to observe them. Later rounds use :func:`estimate_delay`, in which a
    trial that failed or expired was pending until then. An outcome that is lost without notice
    looks like a very long delay; let its trial expire.

    The lengths of rounds depend on delays alone, never on the values of outcomes, so that the
    bounds stay valid. Their number is not known in advance; the widths use the number of rounds
    without delay, which is larger.

    Args:
        first: Bound of the first round.
        bound: Map from the estimate to a bound: the paper's, as printed, or
            :class:`SubExponentialTail`, which holds for all outcomes at once.

    Example:
        >>> EstimatedDelay(bound=SubExponentialTail)
    """

    first: DelayBound = NO_DELAY
    bound: Callable[[SubExponentialDelay], DelayBound] = as_printed

    def shortest(self, horizon: int, delta: float) -> float:
        """Return zero: the estimate may be no delay."""
        return 0.0

    def wait(
        self, horizon: int, delta: float, arrived: Sequence[int], awaited: Sequence[int]
    ) -> float:
        """Return the bound of the estimate; that of ``first`` if nothing was observed."""
        if not arrived and not awaited:
            return self.first.upper_bound(horizon, delta)
        return self.bound(estimate_delay(arrived, awaited)).upper_bound(horizon, delta)
