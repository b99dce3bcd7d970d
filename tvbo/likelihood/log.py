"""A log of what was done, when, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from tvbo.columns import split_time
from tvbo.observations import Observations


@dataclass(frozen=True)
class DriftLog:
    """Observations with actions and times apart, in float64, checked to be worth a fit.

    Args:
        actions: ``n x d``.
        times: ``n``.
        Y: ``n``.
        Yvar: ``n``, or None.
    """

    actions: Tensor
    times: Tensor
    Y: Tensor
    Yvar: Tensor | None

    @classmethod
    def from_rows(
        cls, train_X: Tensor, train_Y: Tensor, train_Yvar: Tensor | None, time_feature: int
    ) -> DriftLog:
        """Split rows.

        Raises:
            BotorchTensorDimensionError: if shapes do not agree, or there is no action column.
            InputDataError: if a value is not finite, there are fewer than three observations or
                only one time, or the reward is constant.
        """
        observations = Observations(
            *(x if x is None else x.to(torch.float64) for x in (train_X, train_Y, train_Yvar))
        )
        time_column, action_columns = split_time(time_feature, train_X.shape[-1])
        log = cls(
            actions=observations.X[:, action_columns],
            times=observations.X[:, time_column],
            Y=observations.Y.squeeze(-1),
            Yvar=None if observations.Yvar is None else observations.Yvar.squeeze(-1),
        )
        if len(log) < 3:
            raise InputDataError(f"Expected at least 3 observations. Got {len(log)}.")
        if (log.Y[0] == log.Y).all():
            raise InputDataError(
                f"Expected a reward that varies. Got the constant {log.Y[0].item():g} "
                f"in all {len(log)} observations."
            )
        if (log.times == log.times[0]).all():
            raise InputDataError(
                "Expected observations at two times at least. "
                f"Got all {len(log)} at t={log.times[0].item():g}."
            )
        return log

    def __len__(self) -> int:
        return len(self.Y)

    @property
    def distinct_times(self) -> Tensor:
        """The times, each once, increasing."""
        return torch.unique(self.times)


@dataclass(frozen=True)
class Panel:
    """A log in which every action was observed at every time.

    Args:
        actions: ``n x d``, each once.
        times: ``T``, increasing.
        values: ``T x n``.
    """

    actions: Tensor
    times: Tensor
    values: Tensor

    @classmethod
    def from_log(cls, log: DriftLog) -> Panel | None:
        """The panel that a log forms, or None.

        None if a cell is missing or stands twice, or the log knows its noise.
        """
        if log.Yvar is not None:
            return None
        actions, arm = torch.unique(log.actions, dim=0, return_inverse=True)
        times, step = torch.unique(log.times, return_inverse=True)
        cell = step * len(actions) + arm
        if len(cell) != len(actions) * len(times) or len(torch.unique(cell)) != len(cell):
            return None
        values = log.Y.new_empty(len(cell)).scatter(0, cell, log.Y)
        return cls(actions, times, values.reshape(len(times), len(actions)))


def panel_rows(values: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """A ``T x n`` panel as rows ``[arm index | time]`` and outcomes, ``Tn x 2`` and ``Tn x 1``.

    Raises:
        BotorchTensorDimensionError: if there is not one time for each row of ``values``.
    """
    if values.ndim != 2 or times.shape != values.shape[:1]:
        raise BotorchTensorDimensionError(
            f"Expected values T x n and T times. Got values.shape={tuple(values.shape)}, "
            f"times.shape={tuple(times.shape)}."
        )
    arms = torch.arange(values.shape[1], dtype=torch.float64)
    grid_t, grid_arm = torch.meshgrid(times.to(torch.float64), arms, indexing="ij")
    return torch.stack([grid_arm.flatten(), grid_t.flatten()], dim=-1), values.reshape(-1, 1)
