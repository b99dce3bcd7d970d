"""Temperatures of the Intel Berkeley Research Lab, March 2004."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from experiments.data.empirical import EmpiricalPanel
from experiments.data.recorded import data_folder
from tvbo.logs.reading import TableError, read_panel
from tvbo.logs.reading.files import UNREADABLE, read_csv
from tvbo.logs.reading.log import numbers_of

FILE = "intel_lab/temperature.csv.gz"
POSITIONS = "intel_lab/mote_locs.csv"
TRAIN_STEPS = 432
"""Three days of 10-minute steps; the two days after them are for testing."""

FIRST_DAY, LAST_DAY = "2004-03-04", "2004-03-08"
NUM_DAYS = 5
STEP = "5min"
STEPS_PER_DAY = 288
DROPPED_MOTES = (5, 12, 15, 18, 27, 29, 30, 33)
"""5 and 15 hardly report; 18's battery fails; the others have the most gaps."""
RAW_COLUMNS = ("date", "time", "epoch", "mote", "temperature", "humidity", "light", "voltage")
PLAUSIBLE = {"temperature": (0, 50), "voltage": (2.0, 3.2), "humidity": (0, 100)}


def intel_lab(folder: str | Path | None = None) -> EmpiricalPanel:
    """Return the 46 motes in 10-minute steps, 4-6 March for training, 7-8 March for testing.

    Args:
        folder: Data folder; default the one that the environment variable ``TVBO_DATA`` names.

    Raises:
        FileNotFoundError: if there is no such folder.
        TableError: if there is no such file in it.
    """
    panel = read_panel(data_folder(folder) / FILE, resample="10min")
    return EmpiricalPanel(
        train=panel.values[:TRAIN_STEPS],
        test=panel.values[TRAIN_STEPS:],
        arms=panel.arms,
        time_unit="10min",
        origin=panel.axis.origin,
    )


@dataclass(frozen=True)
class SensorDays:
    """Readings of whole days of sensors with known positions.

    Args:
        values: ``T x n`` readings of ``n`` sensors at ``T`` times.
        times: ``T``, in hours since the midnight at which the first day began.
        positions: ``n x 2``, in meters.
        arms: Names of the sensors.
    """

    values: Tensor
    times: Tensor
    positions: Tensor
    arms: list[str]


def intel_lab_days(
    folder: str | Path | None = None, first_day: int = 0, days: int = 4
) -> SensorDays:
    """Return the 46 motes in 5-minute steps with their positions, by default of 4-7 March.

    Args:
        folder: Data folder; default the one that the environment variable ``TVBO_DATA`` names.
        first_day: Index of the first day, of the five from 4 March (a Thursday) on.
        days: Number of days.

    Raises:
        FileNotFoundError: if there is no such folder.
        TableError: if there is no such file in it, or a mote has no position.
        ValueError: if there are no such days.
    """
    if not (first_day >= 0 and 1 <= days <= NUM_DAYS - first_day):
        raise ValueError(
            f"Expected days among the {NUM_DAYS} there are. "
            f"Got {days} from day {first_day} on, counted from 0."
        )
    folder = data_folder(folder)
    rows = f"{STEPS_PER_DAY * first_day}:{STEPS_PER_DAY * (first_day + days)}"
    panel = read_panel(folder / FILE, rows=rows, time_unit="1h")
    return SensorDays(
        panel.values, panel.axis.times, _positions(folder / POSITIONS, panel.arms), panel.arms
    )


def _positions(path: Path, arms: list[str]) -> Tensor:
    frame = read_csv(path)
    missing = [name for name in ("id", "x", "y") if name not in frame.columns]
    if missing:
        raise TableError(
            f"Expected columns id, x and y in {path}. "
            f"Got columns {', '.join(map(str, frame.columns))}."
        )
    places = {
        str(mote): place
        for mote, *place in zip(
            frame["id"], *(numbers_of(frame[name], path) for name in ("x", "y")), strict=True
        )
    }
    unknown = [arm for arm in arms if arm not in places]
    if unknown:
        raise TableError(f"Expected a place for every mote in {path}. Got none for {unknown[0]}.")
    return torch.tensor([places[arm] for arm in arms], dtype=torch.float64)


def build_intel_lab(
    raw: str | Path,
    dropped_motes: tuple[int, ...] = DROPPED_MOTES,
    on_step: Callable[[str], None] = lambda step: None,
) -> pd.DataFrame:
    """Build the panel of temperatures from the original public download.

    Readings outside plausible ranges of temperature (°C), voltage (V) or humidity (%) are
    rejected; the rest is averaged over 5-minute bins; gaps are filled by linear interpolation in
    time, and at the ends by the nearest value.

    Args:
        raw: ``data.txt`` or ``data.txt.gz``: date, time, epoch, mote id, temperature, humidity,
            light and voltage, separated by blanks.
        dropped_motes: Motes to leave out.
        on_step: Function called with a description of each step.

    Returns:
        One row per bin, indexed by ``timestamp``, one column per mote id, in °C to four decimals.

    Raises:
        TableError: if the file cannot be read or has no usable reading of those days.
    """
    if not Path(raw).is_file():
        raise TableError(f"Expected the file data.txt.gz. Got {raw}, which is no file.")
    on_step("reading")
    try:
        readings = pd.read_csv(raw, sep=r"\s+", names=RAW_COLUMNS, header=None)
    except UNREADABLE as error:
        raise TableError(
            f"Expected blank-separated columns {', '.join(RAW_COLUMNS)}. Got {raw}: {error}."
        ) from error
    on_step("averaging")
    times = pd.to_datetime(
        readings["date"].astype(str) + " " + readings["time"].astype(str),
        errors="coerce",
        format="ISO8601",
    )
    end = pd.Timestamp(LAST_DAY) + pd.Timedelta("1D")
    usable = (times >= pd.Timestamp(FIRST_DAY)) & (times < end) & readings["mote"].notna()
    for name, (low, high) in PLAUSIBLE.items():
        usable &= pd.to_numeric(readings[name], errors="coerce").between(low, high)
    usable &= ~readings["mote"].isin(dropped_motes)
    if not usable.any():
        raise TableError(
            f"Expected readings from {FIRST_DAY} to {LAST_DAY}. "
            f"Got {len(readings)} lines in {raw}, none of them usable."
        )
    kept = readings[usable].assign(timestamp=times[usable].dt.floor(STEP))
    panel = kept.groupby(["timestamp", "mote"])["temperature"].mean().unstack("mote")
    bins = pd.date_range(FIRST_DAY, end, freq=STEP, inclusive="left", name="timestamp")
    panel = panel.reindex(bins).sort_index(axis=1)
    panel.columns = [str(int(mote)) for mote in panel.columns]
    return panel.interpolate(method="time", limit_direction="both").round(4)
