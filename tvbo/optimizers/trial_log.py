"""The trials that are no longer open, and the errors about these."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tvbo.trial import Trial

if TYPE_CHECKING:
    import pandas as pd

MAX_LOGGED = 10_000
"""Number of trials kept one by one, so that the memory of a long run stays bounded."""

Ending = Literal["failed", "expired", "skipped", "discarded"]


class TrialError(ValueError):
    """A trial that the optimizer does not know, or that is no longer open."""


@dataclass(frozen=True)
class LoggedTrial:
    """A trial without an outcome, or whose outcome a retention policy does not admit.

    Args:
        trial: The trial; its ``information_gain`` is the expected gain of its outcome.
        ending: ``"failed"``; ``"expired"``, at its deadline; ``"skipped"``, not worth its
            evaluation; or ``"discarded"``, to be evaluated without entering the model.
        reason: The reason as text.
    """

    trial: Trial
    ending: Ending
    reason: str


class TrialLog:
    """How many trials ended and how; one by one those without an outcome that counts.

    Attributes:
        num_told: Number of trials whose outcome was observed.
        num_failed: Number of trials that failed.
        num_expired: Number of trials given up at their deadline.
        num_skipped: Number of trials that were not worth their evaluation.
        num_discarded: Number of trials to evaluate whose outcome does not enter the model.
        newest: The newest trials that failed, expired, were skipped or discarded, oldest first,
            10,000 at most.
    """

    def __init__(self) -> None:
        self.num_told = 0
        self.num_failed = 0
        self.num_expired = 0
        self.num_skipped = 0
        self.num_discarded = 0
        self.newest: deque[LoggedTrial] = deque(maxlen=MAX_LOGGED)

    def add(self, trial: Trial, ending: Ending, reason: str) -> None:
        """Record a trial that failed, expired, was skipped or discarded."""
        counter = f"num_{ending}"
        setattr(self, counter, getattr(self, counter) + 1)
        self.newest.append(LoggedTrial(trial, ending, reason))

    def to_frame(self) -> pd.DataFrame:
        """Return the newest of them: trial, time, action, context, gain in nats, how and why."""
        import pandas as pd

        rows = [
            logged.trial.to_row()
            | {
                "information_gain": logged.trial.information_gain,
                "ending": logged.ending,
                "reason": logged.reason,
            }
            for logged in self.newest
        ]
        columns = None if rows else ["trial", "t", "information_gain", "ending", "reason"]
        return pd.DataFrame(rows, columns=columns)

    def to_csv(self, path: str | Path) -> None:
        """Write :meth:`to_frame` as CSV."""
        self.to_frame().to_csv(path, index=False)
