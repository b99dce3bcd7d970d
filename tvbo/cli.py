"""The command line: ``tvbo fit``, ``reproduce``, ``data``, ``demo``, ``runs``."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated

import torch
import typer
from botorch.exceptions.errors import BotorchError

import tvbo
from tvbo.commands import data, demo, fit, reproduce, runs
from tvbo.models import DriftFitError
from tvbo.terminal import visible

FAULT, BAD_INPUT, INTERRUPTED = 1, 2, 130

app = typer.Typer(
    help="Bayesian optimization for problems that do not hold still.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(fit.fit)
app.command()(reproduce.reproduce)
app.command()(demo.demo)
app.add_typer(data.app, name="data")
app.add_typer(runs.app, name="runs")


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
    """Run the command line; what is wrong is said on stderr, control characters shown.

    Exit codes: 2 and one line where the input is bad, 130 and one line after Ctrl-C, 1 and a
    traceback where tvbo is at fault.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        # Matrices are small here: more threads mostly wait for one another.
        torch.set_num_threads(1)
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = app(arguments or ["--help"], standalone_mode=False)
    except typer.TyperException as error:
        _fail(error.format_message())
    except (ValueError, BotorchError, DriftFitError, OSError) as error:
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", code=INTERRUPTED)
    except Exception:
        for line in traceback.format_exc().rstrip("\n").split("\n"):
            print(visible(line), file=sys.stderr)  # noqa: T201
        sys.exit(FAULT)
    if code == INTERRUPTED:
        # Typer makes an exit code of Ctrl-C.
        _fail("interrupted", code=INTERRUPTED)
    sys.exit(code or 0)


def _fail(message: str, code: int = BAD_INPUT) -> None:
    print("tvbo: " + visible(" ".join(message.split())), file=sys.stderr)  # noqa: T201
    sys.exit(code)
