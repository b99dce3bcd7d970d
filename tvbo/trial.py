"""A trial: one suggested evaluation of the objective, at a time and in a context."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tvbo.spaces.labels import Labels
from tvbo.terminal import html_table
from tvbo.values import copies_tensors


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
            not open, and cannot be told.
        labels: Names of the parameters, and the unit of time.
        key: The caller's key of the ask; None without.
        feasibility: Probability by the model that all constraints hold; None without constraints,
            or before there is a model.
        choice: Row of the action among the choices that were given to the ask; None without.
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
        if self.context is None or other.context is None:
            same_context = self.context is other.context
        else:
            same_context = torch.equal(self.context, other.context)
        return self.t == other.t and same_context and torch.equal(self.X, other.X)

    def to_row(self) -> dict[str, Any]:
        """Its number, time, action and context, by column of a table."""
        return {"trial": self.id} | self.labels.to_row(self.X, self.t, self.context)
