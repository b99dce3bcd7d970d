"""A progress bar for long work."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, track

from tvbo.terminal import visible

T = TypeVar("T")

PATIENCE = 2.0
"""Seconds that work may take before :func:`patient_progress_bar` shows anything."""


def progress_bar(steps: Sequence[T], label: str, shown: bool) -> Iterable[T]:
    """The steps, with a progress bar on stderr, where it does not mix with results."""
    label = escape(visible(label))
    return track(steps, description=label, console=Console(stderr=True), disable=not shown)


def patient_progress_bar(steps: Iterable[T], total: int, label: str, shown: bool) -> Generator[T]:
    """As :func:`progress_bar`, but nothing is shown of work that is soon done.

    Args:
        steps: The steps.
        total: Their number.
        label: What the bar says.
        shown: Whether to show it at all.
    """
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
