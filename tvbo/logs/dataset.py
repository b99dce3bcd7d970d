"""Observations for a fit of the drift rate, and a panel as rows of a log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from tvbo.spaces.observations import check_finite, split_columns
from tvbo.values import as_numbers

RUN = 100
"""Successive observations in each run of a subsample."""

OUTCOMES = (1e-30, 1e30)
"""Smallest and largest standard deviation of outcomes that can be fitted."""

FEWEST_OTHERS, RARE = 10, 0.05
"""Outcomes other than the most frequent one, and their share of all, below which a log is constant
but for exceptions."""

FINEST = 1e-16
"""Smallest gap as a share of the length, which bounds the range of rates that is searched."""


@dataclass(frozen=True)
class DriftLog:
    """Checked observations of a fit, in float64, by segment and, within a segment, by time.

    Args:
        actions: ``n x d``.
        times: ``n``.
        Y: ``n``.
        Yvar: ``n``, or None.
        segments: ``n``, the number of the segment of each observation, from 0. The functions of
            different segments are independent.
        numbers: ``n`` numbers by which the observations are named, such as lines of a file.
    """

    actions: Tensor
    times: Tensor
    Y: Tensor
    Yvar: Tensor | None
    segments: Tensor
    numbers: Tensor

    @classmethod
    def from_rows(
        cls,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None,
        time_feature: int,
        segments: Tensor | None = None,
        row_numbers: Sequence[int] | None = None,
    ) -> DriftLog:
        """Build a log from rows, in any order.

        Args:
            train_X: ``n x d`` rows, one column of them time.
            train_Y: ``n x 1``.
            train_Yvar: ``n x 1``, or None.
            time_feature: Index of the time column.
            segments: ``n`` labels, such as days; None if the log is a single segment.
            row_numbers: ``n`` numbers of the rows; None counts from 0.

        Raises:
            BotorchTensorDimensionError: if shapes do not agree, or there is no action column.
            InputDataError: if a value is not finite, there are fewer than three observations or
                only one time (in every segment), or the outcome is constant, or nearly so
                (:func:`check_varies`), or a gap between times is too small for the log's length.
        """
        X, Y = as_numbers("train_X", train_X), as_numbers("train_Y", train_Y)
        Yvar = None if train_Yvar is None else as_numbers("train_Yvar", train_Yvar)
        given = {"X": X, "Y": Y} | ({} if Yvar is None else {"Yvar": Yvar})
        shapes = {name: tuple(values.shape) for name, values in given.items()}
        if X.ndim != 2 or any(values.shape != (len(X), 1) for values in list(given.values())[1:]):
            raise BotorchTensorDimensionError(
                f"Expected rows X, n x d, and Y and Yvar of shape n x 1. Got {shapes}."
            )
        for name, values in given.items():
            check_finite(name, values)
        if Yvar is not None and (Yvar < 0).any():
            raise InputDataError(f"Expected Yvar >= 0. Got {Yvar.min().item():g}.")
        numbers = torch.as_tensor(range(len(X)) if row_numbers is None else row_numbers)
        if len(numbers) != len(X):
            raise BotorchTensorDimensionError(
                f"Expected a number for each of {len(X)} rows. Got {len(numbers)} row_numbers."
            )
        labels = torch.zeros(len(X)) if segments is None else as_numbers("segments", segments)
        if labels.shape != (len(X),) or not labels.isfinite().all():
            raise InputDataError(
                f"Expected a label of its segment for each of {len(X)} observations. Got "
                f"{tuple(labels.shape)} labels, {int((~labels.isfinite()).sum())} not finite."
            )
        action_columns, _, time_column = split_columns(X.shape[-1], time_feature)
        log = cls(
            actions=X[:, action_columns],
            times=X[:, time_column],
            Y=Y.squeeze(-1),
            Yvar=None if Yvar is None else Yvar.squeeze(-1),
            segments=labels,
            numbers=numbers,
        )
        by_time = torch.argsort(log.times, stable=True)
        log = log.rows(by_time[torch.argsort(log.segments[by_time], stable=True)])
        if len(log) < 3 or len(log.gaps) == 0:
            times = "" if len(log.gaps) > 0 else ", each segment at one time"
            raise InputDataError(
                "Expected at least 3 observations, and two times in a segment at least. Got "
                f"{len(log)}{times}."
            )
        check_varies(log.Y)
        finest, span = log.gaps.min().item(), log.span
        if FINEST * span > finest:
            raise InputDataError(
                f"Expected gaps between times of at least {FINEST:g} of the length of the log. Got "
                f"a smallest gap of {finest:g} in a log of length {span:g}; round its times."
            )
        return log

    def __len__(self) -> int:
        """Return the number of observations."""
        return len(self.Y)

    @cached_property
    def instants(self) -> Tensor:
        """Distinct rows ``[segment | time]``, in order."""
        return torch.stack([self.segments.double(), self.times], dim=-1).unique(dim=0)

    @property
    def gaps(self) -> Tensor:
        """Gaps between successive times within segments."""
        segment_steps, gaps = self.instants.diff(dim=0).unbind(-1)
        return gaps[segment_steps == 0]

    @property
    def span(self) -> float:
        """Time from first to last observation of the longest segment."""
        numbers, times = self.instants.unbind(-1)
        counts = torch.bincount(numbers.long())
        last = counts.cumsum(0) - 1
        return (times[last] - times[last - counts + 1]).max().item()

    @cached_property
    def num_actions(self) -> int:
        """Number of distinct actions."""
        return len(torch.unique(self.actions, dim=0))

    @property
    def can_be_fitted(self) -> bool:
        """Whether there are three observations, two times and outcomes that vary, at least."""
        return len(self) >= 3 and len(self.gaps) > 0 and bool((self.Y[0] != self.Y).any())

    def blocks(self, size: int) -> list[tuple[slice, bool]]:
        """Return slices of the log, and whether each is the first of its segment.

        Args:
            size: Maximum length of a slice. Those of a segment have about equal lengths.
        """
        blocks, start = [], 0
        for length in torch.bincount(self.segments).tolist():
            count = math.ceil(length / size)
            ends = [start + length * k // count for k in range(count + 1)]
            blocks += [(slice(*pair), pair[0] == start) for pair in pairwise(ends)]
            start += length
        return blocks

    def subsample(self, size: int) -> DriftLog:
        """Return about ``size`` observations, in runs of successive ones spread over the log.

        Runs, not single observations, so that there are short lags as well as long ones.
        """
        starts = torch.linspace(0, len(self) - RUN, size // RUN, dtype=torch.float64).long()
        return self.rows((starts.unsqueeze(-1) + torch.arange(RUN)).flatten().unique())

    def without(self, outliers: Sequence[tuple[int, float]]) -> DriftLog:
        """Return the observations but those with the numbers of outliers."""
        left_out = torch.tensor([number for number, _ in outliers], dtype=self.numbers.dtype)
        return self.rows(~torch.isin(self.numbers, left_out))

    def rows(self, chosen: Tensor | slice) -> DriftLog:
        """Return the observations at some increasing indices, without checking them again."""
        parts = {each.name: getattr(self, each.name) for each in fields(self)}
        parts = {name: None if part is None else part[chosen] for name, part in parts.items()}
        # Numbered from 0 again, since a segment may have no chosen observation.
        parts["segments"] = torch.unique(parts["segments"], return_inverse=True)[1]
        return DriftLog(**parts)


def check_varies(Y: Tensor) -> None:
    """Raise if outcomes are constant, but for so few that they tell nothing about drift.

    These are fewer than :data:`FEWEST_OTHERS`, and at most :data:`RARE` of all: a few clicks in a
    long log, to a Gaussian likelihood, are evidence of anything.

    Raises:
        InputDataError: if they are, or their standard deviation is not between 1e-30 and 1e30.
    """
    spread = Y.std(correction=0).item()
    usual = Y.mode().values
    others = int((usual != Y).sum())
    if others < FEWEST_OTHERS and others <= RARE * len(Y):
        where = f"all but {others} of" if others else "all"
        raise InputDataError(
            f"Expected outcomes that vary. Got the constant {usual.item():g} in {where} {len(Y)} "
            "observations, which tell nothing about drift."
        )
    if not OUTCOMES[0] <= spread <= OUTCOMES[1]:
        raise InputDataError(
            f"Expected outcomes with a standard deviation between {OUTCOMES[0]:g} and "
            f"{OUTCOMES[1]:g}; state them in another unit. Got {spread:g}, with outcomes from "
            f"{Y.min().item():g} to {Y.max().item():g}."
        )


def panel_rows(values: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """Return a ``T x n`` panel as rows ``[arm index | time]``, ``N x 2``, and outcomes, ``N x 1``.

    Cells that are NaN were not observed and give no row.

    Args:
        values: ``T x n``.
        times: ``T``.

    Raises:
        BotorchTensorDimensionError: if there is not one time for each row of ``values``.
    """
    values, times = as_numbers("values", values), as_numbers("times", times)
    if values.ndim != 2 or times.shape != values.shape[:1]:
        raise BotorchTensorDimensionError(
            "Expected values T x n and T times or segments. Got values.shape="
            f"{tuple(values.shape)} and {tuple(times.shape)}."
        )
    observed = ~values.isnan()
    row, arm = observed.nonzero(as_tuple=True)
    return torch.stack([arm.double(), times[row]], dim=-1), values[observed][:, None]


def panel_segments(values: Tensor, segments: Tensor) -> Tensor:
    """Return the segment labels of the rows of :func:`panel_rows` from one label per time.

    Args:
        values: ``T x n``.
        segments: ``T``, such as the day of each time.

    Raises:
        BotorchTensorDimensionError: if there is not one label for each row of ``values``.
    """
    return panel_rows(values, segments)[0][:, 1]
