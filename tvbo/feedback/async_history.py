"""What became of the trials of an asynchronous run."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pandas as pd
import torch
from torch import Tensor

from tvbo.optimizers.trial import Trial

if TYPE_CHECKING:
    from tvbo.optimizers import Optimizer

Status = Literal["open", "told", "failed", "expired", "skipped"]


@dataclass(frozen=True)
class AsyncRound:
    """One trial of an asynchronous run.

    Args:
        trial: What was asked.
        status: How it ended; a trial that is ``"open"`` is so in the optimizer, too.
        reward: The outcome told; NaN where there is none.
        reason: Why it failed or expired.
        ask_seconds: Time that asking took; 0 for a trial that was open before the run.
        evaluation_seconds: Time from submitting to the result, or to giving it up; waiting for a
            worker is part of it.
    """

    trial: Trial
    status: Status = "open"
    reward: float = math.nan
    reason: str = ""
    ask_seconds: float = 0.0
    evaluation_seconds: float = 0.0


@dataclass
class AsyncHistory:
    """The trials of an asynchronous run, in the order in which they were asked.

    Args:
        rounds: By id of the trial.
        busy_seconds: Sum of the time from submitting a trial to its result, or to giving it up.
        slot_seconds: Time of the run times the number of trials that may be pending.
        counts: Number of trials by status.
    """

    rounds: dict[int, AsyncRound] = field(default_factory=dict)
    busy_seconds: float = 0.0
    slot_seconds: float = 0.0
    counts: Counter[Status] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.rounds)

    def check(self, optimizer: Optimizer) -> None:
        """Raise unless an optimizer's next trials can be noted here.

        Raises:
            ValueError: if more trials ended here than there, or one that is open there has ended
                here or is another one, so that the history is another optimizer's.
        """
        for trial in optimizer.open_trials:
            self._check_open(trial)
        trial_log = optimizer.trial_log
        numbers = {
            "told": trial_log.num_told,
            "failed": trial_log.num_failed,
            "expired": trial_log.num_expired,
        }
        for status, number in numbers.items():
            if self.counts[status] > number:
                raise ValueError(
                    f"Expected a history of the same optimizer. Got one with {self.counts[status]} "
                    f"trials {status}; here {number}."
                )
        if max(self.rounds, default=0) > optimizer.num_trials:
            raise ValueError(
                "Expected a history of the same optimizer. Got one with trial "
                f"{max(self.rounds)}; here the newest is {optimizer.num_trials}."
            )

    def begin(self, trial: Trial, ask_seconds: float) -> None:
        """Note a trial as open; one that is evaluated again keeps what asking took.

        Raises:
            ValueError: if the trial of this id is another one, so that the history is another
                optimizer's.
        """
        self._check_open(trial)
        if trial.id not in self.rounds:
            self.rounds[trial.id] = AsyncRound(trial, ask_seconds=ask_seconds)
            self.counts["open"] += 1

    def _check_open(self, trial: Trial) -> None:
        known = self.rounds.get(trial.id)
        if known is None:
            return
        if known.status != "open" or not known.trial.asks_the_same(trial):
            raise ValueError(
                f"Expected a history of the same optimizer. Got one in which trial {trial.id} is "
                f"{known.trial}, {known.status}; here it is {trial}."
            )

    def end(
        self,
        trial: Trial,
        status: Status,
        seconds: float = 0.0,
        *,
        reward: float = math.nan,
        reason: str = "",
    ) -> None:
        """Note how an open trial ended, or was left open, and after what time."""
        self.counts["open"] -= 1
        self.counts[status] += 1
        self.rounds[trial.id] = replace(
            self.rounds[trial.id],
            status=status,
            reward=reward,
            reason=reason,
            evaluation_seconds=seconds,
        )
        self.busy_seconds += seconds

    @property
    def num_ended(self) -> int:
        """Number of trials that are not open."""
        return len(self.rounds) - self.counts["open"]

    @property
    def slots_filled(self) -> float:
        """Share of the time of all slots in which a trial was submitted and not back.

        That it waits for a worker counts as well, so this says nothing of the workers where
        ``max_pending`` is above their number. NaN before a run.
        """
        return self.busy_seconds / self.slot_seconds if self.slot_seconds else math.nan

    @property
    def X(self) -> Tensor:
        """Chosen actions, ``n x d``."""
        return torch.cat([r.trial.X for r in self.rounds.values()])

    @property
    def reward(self) -> Tensor:
        """Outcomes told, ``n``; NaN where there is none."""
        return self._column([r.reward for r in self.rounds.values()])

    @property
    def ask_seconds(self) -> Tensor:
        """Seconds that each ask took, ``n``."""
        return self._column([r.ask_seconds for r in self.rounds.values()])

    @property
    def evaluation_seconds(self) -> Tensor:
        """Seconds that each evaluation took, seen from outside, ``n``."""
        return self._column([r.evaluation_seconds for r in self.rounds.values()])

    def to_frame(self) -> pd.DataFrame:
        """One row per trial: trial, time, action, context, status, reward, reason, seconds."""
        rows = [
            r.trial.to_row()
            | {
                "status": r.status,
                "reward": r.reward,
                "reason": r.reason,
                "ask_seconds": r.ask_seconds,
                "evaluation_seconds": r.evaluation_seconds,
            }
            for r in self.rounds.values()
        ]
        columns = ["trial", "t", "status", "reward", "reason", "ask_seconds", "evaluation_seconds"]
        return pd.DataFrame(rows, columns=None if rows else columns)

    def to_csv(self, path: str | Path) -> None:
        """Write :meth:`to_frame` as CSV."""
        self.to_frame().to_csv(path, index=False)

    @staticmethod
    def _column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)
