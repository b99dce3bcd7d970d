"""Trials: suggested evaluations of the objective, and what became of those without an outcome."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from tvbo.spaces.labels import Labels
from tvbo.terminal import html_table
from tvbo.values import copies_tensors

if TYPE_CHECKING:
    import pandas as pd

MAX_LOGGED = 10_000
"""Number of trials kept one by one, so that the memory of a long run stays bounded."""

Ending = Literal["failed", "expired", "skipped", "discarded"]


@copies_tensors("X", "context")
@dataclass(frozen=True, eq=False)
class Trial:
    """A suggested evaluation: returned by ``ask``, passed to ``tell``.

    Each ``trial.X`` and ``trial.context`` is a new copy, in which an objective may work in place.

    Args:
        id: Number of the trial, from 1, unique within its optimizer.
        X: The action, ``1 x d``, float64.
        t: Time of the trial, in the user's unit: when it is sampled, not when its outcome arrives.
        context: ``c``-dimensional context, or None.
        informative: Whether the outcome will enter the model. False only where a retention policy
            refuses it, such as :class:`tvbo.retention.EntropyThreshold`.
        information_gain: What the outcome is expected to tell of the function, in nats; None where
            no retention policy asks for it, or nothing is known of the noise yet.
        skipped: Whether the action need not be tried: it is not worth its evaluation. The trial is
            not open, and has no outcome to record.
        labels: Names of the parameters, and the unit of time.
        key: The caller's key of the ask; None without.
        feasibility: Probability by the model that all constraints hold; None without constraints,
            or before there is a model.
        choice: Row of the action among the choices that were given to the ask; None without.
        asked: When it was asked for; None where it was attached.
    """

    id: int
    X: Tensor
    t: float
    context: Tensor | None = None
    informative: bool = True
    information_gain: float | None = None
    skipped: bool = False
    labels: Labels = field(default=Labels(), compare=False, repr=False)
    key: str | None = None
    feasibility: float | None = None
    choice: int | None = None
    asked: float | None = None

    def __repr__(self) -> str:
        parts = [f"{name}={value!r}" for name, value in self._values().items()]
        parts += [] if self.feasibility is None else [f"feasible with {self.feasibility:.3g}"]
        parts += [] if self.informative else ["not informative"]
        parts += ["skipped"] if self.skipped else []
        return f"Trial {self.id} at t={self.labels.stamp(self.t)}: {', '.join(parts)}"

    def _repr_html_(self) -> str:
        return html_table({"trial": self.id, "t": self.labels.stamp(self.t)} | self._values())

    def _values(self) -> dict[str, Any]:
        """Return action and context, by name or as lists of numbers."""
        values: dict[str, Any] = {"X": self.X[0].tolist()}
        if self.labels.actions is not None:
            values = self.parameters
        if self.context is not None:
            contexts = self.labels.contexts
            context = self.context
            named = {"context": context.tolist()} if contexts is None else contexts.decode(context)
            values |= named
        return values

    @property
    def parameters(self) -> dict[str, Any]:
        """Values of the action by name.

        Raises:
            ValueError: if the parameters were declared without names; ``X`` has the numbers.
        """
        return self.labels.parameters(self.X)

    @property
    def time(self) -> Any:
        """Its time, as a timestamp where the optimizer has a unit of time, else ``t``."""
        return self.labels.stamp(self.t)

    def asks_the_same(self, other: Trial) -> bool:
        """Whether another trial has the same action, time and context."""
        one, two = self.context, other.context
        same = one is two if one is None or two is None else torch.equal(one, two)
        return self.t == other.t and same and torch.equal(self.X, other.X)

    def to_row(self) -> dict[str, Any]:
        """Its number, time, action and context, by column of a table."""
        return {"trial": self.id} | self.labels.to_row(self.X, self.t, self.context)


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
