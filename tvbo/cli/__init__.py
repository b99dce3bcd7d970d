"""The command line: a loop from the shell, fits of logs, and a look at runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

from tvbo.cli import service
from tvbo.cli.app import app, run_app
from tvbo.cli.status import status

SERVICE: dict[str, Callable[..., None]] = {
    "new": service.new,
    "ask": service.ask,
    "tell": service.tell,
    "fail": service.fail,
    "status": status,
    "backup": service.backup,
}
"""Commands that are called again and again: the modules of the others are not imported for them."""

for _name, _command in SERVICE.items():
    app.command(_name)(_command)


@cache
def add_other_commands() -> None:
    """Import the modules of the commands that are given once in a while."""
    from tvbo.cli import backtest, demo, diagnose, fit, runs

    app.command()(fit.fit)
    app.command(name="backtest")(backtest.run_backtest)
    app.command()(demo.demo)
    app.command(name="diagnose")(diagnose.run_diagnose)
    app.add_typer(runs.app, name="runs")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; without arguments, show its help."""
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if arguments[0] not in SERVICE:
        add_other_commands()
    run_app(app, "tvbo", arguments)


__all__ = ["main"]
