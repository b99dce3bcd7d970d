"""``tvbo new``, ``ask``, ``tell``, ``fail``, ``status``, ``backup``: a loop from the shell."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from botorch.exceptions.errors import InputDataError
from rich.table import Table

from tvbo.cli.app import Run, check_outputs, console, files_of, note, saving
from tvbo.cli.space_file import SpaceError, optimizer_of
from tvbo.journal import JournalReader, start_journal
from tvbo.journal.database import connect_to_read
from tvbo.journal.description import read_description
from tvbo.optimizers import (
    GPOptimizer,
    MultiOutcomeOptimizer,
    Optimizer,
    Recommendation,
    Trial,
)
from tvbo.optimizers.drift import form_in_words, half_life
from tvbo.search_space import Parameters

SPACE = "space"
"""Name of the text of the SPACE file in a journal."""

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


def new(
    space: Annotated[Path, typer.Argument(help="What is tuned, SPACE.toml.")],
    run: Annotated[Path, typer.Argument(help="The journal to begin, such as run.db.")],
) -> None:
    """Begin a run: a journal of what SPACE.toml describes."""
    text = _read(space)
    optimizer = optimizer_of(text, str(space))
    start_journal(optimizer, run, {SPACE: text})
    optimizer.close()
    console.print(f"began {run}: {optimizer.search_space.parameters}", highlight=False)


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
        given = _context(optimizer, context)
        trial = optimizer.ask(_time(optimizer, t), given, key)
        values = _values(trial)
    if as_json:
        typer.echo(json.dumps(values))
        return
    named = ", ".join(f"{name}={_short(value)}" for name, value in trial.parameters.items())
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
        optimizer.tell(trial, _outcome(optimizer, outcome), variance)
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


def status(run: Run, context: Context = None, t: Time = None, as_json: As = False) -> None:
    """Say what is recommended now, how fast it drifts, and which trials are open.

    Reads only, also while another command writes.
    """
    optimizer = Optimizer.open(run, like=_like(run, None), read_only=True, progress=False)
    found = _status(optimizer, context, t)
    if as_json:
        typer.echo(json.dumps(found))
        return
    table = Table(title=run.name, show_header=False)
    for name, value in found.items():
        if name not in ("open_trials", "front"):
            table.add_row(name.replace("_", " "), _words(value))
    console.print(table)
    for name, title in (("open_trials", "Open trials"), ("front", "The best compromises now")):
        if rows := found.get(name):
            shown = Table(*map(str, rows[0]), title=title)
            for row in rows:
                shown.add_row(*(_short(value) for value in row.values()))
            console.print(shown)
    if "recommended" not in found and "front" not in found:
        note("what is recommended depends on the context: give --context NAME=VALUE.")


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


def _read(space: Path) -> str:
    try:
        return space.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpaceError(f"Expected text in {space}. Got {error}.") from error


def _like(run: Path, space: Path | None) -> Optimizer:
    """Return an optimizer with the settings of a run, or of the SPACE file given."""
    if space is not None:
        return optimizer_of(_read(space), str(space))
    meta, labels = read_description(run)
    if (text := meta.get(SPACE)) is None:
        raise SpaceError(
            f"Expected a run begun by tvbo new. Got {run}, which a program recorded: go on with "
            "Optimizer.open there."
        )
    return optimizer_of(text, f"the SPACE of {run}", labels)


@contextmanager
def _opened(run: Path, space: Path | None, wait: float) -> Iterator[Optimizer]:
    """Open a run for writing, without unpickling anything."""
    with Optimizer.open(run, like=_like(run, space), wait=wait) as optimizer:
        yield optimizer


def _time(optimizer: Optimizer, t: str | None) -> Any:
    """Return the time that was given; with a unit of time, by default the present."""
    scale = optimizer.time_scale
    if scale is None:
        try:
            return None if t is None else float(t)
        except ValueError as error:
            raise InputDataError(f"Expected a number for --t. Got {t!r}.") from error
    if t is not None:
        return scale.read_text(t)
    now = datetime.now(UTC)
    return now if scale.zone is not None else now.replace(tzinfo=None)


def _outcome(optimizer: Optimizer, given: Sequence[str]) -> dict[str, float] | float:
    """Return one number, or several of NAME=VALUE."""
    names = optimizer.labels.outcomes
    texts: dict[str, str] = {}
    if len(given) > 1 or "=" in given[0]:
        texts = _named(given, names, "NAME=VALUE for each outcome")
    numbers = {}
    for name, text in (texts or {"": given[0]}).items():
        try:
            numbers[name] = float(text)
        except ValueError as error:
            raise InputDataError(f"Expected a number for an outcome. Got {text!r}.") from error
    return numbers if texts else numbers[""]


def _context(optimizer: Optimizer, given: Sequence[str] | None) -> dict[str, Any] | None:
    """Return the context of options NAME=VALUE; None without."""
    if not given:
        return None
    contexts = optimizer.labels.contexts
    values = _named(given, [] if contexts is None else contexts.names, "--context NAME=VALUE")
    return values if contexts is None else _read_values(contexts, values)


def _named(given: Sequence[str], declared: Sequence[str], form: str) -> dict[str, str]:
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


def _read_values(parameters: Parameters, texts: dict[str, str]) -> dict[str, Any]:
    """Return values of texts by name; what is none is left for the parameters to refuse."""
    parts = {part.name: part for part in parameters.parts}
    return {name: parts[name].read(text) if name in parts else text for name, text in texts.items()}


def _values(trial: Trial) -> dict[str, Any]:
    """Return a trial as plain data."""
    values: dict[str, Any] = {"trial": trial.id, "t": _plain(trial.time)}
    values["parameters"] = trial.parameters
    if trial.labels.contexts is not None and trial.context is not None:
        values["context"] = trial.labels.contexts.decode(trial.context)
    if trial.feasibility is not None:
        values["feasibility"] = trial.feasibility
    return values | {"skipped": trial.skipped}


def _status(optimizer: Optimizer, context: Sequence[str] | None, t: str | None) -> dict[str, Any]:
    log = optimizer.trial_log
    opened = [trial.to_row() for trial in optimizer.open_trials]
    found: dict[str, Any] = {
        "parameters": str(optimizer.search_space.parameters),
        "told": log.num_told,
        "open": len(opened),
        "failed": log.num_failed,
        "expired": log.num_expired,
        "in_the_model": optimizer.model_size,
        "open_trials": [{name: _plain(value) for name, value in row.items()} for row in opened],
    }
    is_known = optimizer.contexts is None or bool(context)
    if isinstance(optimizer, GPOptimizer) and log.num_told and is_known:
        given = _context(optimizer, context), _now(optimizer, t)
        if isinstance(optimizer, MultiOutcomeOptimizer) and optimizer.goals.num_objectives > 1:
            found["front"] = [
                {name: _plain(value) for name, value in each.to_row().items()}
                for each in optimizer.front(*given)
            ]
        else:
            found |= _recommended(optimizer.recommend(*given))
        dense = optimizer.posterior_state.fitter.last_model
        if dense is not None:
            found["drift"] = form_in_words(dense)
            found["half_life"] = _finite(half_life(dense))
            rate = dense.forgetting_rate
            found["forgetting_rate"] = None if rate is None else rate.item()
    return found


def _now(optimizer: Optimizer, t: str | None) -> Any:
    """Return the time to recommend for: the present, or the latest one where times are counted."""
    return _time(optimizer, t) if t is not None or optimizer.time_scale is not None else None


def _recommended(best: Recommendation) -> dict[str, Any]:
    low, high = (best.mean + sign * 1.96 * best.standard_deviation for sign in (-1, 1))
    found = {
        "recommended": best.parameters,
        "expected_outcome": best.mean,
        "band": [low, high],
        "at": _plain(best.labels.stamp(best.t)),
    }
    if best.feasibility is not None:
        found["feasibility"] = best.feasibility
    return found | {f"expected_{name}": mean for name, (mean, _) in best.others.items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: a timestamp as text."""
    return value if isinstance(value, str | bool | int | float) else str(value)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={_short(each)}" for name, each in value.items())
    if isinstance(value, list):
        return " to ".join(map(_short, value))
    return "unknown" if value is None else _short(value)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
