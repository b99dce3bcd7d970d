"""The covariance of arms that were read at the same times."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor


def empirical_covariance(values: Tensor) -> Tensor:
    r"""Return the second moments of arms about the mean of the panel, each from their common times.

    .. math:: K_{ij} = \frac{1}{T_{ij}} \sum_{t \in T_{ij}} (y_{ti} - m)(y_{tj} - m)

    One mean for all arms, not one for each, so that the kernel accounts for arms that differ from
    the others for a long time. Moments from different times need not form a covariance matrix:
    negative eigenvalues are then set to zero, which gives the nearest one.

    Args:
        values: ``... x T x n``, NaN where there is no value.

    Returns:
        ``n x n``.

    Raises:
        InputDataError: if two arms have no common time.
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
    return modes * eigenvalues.clamp_min(0.0) @ modes.mT
