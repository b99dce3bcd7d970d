"""Log of trials that ended: told, failed, expired."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tvbo.trial import Trial

if TYPE_CHECKING:
    import pandas as pd

RECENT = 10_000
"""Number of lost trials kept one by one, so that the memory of a long run stays bounded."""

Ending = Literal["failed", "expired"]


@dataclass(frozen=True)
class LostTrial:
    """A trial that ended without an outcome.

    Args:
        trial: The trial.
        ending: How it ended.
        reason: The reason in words.
    """

    trial: Trial
    ending: Ending
    reason: str


class TrialLog:
    """Log of trials that are no longer open.

    Attributes:
        num_told: Number of trials whose outcome was told.
        num_failed: Number of trials that failed.
        num_expired: Number of trials given up at their deadline.
        lost: The newest trials that failed or expired, oldest first, 10,000 at most.
    """

    def __init__(self) -> None:
        self.num_told = 0
        self.num_failed = 0
        self.num_expired = 0
        self.lost: deque[LostTrial] = deque(maxlen=RECENT)

    def __len__(self) -> int:
        """Return the number of trials that ended."""
        return self.num_told + self.num_failed + self.num_expired

    @property
    def num_forgotten(self) -> int:
        """Number of failed or expired trials that are no longer in ``lost``."""
        return self.num_failed + self.num_expired - len(self.lost)

    def lose(self, lost: LostTrial) -> None:
        """Record a trial that ended without an outcome."""
        if lost.ending == "failed":
            self.num_failed += 1
        else:
            self.num_expired += 1
        self.lost.append(lost)

    def find(self, trial_id: int) -> LostTrial | None:
        """Return how a trial was lost; None if it was not, or is no longer in ``lost``."""
        for lost in reversed(self.lost):
            if lost.trial.id == trial_id:
                return lost
        return None

    def to_frame(self) -> pd.DataFrame:
        """Return the newest failed or expired trials: trial, time, action, context, how and why."""
        import pandas as pd

        rows = [
            lost.trial.to_row() | {"ending": lost.ending, "reason": lost.reason}
            for lost in self.lost
        ]
        columns = None if rows else ["trial", "t", "ending", "reason"]
        return pd.DataFrame(rows, columns=columns)

    def to_csv(self, path: str | Path) -> None:
        """Write :meth:`to_frame` as CSV."""
        self.to_frame().to_csv(path, index=False)
