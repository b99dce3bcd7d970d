"""Recommended actions: in one context, or over several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from tvbo.rounding import first_largest

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Recommendation:
    """The action with the largest posterior mean, at one time and in one context.

    Args:
        X: The action, ``1 x d``.
        mean: Posterior mean there, in units of the outcome.
        standard_deviation: Posterior standard deviation there, without the noise of an outcome.
        t: Its time.
        context: Its context, ``c``, or None.
    """

    X: Tensor
    mean: float
    standard_deviation: float
    t: float
    context: Tensor | None = None


@dataclass(frozen=True)
class Policy:
    """The best action within each of several contexts, by posterior mean, at one time.

    Args:
        contexts: ``m x c``.
        X: The actions, ``m x d``, one for each context.
        mean: Posterior means there, ``m``, in units of the outcome.
        standard_deviation: Posterior standard deviations there, ``m``.
        t: The time.
    """

    contexts: Tensor
    X: Tensor
    mean: Tensor
    standard_deviation: Tensor
    t: float

    @classmethod
    def collect(cls, recommendations: Sequence[Recommendation]) -> Policy:
        """Collect one or more recommendations, of one time, each with its context."""
        first = recommendations[0].X
        return cls(
            contexts=torch.stack([cast(Tensor, each.context) for each in recommendations]),
            X=torch.cat([each.X for each in recommendations]),
            mean=first.new_tensor([each.mean for each in recommendations]),
            standard_deviation=first.new_tensor(
                [each.standard_deviation for each in recommendations]
            ),
            t=recommendations[0].t,
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
        )

    @property
    def best(self) -> Recommendation:
        """Recommendation with the largest mean across contexts, where the context can be chosen."""
        return self[int(first_largest(self.mean))]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per context: context, action, mean, standard deviation, time."""
        import pandas as pd

        layout = {
            **{f"context_{i}": column for i, column in enumerate(self.contexts.T.tolist())},
            **{f"action_{i}": column for i, column in enumerate(self.X.T.tolist())},
        }
        return pd.DataFrame(
            {
                **layout,
                "mean": self.mean.tolist(),
                "standard_deviation": self.standard_deviation.tolist(),
                "t": self.t,
            }
        )

    def to_csv(self, path: str | Path) -> None:
        """Write :meth:`to_frame` as CSV."""
        self.to_frame().to_csv(path, index=False)
