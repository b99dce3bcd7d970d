"""The multiplier of a tuner's uncertainty, chosen by playing later parts of a panel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tvbo.logs.paired import mean_and_error
from tvbo.logs.panel_cells import Cells
from tvbo.logs.panel_dynamics import Belief, PanelModel, advance
from tvbo.quadratic_model import Array

MULTIPLIERS = (0.0, 0.2, 0.6, 1.0, 2.0)
"""Multipliers of the standard deviation that are tried."""

NEAR = 1.5
"""Standard errors of a difference in mean regret up to which a multiplier may be the best."""

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


Chosen = tuple[NDArray[np.int64], Array | float]
"""The arms of some tuners at a time, and what they get."""


@dataclass(frozen=True)
class Game:
    """Rows of a panel that are played by tuners with a model of those before.

    Args:
        model: The model.
        belief: What is believed before the first row.
        panel: The panel, in the units of the model; NaN where there is no reading.
        rows: The rows that are played.
    """

    model: PanelModel
    belief: Belief
    panel: Cells
    rows: range

    def play(self, choose: Callable[[int, Array, Array, Array], Chosen]) -> Array:
        """Play the rows by ``p`` tuners, each of which observes one arm at a time.

        Args:
            choose: Takes number and readings of a row, and means and variances of the arms there,
                ``n`` or ``p x n``; returns the arms, ``p``, and what is to be returned of that row.
        """
        model, belief, results = self.model, self.belief, []
        steps = [model.dynamics.step(lag) for lag in self.panel.lags]
        levels = model.levels(self.panel.times)
        for place, t in enumerate(self.rows):
            gap, level, readings = self.panel.gaps[t], levels[t], self.panel.values[t]
            belief = model.prior if gap < 0 else advance(belief, *steps[gap])
            mean, variance = model.arms(belief)
            arms, result = choose(place, readings, level + mean, variance)
            results.append(result)
            # An arm without a reading says nothing.
            belief = model.update(belief, arms, (readings - level)[arms])
        return np.array(results)


def one_arm_scores(game: Game) -> Array:
    """Return how well all arms are predicted when one random arm is observed at each time.

    This is what a tuner sees. For each row that is played, the log densities of all arms' values
    are summed, of errors up to six deviations, and averaged over some random sequences of arms.
    """
    rng, noise = np.random.default_rng(0), game.model.dynamics.noise.numpy()

    def choose(place: int, readings: Array, mean: Array, variance: Array) -> Chosen:
        total = variance + noise
        squares = np.minimum((readings - mean) ** 2 / total, TAIL)
        densities = -0.5 * (np.log(2 * math.pi * total) + squares)
        score = float(np.nansum(densities, axis=-1).mean())
        return rng.integers(len(noise), size=SEQUENCES), score

    return game.play(choose)


def play_multipliers(game: Game) -> Array:
    """Return the regret of each multiplier at each row that is played, averaged over its games."""
    starts = np.tile(APART * np.arange(STARTS), len(MULTIPLIERS))
    multipliers = np.repeat(MULTIPLIERS, STARTS)[:, None]
    rng = np.random.default_rng(0)

    def choose(place: int, readings: Array, mean: Array, variance: Array) -> Chosen:
        known = ~np.isnan(readings)
        arms = np.where(known, mean + multipliers * np.sqrt(variance), -math.inf).argmax(1)
        at_random = rng.choice(np.flatnonzero(known), size=len(starts))
        arms = np.where(place < starts, at_random, arms)
        return arms, np.where(place < starts, np.nan, np.nanmax(readings) - readings[arms])

    by_multiplier = game.play(choose).reshape(-1, len(MULTIPLIERS), STARTS)
    return np.asarray(np.nanmean(by_multiplier, axis=2).T, np.float64)


def tune_multiplier(folds: Sequence[Game]) -> Tuning:
    """Choose the multiplier of the standard deviation by playing some folds.

    At each time each multiplier takes the arm of its largest upper confidence bound and observes
    it, of those that have a reading: what failures cost is the same for all, and hides the rest.
    Which multiplier has the least mean regret is often chance: the middle one is chosen of
    those above it by at most :data:`NEAR` standard errors (after Breiman et al., 1984).

    Args:
        folds: The folds.
    """
    regret = np.concatenate([play_multipliers(fold) for fold in folds], axis=1)
    means = np.nanmean(regret, axis=1)
    best, worst = int(means.argmin()), int(means.argmax())
    excess = [mean_and_error(each - regret[best]) for each in regret]
    near = [place for place, (gain, error) in enumerate(excess) if gain <= NEAR * error]
    chosen = near[len(near) // 2]
    gain, error = mean_and_error(regret[worst] - regret[chosen])
    reason = (
        f"Multiplier {MULTIPLIERS[chosen]:g} of the standard deviation: played on later parts of "
        f"the log, of {len(MULTIPLIERS)} the middle one of those not told apart from the best, by "
        f"{gain:.2g} ± {error:.2g} a time less than {MULTIPLIERS[worst]:g}."
    )
    return Tuning(MULTIPLIERS[chosen], np.array(MULTIPLIERS), means, reason)
