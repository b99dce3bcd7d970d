"""Panels, which are logs of every action at every time, and tables of arms as rows of a log."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from torch import Tensor

from tvbo.fitting.dataset import DriftLog


@dataclass(frozen=True)
class Panel:
    """A log in which every action was observed at every time.

    Args:
        actions: ``n x d``, without duplicates.
        gaps: ``T - 1`` gaps between times, infinite from one segment to the next.
        values: Outcomes, ``T x n``.
    """

    actions: Tensor
    gaps: Tensor
    values: Tensor

    @classmethod
    def from_log(cls, log: DriftLog) -> Panel | None:
        """Return the panel that a log forms.

        None if a cell is missing or repeated, or the noise variances of the log are known.
        """
        if log.Yvar is not None:
            return None
        actions, arm = torch.unique(log.actions, dim=0, return_inverse=True)
        steps = len(log.instants)
        if len(log) != len(actions) * steps:
            return None
        instants = torch.stack([log.segments.double(), log.times], dim=-1)
        step = torch.unique(instants, dim=0, return_inverse=True)[1]
        cell = step * len(actions) + arm
        if len(torch.unique(cell)) != len(cell):
            return None
        values = log.Y.new_empty(len(cell)).scatter(0, cell, log.Y)
        segment_steps, gaps = log.instants.diff(dim=0).unbind(-1)
        gaps = torch.where(segment_steps == 0, gaps, math.inf)
        return cls(actions, gaps, values.reshape(steps, len(actions)))


def panel_rows(values: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """Return a ``T x n`` panel as rows ``[arm index | time]``, ``N x 2``, and outcomes, ``N x 1``.

    Cells that are NaN were not observed and give no row.

    Args:
        values: ``T x n``.
        times: ``T``.

    Raises:
        BotorchTensorDimensionError: if there is not one time for each row of ``values``.
    """
    _check_panel(values, "times", times)
    arms = torch.arange(values.shape[1], dtype=torch.float64)
    grid_t, grid_arm = torch.meshgrid(times.to(torch.float64), arms, indexing="ij")
    observed = ~values.isnan()
    return torch.stack([grid_arm[observed], grid_t[observed]], dim=-1), values[observed][:, None]


def panel_segments(values: Tensor, segments: Tensor) -> Tensor:
    """Return the segment labels of the rows of :func:`panel_rows` from one label per time.

    Args:
        values: ``T x n``.
        segments: ``T``, such as the day of each time.

    Raises:
        BotorchTensorDimensionError: if there is not one label for each row of ``values``.
    """
    _check_panel(values, "segments", segments)
    return segments.unsqueeze(-1).expand_as(values)[~values.isnan()]


def _check_panel(values: Tensor, name: str, labels: Tensor) -> None:
    """Raise unless there is one label for each row of ``values``."""
    if values.ndim != 2 or labels.shape != values.shape[:1]:
        raise BotorchTensorDimensionError(
            f"Expected values T x n and T {name}. Got values.shape={tuple(values.shape)}, "
            f"{name}.shape={tuple(labels.shape)}."
        )
