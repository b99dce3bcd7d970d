"""A loop from the shell, from ``tvbo new`` on, and what the model of its run says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tvbo.cli.app import Run, note, print_rows, print_values, say, short, without_password
from tvbo.cli.options import (
    As,
    Context,
    Space,
    Time,
    Wait,
    context_of,
    opened,
    outcome_of,
    values_of,
)
from tvbo.cli.space_file import SpaceError, optimizer_of, read_text
from tvbo.optimizers import Optimizer
from tvbo.service import calls

Trial = Annotated[int, typer.Argument(help="Number of the trial.")]


def new(
    space: Annotated[Path, typer.Argument(help="What is tuned, SPACE.toml.")],
    run: Annotated[
        str, typer.Argument(help="The run to begin: a file such as run.db, or an empty database.")
    ],
    old: Annotated[
        str | None,
        typer.Option("--from", help="A run with another SPACE, whose outcomes are taken over."),
    ] = None,
    default: Annotated[
        list[str] | None,
        typer.Option(help="With --from, the value NAME=VALUE of a parameter that it lacks."),
    ] = None,
) -> None:
    """Begin a run of what SPACE.toml describes."""
    optimizer = optimizer_of(read_text(space), str(space))
    began = f"began {without_password(run)}: {optimizer.search_space.parameters}"
    if old is not None:
        # Not at the top, since it is seldom needed.
        from tvbo.cli.migrate import start_from

        told, notes = start_from(old, optimizer, run, default or [])
        taken = f"took over {told} outcomes of {without_password(old)}"
        say(began)
        say(taken)
        note(*notes)
        return
    if default:
        raise SpaceError(f"Expected --from with --default. Got --default {default[0]} alone.")
    optimizer.record(run)
    say(began)


def ask(
    run: Run,
    context: Context = None,
    t: Time = None,
    key: Annotated[
        str | None, typer.Option(help="A key of yours; asked again, it gives the same trial.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Ask also at a time far ahead of the trials so far.")
    ] = False,
    duration: Annotated[
        str | None,
        typer.Option(help="How long the evaluation takes, in units of t or such as 10min."),
    ] = None,
    space: Space = None,
    wait: Wait = 60.0,
    as_json: As = False,
) -> None:
    """Ask for the next trial."""
    with opened(run, wait, space) as optimizer:
        trial = calls.ask(optimizer, t, context_of(optimizer, context), key, force, duration)
    if as_json:
        typer.echo(json.dumps(trial))
        return
    words = f"trial {trial['trial']}: {short(trial['parameters'])}"
    say(words)
    if trial["skipped"]:
        note("skipped: its outcome would tell nothing, so do not try it.")


def tell(
    run: Run,
    trial: Trial,
    outcome: Annotated[
        list[str], typer.Argument(help="Its outcome; of several, NAME=VALUE for each.")
    ],
    variance: Annotated[
        float | None, typer.Option(help="Variance of its noise, where known.")
    ] = None,
    t: Annotated[
        str | None, typer.Option("--t", help="When it was measured, if not at the trial's time.")
    ] = None,
    wait: Wait = 60.0,
) -> None:
    """Tell the outcome of a trial; a negative one after --."""
    with opened(run, wait) as optimizer:
        calls.tell(optimizer, trial, outcome_of(optimizer, outcome), variance, t)
    say(f"told trial {trial}: {' '.join(outcome)}")


def fail(
    run: Run,
    trial: Trial,
    reason: Annotated[str, typer.Argument(help="Why it has no outcome.")],
    wait: Wait = 60.0,
) -> None:
    """Say that a trial has no outcome, and will not have one."""
    with opened(run, wait) as optimizer:
        calls.fail(optimizer, trial, reason)
    say(f"failed trial {trial}")


def expire(
    run: Run,
    trial: Annotated[int | None, typer.Argument(help="Number of the trial.")] = None,
    older_than: Annotated[
        str | None, typer.Option(help="All trials of this age, such as 2h; or in units of t.")
    ] = None,
    t: Time = None,
    wait: Wait = 60.0,
) -> None:
    """Give up a trial, or all that are overdue."""
    with opened(run, wait) as optimizer:
        expired = calls.expire(optimizer, trial, older_than, t)["expired"]
    say(f"expired {', '.join(map(str, expired)) or 'no trial'}")


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
    rows = [each.pop("parameters") | each.pop("context", {}) | each for each in found["front"]]
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
