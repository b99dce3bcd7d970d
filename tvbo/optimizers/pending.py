"""Rules for pending trials: what takes the place of an outcome that has not arrived."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


class Pending(ABC):
    """Rule for pending trials while the next action is chosen.

    A rule that is enabled conditions the model on the actions of pending trials, each at the time
    and in the context in which it was tried. The posterior variance is that after their outcomes,
    whatever their values, so that a trial is not repeated only because its outcome is late; the
    values that the rule returns decide the posterior mean. An outcome that arrives replaces the
    value in its place.
    """

    enabled: bool = True
    """Whether the model is conditioned on pending trials at all."""

    @abstractmethod
    def outcomes(self, rows: Tensor, expected: Tensor) -> Tensor:
        """Return the values to condition on in place of the outcomes.

        Args:
            rows: ``[action | context | time]`` of the pending trials, ``q x d``, oldest first.
            expected: Their posterior means given the outcomes that have arrived, ``q x 1``.

        Returns:
            ``q x 1``, in units of the outcome.
        """


@dataclass(frozen=True)
class IgnorePending(Pending):
    """Ignore pending trials: the choice rests on the outcomes that have arrived.

    This is what papers do that know no delay. Until an outcome arrives, a deterministic acquisition
    function asks for the same action again.
    """

    enabled = False

    def outcomes(self, rows: Tensor, expected: Tensor) -> Tensor:
        """Return no values."""
        return rows.new_empty(0, 1)


@dataclass(frozen=True)
class Hallucinate(Pending):
    """Condition on the posterior mean (Desautels, Krause, Burdick, 2014, Section 3.2: GP-BUCB).

    The mean stays that of the outcomes that have arrived, the variance shrinks as if all had. This
    is the default of the recipes with a GP.
    """

    def outcomes(self, rows: Tensor, expected: Tensor) -> Tensor:
        """Return the posterior means."""
        return expected


@dataclass(frozen=True)
class ConstantLiar(Pending):
    """Condition on a constant (Ginsbourger et al., 2010), the least value of the function.

    This is the rule of GP-UCB-SDF and GP-TS-SDF (Verma, Dai, Low, 2022): until its outcome arrives,
    an action looks as bad as can be, and so do its neighbours.

    Args:
        value: The constant, in units of the outcome; for the two algorithms a known lower bound.

    Raises:
        ValueError: if ``value`` is not finite.
    """

    value: float

    def __post_init__(self) -> None:
        if not isinstance(self.value, int | float) or not math.isfinite(self.value):
            raise ValueError(
                f"Expected the least value of the function, a finite number. Got {self.value!r}."
            )

    def outcomes(self, rows: Tensor, expected: Tensor) -> Tensor:
        """Return the constant for each."""
        return torch.full_like(rows[:, :1], self.value)
