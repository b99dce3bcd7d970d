"""Temperatures of the Intel Berkeley Research Lab, March 2004."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from tvbo.csv_files import UNREADABLE, TableError
from tvbo.problems.empirical import EmpiricalPanel
from tvbo.problems.recorded import data_folder
from tvbo.tables import read_panel

FILE = "intel_lab/temperature.csv.gz"
TRAIN_STEPS = 432
"""Three days of 10-minute steps; the two days after them are for testing."""

FIRST_DAY, LAST_DAY = "2004-03-04", "2004-03-08"
STEP = "5min"
DROPPED_MOTES = (5, 12, 15, 18, 27, 29, 30, 33)
"""5 and 15 hardly report; 18's battery fails; the others have the most gaps."""
RAW_COLUMNS = ("date", "time", "epoch", "mote", "temperature", "humidity", "light", "voltage")
PLAUSIBLE = {"temperature": (0, 50), "voltage": (2.0, 3.2), "humidity": (0, 100)}


def intel_lab(folder: str | Path | None = None) -> EmpiricalPanel:
    """The 46 motes in 10-minute steps, 4-6 March for training and 7-8 March for testing.

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
    )


def build_intel_lab(
    raw: str | Path,
    dropped_motes: tuple[int, ...] = DROPPED_MOTES,
    on_step: Callable[[str], None] = lambda step: None,
) -> pd.DataFrame:
    """The panel of temperatures, from the original public download.

    Readings outside plausible ranges of temperature (°C), voltage (V) or humidity (%) are
    rejected; the rest is averaged over 5-minute bins; gaps are filled by linear interpolation in
    time, and at the ends by the nearest value.

    Args:
        raw: ``data.txt`` or ``data.txt.gz``: date, time, epoch, mote id, temperature, humidity,
            light and voltage, separated by blanks.
        dropped_motes: Motes left out.
        on_step: Called with a few words at each step.

    Returns:
        One row per bin, indexed by ``timestamp``, one column per mote id, in °C to four decimals.

    Raises:
        TableError: if the file cannot be read or holds no usable reading of those days.
    """
    if not Path(raw).is_file():
        raise TableError(f"Expected the file data.txt.gz. Got {raw}, which is no file.")
    on_step("reading")
    try:
        readings = pd.read_csv(raw, sep=r"\s+", names=RAW_COLUMNS, header=None)
    except (ValueError, *UNREADABLE) as error:
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
