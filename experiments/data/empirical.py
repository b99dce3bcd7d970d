"""Recorded panels split into training and test data, with the empirical kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from tvbo.kernels import CovarianceMatrixKernel
from tvbo.logs import empirical_covariance

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class EmpiricalPanel:
    """A recorded panel split into training and test data.

    Args:
        train: Training values, ``... x T x n``, of ``n`` arms at ``T`` times; leading dimensions
            are independent periods, such as days.
        test: Test values, ``... x T x n``.
        arms: Names of the arms.
        time_unit: Unit of a time step.
        origin: Timestamp of the first training step; None if the times are of no calendar.
    """

    train: Tensor
    test: Tensor
    arms: list[str]
    time_unit: str
    origin: pd.Timestamp | None = field(default=None, kw_only=True)

    @property
    def mean(self) -> float:
        """Mean over all arms and times of the training data."""
        return self.train.mean().item()

    @property
    def best_arm(self) -> int:
        """Index of the arm with the largest mean over the training data."""
        return int(self.train.flatten(0, -2).mean(dim=0).argmax())

    @property
    def covar_module(self) -> CovarianceMatrixKernel:
        """Kernel of the second moments of the arms about :attr:`mean`, over the training data."""
        return CovarianceMatrixKernel(empirical_covariance(self.train))
