"""The command line: a loop from the shell, fits of logs, and a look at runs."""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from typing import Annotated

import typer

import tvbo
from tvbo.cli.app import run_app

COMMANDS = {
    "new": ("loop:new", "Begin a run of what SPACE.toml describes."),
    "ask": ("loop:ask", "Ask for the next trial."),
    "tell": ("loop:tell", "Tell the outcome of a trial; a negative one after --."),
    "fail": ("loop:fail", "Say that a trial has no outcome, and will not have one."),
    "expire": ("loop:expire", "Give up a trial, or all that are overdue."),
    "status": ("status:status", "Say which trials are open, and what came of the newest."),
    "recommend": ("loop:recommend", "Say which action is best by the model."),
    "front": ("loop:front", "Say which actions are the best compromises of several outcomes."),
    "predict": ("loop:predict", "Say what the model expects of an action."),
    "drift": ("loop:drift", "Say how fast an outcome drifts."),
    "diagnose": (
        "diagnose:run_diagnose",
        "Say whether outcomes came as the model predicted them, and what it learned of the drift.",
    ),
    "report": (
        "diagnose:report",
        "Save the page of a run: what is recommended, how fast it drifts, what matters, and why.",
    ),
    "serve": ("serve:serve", "Serve runs over HTTP: pages for people, calls as JSON for programs."),
    "backup": ("runs:backup", "Copy a run as it is now, also while another command writes."),
    "runs": ("runs:app", "Look at runs, finished or in progress."),
    "fit": ("fit:fit", "Learn how fast the objective drifts from a log, with an interval."),
    "backtest": (
        "backtest:run_backtest",
        "Fit algorithms on the first rows of a panel, and play them on the rest.",
    ),
    "demo": ("demo:demo", "Learn from a log how fast an optimum moves, then follow it."),
}
"""Each command: its function, in a module that is imported only where the command is given, and
what it does, as the list of commands says it."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; without arguments, show its help."""
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.callback()(root)
    for name, (place, words) in COMMANDS.items():
        if name != arguments[0]:
            app.command(name, help=words)(_nothing)
            continue
        module, function = place.split(":")
        # What is imported stays, so that collecting garbage meanwhile only takes time: a fifth of a
        # second, as much as a command that reads a run takes.
        gc.disable()
        command = getattr(import_module(f"tvbo.cli.{module}"), function)
        gc.freeze()
        gc.enable()
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    run_app(app, "tvbo", arguments)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tvbo {tvbo.__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Bayesian optimization for problems that do not hold still."""


def _nothing() -> None:
    """Stand for a command that was not given."""


__all__ = ["main"]
