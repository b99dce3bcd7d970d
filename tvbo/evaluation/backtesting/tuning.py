"""β of a recipe, chosen by a backtest within the training stretch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Generator, Tensor

from tvbo.acquisition import LogBeta
from tvbo.evaluation.backtesting.algorithms import FittedAlgorithm
from tvbo.evaluation.backtesting.play import Stretch, play, rolling_folds
from tvbo.optimizers import Optimizer
from tvbo.ties import first_largest

FACTORS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Factors of the default β, smallest first."""

TRAIN_SHARE = 0.6
"""Share of the training stretch that comes before the first time of it that is played."""

FOLDS = 2
"""Folds of the rest."""


@dataclass
class TunedAlgorithm:
    """A recipe whose factor on β is chosen on the training stretch, never on what is played.

    On the last 40 % of the training stretch, in two rolling folds, each factor is played; the one
    of the smallest mean regret is taken, of equal ones the smallest.

    Args:
        algorithm: The recipe; ``beta`` is added to its options.
        factors: The factors.

    Attributes:
        mean_regret: Mean regret by factor, of the latest training stretch.
        factor: The factor that was taken.
    """

    algorithm: FittedAlgorithm
    factors: tuple[float, ...] = FACTORS
    mean_regret: Mapping[float, float] = field(default_factory=dict, init=False)
    factor: float | None = field(default=None, init=False)

    def __call__(self, values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
        """Make the optimizer of a training stretch."""
        T = len(values)
        first = int(T * TRAIN_SHARE)
        stretches = [
            Stretch(
                values[fold.train.start : fold.train.stop],
                times[fold.train.start : fold.train.stop],
                values[fold.test.start : fold.test.stop],
                times[fold.test.start : fold.test.stop],
            )
            for fold in rolling_folds(range(first), range(first, T), FOLDS)
        ]
        algorithms = {f"{factor:g}": self._with_factor(factor) for factor in self.factors}
        seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
        played = play(stretches, algorithms, range(seed, seed + 1), progress=False, executor=None)
        means = torch.stack([rows.nanmean() for rows in played.regret.values()])
        self.mean_regret = dict(zip(self.factors, means.tolist(), strict=True))
        self.factor = self.factors[int(first_largest(-means))]
        return self._with_factor(self.factor)(values, times, generator)

    def _with_factor(self, factor: float) -> FittedAlgorithm:
        beta = LogBeta(c1=LogBeta().c1 * factor)
        return replace(self.algorithm, options={**self.algorithm.options, "beta": beta})

    @property
    def label(self) -> str:
        """Name in the verdict."""
        return self.algorithm.label

    @property
    def messages(self) -> list[str]:
        """What was chosen, and why."""
        if self.factor is None:
            return []
        regrets = ", ".join(f"{f:g}: {regret:.3g}" for f, regret in self.mean_regret.items())
        return [
            *self.algorithm.messages,
            f"β of {self.label} is {self.factor:g} times the default, chosen on the last "
            f"{1 - TRAIN_SHARE:.0%} of the training stretch. Mean regret there by factor: "
            f"{regrets}.",
        ]


def tune_beta(algorithm: FittedAlgorithm) -> TunedAlgorithm:
    """Return a recipe with the default β times a factor that is chosen on the training stretch."""
    return TunedAlgorithm(algorithm)
