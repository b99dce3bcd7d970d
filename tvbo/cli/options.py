"""What commands of a run are given: options, and times, contexts and outcomes in text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from botorch.exceptions.errors import InputDataError

from tvbo.optimizers import Optimizer
from tvbo.spaces import Parameters

As = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Time = Annotated[str | None, typer.Option("--t", help="The time; with time_unit, now.")]
Context = Annotated[
    list[str] | None, typer.Option("--context", help="A value, NAME=VALUE; once for each.")
]
Wait = Annotated[
    float, typer.Option(help="Seconds to wait for another command on this run.", min=0)
]
Space = Annotated[
    Path | None, typer.Option(help="The SPACE file, if it should be compared with the run's.")
]


def time_of(optimizer: Optimizer, t: str | None) -> Any:
    """Return the time that was given; with a unit of time, by default the present."""
    scale = optimizer.time_scale
    if scale is None:
        return None if t is None else _number("--t", t)
    if t is not None:
        return t
    now = datetime.now(UTC)
    return now if scale.zone is not None else now.replace(tzinfo=None)


def outcome_of(optimizer: Optimizer, given: Sequence[str]) -> dict[str, float] | float:
    """Return one number, or several of NAME=VALUE."""
    if len(given) == 1 and "=" not in given[0]:
        return _number("an outcome", given[0])
    texts = read_named(given, optimizer.labels.outcomes, "NAME=VALUE for each outcome")
    return {name: _number("an outcome", text) for name, text in texts.items()}


def _number(what: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InputDataError(f"Expected a number for {what}. Got {text!r}.") from error


def context_of(optimizer: Optimizer, given: Sequence[str] | None) -> dict[str, Any] | None:
    """Return the context of options NAME=VALUE; None without."""
    if not given:
        return None
    contexts = optimizer.labels.contexts
    values = read_named(given, [] if contexts is None else contexts.names, "--context NAME=VALUE")
    return values if contexts is None else read_values(contexts, values)


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


def read_values(parameters: Parameters, texts: dict[str, str]) -> dict[str, Any]:
    """Return values of texts by name; what is none is left for the parameters to refuse."""
    parts = {part.name: part for part in parameters.parts}
    return {name: parts[name].read(text) if name in parts else text for name, text in texts.items()}


def plain(value: Any) -> Any:
    """Return a value as JSON has it: a timestamp as text."""
    return value if isinstance(value, str | bool | int | float) else str(value)
