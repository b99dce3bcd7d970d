"""``tvbo status``: the state of a run by its rows, without a model."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tvbo.cli.app import Run, print_rows, print_values, title_of
from tvbo.service.status import status as status_of
from tvbo.storage.rows import read_run

TABLES = {
    "last_week": "Outcomes of the last week",
    "newest": "Newest outcomes",
    "open_trials": "Open trials",
}
"""Titles of what is printed in a table of its own."""

CAPTION = (
    "in_band: within the 95 % band of what was predicted at the ask. mean_error: outcome less "
    "prediction."
)


def status(
    run: Run, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Say which trials are open, and what came of the newest.

    Reads rows only, also while another command writes. What is recommended is said by tvbo
    recommend.
    """
    rows = read_run(run)
    found = status_of(rows)
    if as_json:
        typer.echo(json.dumps(found))
        return
    values = {n.replace("_", " "): value for n, value in found.items() if n not in TABLES}
    print_values(title_of(rows.name), values)
    for name, title in TABLES.items():
        if table := found.get(name):
            print_rows(title, table, CAPTION if "predicted" in table[0] else None)
