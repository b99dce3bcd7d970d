"""The multiplier of a tuner's uncertainty, chosen by playing later parts of a panel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tvbo.logs.paired import mean_and_error
from tvbo.logs.panel_cells import Cells
from tvbo.logs.panel_dynamics import Belief, PanelModel, advance
from tvbo.quadratic_model import Array

MULTIPLIERS = (0.0, 0.06, 0.2, 0.6, 1.0, 2.0)
"""Multipliers of the standard deviation that are tried."""

STARTS, APART = 4, 6
"""Games of each multiplier, which begin so many times one after another: until then arms are taken
at random."""

SEQUENCES = 4
"""Random sequences of arms from which a model predicts."""

TAIL = 36.0
"""Largest squared standardized error that a score takes in full."""


@dataclass(frozen=True)
class Fold:
    """A model of the first part of a panel, and the rows after it that are played.

    Args:
        model: The model.
        values: ``T x n`` of both parts, in the user's unit; NaN where there is none.
        cells: The same panel with outliers replaced, for its times and gaps.
        gap: Unit of the times of ``cells``, in the user's.
        start: First row that is played.
    """

    model: PanelModel
    values: Array
    cells: Cells
    gap: float
    start: int


@dataclass(frozen=True)
class Tuning:
    """A multiplier of the standard deviation, and why it was chosen.

    Args:
        multiplier: The multiplier.
        multipliers: Those that were tried.
        mean_regret: Mean regret of each on the folds.
        reason: The choice in a sentence.
    """

    multiplier: float
    multipliers: Array
    mean_regret: Array
    reason: str


class Games:
    """Beliefs of several tuners of a panel, each of which observes one arm at a time.

    Args:
        fold: The model and the rows.
        count: Number ``p`` of tuners.
    """

    def __init__(self, fold: Fold, count: int):
        self.fold, self.model = fold, fold.model
        train = fold.cells.part(slice(0, fold.start))
        last = self.model.filter_panel(fold.cells.values[: fold.start], train, fold.gap)
        self.steps = [self.model.dynamics.step(lag * fold.gap) for lag in fold.cells.lags]
        self.levels = self.model.levels(fold.cells.times * fold.gap)
        self.count = count
        self.belief = self._of_each(last)

    def _of_each(self, one: Belief) -> Belief:
        """Return the same belief for each tuner."""
        p = self.count
        return Belief(np.tile(one.mean, (p, 1)), np.tile(one.covariance, (p, 1, 1)))

    def move_to(self, t: int) -> tuple[Array, Array]:
        """Move to a row, and return means and variances of the arms there, both ``p x n``."""
        gap = self.fold.cells.gaps[t]
        if gap < 0:
            self.belief = self._of_each(self.model.prior)
        else:
            self.belief = advance(self.belief, *self.steps[gap])
        mean, variance = self.model.arms(self.belief)
        return self.levels[t] + mean, variance

    def observe(self, t: int, arms: NDArray[np.int64]) -> None:
        """Observe an arm each at a row; one without a reading says nothing."""
        residuals = self.fold.values[t, arms] - self.levels[t, arms]
        self.belief = self.model.update(self.belief, arms, residuals)


def one_arm_scores(fold: Fold) -> Array:
    """Return how well all arms are predicted when one random arm is observed at each time.

    This is what a tuner sees. For each row that is played, the log densities of all arms' values
    are summed, of errors up to six deviations, and averaged over some random sequences of arms.

    Args:
        fold: The model and the rows.
    """
    games, rng = Games(fold, SEQUENCES), np.random.default_rng(0)
    rows, n = range(fold.start, len(fold.values)), fold.values.shape[1]
    scores = np.empty(len(rows))
    for place, t in enumerate(rows):
        mean, variance = games.move_to(t)
        total = variance + fold.model.dynamics.noise.numpy()
        squares = np.minimum((fold.values[t] - mean) ** 2 / total, TAIL)
        scores[place] = np.nansum(-0.5 * (np.log(2 * math.pi * total) + squares)) / SEQUENCES
        games.observe(t, rng.integers(n, size=SEQUENCES))
    return scores


def play_multipliers(fold: Fold) -> Array:
    """Return the regret of each multiplier at each row that is played, averaged over its games.

    Args:
        fold: The model and the rows.
    """
    starts = np.tile(APART * np.arange(STARTS), len(MULTIPLIERS))
    multipliers = np.repeat(MULTIPLIERS, STARTS)[:, None]
    games, rng = Games(fold, len(starts)), np.random.default_rng(0)
    rows, n = range(fold.start, len(fold.values)), fold.values.shape[1]
    regret = np.full((len(rows), len(starts)), np.nan)
    for place, t in enumerate(rows):
        mean, variance = games.move_to(t)
        arms = (mean + multipliers * np.sqrt(variance)).argmax(1)
        arms = np.where(place < starts, rng.integers(n, size=len(starts)), arms)
        readings = fold.values[t]
        outcomes = np.where(np.isnan(readings[arms]), np.nanmin(readings), readings[arms])
        regret[place] = np.where(place < starts, np.nan, np.nanmax(readings) - outcomes)
        games.observe(t, arms)
    by_multiplier = regret.reshape(len(rows), len(MULTIPLIERS), STARTS)
    return np.asarray(np.nanmean(by_multiplier, axis=2).T, np.float64)


def tune_multiplier(folds: Sequence[Fold]) -> Tuning:
    """Choose the multiplier of the standard deviation by playing some folds.

    At each time each multiplier takes the arm of its largest upper confidence bound and observes
    it. An arm without a reading is taken for the worst one of that time. The multiplier nearest to
    one is chosen whose mean regret is above the least by at most the standard error of the
    difference (the rule of Breiman et al., 1984): which one is the least is often chance.

    Args:
        folds: The folds.
    """
    regret = np.concatenate([play_multipliers(fold) for fold in folds], axis=1)
    means = np.nanmean(regret, axis=1)
    best, worst = int(means.argmin()), int(means.argmax())
    excess = [mean_and_error(each - regret[best]) for each in regret]
    near = [place for place, (gain, error) in enumerate(excess) if gain <= error]
    chosen = min(near, key=lambda place: abs(MULTIPLIERS[place] - 1))
    gain, error = mean_and_error(regret[worst] - regret[chosen])
    reason = (
        f"Multiplier {MULTIPLIERS[chosen]:g} of the standard deviation: played on later parts of "
        f"the log, of {len(MULTIPLIERS)} the nearest to 1 that is not told apart from the best, by "
        f"{gain:.2g} ± {error:.2g} a time less than {MULTIPLIERS[worst]:g}."
    )
    return Tuning(MULTIPLIERS[chosen], np.array(MULTIPLIERS), means, reason)
