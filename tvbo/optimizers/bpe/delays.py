"""How long to wait for outcomes: known from the start, or learned from those that came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tvbo.theory.delay_estimate import estimate_delay
from tvbo.theory.delays import SubExponentialDelay

NO_DELAY = SubExponentialDelay.constant(0.0)


@runtime_checkable
class DelayBound(Protocol):
    """Knows how late an outcome may be; such as :class:`tvbo.theory.SubExponentialDelay`."""

    def upper_bound(self, horizon: int, delta: float) -> float:
        """Rounds of asking within which each of ``horizon`` outcomes should have come."""


@runtime_checkable
class WaitingRule(Protocol):
    """Says at the start of a round how long to wait."""

    def shortest(self, horizon: int, delta: float) -> float:
        """No wait will be shorter: there are no more rounds than with this one."""

    def wait(
        self, horizon: int, delta: float, arrived: Sequence[int], awaited: Sequence[int]
    ) -> float:
        """Rounds to wait, from the delays seen so far and how long the others are waited for."""


@dataclass(frozen=True)
class KnownDelay:
    """The same wait in all rounds.

    Args:
        delay: Knows how long.
    """

    delay: DelayBound

    def shortest(self, horizon: int, delta: float) -> float:
        """The wait itself."""
        return self.delay.upper_bound(horizon, delta)

    def wait(
        self, horizon: int, delta: float, arrived: Sequence[int], awaited: Sequence[int]
    ) -> float:
        """The wait itself; what was seen is not looked at."""
        return self.delay.upper_bound(horizon, delta)


def waiting_rule(delay: DelayBound | WaitingRule) -> WaitingRule:
    """The rule itself, or the one that waits for as long as a bound says.

    Raises:
        TypeError: if it is neither.
    """
    if isinstance(delay, WaitingRule):
        return delay
    if isinstance(delay, DelayBound):
        return KnownDelay(delay)
    raise TypeError(
        "Expected how late outcomes may be, such as SubExponentialDelay.poisson(50) or "
        f"SubExponentialDelay.constant(50) of tvbo.theory. Got {delay!r}."
    )


def as_printed(delay: SubExponentialDelay) -> SubExponentialDelay:
    """The parameters as they are: their bound is the paper's, as printed."""
    return delay


@dataclass(frozen=True)
class EstimatedDelay:
    r"""Learns :math:`E[\tau], \xi, b` anew at the start of each round.

    A delay is counted in asks: the number of asks after the trial's own, up to the outcome. The
    first round goes by ``first``. With no delay there, it is :math:`\lceil\sqrt T\rceil` trials
    long, and if delays are longer, nothing is removed at its end: it serves to see them. From then
    on :func:`tvbo.theory.estimate_delay` is used, with trials that failed or expired as waited for
    until then. An outcome that is lost without a word looks like a very long delay: let it expire.

    The lengths of rounds then hang on delays alone, never on the values of outcomes, so that the
    bounds stay valid. Their number is not known in advance; the widths use the number of rounds
    without delay, which is larger.

    Args:
        first: For the first round.
        bound: How long to wait, given the estimate: as printed, or
            :class:`tvbo.theory.SubExponentialTail`, which holds for all outcomes at once.

    Example:
        >>> EstimatedDelay(bound=SubExponentialTail)
    """

    first: DelayBound = NO_DELAY
    bound: Callable[[SubExponentialDelay], DelayBound] = as_printed

    def shortest(self, horizon: int, delta: float) -> float:
        """No wait at all."""
        return 0.0

    def wait(
        self, horizon: int, delta: float, arrived: Sequence[int], awaited: Sequence[int]
    ) -> float:
        """From the estimate."""
        if not arrived and not awaited:
            return self.first.upper_bound(horizon, delta)
        return self.bound(estimate_delay(arrived, awaited)).upper_bound(horizon, delta)
