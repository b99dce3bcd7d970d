"""``tvbo new --from``: a run that goes on with the outcomes of another, by a changed SPACE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
from botorch.exceptions.errors import InputDataError

from tvbo.cli.app import without_password
from tvbo.cli.options import read_named, read_values
from tvbo.cli.space_file import SpaceError
from tvbo.optimizers import GPOptimizer, Optimizer
from tvbo.spaces import Parameters
from tvbo.spaces.parameters import Category, Number
from tvbo.storage import read_run
from tvbo.storage.record import appearing

Parts = dict[str, Number | Category]
"""Parameters by name."""


def start_from(
    old: str, optimizer: GPOptimizer, run: str, defaults: Sequence[str]
) -> tuple[int, list[str]]:
    """Begin a run with the outcomes of another, which is only read.

    A file appears when all is in it.

    Args:
        old: The old run.
        optimizer: The new optimizer, without trials; it is recorded and closed.
        run: The new run.
        defaults: ``NAME=VALUE`` for each parameter that the old run does not have.

    Returns:
        The number of outcomes taken over, and what is to be known of it, in sentences.

    Raises:
        SpaceError: if the two runs differ in more than what is safe.
        StorageError: if the old run cannot be read, or the new file exists.
    """
    before, trials = Optimizer.open(old, read_only=True), read_run(old).to_frame()
    old = without_password(old)
    if not isinstance(before, GPOptimizer) or before.labels.actions is None:
        raise SpaceError(f"Expected a run of parameters with names. Got {old}: {before!r}.")
    _check_units(before, optimizer, old)
    fixed = _refixed(before, optimizer, old)
    values = _added(before, optimizer, old, defaults) | {name: now for name, _, now in fixed}
    # Where times are numbers of rounds, rounds go on; the trials of a batch have one round.
    rounds = trials.t[trials.how == "asked"].unique().tolist()
    counts = before.time_scale is None and rounds == list(range(1, len(rounds) + 1))
    shift = len(rounds) if counts else 0
    rows: dict[str, list[dict[str, Any]]] = {"told": [], "open": []}
    left_out: Counter[str] = Counter()
    opened: dict[int, int | None] = {}
    for row in trials[trials.state.isin(rows)].to_dict("records"):
        row |= values
        if shift:
            row["t"] -= shift
        if (outside := _outside(optimizer, row)) is None:
            rows[row["state"]].append(row)
        elif row["state"] == "told":
            left_out[outside] += 1
        else:
            opened[row["trial"]] = None

    with appearing(Path(run)) if "://" not in run else nullcontext(run) as target:
        optimizer.record(target)
        if rows["told"]:
            table = pd.DataFrame(rows["told"])
            variances = [f"{name}_variance" for name in optimizer.labels.outcome_columns]
            known = [name for name in variances if table[name].notna().any()]
            optimizer.attach_frame(table, variance=known[0] if known else None)
        for row in rows["open"]:
            action, context = (
                {name: row[name] for name in _parts(each)}
                for each in (optimizer.labels.actions, optimizer.labels.contexts)
            )
            opened[row["trial"]] = optimizer.attach(action, row["t"], context or None).id
        optimizer.close()
    notes = []
    if left_out:
        notes.append(
            f"left out {left_out.total()} outcomes that are not in the new space: "
            f"{', '.join(f'{count} by {name}' for name, count in left_out.items())}."
        )
    if ended := Counter(trials.state[~trials.state.isin(rows)]):
        each = ", ".join(f"{count} {state}" for state, count in ended.items())
        notes.append(f"trials without an outcome are not taken over: {each}.")
    for name, then, now in fixed:
        notes.append(f"{name} was {then}: the outcomes count as if it had been {now}.")
    for number, here in opened.items():
        words = f"is trial {here} here" if here else "is not in the new space: not taken over"
        notes.append(f"the open trial {number} of {old} {words}.")
    if shift:
        notes.append(f"rounds go on: round {shift} of {old} has the time 0 here.")
    return len(rows["told"]), notes


def _check_units(before: GPOptimizer, after: GPOptimizer, old: str) -> None:
    """Raise unless times and outcomes mean the same in two runs."""
    for what, one, two in (
        ("time_unit and time_zone", before.time_scale, after.time_scale),
        ("outcomes", *(sorted(each.labels.outcome_columns) for each in (before, after))),
        ("outcomes to minimize", *(sorted(each.goals.minimized) for each in (before, after))),
    ):
        if one != two:
            raise SpaceError(f"Expected the {what} of {old}: {one}. Got {two}.")


def _parts(parameters: Parameters | None) -> Parts:
    return {} if parameters is None else {part.name: part for part in parameters.parts}


def _all_parts(optimizer: GPOptimizer) -> Parts:
    return _parts(optimizer.labels.actions) | _parts(optimizer.labels.contexts)


def _kind(part: Number | Category) -> str:
    if isinstance(part, Category):
        return "a category"
    return "an integer" if part.is_integer else "a float"


def _refixed(before: GPOptimizer, after: GPOptimizer, old: str) -> list[tuple[str, Any, Any]]:
    """Return the fixed parameters with a new value: name, value before, value now.

    Raises:
        SpaceError: if a parameter that varied is gone, or one has another type.
    """
    fixed, news = [], _all_parts(after)
    for name, part in _all_parts(before).items():
        if (now := news.get(name)) is None:
            if part.width > 0:
                raise SpaceError(
                    f"Expected the parameter {name} of {old}, which its outcomes depend on. Got "
                    f"{', '.join(news)}."
                )
        elif _kind(part) != _kind(now):
            raise SpaceError(f"Expected {name} to be {_kind(part)}, as in {old}. Got {_kind(now)}.")
        elif part.width == now.width == 0 and part != now:
            fixed.append((name, part.values()[0], now.values()[0]))
    return fixed


def _added(
    before: GPOptimizer, after: GPOptimizer, old: str, defaults: Sequence[str]
) -> dict[str, Any]:
    """Return the values of the parameters that the old run does not have, by name.

    Raises:
        SpaceError: if one is missing, or is given for another parameter.
        InputDataError: if one is no value of its parameter.
    """
    parts, known = _all_parts(after), _all_parts(before)
    added = {name: part for name, part in parts.items() if name not in known}
    texts = read_named(defaults, list(parts), "--default NAME=VALUE")
    if wrong := [name for name in texts if name not in added]:
        raise SpaceError(
            f"Expected --default for parameters that {old} does not have"
            f"{': ' if added else ''}{', '.join(added)}. Got {wrong[0]}."
        )
    if missing := [name for name, part in added.items() if part.width and name not in texts]:
        raise SpaceError(
            f"Expected --default {missing[0]}=VALUE, the value of {missing[0]} in {old}, which "
            "does not have it. Got none."
        )
    fixed = {name: part.values()[0] for name, part in added.items() if part.width == 0}
    values = fixed | read_values(Parameters(tuple(added.values())), texts)
    for name, value in values.items():
        added[name].encode(value)
    return values


def _outside(optimizer: GPOptimizer, row: Mapping[str, Any]) -> str | None:
    """Return the name of the first parameter whose value is none of the space; None if all are."""
    for name, part in _all_parts(optimizer).items():
        try:
            part.encode(row[name])
        except InputDataError:
            return name
    return None
