"""The folder of recorded data."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "TVBO_DATA"


def data_folder(folder: str | Path | None = None) -> Path:
    """Return the folder of recorded data.

    Args:
        folder: A folder, or None for the one that the environment variable ``TVBO_DATA`` names.

    Raises:
        FileNotFoundError: if none is named, or it is no folder.
    """
    if folder is None:
        folder = os.environ.get(VARIABLE)
        if not folder:
            raise FileNotFoundError(
                f"Expected the data folder in the environment variable {VARIABLE}. Got nothing; "
                "'python -m experiments.data intel-lab' builds the temperatures in it from the "
                "public download."
            )
    path = Path(folder)
    if not path.is_dir():
        raise FileNotFoundError(f"Expected a data folder. Got {path}, which is no folder.")
    return path
