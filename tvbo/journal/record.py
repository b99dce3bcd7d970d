"""One event as a row of the table ``events``: exact to the bit, and with a checksum."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan
from typing import get_args

from torch import Generator, Tensor

from tvbo.optimizers.events import Event, Kind

LONGEST_WORDS = 1_000
"""Characters to which an event in words is cut."""


@dataclass(frozen=True)
class Record:
    """What a journal stores of one event.

    Ask and attach are stored with action, time and context; what happens to a trial afterwards,
    with the number of the trial only.

    Args:
        kind: What was done.
        trial_id: Number of the trial; None for a refit.
        X: The action, ``d`` numbers.
        t: Time of the trial.
        context: Its context, ``c`` numbers.
        informative: Whether the retention policy wanted its outcome.
        information_gain: What the outcome was expected to tell, in nats.
        skipped: Whether it was not to be evaluated.
        Y: The outcome told.
        Yvar: Variance of its noise, if told.
        reason: Why a trial failed or expired.
        fit: What a refit learned, as JSON.
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
    Y: float | None = None
    Yvar: float | None = None
    reason: str = ""
    fit: str | None = None
    generator: str | None = None

    @classmethod
    def of(cls, event: Event, generator: Generator) -> Record:
        """Return the record of an event that is about to take effect."""
        trial = event.trial
        opens = event.kind in ("ask", "attach")
        return cls(
            kind=event.kind,
            trial_id=None if trial is None else trial.id,
            X=_numbers(trial.X) if opens else None,
            t=trial.t if opens else None,
            context=_numbers(trial.context) if opens else None,
            informative=trial.informative if opens else True,
            information_gain=trial.information_gain if opens else None,
            skipped=trial.skipped if opens else False,
            Y=event.Y,
            Yvar=event.Yvar,
            reason=event.reason,
            fit=None if event.fit is None else json.dumps(event.fit, sort_keys=True),
            generator=generator_digest(generator) if event.kind == "ask" else None,
        )

    def to_row(self) -> tuple:
        """Return the values of ``EVENT_COLUMNS``; floats as their eight bytes."""
        return (
            self.kind,
            self.trial_id,
            _pack(self.X),
            _pack(_one(self.t)),
            _pack(self.context),
            int(self.informative),
            _pack(_one(self.information_gain)),
            int(self.skipped),
            _pack(_one(self.Y)),
            _pack(_one(self.Yvar)),
            self.reason,
            self.fit,
            self.generator,
        )

    @classmethod
    def from_row(cls, row: Sequence) -> Record:
        """Return the record of a row, after a check of each value.

        Raises:
            ValueError: if :meth:`to_row` returns no such row, naming the column.
        """
        kind, trial_id, X, t, context, informative, gain, skipped, Y, Yvar, reason, fit, state = row
        opens, tells, refits = kind in ("ask", "attach"), kind == "tell", kind == "refit"
        _check("kind", kind, kind in get_args(Kind))
        _check("trial_id", trial_id, trial_id is None if refits else _is_count(trial_id))
        _check("informative", informative, informative in (0, 1))
        _check("skipped", skipped, skipped in (0, 1))
        _check("reason", reason, isinstance(reason, str))
        _check("fit", fit, _is_fit(fit) if refits else fit is None)
        _check("generator", state, isinstance(state, str) if kind == "ask" else state is None)
        record = cls(
            kind=kind,
            trial_id=trial_id,
            X=_unpack("X", X),
            t=_unpack_one("t", t),
            context=_unpack("context", context),
            informative=bool(informative),
            information_gain=_unpack_one("information_gain", gain),
            skipped=bool(skipped),
            Y=_unpack_one("Y", Y),
            Yvar=_unpack_one("Yvar", Yvar),
            reason=reason,
            fit=fit,
            generator=state,
        )
        for name, values in (("X", record.X), ("t", _one(record.t))):
            _check(name, values, (values is not None) == opens and all(map(isfinite, values or ())))
        values = record.context or ()
        _check("context", values, (opens or not values) and all(map(isfinite, values)))
        _check("information_gain", gain, gain is None or not isnan(record.information_gain))
        _check("Y", record.Y, (Y is not None) == tells and (not tells or isfinite(record.Y)))
        _check("Yvar", record.Yvar, Yvar is None or (tells and 0 <= record.Yvar < inf))
        return record

    def __str__(self) -> str:
        if self.kind == "refit":
            return f"refit that learned {self.fit}"[:LONGEST_WORDS]
        words = f"{self.kind} of trial {self.trial_id}"
        if self.X is not None:
            words += f", X={list(self.X)}, t={self.t!r}"
        if self.context is not None:
            words += f", context={list(self.context)}"
        if self.kind == "tell":
            words += f", Y={self.Y!r}" + ("" if self.Yvar is None else f", Yvar={self.Yvar!r}")
        if self.skipped:
            words += ", skipped"
        words += f" ({self.reason})" if self.reason else ""
        return words if len(words) <= LONGEST_WORDS else words[: LONGEST_WORDS - 3] + "..."


def chained(checksum: str, seq: int, row: Sequence) -> str:
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


def _one(value: float | None) -> tuple[float] | None:
    return None if value is None else (value,)


def _pack(values: Sequence[float] | None) -> bytes | None:
    return None if values is None else struct.pack(f"<{len(values)}d", *values)


def _unpack(name: str, data: object) -> tuple[float, ...] | None:
    if data is None:
        return None
    _check(name, data, isinstance(data, bytes) and len(data) > 0 and len(data) % 8 == 0)
    return struct.unpack(f"<{len(data) // 8}d", data)


def _unpack_one(name: str, data: object) -> float | None:
    values = _unpack(name, data)
    _check(name, values, values is None or len(values) == 1)
    return None if values is None else values[0]


def _is_fit(text: object) -> bool:
    """Return whether a text says what a refit learned: lists of numbers by name."""
    try:
        found = json.loads(text)
        numbers = [value for values in found.values() for value in values]
        return all(type(value) in (int, float) and abs(float(value)) <= inf for value in numbers)
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        return False


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1


def _check(name: str, value: object, good: bool) -> None:
    if not good:
        words = repr(value)
        raise ValueError(f"its {name} is {words if len(words) <= 60 else words[:57] + '...'}")
