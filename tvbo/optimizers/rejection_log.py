"""Log of rejected trials."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tvbo.retention import Rejection
from tvbo.trial import Trial

if TYPE_CHECKING:
    import pandas as pd

RECENT = 10_000
"""Number of rejections kept one by one, so that the memory of a long run stays bounded."""


@dataclass(frozen=True)
class RejectedTrial:
    """A trial whose outcome a retention policy did not admit.

    Args:
        trial: The trial; its ``information_gain`` is the expected gain of its outcome.
        reason: The reason in words.
    """

    trial: Trial
    reason: str


class RejectionLog:
    """Log of rejected trials.

    Attributes:
        num_skipped: Number of trials that were not evaluated.
        num_discarded: Number of trials to evaluate whose outcome does not enter the model.
        recent: The newest rejections, oldest first, 10,000 at most.
    """

    def __init__(self) -> None:
        self.num_skipped = 0
        self.num_discarded = 0
        self.recent: deque[RejectedTrial] = deque(maxlen=RECENT)

    def __len__(self) -> int:
        """Return the number of rejections, including those no longer in ``recent``."""
        return self.num_skipped + self.num_discarded

    def add(self, trial: Trial, rejection: Rejection) -> None:
        """Record a rejection."""
        if rejection.skip:
            self.num_skipped += 1
        else:
            self.num_discarded += 1
        self.recent.append(RejectedTrial(trial, rejection.reason))

    def to_frame(self) -> pd.DataFrame:
        """Return the newest rejections: trial, time, action, context, gain in nats, reason."""
        import pandas as pd

        rows = [
            {
                **rejected.trial.to_row(),
                "information_gain": rejected.trial.information_gain,
                "skipped": rejected.trial.skipped,
                "reason": rejected.reason,
            }
            for rejected in self.recent
        ]
        columns = None if rows else ["trial", "t", "information_gain", "skipped", "reason"]
        return pd.DataFrame(rows, columns=columns)

    def to_csv(self, path: str | Path) -> None:
        """Write :meth:`to_frame` as CSV."""
        self.to_frame().to_csv(path, index=False)
