"""``tvbo new --from``: a run that goes on with the outcomes of another, by a changed SPACE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from botorch.exceptions.errors import InputDataError

from tvbo.cli.app import without_password
from tvbo.cli.options import read_named
from tvbo.cli.space_file import SpaceError
from tvbo.optimizers import GPOptimizer, Optimizer
from tvbo.spaces.parameters import Category, Number
from tvbo.storage import read_run
from tvbo.storage.record import appearing


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
    for what, one, two in (
        ("time_unit and time_zone", before.time_scale, optimizer.time_scale),
        ("outcomes", *(sorted(each.labels.outcome_columns) for each in (before, optimizer))),
        ("outcomes to minimize", *(sorted(each.goals.minimized) for each in (before, optimizer))),
    ):
        if one != two:
            raise SpaceError(f"Expected the {what} of {old}: {one}. Got {two}.")
    parts = _parts(optimizer)
    values, notes = _changed(_parts(before), parts, old, defaults)
    # Where times are numbers of rounds, rounds go on; the trials of a batch have one round.
    rounds = trials.t[trials.how == "asked"].unique().tolist()
    if before.time_scale is None and rounds == list(range(1, len(rounds) + 1)):
        trials.t -= len(rounds)
        if rounds:
            notes.append(f"rounds go on: round {len(rounds)} of {old} has the time 0 here.")
    trials = trials.assign(**values)
    trials["outside"] = [
        next((name for name, part in parts.items() if not _holds(part, row[name])), "")
        for row in trials.to_dict("records")
    ]
    told, opened = (trials[trials.state == state] for state in ("told", "open"))
    for number in opened.trial[opened.outside != ""]:
        notes.append(f"the open trial {number} of {old} is not in the new space: not taken over.")
    if left_out := Counter(told.outside[told.outside != ""]):
        notes.append(
            f"left out {left_out.total()} outcomes that are not in the new space: "
            f"{', '.join(f'{count} by {name}' for name, count in left_out.items())}."
        )
    if ended := Counter(trials.state[~trials.state.isin(["told", "open"])]):
        each = ", ".join(f"{count} {state}" for state, count in ended.items())
        notes.append(f"trials without an outcome are not taken over: {each}.")

    with appearing(Path(run)) if "://" not in run else nullcontext(run) as target:
        optimizer.record(target)
        told = told[told.outside == ""]
        variances = [f"{name}_variance" for name in optimizer.labels.outcome_columns]
        known = [name for name in variances if told[name].notna().any()]
        optimizer.attach_frame(told, variance=known[0] if known else None)
        for row in opened[opened.outside == ""].to_dict("records"):
            action, context = (
                {} if each is None else {name: row[name] for name in each.names}
                for each in (optimizer.labels.actions, optimizer.labels.contexts)
            )
            trial = optimizer.attach(action, row["t"], context or None)
            notes.append(f"the open trial {row['trial']} of {old} is trial {trial.id} here.")
        optimizer.close()
    return len(told), notes


def _parts(optimizer: GPOptimizer) -> dict[str, Number | Category]:
    """Return the parameters of action and context by name."""
    both = optimizer.labels.actions, optimizer.labels.contexts
    return {part.name: part for each in both if each is not None for part in each.parts}


def _kind(part: Number | Category) -> str:
    if isinstance(part, Category):
        return "a category"
    return "an integer" if part.is_integer else "a float"


def _holds(part: Number | Category, value: Any) -> bool:
    """Return whether a value is one of a parameter."""
    try:
        part.encode(value)
    except InputDataError:
        return False
    return True


def _changed(
    before: dict[str, Number | Category],
    after: dict[str, Number | Category],
    old: str,
    defaults: Sequence[str],
) -> tuple[dict[str, Any], list[str]]:
    """Return values of parameters that are fixed otherwise, or new, by name, and what to know.

    Raises:
        SpaceError: if a parameter that varied is gone, one has another type, or the value of a new
            one is missing, or is given for another.
        InputDataError: if one is no value of its parameter.
    """
    values: dict[str, Any] = {}
    notes = []
    for name, part in before.items():
        if (now := after.get(name)) is None:
            if part.width > 0:
                raise SpaceError(
                    f"Expected the parameter {name} of {old}, which its outcomes depend on. Got "
                    f"{', '.join(after)}."
                )
        elif _kind(part) != _kind(now):
            raise SpaceError(f"Expected {name} to be {_kind(part)}, as in {old}. Got {_kind(now)}.")
        elif part.width == now.width == 0 and part != now:
            [then], [values[name]] = part.values(), now.values()
            notes.append(f"{name} was {then}: the outcomes count as if it had been {values[name]}.")
    added = {name: part for name, part in after.items() if name not in before}
    texts = read_named(defaults, list(after), "--default NAME=VALUE")
    if wrong := [name for name in texts if name not in added]:
        raise SpaceError(
            f"Expected --default for parameters that {old} does not have"
            f"{': ' if added else ''}{', '.join(added)}. Got {wrong[0]}."
        )
    for name, part in added.items():
        if name in texts:
            values[name] = part.read(texts[name])
            part.encode(values[name])
        elif part.width == 0:
            [values[name]] = part.values()
        else:
            raise SpaceError(
                f"Expected --default {name}=VALUE, the value of {name} in {old}, which does not "
                "have it. Got none."
            )
    return values, notes
