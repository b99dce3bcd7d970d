"""Rules for when hyperparameters are fitted again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Refit(Protocol):
    """Rule for when hyperparameters are fitted again."""

    def due(self, num_new: int) -> bool:
        """Return whether a fit is due after ``num_new`` outcomes since the last one."""


@dataclass(frozen=True)
class RefitNever:
    """Keep hyperparameters as they were given."""

    def due(self, num_new: int) -> bool:
        """Return False."""
        return False


@dataclass(frozen=True)
class RefitEvery:
    """Fit again after every ``every`` outcomes; ``RefitEvery(1)`` fits before each ask.

    Raises:
        ValueError: if ``every`` is not a positive whole number.
    """

    every: int = 1

    def __post_init__(self) -> None:
        if self.every != int(self.every) or self.every < 1:
            raise ValueError(f"Expected every to be 1, 2, ... outcomes. Got {self.every}.")

    def due(self, num_new: int) -> bool:
        """Return whether ``every`` outcomes or more are new."""
        return num_new >= self.every
