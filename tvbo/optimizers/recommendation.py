"""Recommended actions: in one context, or over several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from tvbo.rounding import argmax
from tvbo.spaces.labels import Labels
from tvbo.values import copies_tensors

if TYPE_CHECKING:
    import pandas as pd


@copies_tensors("X", "context")
@dataclass(frozen=True, eq=False)
class Recommendation:
    """The action with the largest posterior mean, at one time and in one context.

    Reading a tensor of it returns a copy.

    Args:
        X: The action, ``1 x d``.
        mean: Posterior mean there, in units of the outcome.
        standard_deviation: Posterior standard deviation there, without the noise of an outcome.
        t: Its time.
        context: Its context, ``c``, or None.
        minimize: Whether smaller outcomes are better: the mean is then the smallest.
        labels: Names of the parameters, and the unit of time.
        feasibility: Probability that all constraints hold there; None without constraints.
        others: Posterior mean and standard deviation there of further outcomes, by name.
    """

    X: Tensor
    mean: float
    standard_deviation: float
    t: float
    context: Tensor | None = None
    minimize: bool = False
    labels: Labels = field(default=Labels(), compare=False, repr=False)
    feasibility: float | None = None
    others: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, Any]:
        """Values of the action by name.

        Raises:
            ValueError: if the parameters were declared without names; ``X`` has the numbers.
        """
        return self.labels.parameters(self.X)

    def to_row(self) -> dict[str, Any]:
        """Return action, context, mean, standard deviation and time by column of a table.

        Means and standard deviations of further outcomes follow, as columns ``NAME_mean`` and
        ``NAME_standard_deviation``, and the ``feasibility``.
        """
        moments = {"mean": self.mean, "standard_deviation": self.standard_deviation}
        for name, (mean, deviation) in self.others.items():
            moments |= {f"{name}_mean": mean, f"{name}_standard_deviation": deviation}
        if self.feasibility is not None:
            moments["feasibility"] = self.feasibility
        return self.labels.to_row(self.X, self.t, self.context) | moments


@copies_tensors("contexts", "X", "mean", "standard_deviation")
@dataclass(frozen=True, eq=False)
class Policy:
    """The best action within each of several contexts, by posterior mean, at one time.

    Reading a tensor of it returns a copy.

    Args:
        contexts: ``m x c``.
        X: The actions, ``m x d``, one for each context.
        mean: Posterior means there, ``m``, in units of the outcome.
        standard_deviation: Posterior standard deviations there, ``m``.
        t: The time.
        minimize: Whether smaller outcomes are better.
        labels: Names of the parameters, and the unit of time.
    """

    contexts: Tensor
    X: Tensor
    mean: Tensor
    standard_deviation: Tensor
    t: float
    minimize: bool = False
    labels: Labels = field(default=Labels(), compare=False, repr=False)

    @classmethod
    def collect(cls, recommendations: Sequence[Recommendation]) -> Policy:
        """Collect one or more recommendations, of one time, each with its context."""
        first = recommendations[0]
        return cls(
            contexts=torch.stack([cast(Tensor, each.context) for each in recommendations]),
            X=torch.cat([each.X for each in recommendations]),
            mean=first.X.new_tensor([each.mean for each in recommendations]),
            standard_deviation=first.X.new_tensor(
                [each.standard_deviation for each in recommendations]
            ),
            t=first.t,
            minimize=first.minimize,
            labels=first.labels,
        )

    def __len__(self) -> int:
        return len(self.contexts)

    def __getitem__(self, place: int) -> Recommendation:
        """Return the recommendation for the context in row ``place``."""
        return Recommendation(
            X=self.X[place].unsqueeze(0),
            mean=self.mean[place].item(),
            standard_deviation=self.standard_deviation[place].item(),
            t=self.t,
            context=self.contexts[place],
            minimize=self.minimize,
            labels=self.labels,
        )

    @property
    def best(self) -> Recommendation:
        """Recommendation with the best mean across contexts, where the context can be chosen."""
        return self[int(argmax(-self.mean if self.minimize else self.mean))]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per context: context, action, mean, standard deviation, time."""
        import pandas as pd

        return pd.DataFrame([self[place].to_row() for place in range(len(self))])

    def to_csv(self, path: str | Path) -> None:
        """Write :meth:`to_frame` as CSV."""
        self.to_frame().to_csv(path, index=False)
