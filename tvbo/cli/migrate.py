"""``tvbo new --from``: a run that goes on with the outcomes of another, by a changed SPACE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botorch.exceptions.errors import InputDataError

from tvbo.cli.options import read_named, read_values
from tvbo.cli.space_file import SPACE, SpaceError, optimizer_of_run
from tvbo.optimizers import GPOptimizer, Optimizer
from tvbo.spaces import Parameters
from tvbo.spaces.parameters import Category, Number
from tvbo.storage import JournalReader, trials_of
from tvbo.storage.create import start_filled_journal

if TYPE_CHECKING:
    import pandas as pd

Parts = dict[str, Number | Category]
"""Parameters by name, of actions and of contexts."""


@dataclass
class TakenOver:
    """What a new run has of an old one.

    Args:
        shift: What was subtracted from the times, so that rounds go on.
        fixed: Fixed parameters with another value than before: name, old value and new one.
        ended: Number of trials without an outcome, by state: they are not taken over.
        told: Number of outcomes taken over.
        left_out: Number of outcomes that were not, by the name of the first parameter whose value
            is none of the new space.
        opened: Numbers of the open trials of the old run, and what they are in the new one; None
            where their values are none of the new space.
    """

    shift: float
    fixed: list[tuple[str, Any, Any]]
    ended: Counter[str]
    told: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    opened: dict[int, int | None] = field(default_factory=dict)

    def notes(self, old: Path) -> list[str]:
        """Return what is to be known of it, in sentences."""
        notes = []
        if self.left_out:
            each = ", ".join(f"{count} by {name}" for name, count in self.left_out.items())
            count = self.left_out.total()
            notes.append(f"left out {count} outcomes that are not in the new space: {each}.")
        if self.ended:
            each = ", ".join(f"{count} {state}" for state, count in self.ended.items())
            notes.append(f"trials without an outcome are not taken over: {each}.")
        for name, before, now in self.fixed:
            notes.append(f"{name} was {before}: the outcomes count as if it had been {now}.")
        for number, here in self.opened.items():
            words = f"is trial {here} here" if here else "is not in the new space: not taken over"
            notes.append(f"the open trial {number} of {old} {words}.")
        if self.shift:
            notes.append(f"rounds go on: round {self.shift:g} of {old} has the time 0 here.")
        return notes


def start_from(
    old: Path, optimizer: Optimizer, space: str, run: Path, defaults: Sequence[str]
) -> TakenOver:
    """Begin a journal with the outcomes of another run.

    The file appears when all is in it. The old run is only read.

    Args:
        old: The journal of the old run, begun by ``tvbo new``.
        optimizer: The new optimizer, without trials; it is recorded and closed.
        space: Text of its SPACE file.
        run: The new journal.
        defaults: ``NAME=VALUE`` for each parameter that the old run does not have.

    Raises:
        SpaceError: if the two runs differ in more than what is safe.
        JournalError: if the old run cannot be read, or the new file exists.
    """
    with JournalReader(old) as journal:
        if journal.damage is not None:
            raise SpaceError(f"Expected a whole journal. Got {old}, damaged: {journal.damage}.")
        trials = trials_of(journal)
    before = optimizer_of_run(old)
    _check_units(before, optimizer, old)
    fixed = _refixed(before, optimizer, old)
    values = _added(before, optimizer, old, defaults) | {name: now for name, _, now in fixed}
    states = Counter(trials.state)
    ended = Counter({each: n for each, n in states.items() if each not in ("told", "open")})
    found = TakenOver(_rounds(before, trials), fixed, ended)
    told: list[dict[str, Any]] = []
    opened: list[dict[str, Any]] = []
    for row in trials.to_dict("records"):
        if row["state"] not in ("told", "open"):
            continue
        row |= values
        if found.shift:
            row["t"] -= found.shift
        if (outside := _outside(optimizer, row)) is None:
            (told if row["state"] == "told" else opened).append(row)
        elif row["state"] == "told":
            found.left_out[outside] += 1
        else:
            found.opened[row["trial"]] = None

    def fill() -> None:
        found.told = _attach_told(optimizer, told)
        for row in opened:
            found.opened[row["trial"]] = _attach_open(optimizer, row)

    start_filled_journal(optimizer, run, {SPACE: space}, fill)
    return found


def _check_units(before: Optimizer, after: Optimizer, old: Path) -> None:
    """Raise unless times and outcomes mean the same in two runs."""
    scales = [each.time_scale for each in (before, after)]
    outcomes = [sorted(each.labels.outcome_columns) for each in (before, after)]
    minimized = [sorted(_minimized(each)) for each in (before, after)]
    for what, (one, two) in {
        "time_unit and time_zone": ["none" if s is None else f"{s.unit}, {s.zone}" for s in scales],
        "outcomes": [", ".join(each) for each in outcomes],
        "outcomes to minimize": [", ".join(each) or "none" for each in minimized],
    }.items():
        if one != two:
            raise SpaceError(f"Expected the {what} of {old}: {one}. Got {two}.")


def _minimized(optimizer: Optimizer) -> Sequence[str]:
    if isinstance(optimizer, GPOptimizer):
        return optimizer.goals.minimized
    return optimizer.labels.outcome_columns if optimizer.minimize else ()


def _parts(parameters: Parameters | None) -> Parts:
    return {} if parameters is None else {part.name: part for part in parameters.parts}


def _all_parts(optimizer: Optimizer) -> Parts:
    return _parts(optimizer.labels.actions) | _parts(optimizer.labels.contexts)


def _kind(part: Number | Category) -> str:
    if isinstance(part, Category):
        return "a category"
    return "an integer" if part.is_integer else "a float"


def _refixed(before: Optimizer, after: Optimizer, old: Path) -> list[tuple[str, Any, Any]]:
    """Return the fixed parameters with a new value: name, value before, value now.

    Raises:
        SpaceError: if a parameter that varied is gone, or one has another type.
    """
    fixed = []
    for place in ("actions", "contexts"):
        olds, news = (_parts(getattr(each.labels, place)) for each in (before, after))
        for name, part in olds.items():
            if name not in news and part.width > 0:
                raise SpaceError(
                    f"Expected the {place[:-1]} parameter {name} of {old}, which its outcomes "
                    f"depend on. Got {', '.join(news) or 'none'}."
                )
            if name not in news:
                continue
            if _kind(part) != _kind(news[name]):
                raise SpaceError(
                    f"Expected {name} to be {_kind(part)}, as in {old}. Got {_kind(news[name])}."
                )
            if part.width == news[name].width == 0 and part != news[name]:
                fixed.append((name, part.values()[0], news[name].values()[0]))
    return fixed


def _added(
    before: Optimizer, after: Optimizer, old: Path, defaults: Sequence[str]
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


def _rounds(before: Optimizer, trials: pd.DataFrame) -> float:
    """Return the number of the last round where times are numbers of rounds; else 0."""
    # The trials of a batch have one round.
    rounds = trials.t[trials.how == "asked"].unique().tolist()
    if before.time_scale is not None or rounds != list(range(1, len(rounds) + 1)):
        return 0.0
    return float(len(rounds))


def _outside(optimizer: Optimizer, row: Mapping[str, Any]) -> str | None:
    """Return the name of the first parameter whose value is none of the space; None if all are."""
    for name, part in _all_parts(optimizer).items():
        try:
            part.encode(row[name])
        except InputDataError:
            return name
    return None


def _attach_told(optimizer: Optimizer, rows: Sequence[Mapping[str, Any]]) -> int:
    """Attach and tell trials, and return their number."""
    import pandas as pd

    if not rows:
        return 0
    table = pd.DataFrame(rows)
    variances = [f"{name}_variance" for name in optimizer.labels.outcome_columns]
    known = [name for name in variances if table[name].notna().any()]
    return optimizer.attach_frame(table, variance=known[0] if known else None)


def _attach_open(optimizer: Optimizer, row: Mapping[str, Any]) -> int:
    """Attach an open trial, and return its number."""
    labels = optimizer.labels
    action = {name: row[name] for name in _parts(labels.actions)}
    context = {name: row[name] for name in _parts(labels.contexts)}
    return optimizer.attach(action, row["t"], context or None).id
