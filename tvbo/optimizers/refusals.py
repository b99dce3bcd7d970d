"""What a loop did not want to know, and why."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from tvbo.optimizers.trial import Trial
from tvbo.retention import Refusal

RECENT = 10_000
"""So many refusals are remembered one by one: a loop may run for ever, its memory may not grow."""


@dataclass(frozen=True)
class RefusedTrial:
    """A trial that a retention policy refused.

    Args:
        trial: The trial; its ``information_gain`` is what its outcome was expected to tell.
        reason: Why, in words.
    """

    trial: Trial
    reason: str


class Refusals:
    """The record of refused trials.

    Attributes:
        num_skipped: Trials that were not evaluated.
        num_discarded: Trials that were to be evaluated, but whose outcome does not enter the model.
        recent: The newest refusals, oldest first, 10,000 at most.
    """

    def __init__(self):
        self.num_skipped = 0
        self.num_discarded = 0
        self.recent: deque[RefusedTrial] = deque(maxlen=RECENT)

    def __len__(self) -> int:
        """Number of refusals, remembered or not."""
        return self.num_skipped + self.num_discarded

    def add(self, trial: Trial, refusal: Refusal) -> None:
        """Take note of a refusal."""
        if refusal.skip:
            self.num_skipped += 1
        else:
            self.num_discarded += 1
        self.recent.append(RefusedTrial(trial, refusal.reason))

    def to_frame(self) -> pd.DataFrame:
        """The newest refusals: trial, time, action, context, predicted gain in nats, reason."""
        rows = []
        for refused in self.recent:
            trial = refused.trial
            row = trial.to_row()
            row["information_gain"] = trial.information_gain
            row["skipped"] = trial.skipped
            row["reason"] = refused.reason
            rows.append(row)
        columns = None if rows else ["trial", "t", "information_gain", "skipped", "reason"]
        return pd.DataFrame(rows, columns=columns)

    def to_csv(self, path: str | Path) -> None:
        """Write :meth:`to_frame` as CSV."""
        self.to_frame().to_csv(path, index=False)
