"""``python -m experiments.data``: recorded data built from the original public downloads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.data.intel_lab import FILE, build_intel_lab
from tvbo.cli.app import check_outputs, run_app, saving, working

app = typer.Typer(help="Build recorded data from the original public downloads.")


@app.callback()
def data() -> None:
    """Build recorded data from the original public downloads."""


@app.command("intel-lab")
def intel_lab(
    source: Annotated[
        Path, typer.Option("--from", help="data.txt.gz of the Intel Lab Data download.")
    ],
    out: Annotated[
        Path, typer.Option(help="Data folder to build in; set TVBO_DATA to it afterwards.")
    ] = Path("data"),
) -> None:
    """Build temperatures of the Intel Berkeley Lab: 46 motes, 4-8 March 2004, 5-minute steps."""
    path = out / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    check_outputs({"--out": path}, [source])
    with working("building") as on_step:
        panel = build_intel_lab(source, on_step=on_step)
    with saving(path) as file:
        panel.to_csv(file)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    run_app(app, "experiments.data", arguments)
