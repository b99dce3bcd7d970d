"""Speeds on highways of Los Angeles, the mornings of one April."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import pandas as pd
import torch
from torch import Generator

from experiments.data.empirical import EmpiricalPanel
from experiments.data.recorded import data_folder
from tvbo.logs.reading import TableError
from tvbo.logs.reading.files import read_csv
from tvbo.logs.reading.log import numbers_of

FILE = "traffic/speed_morning_filled.csv.gz"
INDEX = ("day", "step")
STEP = "5min"
TRAIN_SHARE = 2 / 3
"""Share of the days for training, rounded to whole days; the rest are for testing."""


@dataclass(frozen=True)
class TrafficDays(EmpiricalPanel):
    """Independent days of recorded speeds: ``train`` and ``test`` are ``days x T x n``.

    Args:
        train: Speeds in mph.
        test: Speeds in mph.
        arms: Names of the sensors.
        time_unit: Unit of a time step.
        train_days: Numbers of the training days.
        test_days: Numbers of the test days.
    """

    train_days: list[int]
    test_days: list[int]

    def sample_sensors(self, count: int, generator: Generator) -> Self:
        """Return the same days for ``count`` random sensors, in random order.

        Raises:
            ValueError: if there are not so many.
        """
        if not 1 <= count <= len(self.arms):
            raise ValueError(f"Expected 1 to {len(self.arms)} sensors. Got {count}.")
        chosen = torch.randperm(len(self.arms), generator=generator)[:count]
        return replace(
            self,
            train=self.train[..., chosen],
            test=self.test[..., chosen],
            arms=[self.arms[i] for i in chosen.tolist()],
        )


def traffic(folder: str | Path | None = None) -> TrafficDays:
    """Read all sensors in 5-minute steps of the mornings, the last third of the days for testing.

    The recorded file holds 19 days, 60 steps (06:00 to 11:00) and 105 sensors: 13 days for training
    and 6 for testing. Speeds are capped at 70 mph.

    Args:
        folder: Data folder; default the one that the environment variable ``TVBO_DATA`` names.

    Raises:
        FileNotFoundError: if there is no such folder.
        TableError: if there is no such file in it, or it does not hold, for two days at least,
            columns ``day`` and ``step``, one column for each sensor, and the same steps every day.
    """
    path = data_folder(folder) / FILE
    frame = read_csv(path)
    if tuple(frame.columns[: len(INDEX)]) != INDEX or frame.shape[1] == len(INDEX):
        raise TableError(
            f"Expected columns day, step and one for each sensor in {path}. "
            f"Got columns {', '.join(map(str, frame.columns[:4]))}."
        )
    frame = frame.apply(lambda column: numbers_of(column, path)).sort_values(list(INDEX))
    days = _check_days(frame, path)
    values = torch.tensor(frame.iloc[:, len(INDEX) :].to_numpy(dtype=float))
    speeds = values.unflatten(0, (len(days), -1))
    split = round(TRAIN_SHARE * len(days))
    return TrafficDays(
        train=speeds[:split],
        test=speeds[split:],
        arms=[str(name) for name in frame.columns[len(INDEX) :]],
        time_unit=STEP,
        train_days=days[:split],
        test_days=days[split:],
    )


def _check_days(frame: pd.DataFrame, path: Path) -> list[int]:
    """Return the days, increasing; raise unless there are two, with the same steps in each."""
    repeated = frame.duplicated(list(INDEX))
    if repeated.any():
        day, step = frame.loc[repeated.idxmax(), list(INDEX)]
        raise TableError(
            f"Expected each step of a day once in {path}. Got day {day:g}, step {step:g} twice."
        )
    steps = frame.groupby("day")["step"].agg(tuple)
    if len(steps) < 2:
        raise TableError(f"Expected two days at least in {path}. Got {len(steps)}.")
    first = steps.index[0]
    for day, here in steps.items():
        if here != steps[first]:
            raise TableError(
                f"Expected the same steps on every day of {path}. Got {len(steps[first])} steps on "
                f"day {first:g}, and on day {day:g} {len(here)} that are not the same."
            )
    return [int(day) for day in steps.index]
