"""Recorded panels in two stretches, and the kernel that the first of them gives."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tvbo.kernels import CovarianceMatrixKernel, empirical_covariance


@dataclass(frozen=True)
class EmpiricalPanel:
    """A recorded panel in two stretches, with the kernel that the first gives.

    Args:
        train: ``... x T x n`` values of ``n`` arms at ``T`` times; a leading dimension holds
            stretches that have nothing to do with one another, such as days.
        test: ``... x T x n`` values.
        arms: Names of the arms.
        time_unit: Length of a step.
    """

    train: Tensor
    test: Tensor
    arms: list[str]
    time_unit: str

    @property
    def mean(self) -> float:
        """One mean over all arms and times of the training stretch."""
        return self.train.mean().item()

    @property
    def best_arm(self) -> int:
        """Number of the arm of the largest mean over the training stretch."""
        return int(self.train.flatten(0, -2).mean(dim=0).argmax())

    @property
    def covar_module(self) -> CovarianceMatrixKernel:
        """Second moments of the arms about that one mean, over the training stretch."""
        return CovarianceMatrixKernel(empirical_covariance(self.train))
