"""The multiplier of a tuner's uncertainty, chosen by playing later parts of a panel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tvbo.logs.paired import mean_and_error
from tvbo.logs.panel_cells import Cells
from tvbo.logs.panel_dynamics import PanelModel, advance
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
    """Rows of a panel that are played by tuners with a model of those before.

    Args:
        model: The model.
        values: ``T x n`` of both parts, in the user's unit; NaN where there is no reading.
        cells: The same panel with outliers replaced, for its times and gaps.
        gap: Unit of the times of ``cells``, in the user's.
        start: First row that is played.

    Attributes:
        belief: What one tuner or ``p`` believe, each of which observes one arm at a time.
    """

    def __init__(self, model: PanelModel, values: Array, cells: Cells, gap: float, start: int):
        self.model, self.values, self.gaps = model, values, cells.gaps
        self.rows = range(start, len(values))
        self.belief = model.filter_panel(cells.values[:start], cells.part(slice(0, start)), gap)
        self.steps = [model.dynamics.step(lag * gap) for lag in cells.lags]
        self.levels = model.levels(cells.times * gap)

    def move_to(self, t: int) -> tuple[Array, Array]:
        """Move to a row, and return means and variances of the arms there, ``n`` or ``p x n``."""
        is_first = self.gaps[t] < 0
        self.belief = (
            self.model.prior if is_first else advance(self.belief, *self.steps[self.gaps[t]])
        )
        mean, variance = self.model.arms(self.belief)
        return self.levels[t] + mean, variance

    def observe(self, t: int, arms: NDArray[np.int64]) -> None:
        """Observe an arm each at a row, ``p``; one without a reading says nothing."""
        residuals = self.values[t, arms] - self.levels[t, arms]
        self.belief = self.model.update(self.belief, arms, residuals)


def one_arm_scores(games: Games) -> Array:
    """Return how well all arms are predicted when one random arm is observed at each time.

    This is what a tuner sees. For each row that is played, the log densities of all arms' values
    are summed, of errors up to six deviations, and averaged over some random sequences of arms.
    """
    rng, scores, noise = np.random.default_rng(0), [], games.model.dynamics.noise.numpy()
    for t in games.rows:
        mean, variance = games.move_to(t)
        total = variance + noise
        squares = np.minimum((games.values[t] - mean) ** 2 / total, TAIL)
        densities = -0.5 * (np.log(2 * math.pi * total) + squares)
        scores.append(np.nansum(densities, axis=-1).mean())
        games.observe(t, rng.integers(len(noise), size=SEQUENCES))
    return np.array(scores)


def play_multipliers(games: Games) -> Array:
    """Return the regret of each multiplier at each row that is played, averaged over its games."""
    starts = np.tile(APART * np.arange(STARTS), len(MULTIPLIERS))
    multipliers = np.repeat(MULTIPLIERS, STARTS)[:, None]
    rng, rows, n = np.random.default_rng(0), games.rows, games.values.shape[1]
    regret = np.full((len(rows), len(starts)), np.nan)
    for place, t in enumerate(rows):
        mean, variance = games.move_to(t)
        arms = (mean + multipliers * np.sqrt(variance)).argmax(1)
        arms = np.where(place < starts, rng.integers(n, size=len(starts)), arms)
        readings = games.values[t]
        outcomes = np.where(np.isnan(readings[arms]), np.nanmin(readings), readings[arms])
        regret[place] = np.where(place < starts, np.nan, np.nanmax(readings) - outcomes)
        games.observe(t, arms)
    by_multiplier = regret.reshape(len(rows), len(MULTIPLIERS), STARTS)
    return np.asarray(np.nanmean(by_multiplier, axis=2).T, np.float64)


def tune_multiplier(folds: Sequence[Games]) -> Tuning:
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
