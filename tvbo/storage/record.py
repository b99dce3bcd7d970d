"""One event as a row of the table ``events``: exact to the bit, and with a checksum."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, isnan
from typing import Any, get_args

from torch import Generator, Tensor

from tvbo.spaces.labels import Instant
from tvbo.storage.database import EVENT_COLUMNS
from tvbo.storage.recorded import LONGEST_WORDS, Event, Kind
from tvbo.trial import Trial
from tvbo.values import shortened

COLUMNS = EVENT_COLUMNS.split(", ")
KINDS = get_args(Kind)

OPENING = ("ask", "attach")
"""Kinds of events that open a trial."""


@dataclass(frozen=True)
class Record:
    """What a journal stores of one event.

    Ask and attach are stored with action, time and context; what happens to a trial afterwards,
    with the number of the trial only.

    Args:
        kind: What was done.
        trial_id: Number of the trial; None for a refit or a request.
        X: The action, ``d`` numbers.
        t: Time of the trial.
        context: Its context, ``c`` numbers.
        informative: Whether the retention policy wanted its outcome.
        information_gain: What the outcome was expected to tell, in nats.
        skipped: Whether it was not to be evaluated.
        Y: The outcomes told.
        Yvar: Variances of their noise, if told.
        reason: Why a trial failed or expired; of an ask, the caller's key.
        fit: What a refit learned, or what a request is for, as JSON.
        generator: Digest of the generator's state after an ask.
    """

    kind: Kind
    trial_id: int | None = None
    X: tuple[float, ...] | None = None
    t: float | None = None
    context: tuple[float, ...] | None = None
    informative: bool = True
    information_gain: float | None = None
    skipped: bool = False
    Y: tuple[float, ...] | None = None
    Yvar: tuple[float, ...] | None = None
    reason: str = ""
    fit: str | None = None
    generator: str | None = None

    @classmethod
    def of(cls, event: Event, generator: Generator) -> Record:
        """Return the record of an event that is about to take effect."""
        trial = event.trial
        record = cls(
            kind=event.kind,
            trial_id=None if trial is None else trial.id,
            Y=event.Y,
            Yvar=event.Yvar,
            reason=event.reason,
            fit=None if event.fit is None else json.dumps(event.fit, sort_keys=True),
            generator=generator_digest(generator) if event.kind == "ask" else None,
        )
        if trial is None or event.kind not in OPENING:
            return record
        return replace(
            record,
            X=_numbers(trial.X),
            t=trial.t,
            context=_numbers(trial.context),
            informative=trial.informative,
            information_gain=trial.information_gain,
            skipped=trial.skipped,
        )

    def to_row(self) -> tuple[Any, ...]:
        """Return the values of ``EVENT_COLUMNS``; floats as their eight bytes.

        After those of the number of a timestamp, eight bytes hold its nanoseconds.
        """
        return (
            self.kind,
            self.trial_id,
            _pack(self.X),
            _pack_time(self.t),
            _pack(self.context),
            int(self.informative),
            _pack(_one(self.information_gain)),
            int(self.skipped),
            _pack(self.Y),
            _pack(self.Yvar),
            self.reason,
            self.fit,
            self.generator,
        )

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Record:
        """Return the record of a row, after a check of each value.

        Raises:
            ValueError: if :meth:`to_row` returns no such row, naming the column.
        """
        values = dict(zip(COLUMNS, row, strict=True))
        for name in ("X", "context", "Y", "Yvar"):
            values[name] = _unpack(name, values[name])
        values["t"] = _unpack_time(values["t"])
        values["information_gain"] = _unpack_one("information_gain", values["information_gain"])
        informative, skipped = values["informative"], values["skipped"]
        record = cls(**values | {"informative": informative == 1, "skipped": skipped == 1})
        opens, tells, has_values = (
            record.kind in each for each in (OPENING, ("tell",), ("refit", "request"))
        )
        asks, gain = record.kind == "ask", record.information_gain
        Y, Yvar = record.Y, record.Yvar
        is_good = {
            "kind": record.kind in KINDS,
            "trial_id": record.trial_id is None if has_values else _is_count(record.trial_id),
            "X": (record.X is not None) == opens and _are_finite(record.X),
            "t": (record.t is not None) == opens and _are_finite(_one(record.t)),
            "context": (opens or record.context is None) and _are_finite(record.context),
            "informative": informative in (0, 1),
            "information_gain": gain is None or not isnan(gain),
            "skipped": skipped in (0, 1),
            "Y": (Y is not None) == tells and _are_finite(Y),
            "Yvar": Yvar is None
            or (Y is not None and len(Yvar) == len(Y) and all(0 <= each < inf for each in Yvar)),
            "reason": isinstance(record.reason, str),
            "fit": _is_fit(record.fit) if has_values else record.fit is None,
            "generator": isinstance(record.generator, str) if asks else record.generator is None,
        }
        for name, good in is_good.items():
            _check(name, values[name], good)
        return record

    def __str__(self) -> str:
        if self.kind == "refit":
            return shortened(f"refit that learned {self.fit}", LONGEST_WORDS)
        if self.kind == "request":
            return shortened(f"request for {self.fit}", LONGEST_WORDS)
        words = f"{self.kind} of trial {self.trial_id}"
        if self.X is not None:
            words += f", X={list(self.X)}, t={self.t!r}"
        if self.context is not None:
            words += f", context={list(self.context)}"
        if self.kind == "tell":
            words += f", Y={_listed(self.Y)}"
            words += "" if self.Yvar is None else f", Yvar={_listed(self.Yvar)}"
        if self.skipped:
            words += ", skipped"
        words += f" ({self.reason})" if self.reason else ""
        return shortened(words, LONGEST_WORDS)


def chained(checksum: str, seq: int, row: Sequence[Any]) -> str:
    """Return the checksum of a row and of all rows before it.

    Args:
        checksum: That of the row before.
        seq: Number of the row, from 1.
        row: Its values.
    """
    return digest_of(repr((checksum, seq, *row)).encode())


def digest_of(data: bytes) -> str:
    """Return the checksum of some bytes."""
    return hashlib.sha256(data).hexdigest()


def generator_digest(generator: Generator) -> str:
    """Return a digest of the state of a random generator."""
    return hashlib.sha256(generator.get_state().numpy().tobytes()).hexdigest()[:32]


def _numbers(tensor: Tensor | None) -> tuple[float, ...] | None:
    return None if tensor is None else tuple(tensor.reshape(-1).tolist())


def _are_finite(values: Sequence[float] | None) -> bool:
    return all(map(isfinite, values or ()))


def _listed(values: Sequence[float] | None) -> str:
    return ", ".join(map(repr, values or ()))


def _one(value: float | None) -> tuple[float] | None:
    return None if value is None else (value,)


def _pack(values: Sequence[float] | None) -> bytes | None:
    return None if values is None else struct.pack(f"<{len(values)}d", *values)


def _pack_time(t: float | None) -> bytes | None:
    return struct.pack("<dq", t, t.nanoseconds) if isinstance(t, Instant) else _pack(_one(t))


def _unpack_time(data: Any) -> float | None:
    if isinstance(data, bytes) and len(data) == 16:
        return Instant(*struct.unpack("<dq", data))
    return _unpack_one("t", data)


def _unpack(name: str, data: Any) -> tuple[float, ...] | None:
    if data is None:
        return None
    _check(name, data, isinstance(data, bytes) and len(data) > 0 and len(data) % 8 == 0)
    return struct.unpack(f"<{len(data) // 8}d", data)


def _unpack_one(name: str, data: Any) -> float | None:
    values = _unpack(name, data)
    _check(name, values, values is None or len(values) == 1)
    return None if values is None else values[0]


def _is_fit(text: Any) -> bool:
    """Return whether a text says what a refit learned: lists of numbers by name."""
    try:
        found = parse_json(text)
        numbers = [value for values in found.values() for value in values]
        return all(type(value) in (int, float) and abs(float(value)) <= inf for value in numbers)
    except (TypeError, ValueError, AttributeError, OverflowError):
        return False


def parse_json(text: Any) -> Any:
    """Return what a text says in JSON.

    Raises:
        ValueError: if the text is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from error


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1


