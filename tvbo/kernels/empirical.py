"""The covariance that a recorded panel shows."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor


def empirical_covariance(values: Tensor) -> Tensor:
    r"""Second moments of arms about the mean of all cells, each from the times that have both.

    .. math:: K_{ij} = \frac{1}{T_{ij}} \sum_{t \in T_{ij}} (y_{ti} - m)(y_{tj} - m)

    One mean for all arms, not one for each: that an arm is warmer than the others for days is
    something the kernel should know. Moments from different times need not fit together: negative
    eigenvalues are then set to zero, which gives the nearest matrix that is a covariance.

    Args:
        values: ``... x T x n``, NaN where there is no reading.

    Returns:
        ``n x n``.

    Raises:
        InputDataError: if two arms were never read at one time.
    """
    values = values.flatten(0, -2)
    observed = ~values.isnan()
    counts = observed.to(values).mT @ observed.to(values)
    if (counts == 0).any():
        i, j = (counts == 0).nonzero()[0].tolist()
        raise InputDataError(
            "Expected every two arms to be read at one time at least once, for their covariance. "
            f"Got arms {i} and {j}, which never are."
        )
    centered = torch.where(observed, values - values.nanmean(), 0.0)
    moments = centered.mT @ centered / counts
    if observed.all():
        return moments
    eigenvalues, modes = torch.linalg.eigh(moments)
    if eigenvalues[0] >= 0:
        return moments
    return modes * eigenvalues.clamp_min(0.0) @ modes.mT
