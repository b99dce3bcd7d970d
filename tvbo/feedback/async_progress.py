"""The progress bar of an asynchronous run."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tvbo.feedback.async_history import AsyncHistory
from tvbo.terminal import visible


class AsyncProgress:
    """Counts trials finished, open, failed and expired, on stderr.

    Args:
        total: Number of trials of the run.
        label: What the bar says.
        shown: Whether to show it.
    """

    def __init__(self, total: int, label: str, shown: bool):
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[counts]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )
        self._task = self._bar.add_task(visible(label), total=total, counts="")

    def __enter__(self) -> AsyncProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, finished: int, history: AsyncHistory) -> None:
        """Bring it up to date."""
        number = history.counts
        words = [f"{number['open']} open"]
        words += [f"{number[end]} {end}" for end in ("failed", "expired") if number[end]]
        self._bar.update(self._task, completed=finished, counts=", ".join(words))
