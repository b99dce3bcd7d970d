"""Hidden commands for ``tvbo reproduce`` and ``tvbo data``, which were moved."""

from __future__ import annotations

import shlex
from typing import NoReturn

import typer

ANY_ARGUMENTS = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}
"""Settings of a command that accepts any arguments."""


def reproduce(context: typer.Context) -> NoReturn:
    """Name the command that replaces ``tvbo reproduce``."""
    _moved(context, "python -m experiments")


def data(context: typer.Context) -> NoReturn:
    """Name the command that replaces ``tvbo data``."""
    _moved(context, "python -m experiments.data")


def _moved(context: typer.Context, command: str) -> NoReturn:
    given = f" {shlex.join(context.args)}" if context.args else ""
    raise ValueError(
        f"Expected '{command}{given}', run in a checkout of the repository. "
        f"Got 'tvbo {context.info_name}', which the package no longer has."
    )
