"""What happened in a run, round by round."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from tvbo.observations import Observations
from tvbo.optimizers.trial import Trial
from tvbo.search_space import InputLayout


@dataclass(frozen=True)
class Round:
    """One round of a run.

    Args:
        trial: What was asked.
        context: The context of the round, ``c``, told to the optimizer or not; None without.
        reward: The outcome as observed, noise included; NaN until it arrives, or if it was skipped.
        value: The true value of the action at that time.
        optimal_value: The best true value at that time.
        model_size: Number of observations that the choice rested on.
        seconds: Time that ask and the tells before it took.
        evaluation_seconds: Time that the evaluation took; nothing for a skipped trial.
    """

    trial: Trial
    context: Tensor | None
    reward: float
    value: float
    optimal_value: float
    model_size: int
    seconds: float
    evaluation_seconds: float = 0.0


@dataclass
class History:
    """The rounds of a run, in order, with their regret.

    Regret of a round is the best true value at that time minus that of the chosen action
    (Bogunovic et al., 2016, Section 2): the noise in the reward does not enter.
    """

    rounds: list[Round] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rounds)

    @property
    def X(self) -> Tensor:
        """Chosen actions, ``n x d``."""
        return torch.cat([r.trial.X for r in self.rounds])

    @property
    def t(self) -> Tensor:
        """Times, ``n``."""
        return self._column([r.trial.t for r in self.rounds])

    @property
    def contexts(self) -> Tensor | None:
        """Contexts, ``n x c``; None where there are none."""
        if not self.rounds or self.rounds[0].context is None:
            return None
        return torch.stack([r.context for r in self.rounds])

    @property
    def reward(self) -> Tensor:
        """Outcomes as observed, ``n``; NaN where one has not arrived."""
        return self._column([r.reward for r in self.rounds])

    def observations(self) -> Observations:
        """The outcomes that arrived, with rows ``[action | context | time]``.

        What :func:`tvbo.fitting.fit_drift` takes: ``fit_drift(log.X, log.Y)``.
        """
        first = self.rounds[0]
        num_contexts = 0 if first.context is None else len(first.context)
        layout = InputLayout(first.trial.X.shape[-1], num_contexts)
        observations = Observations.empty(layout.num_columns)
        arrived = [r for r in self.rounds if not math.isnan(r.reward)]
        if arrived:
            rows = [layout.rows(r.trial.X, r.trial.t, r.context) for r in arrived]
            rewards = self._column([r.reward for r in arrived]).unsqueeze(-1)
            observations = observations.append(Observations(torch.cat(rows), rewards))
        return observations

    @property
    def regret(self) -> Tensor:
        """Regret of each round, ``n``, in units of the reward."""
        return self._column([r.optimal_value - r.value for r in self.rounds])

    @property
    def average_regret(self) -> Tensor:
        """``R_t / t`` after each round, ``n``."""
        return self.regret.cumsum(0) / torch.arange(1, len(self) + 1)

    @property
    def seconds(self) -> Tensor:
        """Seconds spent choosing in each round, ``n``."""
        return self._column([r.seconds for r in self.rounds])

    @property
    def evaluation_seconds(self) -> Tensor:
        """Seconds that each evaluation took, ``n``."""
        return self._column([r.evaluation_seconds for r in self.rounds])

    @property
    def evaluated(self) -> Tensor:
        """Whether the action of each round was evaluated, not skipped, ``n``."""
        return torch.tensor([not r.trial.skipped for r in self.rounds])

    @property
    def model_size(self) -> Tensor:
        """Number of observations behind each choice, ``n``."""
        return torch.tensor([r.model_size for r in self.rounds])

    def to_frame(self) -> pd.DataFrame:
        """One row per round: trial, time, action, context, rewards, regret, size, seconds.

        And whether the action was evaluated, and its outcome kept.
        """
        frame = pd.DataFrame(
            {
                "trial": [r.trial.id for r in self.rounds],
                "t": [r.trial.t for r in self.rounds],
            }
        )
        if self.rounds:
            for i, column in enumerate(self.X.T.tolist()):
                frame[f"action_{i}"] = column
            if self.contexts is not None:
                for i, column in enumerate(self.contexts.T.tolist()):
                    frame[f"context_{i}"] = column
        frame["reward"] = [r.reward for r in self.rounds]
        frame["value"] = [r.value for r in self.rounds]
        frame["optimal_value"] = [r.optimal_value for r in self.rounds]
        frame["regret"] = self.regret.tolist()
        frame["average_regret"] = self.average_regret.tolist()
        frame["evaluated"] = [not r.trial.skipped for r in self.rounds]
        frame["informative"] = [r.trial.informative for r in self.rounds]
        frame["model_size"] = [r.model_size for r in self.rounds]
        frame["seconds"] = [r.seconds for r in self.rounds]
        frame["evaluation_seconds"] = [r.evaluation_seconds for r in self.rounds]
        return frame

    def to_csv(self, path: str | Path) -> None:
        """Write :meth:`to_frame` as CSV."""
        self.to_frame().to_csv(path, index=False)

    @staticmethod
    def _column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)
