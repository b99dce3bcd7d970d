"""Measures of krause-fig3, and the claims of the paper."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from experiments.claims import BEYOND, Claim, mean_and_error
from experiments.problems.time_of_day import HOURS_PER_DAY

MEASURES = ("maximum", "average")
"""Statistics of the readings of a step, for which regret is measured."""

CGP, MERGED, SEPARATE = "CGP-UCB", "merged", "separate"
MERGED_COMMON, SEPARATE_COMMON = f"merged, prior of {CGP}", f"separate, prior of {CGP}"
DRIFTING, MERGED_DRIFTING = "TV-CGP-UCB", "merged, drifting"
BEST_OF_TRAINING = "best sensors of training, always"

FIRST_HOURS = 6.0
BLOCKS = 8
"""Number of equal blocks of time, for a standard error over time."""


def regret_of_steps(values: Tensor, chosen: Tensor) -> Tensor:
    """Return the largest value of a step minus the maximum, and minus the mean, of the chosen.

    Args:
        values: ``T x n``.
        chosen: ``T x q``, indices of the ``q`` chosen one after another in each step.

    Returns:
        ``2 x T``.
    """
    readings, best = values.gather(1, chosen), values.amax(dim=1)
    return torch.stack([best - readings.amax(dim=1), best - readings.mean(dim=1)])


def summarize(regret: Tensor) -> dict[str, float | None]:
    """Return the mean regret of both measures with standard errors, from ``trials x 2 x T``."""
    row: dict[str, float | None] = {}
    for measure, rows in zip(MEASURES, regret.mean(dim=2).unbind(dim=1), strict=True):
        row[measure], row[f"standard_error_of_{measure}"] = mean_and_error(rows)
    return row


def make_claims(regret: dict[str, Tensor], hours: Tensor) -> list[Claim]:
    """Return the paper's claims on both measures with each kind of prior, and claims on drift.

    Args:
        regret: By algorithm, ``trials x 2 x T``.
        hours: Hours since the start of the run, ``T``. Claims about the time after the first day
            are left out if there is none.
    """
    everything, later = torch.ones_like(hours, dtype=torch.bool), hours >= HOURS_PER_DAY
    paper: list[Claim] = []
    common: list[Claim] = []
    beyond: list[Claim] = []
    for place, measure in enumerate(MEASURES):
        curves = {name: rows[:, place] for name, rows in regret.items()}
        paper += _of_the_paper(measure, curves, hours, MERGED, SEPARATE)
        common += _of_the_paper(
            f"{measure}, one prior for all (added later)",
            *(curves, hours, MERGED_COMMON, SEPARATE_COMMON),
        )
        beyond += [
            difference(
                f"{measure}, beyond the paper: drift helps", curves, everything, [CGP], [DRIFTING]
            ),
            difference(
                f"{measure}, beyond the paper: context helps where there is drift",
                *(curves, everything, [MERGED_DRIFTING], [DRIFTING]),
            ),
            *(
                difference(
                    f"{measure}, beyond the paper: worth more than the best sensors of training",
                    *(curves, everything, [BEST_OF_TRAINING], [name]),
                )
                for name in (CGP, MERGED, SEPARATE, DRIFTING)
            ),
        ]
        if later.any():
            beyond.append(
                difference(
                    f"{measure}, beyond the paper: drift helps after the first day (added later)",
                    *(curves, later, [CGP], [DRIFTING]),
                )
            )
    return paper + common + beyond


def _of_the_paper(
    measure: str, curves: dict[str, Tensor], hours: Tensor, merged: str, separate: str
) -> list[Claim]:
    later = hours >= HOURS_PER_DAY
    claims = [
        difference(
            f"{measure}: separate is the worst over the whole run",
            *(curves, torch.ones_like(later), [separate], [CGP, merged]),
        ),
        *(
            difference(
                f"{measure}: merged is the best in the first {length:g} hours",
                *(curves, hours < length, [CGP, separate], [merged]),
            )
            for length in (FIRST_HOURS, HOURS_PER_DAY)
        ),
    ]
    if later.any():
        claims.append(
            difference(
                f"{measure}: {CGP} is the best after the first day, when times of day recur",
                *(curves, later, [merged, separate], [CGP]),
            )
        )
    return claims


def difference(
    claim: str,
    curves: dict[str, Tensor],
    stretch: Tensor,
    higher: Sequence[str],
    lower: Sequence[str],
) -> Claim:
    """Return the claim that some algorithms all have a higher mean regret than some others.

    Its figure is the smallest difference between algorithms of the two groups. Its standard error
    is the larger of two: over replicates, and over eight equal blocks of time, since all replicates
    see the same days. It is confirmed if the difference exceeds two standard errors; a single
    replicate never confirms it.

    Args:
        claim: The claim, in words.
        curves: By algorithm, ``trials x T``.
        stretch: Mask of the steps to use, ``T``.
        higher: Names of the algorithms with higher regret.
        lower: Names of the algorithms with lower regret.
    """
    means = {name: rows[:, stretch].mean().item() for name, rows in curves.items()}
    high, low = min(higher, key=means.__getitem__), max(lower, key=means.__getitem__)
    gap = curves[high][:, stretch] - curves[low][:, stretch]
    figure, over_trials = mean_and_error(gap.mean(dim=1))
    blocks = [block.mean() for block in gap.mean(dim=0).tensor_split(BLOCKS) if len(block)]
    _, over_time = mean_and_error(torch.stack(blocks))
    errors = [error for error in (over_trials, over_time) if error is not None]
    error = max(errors, default=None)
    return Claim(
        f"{claim}: {high} minus {low}: above two standard errors",
        over_trials is not None and figure > BEYOND * error,
        figure,
        error,
    )
