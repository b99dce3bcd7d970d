"""The data class of observations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from tvbo.validation import check_finite, check_last_dimension


@dataclass(frozen=True)
class Observations:
    """Rows and their outcomes, in the order in which they were told.

    Args:
        X: Rows ``[action | context | time]``, ``n x d``.
        Y: Outcomes, ``n x 1``.
        Yvar: Known noise variances, ``n x 1``, or None.

    Raises:
        BotorchTensorDimensionError: if the shapes do not agree.
        InputDataError: if a value is NaN or infinite, or a variance negative.
    """

    X: Tensor
    Y: Tensor
    Yvar: Tensor | None = None

    def __post_init__(self) -> None:
        if self.X.ndim != 2:
            raise BotorchTensorDimensionError(
                f"Expected X of shape n x d. Got X.shape={tuple(self.X.shape)}."
            )
        for name, value in (("Y", self.Y), ("Yvar", self.Yvar)):
            if value is not None and value.shape != (len(self.X), 1):
                raise BotorchTensorDimensionError(
                    f"Expected {name} of shape {len(self.X)} x 1, one row for each row of X. "
                    f"Got {name}.shape={tuple(value.shape)}."
                )
        check_finite("X", self.X)
        check_finite("Y", self.Y)
        if self.Yvar is not None:
            check_finite("Yvar", self.Yvar)
            if (self.Yvar < 0).any():
                raise InputDataError(f"Expected Yvar >= 0. Got {self.Yvar.min().item()}.")

    @classmethod
    def empty(cls, num_columns: int) -> Observations:
        """Return no observations, of rows with ``num_columns`` columns, in float64."""
        return cls(
            X=torch.empty(0, num_columns, dtype=torch.float64),
            Y=torch.empty(0, 1, dtype=torch.float64),
        )

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, rows: Tensor | slice) -> Observations:
        """Return the observations of some rows, selected by a mask, indices or a slice."""
        return Observations(
            self.X[rows], self.Y[rows], None if self.Yvar is None else self.Yvar[rows]
        )

    def append(self, other: Observations) -> Observations:
        """Return these observations followed by others.

        Raises:
            InputDataError: if only one of the two has noise variances.
        """
        check_last_dimension("X", other.X, self.X.shape[-1])
        if len(self) == 0:
            return other
        if (self.Yvar is None) != (other.Yvar is None):
            raise InputDataError(
                "Expected Yvar with every observation or with none. "
                f"Got Yvar={other.Yvar} after observations "
                f"{'without' if self.Yvar is None else 'with'} Yvar."
            )
        Yvar = None
        if self.Yvar is not None and other.Yvar is not None:
            Yvar = torch.cat([self.Yvar, other.Yvar])
        return Observations(torch.cat([self.X, other.X]), torch.cat([self.Y, other.Y]), Yvar)
