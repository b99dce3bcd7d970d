"""A measurement's table on the terminal, and its figures as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with the option that every measurement has."""
    made = argparse.ArgumentParser(description=description.splitlines()[0])
    made.add_argument("--json", type=Path, help="save the figures as JSON")
    return made


def show(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], figures: object, path: Path
) -> None:
    """Print the table; save the figures if a path was given."""
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=2) + "\n")
