"""What stands in for outcomes that have not come yet."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


class Pending(ABC):
    """A rule for open trials, while the next action is chosen.

    A policy that counts them conditions the model on their actions, each at the time and in the
    context in which it was tried. Whatever stands in for the outcomes, the variance is that after
    them, so that a trial is not tried again only because its outcome is late; what stands in
    decides the mean. When an outcome comes, it takes its stand-in's place.
    """

    counts: bool = True
    """Whether open trials enter at all."""

    @abstractmethod
    def outcomes(self, rows: Tensor, expected: Callable[[], Tensor]) -> Tensor:
        """What stands in for the outcomes.

        Args:
            rows: ``[action | context | time]`` of the open trials, ``q x d``, oldest first.
            expected: Gives their posterior means by the outcomes that have come, ``q x 1``.

        Returns:
            ``q x 1``, in units of the reward.
        """


@dataclass(frozen=True)
class IgnorePending(Pending):
    """Open trials do not count: what is chosen rests on the outcomes that have come.

    The form of papers that know no delay. As long as nothing comes, a deterministic acquisition
    asks for the same action again.
    """

    counts = False

    def outcomes(self, rows: Tensor, expected: Callable[[], Tensor]) -> Tensor:
        """None."""
        return rows.new_empty(0, 1)


@dataclass(frozen=True)
class Hallucinate(Pending):
    """The posterior mean stands in (Desautels, Krause, Burdick, 2014, Section 3.2: GP-BUCB).

    The mean stays that of the outcomes that have come, the variance shrinks as if all had. The
    default of the recipes with a GP.
    """

    def outcomes(self, rows: Tensor, expected: Callable[[], Tensor]) -> Tensor:
        """The posterior means."""
        return expected()


@dataclass(frozen=True)
class Minimum(Pending):
    """The least value of the function stands in (Verma, Dai, Low, 2022: GP-UCB-SDF, GP-TS-SDF).

    Until it is answered, an action looks as bad as can be, also to its neighbours.

    Args:
        value: That value, which must be known, in units of the reward.

    Raises:
        ValueError: if it is not finite.
    """

    value: float

    def __post_init__(self):
        if not isinstance(self.value, int | float) or not math.isfinite(self.value):
            raise ValueError(
                f"Expected the least value of the function, a finite number. Got {self.value!r}."
            )

    def outcomes(self, rows: Tensor, expected: Callable[[], Tensor]) -> Tensor:
        """The value for each."""
        return torch.full_like(rows[:, :1], self.value)
