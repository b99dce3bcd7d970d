"""``tvbo new``, ``ask``, ``tell``, ``fail``, ``backup``: a loop from the shell."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from tvbo.cli.app import Run, check_outputs, console, files_of, note, saving, short
from tvbo.cli.options import As, Context, Space, Time, Wait, context_of, outcome_of, plain, time_of
from tvbo.cli.space_file import SPACE, SpaceError, optimizer_of, optimizer_of_run, read_text
from tvbo.optimizers import GPOptimizer, Trial
from tvbo.storage import JournalReader
from tvbo.storage.compatibility import OtherSettingsError
from tvbo.storage.create import start_journal
from tvbo.storage.database import connect_to_read


def new(
    space: Annotated[Path, typer.Argument(help="What is tuned, SPACE.toml.")],
    run: Annotated[Path, typer.Argument(help="The journal to begin, such as run.db.")],
    old: Annotated[
        Path | None,
        typer.Option("--from", help="A run with another SPACE, whose outcomes are taken over."),
    ] = None,
    default: Annotated[
        list[str] | None,
        typer.Option(help="With --from, the value NAME=VALUE of a parameter that it lacks."),
    ] = None,
) -> None:
    """Begin a run: a journal of what SPACE.toml describes."""
    text = read_text(space)
    optimizer = optimizer_of(text, str(space))
    began = f"began {run}: {optimizer.search_space.parameters}"
    if old is not None:
        # Not at the top, since it is seldom needed.
        from tvbo.cli.migrate import start_from

        told, notes = start_from(old, optimizer, text, run, default or [])
        console.print(began, f"took over {told} outcomes of {old}", sep="\n", highlight=False)
        note(*notes)
        return
    if default:
        raise SpaceError(f"Expected --from with --default. Got --default {default[0]} alone.")
    start_journal(optimizer, run, {SPACE: text})
    optimizer.close()
    console.print(began, highlight=False)


def ask(
    run: Run,
    context: Context = None,
    t: Time = None,
    key: Annotated[
        str | None, typer.Option(help="A key of yours; asked again, it gives the same trial.")
    ] = None,
    space: Space = None,
    wait: Wait = 60.0,
    as_json: As = False,
) -> None:
    """Ask for the next trial."""
    with _opened(run, space, wait) as optimizer:
        given = context_of(optimizer, context)
        trial = optimizer.ask(time_of(optimizer, t), given, key)
        values = _values(trial)
    if as_json:
        typer.echo(json.dumps(values))
        return
    named = ", ".join(f"{name}={short(value)}" for name, value in trial.parameters.items())
    console.print(f"trial {trial.id}: {named}", highlight=False, soft_wrap=True)
    if trial.skipped:
        note("skipped: its outcome would tell nothing, so do not try it.")


def tell(
    run: Run,
    trial: Annotated[int, typer.Argument(help="Number of the trial.")],
    outcome: Annotated[
        list[str], typer.Argument(help="Its outcome; of several, NAME=VALUE for each.")
    ],
    variance: Annotated[
        float | None, typer.Option(help="Variance of its noise, where known.")
    ] = None,
    wait: Wait = 60.0,
) -> None:
    """Tell the outcome of a trial; a negative one after ``--``."""
    with _opened(run, None, wait) as optimizer:
        optimizer.tell(trial, outcome_of(optimizer, outcome), variance)
    console.print(f"told trial {trial}: {' '.join(outcome)}", highlight=False)


def fail(
    run: Run,
    trial: Annotated[int, typer.Argument(help="Number of the trial.")],
    reason: Annotated[str, typer.Argument(help="Why it has no outcome.")],
    wait: Wait = 60.0,
) -> None:
    """Say that a trial has no outcome, and will not have one."""
    with _opened(run, None, wait) as optimizer:
        optimizer.fail(trial, reason)
    console.print(f"failed trial {trial}", highlight=False)


def backup(run: Run, copy: Annotated[Path, typer.Argument(help="The file to write.")]) -> None:
    """Copy a run as it is now, also while another command writes."""
    check_outputs({"COPY": copy}, files_of(run))
    with (
        JournalReader(run),
        saving(copy) as file,
        closing(connect_to_read(run)) as source,
        closing(sqlite3.connect(file)) as target,
    ):
        source.backup(target)


@contextmanager
def _opened(run: Path, space: Path | None, wait: float) -> Iterator[GPOptimizer]:
    """Open a run for writing; none of its code is run."""
    like = optimizer_of_run(run, space)
    try:
        optimizer = GPOptimizer.open(run, like=like, wait=wait)
    except OtherSettingsError as error:
        if space is None:
            raise
        raise SpaceError(
            f"{error} To go on by the changed file: tvbo new {space} NEW.db --from {run}."
        ) from error
    with optimizer:
        yield optimizer


def _values(trial: Trial) -> dict[str, Any]:
    """Return a trial as plain data."""
    values: dict[str, Any] = {"trial": trial.id, "t": plain(trial.time)}
    values["parameters"] = trial.parameters
    if trial.labels.contexts is not None and trial.context is not None:
        values["context"] = trial.labels.contexts.decode(trial.context)
    if trial.feasibility is not None:
        values["feasibility"] = trial.feasibility
    return values | {"skipped": trial.skipped}
