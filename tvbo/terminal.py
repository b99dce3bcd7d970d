"""What is shown on a terminal: text made safe to print, and progress bars, or lines, on stderr.

A header of a CSV file, the reason of a trial or the message of a worker's exception may contain
escape sequences, which a terminal would interpret. All text that the commands print is escaped.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from html import escape
from threading import Event, Thread

PATIENCE = 2.0
"""Seconds after which :func:`patient_steps` shows its bar."""

PERIOD = 10.0
"""Seconds between the lines of :func:`progress_lines`."""


def visible(text: str) -> str:
    r"""Return ``text`` with every unprintable character escaped as in ``repr``, such as ``\x1b``.

    These are control characters (newlines and tabs too), marks that change the direction of
    writing, other invisible format characters, separators other than the space, and lone
    surrogates (:meth:`str.isprintable`).
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@contextmanager
def _repeating(act: Callable[[], object], period: float, shown: bool) -> Iterator[None]:
    """Call a function every few seconds, also in the midst of a step."""
    ended = Event()

    def repeat() -> None:
        while not ended.wait(period):
            act()

    thread = Thread(target=repeat, daemon=True)
    if shown:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if shown:
            thread.join()


@contextmanager
def progress_lines(
    label: str, shown: bool, period: float = PERIOD
) -> Generator[Callable[[str], None]]:
    """Yield a function that is given each step, which a line on stderr states every few seconds.

    For a file or a pipe, where a bar would not be seen.

    Args:
        label: Description in front of the step.
        shown: Whether to print lines.
        period: Seconds between two lines, and before the first.
    """
    begun, current = time.monotonic(), ["begun"]

    def say() -> None:
        seconds = time.monotonic() - begun
        print(visible(f"{label}: {current[0]}, {seconds:.0f} s so far"), file=sys.stderr)  # noqa: T201

    with _repeating(say, period, shown):
        yield partial(current.__setitem__, 0)


@contextmanager
def patient_steps(
    steps: Sequence[str], label: str, shown: bool
) -> Generator[Callable[[str], None]]:
    """Yield a function that is given each step, which a bar on stderr shows after :data:`PATIENCE`.

    The bar appears also in the midst of a long step, and is removed at the end. Where there is
    neither a terminal nor a notebook, there are :func:`progress_lines`.

    Args:
        steps: Names of all steps, in order; a name may stand for several, and be given again.
        label: Description in front of the step.
        shown: Whether to show a bar.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    is_seen = console.is_terminal or console.is_jupyter
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("step {task.fields[number]} of {task.total}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task(visible(label), total=len(steps), number=1)
    number = 0

    def on_step(step: str) -> None:
        nonlocal number
        number = 1 + steps.index(step, number if step in steps[number:] else 0)
        words = visible(f"{label}: {step}")
        bar.update(task, description=words, completed=number - 1, number=number)
        say(f"{step}, step {number} of {len(steps)}")

    with progress_lines(label, shown and not is_seen) as say:
        try:
            # Once it is shown, this shows it no further.
            with _repeating(bar.start, PATIENCE, shown and is_seen):
                yield on_step
        finally:
            if bar.live.is_started:
                bar.stop()


class TrialProgress:
    """Progress bar of a run, with the number of trials that are open, failed or expired.

    Args:
        total: Number of trials of the run.
        label: What the bar says.
        shown: Whether to show it.
    """

    def __init__(self, total: int, label: str, shown: bool):
        from rich import progress
        from rich.console import Console

        self._shown = shown
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[counts]}"),
            progress.TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )
        self._task = self._bar.add_task(visible(label), total=total, counts="")

    def __enter__(self) -> TrialProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, ended: int, counts: Mapping[str, int], newest: str = "") -> None:
        """Show how many trials of the run have ended, and how many there are by status.

        Args:
            ended: Number of trials that have ended.
            counts: Number of trials by status.
            newest: What is known of the newest trials, as text.
        """
        if self._shown:
            words = [f"{counts.get('open', 0)} open"]
            words += [f"{counts[end]} {end}" for end in ("failed", "expired") if counts.get(end)]
            words += [newest] if newest else []
            self._bar.update(self._task, completed=ended, counts=visible(", ".join(words)))


def html_table(cells: Mapping[str, object]) -> str:
    """Return a table of one row, with its heads, as notebooks show it."""
    heads = "".join(f"<th>{escape(str(name))}</th>" for name in cells)
    values = "".join(f"<td>{escape(str(value))}</td>" for value in cells.values())
    return f"<table><tr>{heads}</tr><tr>{values}</tr></table>"
