"""Where outcomes far below all others are cut off, such as those of a machine that crashed."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from tvbo.spaces.observations import Observations

FAR_GAP = 10.0
"""A gap between two outcomes is far if it is this many times the range of those above it."""

SHARE_ABOVE_GAP = 1 / 2
"""Share of the actions tried, told apart by tenths of the space, that must have outcomes above the
gap. A loop that has converged sees the same outcome again and again: median and quartiles of all
would be those of the noise, and far below them what the function is elsewhere."""

MIN_ABOVE_GAP = 3
"""Least number of such actions, unless the prior is given, which says how large outcomes are."""


def lower_cutoff(
    observations: Observations, bounds: Tensor, num_actions: int, deviation: float = 0.0
) -> float:
    """Return the value at which outcomes are winsorized; minus infinity where none is far below.

    It is half the range of the others below them. Outcomes that are low for a while, or in some
    contexts, are a level of their own, and stay.

    Args:
        observations: ``n`` observations, rows ``[action | context | time]``.
        bounds: Range of all columns but time, ``2 x (d + c)``.
        num_actions: Number of action columns ``d``.
        deviation: Prior standard deviation where it is given: the range is two of it at least. 0
            where it is learned.
    """
    Y = observations.Y.squeeze(-1)
    order = Y.argsort(descending=True)
    values = Y[order]
    above = (values[:1] - values[:-1]).clamp_min(2 * deviation)
    # Equal outcomes up to rounding have no range to compare with.
    varies = above > 1e-12 * values[:1].abs()
    is_far = varies & (values[:-1] - values[1:] > FAR_GAP * above)
    if not is_far.any():
        return -math.inf
    lower, upper = bounds
    width = torch.where(upper > lower, upper - lower, 1.0)
    tenths = ((observations.X[:, :-1] - lower) / width * 10).floor().clamp(0, 9)
    # With a column of zeros, since there may be no context.
    actions, contexts = (
        pad(part, (0, 1)).unique(dim=0, return_inverse=True)[1]
        for part in (tenths[:, :num_actions], tenths[:, num_actions:])
    )
    actions = actions[order]
    places = torch.arange(len(Y))
    first = places.new_full((len(Y),), len(Y)).scatter_reduce(0, actions, places, "amin")
    num_above = (first[actions] == places).cumsum(0)
    least = 1 if deviation > 0 else MIN_ABOVE_GAP
    enough = num_above[:-1] >= max(least, SHARE_ABOVE_GAP * num_above[-1].item())
    for place in (is_far & enough).nonzero().flatten().tolist():
        if _is_mixed(values[place] > Y, contexts):
            return (values[place] - above[place] / 2).item()
    return -math.inf


def _is_mixed(low: Tensor, contexts: Tensor) -> bool:
    """Return whether most low outcomes have another among their neighbours in the same context.

    Args:
        low: Which of the outcomes are low, ``n``, in the order in which they came.
        contexts: Numbers of their contexts, ``n``.
    """
    order = contexts.argsort(stable=True)
    low, contexts = low[order], contexts[order]
    mixed = torch.zeros_like(low)
    for lag in (1, 2):
        same = contexts[lag:] == contexts[:-lag]
        mixed[lag:] |= same & ~low[:-lag]
        mixed[:-lag] |= same & ~low[lag:]
    return 2 * int((mixed & low).sum()) > int(low.sum())
