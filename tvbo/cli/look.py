"""``tvbo recommend``, ``front``, ``predict``, ``drift``: what the model of a run says."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tvbo.cli.app import Run, print_rows, print_values
from tvbo.cli.options import As, Context, Time, Wait, context_of, values_of
from tvbo.optimizers import Optimizer
from tvbo.service import calls


def recommend(
    run: Run, context: Context = None, t: Time = None, wait: Wait = 60.0, as_json: As = False
) -> None:
    """Say which action is best by the model.

    Changes nothing, as the other commands that say something of the model.
    """
    optimizer = _read(run, wait)
    found = calls.recommend(optimizer, t, context_of(optimizer, context))
    _print("Recommended", found, as_json)


def front(
    run: Run, context: Context = None, t: Time = None, wait: Wait = 60.0, as_json: As = False
) -> None:
    """Say which actions are the best compromises of several outcomes."""
    optimizer = _read(run, wait)
    found = calls.front(optimizer, t, context_of(optimizer, context))
    if as_json:
        typer.echo(json.dumps(found))
        return
    rows = []
    for each in found["front"]:
        named = each.pop("parameters") | each.pop("context", {})
        rows.append(named | each)
    print_rows("The best compromises", rows)


def predict(
    run: Run,
    values: Annotated[
        list[str], typer.Argument(help="A value of the action, NAME=VALUE; each once.")
    ],
    context: Context = None,
    t: Time = None,
    wait: Wait = 60.0,
    as_json: As = False,
) -> None:
    """Say what the model expects of an action."""
    optimizer = _read(run, wait)
    action = values_of(optimizer.search_space, values, "NAME=VALUE")
    found = calls.predict(optimizer, action, t, context_of(optimizer, context))
    _print("Expected", found, as_json)


def drift(
    run: Run,
    outcome: Annotated[str | None, typer.Option(help="Its name; default the first.")] = None,
    wait: Wait = 60.0,
    as_json: As = False,
) -> None:
    """Say how fast an outcome drifts."""
    _print("Drift", calls.drift(_read(run, wait), outcome), as_json)


def _read(run: str, wait: float) -> Optimizer:
    return Optimizer.open(run, read_only=True, wait=wait)


def _print(title: str, found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found))
    else:
        print_values(title, {name.replace("_", " "): value for name, value in found.items()})
