"""What commands of a run are given: options, and contexts and outcomes in text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from botorch.exceptions.errors import InputDataError

from tvbo.cli.app import without_password
from tvbo.cli.space_file import SpaceError, optimizer_of, read_text
from tvbo.optimizers import Optimizer
from tvbo.service.calls import number
from tvbo.spaces.search_space import SearchSpace
from tvbo.storage import StorageError

As = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Time = Annotated[str | None, typer.Option("--t", help="The time; with time_unit, now.")]
Context = Annotated[
    list[str] | None, typer.Option("--context", help="A value, NAME=VALUE; once for each.")
]
Wait = Annotated[
    float, typer.Option(help="Seconds to wait for others, or for a database that is away.", min=0)
]
Space = Annotated[
    Path | None, typer.Option(help="The SPACE file, if it should be compared with the run's.")
]


@contextmanager
def opened(run: str, wait: float, space: Path | None = None) -> Iterator[Optimizer]:
    """Open a run for writing; none of its code is run."""
    like = None if space is None else optimizer_of(read_text(space), str(space))
    try:
        optimizer = Optimizer.open(run, like=like, wait=wait)
    except StorageError as error:
        if space is None or type(error) is not StorageError:
            raise
        raise SpaceError(
            f"{error} To go on by a changed file: tvbo new {space} NEW.db --from "
            f"{without_password(run)}."
        ) from error
    with optimizer:
        yield optimizer


def outcome_of(optimizer: Optimizer, given: Sequence[str]) -> dict[str, float] | float:
    """Return one number, or several of NAME=VALUE."""
    if len(given) == 1 and "=" not in given[0]:
        return number("an outcome", given[0])
    texts = read_named(given, optimizer.labels.outcomes, "NAME=VALUE for each outcome")
    return {name: number("an outcome", text) for name, text in texts.items()}


def context_of(optimizer: Optimizer, given: Sequence[str] | None) -> dict[str, Any] | None:
    """Return the context of options NAME=VALUE; None without."""
    return values_of(optimizer.contexts, given, "--context NAME=VALUE") if given else None


def values_of(space: SearchSpace | None, given: Sequence[str], form: str) -> dict[str, Any]:
    """Return the values of an action or a context, NAME=VALUE for each; numbers without names."""
    parameters = None if space is None else space.parameters
    texts = read_named(given, [] if parameters is None else parameters.names, form)
    if parameters is None:
        return {name: number(name, text) for name, text in texts.items()}
    parts = {part.name: part for part in parameters.parts}
    # What is none is left for the parameters to refuse.
    return {name: parts[name].read(text) if name in parts else text for name, text in texts.items()}


def read_named(given: Sequence[str], declared: Sequence[str], form: str) -> dict[str, str]:
    """Return texts NAME=VALUE by name."""
    values: dict[str, str] = {}
    for each in given:
        # A declared name may have a sign of equality in it.
        name = next((known for known in declared if each.startswith(f"{known}=")), None)
        if name is None:
            name = each.partition("=")[0]
        text = each.removeprefix(f"{name}=")
        if text == each or name in values:
            raise InputDataError(f"Expected {form}, each name once. Got {each!r}.")
        values[name] = text
    return values
