"""Output of commands: consoles, tables, and a spinner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tvbo.fitting import DriftFit
from tvbo.terminal import visible


class SafeConsole(Console):
    """A Rich console that prints strings without markup or emoji codes, as :func:`visible` text.

    Rich turns every string into text by :meth:`render_str`, including cells and titles of tables.
    Styled text is passed as :class:`rich.text.Text`, which is trusted.
    """

    def __init__(self, stderr: bool = False):
        super().__init__(stderr=stderr, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as text, with unprintable characters escaped."""
        return super().render_str(visible(text), **options)


console = SafeConsole()
progress_console = SafeConsole(stderr=True)


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner on stderr, and yield a function that reports the current step."""
    with progress_console.status(what) as status:
        yield lambda step: status.update(f"{what}: {step}")


def note(words: str) -> None:
    """Print a remark below a result."""
    text = Text.assemble(("note:", "yellow"), " ", visible(words))
    console.print(text, highlight=False, soft_wrap=True)


def saved(path: Path) -> None:
    """Print that a file was written."""
    console.print(f"saved {path}", soft_wrap=True, highlight=False)


def print_drift_fit(fit: DriftFit) -> None:
    """Print a fit as a table, and its messages."""
    low, high = fit.forgetting_rate_interval
    table = Table(title="Drift of the log", show_header=False)
    table.add_column(justify="left")
    table.add_column(justify="left")
    table.add_row("forgetting rate ε", f"{fit.forgetting_rate:.4g} per {fit.time_unit}")
    table.add_row(f"{fit.level:.0%} interval", f"{low:.4g} to {high:.4g}")
    table.add_row("correlation half-life", _in_time(fit.half_life, fit.time_unit))
    if fit.noise_variance is not None:
        table.add_row("noise variance σ²", f"{fit.noise_variance:.4g}")
    others = [(v, rate) for v, rate in fit.forgetting_rate_by_noise if v != fit.noise_variance]
    if others:
        lines = [f"{rate:.4g} with {variance:.4g}" for variance, rate in others]
        table.add_row("ε with another σ²", Text("\n".join(lines)))
    table.add_row("prior mean", f"{fit.mean:.4g}")
    if fit.lengthscales:
        table.add_row("length-scales", ", ".join(f"{x:.4g}" for x in fit.lengthscales))
    if fit.outputscale is not None:
        table.add_row("signal variance", f"{fit.outputscale:.4g}")
    table.add_row("log likelihood", f"{fit.log_likelihood:.2f}")
    table.add_row(
        "test of ε = 0", f"likelihood ratio {fit.lr_statistic:.4g}, p = {_p_value(fit.lr_pvalue)}"
    )
    table.add_row(
        "block length N of R-GP-UCB",
        f"{fit.block_length} rounds = "
        + _in_time(fit.block_length * fit.round_length, fit.time_unit),
    )
    table.add_row("observations", f"{fit.n_observations}")
    console.print(table)
    for message in fit.messages:
        note(message)


def _in_time(amount: float, unit: str) -> str:
    """Format an amount of time in its unit, and in hours if the unit is one of pandas."""
    import pandas as pd

    text = f"{amount:.4g} × {unit}"
    try:
        hours = amount * pd.Timedelta(unit) / pd.Timedelta("1h")
    except ValueError:
        return text
    return f"{text} = {hours:.3g} h"


def _p_value(p: float) -> str:
    return f"{p:.3g}" if p >= 1e-300 else "below 1e-300"
