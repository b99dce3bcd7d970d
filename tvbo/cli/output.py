"""Output of commands: consoles, tables, a spinner; and files, written atomically."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
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


class OutputError(ValueError):
    """An output file that cannot be written, or that would overwrite an input."""


def check_outputs(
    outputs: Mapping[str, Path | None], inputs: Iterable[Path] = (), makes_folders: bool = False
) -> None:
    """Raise unless every output can be written and is not one of the inputs.

    Args:
        outputs: Files to write, by option; None for an option that was not given.
        inputs: Files that the command reads; links to them are recognized.
        makes_folders: Whether the command creates missing folders.

    Raises:
        OutputError: if an output is an input, another output or a folder, or its folder is missing
            or not writable.
    """
    given = {option: path for option, path in outputs.items() if path is not None}
    inputs = list(inputs)
    for number, (option, path) in enumerate(given.items()):
        for source in inputs:
            if _same(path, source):
                also = "" if path == source else f", which is {source}"
                raise OutputError(
                    f"Expected another file for {option} than those that are read. Got "
                    f"{path}{also}."
                )
        for other, second in list(given.items())[:number]:
            if _same(path, second):
                raise OutputError(
                    f"Expected different files for {other} and {option}. Got {second} and {path}."
                )
        _check_writable(option, path, makes_folders)


def check_picture(option: str, path: Path | None) -> None:
    """Raise unless the name of a picture ends in a format that Matplotlib can write.

    Raises:
        OutputError: if it does not.
    """
    from matplotlib import rcParams
    from matplotlib.backend_bases import FigureCanvasBase

    formats = set(FigureCanvasBase.get_supported_filetypes())
    if shutil.which(rcParams["pgf.texsystem"]) is None:
        formats.discard("pgf")
    if path is not None and path.suffix[1:].lower() not in formats:
        raise OutputError(
            f"Expected a picture for {option} whose name ends in one of "
            f"{', '.join('.' + name for name in sorted(formats))}. Got {path}."
        )


@contextmanager
def saving(path: Path) -> Iterator[Path]:
    """Yield a path to write to, and rename it to ``path`` when it is written.

    An existing file is replaced only then, and kept if the writing is interrupted.
    """
    partial, target = _partial(path)
    try:
        yield partial
        if partial != target:
            if target.exists():
                shutil.copymode(target, partial)
            os.replace(partial, target)
    finally:
        if partial != target:
            partial.unlink(missing_ok=True)
    saved(path)


def _partial(path: Path) -> tuple[Path, Path]:
    """Return the temporary path and the final one; devices and pipes are written directly."""
    if path.exists() and not path.is_file():
        return path, path
    # Links are followed, so that the file is replaced and not the link. The ending is kept, since
    # it may determine the format and the compression.
    target = Path(os.path.realpath(path))
    return target.with_name(f".{os.getpid()}-{target.name}"), target


def _check_writable(option: str, path: Path, makes_folders: bool) -> None:
    if path.is_dir():
        raise OutputError(f"Expected a file for {option}. Got {path}, which is a folder.")
    partial, target = _partial(path)
    if partial == target:
        return
    folder = target.parent
    if makes_folders:
        folder = next(known for known in (folder, *folder.parents) if known.exists())
    if not folder.is_dir():
        raise OutputError(
            f"Expected a file in an existing folder for {option}. Got {path}, but {folder} is "
            "no folder."
        )
    probe = folder / partial.name
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OutputError(
            f"Expected a file for {option} that can be written. Got {path}: {error.strerror}."
        ) from error


def _same(first: Path, second: Path) -> bool:
    """Return whether two paths are the same file, which need not exist yet."""
    if os.path.realpath(first) == os.path.realpath(second):
        return True
    return first.exists() and second.exists() and first.samefile(second)
