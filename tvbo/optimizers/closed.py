"""How trials ended: told, failed, expired."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd

from tvbo.optimizers.trial import Trial

RECENT = 10_000
"""So many lost trials are remembered one by one: a loop may run for ever, its memory may not."""

Ending = Literal["failed", "expired"]


@dataclass(frozen=True)
class LostTrial:
    """A trial that ended without an outcome.

    Args:
        trial: The trial.
        ending: How it ended.
        reason: Why, in words.
    """

    trial: Trial
    ending: Ending
    reason: str


class ClosedTrials:
    """The record of trials that are no longer open.

    Attributes:
        num_told: Trials whose outcome was told.
        num_failed: Trials that failed.
        num_expired: Trials given up at their deadline.
        lost: The newest trials that failed or expired, oldest first, 10,000 at most.
    """

    def __init__(self):
        self.num_told = 0
        self.num_failed = 0
        self.num_expired = 0
        self.lost: deque[LostTrial] = deque(maxlen=RECENT)

    def __len__(self) -> int:
        """Number of trials that ended."""
        return self.num_told + self.num_failed + self.num_expired

    @property
    def num_forgotten(self) -> int:
        """Trials that were lost too long ago to be remembered."""
        return self.num_failed + self.num_expired - len(self.lost)

    def lose(self, lost: LostTrial) -> None:
        """Take note of a trial that ended without an outcome."""
        if lost.ending == "failed":
            self.num_failed += 1
        else:
            self.num_expired += 1
        self.lost.append(lost)

    def find(self, trial_id: int) -> LostTrial | None:
        """How a trial was lost; None if it was not, or too long ago to be remembered."""
        for lost in reversed(self.lost):
            if lost.trial.id == trial_id:
                return lost
        return None

    def to_frame(self) -> pd.DataFrame:
        """The newest trials that failed or expired: trial, time, action, context, how and why."""
        rows = [
            lost.trial.to_row() | {"ending": lost.ending, "reason": lost.reason}
            for lost in self.lost
        ]
        columns = None if rows else ["trial", "t", "ending", "reason"]
        return pd.DataFrame(rows, columns=columns)

    def to_csv(self, path: str | Path) -> None:
        """Write :meth:`to_frame` as CSV."""
        self.to_frame().to_csv(path, index=False)
