"""What krause-fig3 measures, and what the paper claims of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from experiments.claims import BEYOND, Claim, mean_and_error
from tvbo.problems.time_of_day import HOURS_PER_DAY

MEASURES = ("maximum", "average")
"""Of the readings of a step: what the regret of the step is the error of."""

CGP, MERGED, SEPARATE = "CGP-UCB", "merged", "separate"
MERGED_COMMON, SEPARATE_COMMON = f"merged, prior of {CGP}", f"separate, prior of {CGP}"
DRIFTING, MERGED_DRIFTING = "TV-CGP-UCB", "merged, drifting"
BEST_OF_TRAINING = "best sensors of training, always"

FIRST_HOURS = 6.0
BLOCKS = 8
"""Equal parts of a stretch of time, whose differences give a standard error over time."""


def regret_of_steps(values: Tensor, chosen: Tensor) -> Tensor:
    """The largest value of a step minus the maximum, and the average, of those chosen.

    Args:
        values: ``T x n``.
        chosen: ``T x q``, indices of the ``q`` chosen one after another in each step.

    Returns:
        ``2 x T``.
    """
    readings, best = values.gather(1, chosen), values.amax(dim=1)
    return torch.stack([best - readings.amax(dim=1), best - readings.mean(dim=1)])


def summarize(regret: Tensor) -> dict[str, float | None]:
    """Mean regret of both measures and its standard error over trials, from ``trials x 2 x T``."""
    row: dict[str, float | None] = {}
    for measure, rows in zip(MEASURES, regret.mean(dim=2).unbind(dim=1), strict=True):
        row[measure], row[f"standard_error_of_{measure}"] = mean_and_error(rows)
    return row


def make_claims(regret: dict[str, Tensor], hours: Tensor) -> list[Claim]:
    """The paper's claims on both measures, with each kind of prior, and what drift adds.

    Args:
        regret: By algorithm, ``trials x 2 x T``.
        hours: ``T``, since the begin of the run. What is claimed of the time after the first day
            is left out where there is none.
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
    """A claim that all of some algorithms have a higher mean regret than all of some others.

    Its figure is the difference between the lowest of the ones and the highest of the others, which
    the claim then names. Its standard error is the larger of two: over trials, and, since trials
    all see the same days, over eight equal blocks of time. It is held if the difference exceeds two
    of them; a single trial bears nothing out.

    Args:
        claim: The claim, in words.
        curves: By algorithm, ``trials x T``.
        stretch: ``T``, the steps that count.
        higher: Names of the ones.
        lower: Names of the others.
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
