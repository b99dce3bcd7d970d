"""Output of benchmarks: a table on the terminal, figures as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from torch import Tensor


def parser(description: str) -> argparse.ArgumentParser:
    """Return an argument parser with the option of all benchmarks."""
    made = argparse.ArgumentParser(description=description.splitlines()[0])
    made.add_argument("--json", type=Path, help="save the figures as JSON")
    return made


def show(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], figures: object, path: Path
) -> None:
    """Print a table, and save the figures if a path is given."""
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=2) + "\n")


def with_error(values: Tensor, form: str = ".2f", error_form: str = "") -> str:
    """Return the mean of independent values and its standard error as text."""
    error = values.std().item() / len(values) ** 0.5
    return f"{values.mean().item():{form}} ± {error:{error_form or form}}"
