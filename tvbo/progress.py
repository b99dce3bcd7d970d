"""A progress bar for long work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import track

from tvbo.terminal import visible

T = TypeVar("T")


def progress_bar(steps: Sequence[T], label: str, shown: bool) -> Iterable[T]:
    """The steps, with a progress bar on stderr, where it does not mix with results."""
    label = escape(visible(label))
    return track(steps, description=label, console=Console(stderr=True), disable=not shown)
