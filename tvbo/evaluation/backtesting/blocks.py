"""Means of series in time, with standard errors from blocks of times."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Estimate(NamedTuple):
    """A mean, and its standard error; None where there are fewer than two blocks."""

    mean: float
    standard_error: float | None


def block_estimate(series: Tensor, blocks: Tensor) -> Estimate:
    r"""Return the mean of a series, with a standard error from blocks of times.

    With :math:`n_b` values of mean :math:`m_b` in block ``b`` of ``B``, N values in all of mean m:

    .. math:: \text{se}^2 = \frac{B}{B - 1} \sum_b \Big(\frac{n_b}{N}\Big)^2 (m_b - m)^2,

    which is the variance of the block means over B where blocks are equally long. Values within a
    block may depend on one another; blocks are taken as independent.

    Args:
        series: ``S``; NaN is left out.
        blocks: Label of the block of each value, ``S``.
    """
    means, shares = block_means(series, blocks)
    mean = (means * shares).sum().item()
    B = len(means)
    if B < 2:
        return Estimate(mean, None)
    variance = B / (B - 1) * (shares * (means - mean)).square().sum().item()
    return Estimate(mean, math.sqrt(variance))


def block_means(series: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of each block, and its share of the values."""
    known = ~series.isnan()
    _, index = blocks[known].unique(return_inverse=True)
    counts = torch.bincount(index).double()
    sums = torch.zeros_like(counts).index_add(0, index, series[known])
    return sums / counts, counts / counts.sum()