def _check(name: str, value: object, good: bool) -> None:
    if not good:
        raise ValueError(f"its {name} is {shortened(repr(value), 60)}")


def open_trials_to_json(trials: Iterable[Trial]) -> str:
    """Return the trials that are open when recording begins, for readers that unpickle nothing."""
    return json.dumps(
        [
            {
                "trial": trial.id,
                "t": [trial.t, trial.t.nanoseconds] if isinstance(trial.t, Instant) else trial.t,
                "X": trial.X.reshape(-1).tolist(),
                "context": None if trial.context is None else trial.context.reshape(-1).tolist(),
            }
            for trial in trials
        ]
    )


def open_trials_from_json(text: str) -> list[dict[str, Any]]:
    """Return what :func:`open_trials_to_json` wrote; no context is an empty one.

    Raises:
        ArithmeticError, LookupError, TypeError, ValueError: if the text is another.
    """
    trials = []
    for row in parse_json(text):
        X, context = ([float(x) for x in row[name] or ()] for name in ("X", "context"))
        t = Instant(*row["t"]) if isinstance(row["t"], list) else float(row["t"])
        trial = {"trial": row["trial"], "t": t, "X": X, "context": context}
        if type(row["trial"]) is not int or not all(map(isfinite, (trial["t"], *X, *context))):
            raise ValueError(f"Expected the number of a trial and finite numbers. Got {row}.")
        trials.append(trial)
    return trials
