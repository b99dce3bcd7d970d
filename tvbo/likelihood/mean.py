"""The generalized least squares mean."""

from __future__ import annotations

from numpy.typing import NDArray
from torch import Tensor


def weighted_mean(white_y: Tensor | NDArray, white_one: Tensor | NDArray) -> float:
    """Generalized least squares mean from whitened outcomes and ones.

    A plain number: the likelihood is stationary in it, so no gradient flows through.
    """
    return float((white_y * white_one).sum() / (white_one * white_one).sum())
