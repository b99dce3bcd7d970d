"""Record of a run: what was asked in each round, and what came of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tvbo.optimizers import Optimizer, Trial
from tvbo.recorded_trial import State
from tvbo.spaces import InputLayout
from tvbo.spaces.observations import Observations
from tvbo.values import copies_tensors

if TYPE_CHECKING:
    import pandas as pd


@copies_tensors("context")
@dataclass(frozen=True, eq=False)
class Round:
    """One round of a run.

    Args:
        trial: What was asked.
        context: The context of the round, ``c``, given to the optimizer or not; None without.
        status: How the trial ended; one that is ``"open"`` is so in the optimizer, too.
        reward: The outcome that was observed, noise included; of several, the first objective. NaN
            where there is none.
        variance: Variance of the noise in it, if that is known.
        reason: Why the trial failed or expired.
        value: The true value of the action at that time; NaN where it is not known.
        optimal_value: The best true value at that time; NaN where it is not known.
        model_size: Number of observations that the choice rested on; 0 for a trial that was open
            before the run.
        ask_seconds: Time that asking took; 0 for a trial that was open before the run.
        seconds: Time that asking took, and closing the trials that ended since the ask before.
        evaluation_seconds: Time that the evaluation took; 0 for a skipped trial. With an executor,
            from submitting to the result, or to giving it up, waiting for a worker included.
        ended_after: Number of rounds asked when the trial ended; 0 while it is open.
        others: Further outcomes that were observed, by name.
    """

    trial: Trial
    context: Tensor | None = None
    status: State = "open"
    reward: float = math.nan
    variance: float | None = None
    reason: str = ""
    value: float = math.nan
    optimal_value: float = math.nan
    model_size: int = 0
    ask_seconds: float = 0.0
    seconds: float = 0.0
    evaluation_seconds: float = 0.0
    ended_after: int = 0
    others: Mapping[str, float] = field(default_factory=dict)


@dataclass
class History:
    """The rounds of a run, in the order in which they were asked.

    Regret of a round is the best true value at that time minus that of the chosen action
    (Bogunovic et al., 2016, Section 2): the noise in the reward does not enter. It is known where
    the objective is a :class:`tvbo.test_functions.DriftingProblem`.

    Attributes:
        rounds: The rounds; :meth:`round_of` finds one by its trial.
        counts: Number of trials by status.
    """

    rounds: list[Round] = field(default_factory=list, init=False)
    counts: Counter[str] = field(default_factory=Counter, init=False)
    _places: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.rounds)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {status}" for status, count in self.counts.items() if count)
        return f"History of {len(self)} rounds: {counts or 'none'}"

    def _repr_html_(self) -> Any:
        return self.to_frame()._repr_html_()

    def round_of(self, trial: Trial | int) -> Round:
        """Return the round of a trial, given the trial or its id.

        Raises:
            KeyError: if the trial is not of this run.
        """
        return self.rounds[self._places[trial if isinstance(trial, int) else trial.id]]

    def check(self, optimizer: Optimizer) -> None:
        """Raise unless the next trials of an optimizer can be recorded here.

        Raises:
            ValueError: if more trials ended here than in the optimizer, or one that is open there
                has ended here or is another one, so that the history is another optimizer's.
        """
        for trial in optimizer.open_trials:
            self._check_open(trial)
        log = optimizer.trial_log
        ended = {"told": log.num_told, "failed": log.num_failed, "expired": log.num_expired}
        newest = max(self._places, default=0)
        if newest > optimizer.num_trials or any(self.counts[end] > ended[end] for end in ended):
            raise ValueError(
                f"Expected a history of the same optimizer. Got {self!r}, to trial {newest}; here "
                f"the newest trial is {optimizer.num_trials}, and {ended}."
            )

    def begin(self, opened: Round) -> None:
        """Record a trial as open; the record of one that is evaluated again stays as it is.

        Raises:
            ValueError: if the trial of this id is another one, so that the history is another
                optimizer's.
        """
        trial = opened.trial
        self._check_open(trial)
        if trial.id not in self._places:
            self._places[trial.id] = len(self.rounds)
            self.rounds.append(opened)
            self.counts["open"] += 1

    def end(self, trial: Trial, status: State, seconds: float = 0.0, **outcome: Any) -> None:
        """Record how an open trial ended, or that it was left open, and after what time.

        Args:
            trial: The trial.
            status: How it ended.
            seconds: Time that the evaluation took.
            **outcome: Attributes of its :class:`Round` that tell the outcome, or the reason.
        """
        self.counts["open"] -= 1
        self.counts[status] += 1
        self.rounds[self._places[trial.id]] = replace(
            self.round_of(trial),
            status=status,
            evaluation_seconds=seconds,
            ended_after=0 if status == "open" else len(self.rounds),
            **outcome,
        )

    def _check_open(self, trial: Trial) -> None:
        if trial.id not in self._places:
            return
        known = self.round_of(trial)
        if known.status != "open" or not known.trial.asks_the_same(trial):
            raise ValueError(
                f"Expected a history of the same optimizer. Got one in which trial {trial.id} is "
                f"{known.trial}, {known.status}; here it is {trial}."
            )

    @property
    def num_ended(self) -> int:
        """Number of trials that are not open."""
        return len(self.rounds) - self.counts["open"]

    @property
    def X(self) -> Tensor:
        """Chosen actions, ``n x d``."""
        return torch.cat([r.trial.X for r in self.rounds])

    @property
    def t(self) -> Tensor:
        """Times, ``n``."""
        return _column(r.trial.t for r in self.rounds)

    @property
    def reward(self) -> Tensor:
        """Outcomes that were observed, ``n``; NaN where there is none."""
        return _column(r.reward for r in self.rounds)

    def observations(self) -> Observations:
        """Return the outcomes that were observed, with rows ``[action | context | time]``.

        They are what :func:`tvbo.logs.fit_drift` takes: ``fit_drift(log.X, log.Y)``.
        """
        first = self.rounds[0]
        num_contexts = 0 if first.context is None else len(first.context)
        layout = InputLayout(first.trial.X.shape[-1], num_contexts)
        observed = [r for r in self.rounds if not math.isnan(r.reward)]
        if not observed:
            return Observations.empty(layout.num_columns)
        variances = [r.variance for r in observed if r.variance is not None]
        return Observations(
            X=torch.cat([layout.rows(r.trial.X, r.trial.t, r.context) for r in observed]),
            Y=_column(r.reward for r in observed).unsqueeze(-1),
            # The optimizer takes it with every outcome or with none.
            Yvar=_column(variances).unsqueeze(-1) if variances else None,
        )

    @property
    def regret(self) -> Tensor:
        """Regret of each round, ``n``, in units of the reward.

        Raises:
            ValueError: if the objective was a function, whose optimum is not known.
        """
        if not self._is_scored:
            raise ValueError(
                "Expected a run on a DriftingProblem, which knows its optimum, for a regret. Got "
                "one on a function."
            )
        return _column(r.optimal_value - r.value for r in self.rounds)

    @property
    def average_regret(self) -> Tensor:
        """``R_t / t`` after each round, ``n``; known where :attr:`regret` is."""
        return self.regret.cumsum(0) / torch.arange(1, len(self) + 1)

    @property
    def _is_scored(self) -> bool:
        return not any(math.isnan(r.optimal_value) for r in self.rounds)

    @property
    def seconds(self) -> Tensor:
        """Seconds spent in each round on the ask, and on closing trials since the one before."""
        return _column(r.seconds for r in self.rounds)

    def to_frame(self) -> pd.DataFrame:
        """Return a table with a row per round, value and regret included where they are known."""
        import pandas as pd

        rows = [replace(r.trial, context=r.context).to_row() for r in self.rounds]
        frame = pd.DataFrame(rows, columns=None if rows else ["trial", "t"])
        frame["reward"] = [r.reward for r in self.rounds]
        columns: dict[str, list[Any]] = {}
        for name in dict.fromkeys(name for r in self.rounds for name in r.others):
            columns[name] = [r.others.get(name, math.nan) for r in self.rounds]
        if any(r.variance is not None for r in self.rounds):
            columns["variance"] = [r.variance for r in self.rounds]
        if self._is_scored:
            columns["value"] = [r.value for r in self.rounds]
            columns["optimal_value"] = [r.optimal_value for r in self.rounds]
            columns["regret"] = self.regret.tolist()
            columns["average_regret"] = self.average_regret.tolist()
        columns["status"] = [r.status for r in self.rounds]
        columns["reason"] = [r.reason for r in self.rounds]
        columns["evaluated"] = [not r.trial.skipped for r in self.rounds]
        columns["informative"] = [r.trial.informative for r in self.rounds]
        for name in ("model_size", "ask_seconds", "seconds", "evaluation_seconds"):
            columns[name] = [getattr(r, name) for r in self.rounds]
        return frame.assign(**columns)

    def to_csv(self, path: str | Path) -> None:
        """Write :meth:`to_frame` as CSV."""
        self.to_frame().to_csv(path, index=False)


def _column(values: Iterable[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)
