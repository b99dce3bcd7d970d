"""The picture of a run in a notebook, drawn again while the run goes on."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tvbo.optimizers import Optimizer
from tvbo.plotting.figure import save_figure
from tvbo.plotting.history import plot_history
from tvbo.storage import read_run

if TYPE_CHECKING:
    from IPython.display import Image


@contextmanager
def live(optimizer: Optimizer, seconds: float = 2.0) -> Iterator[None]:
    """Show the history of a recorded run in a notebook while the body takes it further.

    Args:
        optimizer: The optimizer.
        seconds: Least pause between two pictures.

    Raises:
        ValueError: if the optimizer is not recorded, so that nothing is kept of its predictions.

    Example:
        >>> optimizer.record("run.db")
        >>> with live(optimizer):
        ...     run(objective, optimizer, horizon=100)
    """
    from IPython.display import DisplayHandle, Image

    if (url := optimizer.recorded_at) is None:
        raise ValueError(
            f"Expected a recorded optimizer: call record() before the first ask. Got {optimizer!r}."
        )

    def picture() -> Image:
        file = io.BytesIO()
        save_figure(plot_history(read_run(url)), file, dpi=100)
        return Image(file.getvalue())

    handle, due = DisplayHandle(), time.monotonic() + seconds
    handle.display(picture())

    def update(*_: object) -> None:
        nonlocal due
        if time.monotonic() >= due:
            handle.update(picture())
            due = time.monotonic() + seconds

    optimizer.add_listener(on_tell=update, on_loss=update)
    try:
        yield
    finally:
        due = float("inf")
        handle.update(picture())
