"""Progress bars on stderr."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from tvbo.terminal import visible

T = TypeVar("T")

PATIENCE = 2.0
"""Seconds after which :func:`patient_progress_bar` shows its bar."""


def progress_bar(steps: Sequence[T], label: str, shown: bool) -> Iterable[T]:
    """Return the steps, with a progress bar on stderr, where it does not mix with results.

    Args:
        steps: The steps.
        label: Description in front of the bar.
        shown: Whether to show a bar.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import track

    label = escape(visible(label))
    return track(steps, description=label, console=Console(stderr=True), disable=not shown)


def patient_progress_bar(steps: Iterable[T], total: int, label: str, shown: bool) -> Iterator[T]:
    """Yield the steps, with a progress bar on stderr that appears after :data:`PATIENCE` seconds.

    Args:
        steps: The steps.
        total: Number of steps.
        label: Description in front of the bar.
        shown: Whether to show a bar.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), disable=not shown)
    task = bar.add_task(escape(visible(label)), total=total)
    is_slow = False
    try:
        for step in steps:
            yield step
            bar.advance(task)
            if not is_slow and (bar.tasks[0].elapsed or 0.0) > PATIENCE:
                is_slow = True
                bar.start()
    finally:
        if is_slow:
            bar.stop()
