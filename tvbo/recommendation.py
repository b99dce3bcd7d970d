"""Recommended actions: in one context, or over several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
        probability_of_success: That a trial there does not fail; None unless one has, lately.
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
    probability_of_success: float | None = None
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
        ``NAME_standard_deviation``, and ``feasibility`` and ``probability_of_success``.
        """
        moments = {"mean": self.mean, "standard_deviation": self.standard_deviation}
        for name, (mean, deviation) in self.others.items():
            moments |= {f"{name}_mean": mean, f"{name}_standard_deviation": deviation}
        for name in ("feasibility", "probability_of_success"):
            if (probability := getattr(self, name)) is not None:
                moments[name] = probability
        return self.labels.to_row(self.X, self.t, self.context) | moments


@dataclass(frozen=True)
class Policy:
    """The best action within each of several contexts, by posterior mean, at one time.

    Args:
        recommendations: One for each context, at least one.
    """

    recommendations: Sequence[Recommendation]

    @property
    def contexts(self) -> Tensor:
        """The contexts, ``m x c``."""
        return torch.stack([cast(Tensor, each.context) for each in self.recommendations])

    @property
    def X(self) -> Tensor:
        """The actions, ``m x d``, one for each context."""
        return torch.cat([each.X for each in self.recommendations])

    @property
    def mean(self) -> Tensor:
        """Posterior means there, ``m``, in units of the outcome."""
        return self.X.new_tensor([each.mean for each in self.recommendations])

    @property
    def standard_deviation(self) -> Tensor:
        """Posterior standard deviations there, ``m``."""
        return self.X.new_tensor([each.standard_deviation for each in self.recommendations])

    @property
    def t(self) -> float:
        """The time."""
        return self.recommendations[0].t

    def __len__(self) -> int:
        return len(self.recommendations)

    def __getitem__(self, place: int) -> Recommendation:
        """Return the recommendation for the context in row ``place``."""
        return self.recommendations[place]

    @property
    def best(self) -> Recommendation:
        """Recommendation with the best mean across contexts, where the context can be chosen."""
        return self[int(argmax(-self.mean if self[0].minimize else self.mean))]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per context: context, action, mean, standard deviation, time."""
        import pandas as pd

        return pd.DataFrame([each.to_row() for each in self.recommendations])
