"""The Typer application, and its entry point: errors as one line on stderr, and exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated, NoReturn

import torch
import typer
from botorch.exceptions.errors import BotorchError

import tvbo
from tvbo.cli import backtest, demo, fit, moved, runs
from tvbo.fitting import DriftFitError
from tvbo.terminal import visible

CODE_ERROR, BAD_INPUT, INTERRUPTED = 1, 2, 130

app = typer.Typer(
    help="Bayesian optimization for problems that do not hold still.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(fit.fit)
app.command(name="backtest")(backtest.run_backtest)
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


def run_app(app: typer.Typer, name: str, arguments: list[str] | None = None) -> NoReturn:
    """Run a command line and exit; errors go to stderr, with control characters escaped.

    Exit codes: 2 and one line for bad input, 130 and one line after Ctrl-C, 1 and a traceback for
    an error in the code.

    Args:
        app: The commands.
        name: Name of the program, with which its messages begin.
        arguments: Arguments of the command line; default those of this process.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        # The matrices are small, so that more threads would mostly wait for one another.
        torch.set_num_threads(1)
    try:
        code = app(sys.argv[1:] if arguments is None else arguments, standalone_mode=False)
    except typer.TyperException as error:
        _fail(name, error.format_message())
    except (ValueError, BotorchError, DriftFitError, OSError) as error:
        _fail(name, str(error))
    except (KeyboardInterrupt, typer.Abort):
        _fail(name, "interrupted", code=INTERRUPTED)
    except Exception:
        for line in traceback.format_exc().rstrip("\n").split("\n"):
            print(visible(line), file=sys.stderr)  # noqa: T201
        sys.exit(CODE_ERROR)
    if code == INTERRUPTED:
        # Typer turns Ctrl-C into an exit code.
        _fail(name, "interrupted", code=INTERRUPTED)
    sys.exit(code or 0)


def _fail(name: str, message: str, code: int = BAD_INPUT) -> NoReturn:
    print(f"{name}: " + visible(" ".join(message.split())), file=sys.stderr)  # noqa: T201
    sys.exit(code)
