"""The Typer application and the entry point of the command line."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import tvbo
from tvbo.cli import demo, fit, moved, runs
from tvbo.cli.entry import run_app

app = typer.Typer(
    help="Bayesian optimization for problems that do not hold still.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(fit.fit)
app.command()(demo.demo)
app.add_typer(runs.app, name="runs")
app.command(hidden=True, context_settings=moved.ANY_ARGUMENTS)(moved.reproduce)
app.command(hidden=True, context_settings=moved.ANY_ARGUMENTS)(moved.data)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tvbo {tvbo.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Bayesian optimization for problems that do not hold still."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; without arguments, show its help."""
    arguments = sys.argv[1:] if arguments is None else arguments
    run_app(app, "tvbo", arguments or ["--help"])
