"""When hyperparameters are learned again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Refit(Protocol):
    """A rule that says whether a fit is due."""

    def due(self, num_new: int) -> bool:
        """True if a fit is due, ``num_new`` outcomes having been told since the last one."""


@dataclass(frozen=True)
class RefitNever:
    """Hyperparameters stay as they were given."""

    def due(self, num_new: int) -> bool:
        """False."""
        return False


@dataclass(frozen=True)
class RefitEvery:
    """Learn again after every ``every`` outcomes; ``RefitEvery(1)`` is always.

    Raises:
        ValueError: if ``every`` is not a positive whole number.
    """

    every: int = 1

    def __post_init__(self) -> None:
        if self.every != int(self.every) or self.every < 1:
            raise ValueError(f"Expected every to be 1, 2, ... outcomes. Got {self.every}.")

    def due(self, num_new: int) -> bool:
        """True from ``every`` new outcomes on."""
        return num_new >= self.every
