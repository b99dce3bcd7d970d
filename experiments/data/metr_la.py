"""Speeds on the highways of Los Angeles, METR-LA (Li et al., 2018), in steps of 5 minutes."""

from __future__ import annotations

from pathlib import Path

from experiments.data.empirical import EmpiricalPanel
from experiments.data.recorded import data_folder
from tvbo.logs.reading import TableError, read_panel

FILE = "metr_la/speed.csv.gz"
TRAIN_STEPS, TEST_STEPS, LATER_STEPS = 1152, 288, 576
"""Four days for training, the next for testing, and two days after that."""


def metr_la(folder: str | Path | None = None, later: bool = False) -> EmpiricalPanel:
    """Return the speeds of all detectors, in mph: four days for training, one for testing.

    Args:
        folder: Data folder; default the one that the environment variable ``TVBO_DATA`` names.
        later: Test on the two days after the test day instead; training stays as it is.

    Raises:
        FileNotFoundError: if there is no such folder.
        TableError: if there is no such file in it, or it is too short.
    """
    path = data_folder(folder) / FILE
    panel = read_panel(path)
    end = TRAIN_STEPS + TEST_STEPS
    if len(panel.values) < end + LATER_STEPS:
        raise TableError(
            f"Expected {end + LATER_STEPS} rows at least in {path}. Got {len(panel.values)}."
        )
    test = panel.values[end : end + LATER_STEPS] if later else panel.values[TRAIN_STEPS:end]
    axis = panel.axis
    train = panel.values[:TRAIN_STEPS]
    return EmpiricalPanel(train, test, panel.arms, axis.unit, origin=axis.origin)
