"""Run a command line: errors as one line on stderr, and their exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn

import torch
import typer
from botorch.exceptions.errors import BotorchError

from tvbo.fitting import DriftFitError
from tvbo.terminal import visible

FAULT, BAD_INPUT, INTERRUPTED = 1, 2, 130


def run_app(app: typer.Typer, name: str, arguments: list[str] | None = None) -> NoReturn:
    """Run a command line; what is wrong is said on stderr, control characters shown.

    Exit codes: 2 and one line where the input is bad, 130 and one line after Ctrl-C, 1 and a
    traceback where the code is at fault.

    Args:
        app: Its commands.
        name: What its messages begin with.
        arguments: The words of the command line; default those of this process.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        # Matrices are small here: more threads mostly wait for one another.
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
        sys.exit(FAULT)
    if code == INTERRUPTED:
        # Typer makes an exit code of Ctrl-C.
        _fail(name, "interrupted", code=INTERRUPTED)
    sys.exit(code or 0)


def _fail(name: str, message: str, code: int = BAD_INPUT) -> NoReturn:
    print(f"{name}: " + visible(" ".join(message.split())), file=sys.stderr)  # noqa: T201
    sys.exit(code)
