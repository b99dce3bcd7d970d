"""Tables of a reproduction: results, and the paper's claims."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from experiments.claims import Reproduction
from tvbo.cli.app import console

MEASURES_ABREAST = 4
"""Number of columns that fit a terminal of 80 characters."""


def print_reproduction(result: Reproduction) -> None:
    """Print a reproduction as tables: results, and the paper's claims with the measured figures."""
    measures = list(next(iter(result.results.values())))
    for first in range(0, len(measures), MEASURES_ABREAST):
        shown = measures[first : first + MEASURES_ABREAST]
        table = Table(title=result.title if first == 0 else None)
        table.add_column(result.row_label)
        for measure in shown:
            table.add_column(measure.replace("_", " "), justify="right")
        for name, row in result.results.items():
            table.add_row(name, *(_number(row[measure]) for measure in shown))
        console.print(table)
    claims = Table(title="The paper's claims", show_lines=True)
    for column, justify in (
        ("claim", "left"),
        ("paper", "left"),
        ("here", "right"),
        ("s.e.", "right"),
        ("held", "left"),
    ):
        claims.add_column(column, justify=justify)
    for claim in result.claims:
        held = Text("yes", "green") if claim.held else Text("no", "red")
        claims.add_row(
            claim.claim, claim.paper, f"{claim.figure:.4g}", _number(claim.standard_error), held
        )
    console.print(claims)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
