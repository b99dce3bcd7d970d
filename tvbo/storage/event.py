"""Changes of an optimizer: what a run is made of, each a row that is exact to the bit."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf, isfinite, isnan, nan
from typing import Any, Literal, get_args

import torch
from torch import Generator, Tensor

from tvbo.spaces.labels import Instant
from tvbo.storage.database import EVENT_COLUMNS
from tvbo.trial import Trial
from tvbo.values import shortened

Kind = Literal["request", "ask", "attach", "tell", "fail", "expire", "refit"]

OPENING = ("ask", "attach")
"""Kinds of events that open a trial."""

ENDINGS = {"tell": "told", "fail": "failed", "expire": "expired"}
"""States of trials after the kinds of events that end them."""

LONGEST_WORDS = 1_000
"""Characters to which an event as text is cut."""


@dataclass(frozen=True)
class Event:
    """One change of an optimizer.

    Ask and attach have action, time and context; what happens to a trial afterwards, its number.
    What there is none of is empty, a time NaN.

    Args:
        kind: What was done.
        trial_id: Number of the trial; None for a refit, or for a request, which goes before the
            asks for a batch or for one of some choices.
        X: The action, ``d`` numbers.
        t: Time of the trial.
        context: Its context, ``c`` numbers.
        informative: Whether the retention policy wanted its outcome.
        information_gain: What the outcome was expected to tell, in nats.
        skipped: Whether it was not to be evaluated.
        Y: The outcomes observed, ``m`` numbers.
        Yvar: Variances of their noise, if they are known.
        reason: Why a trial failed or expired; of an ask, the caller's key.
        fit: Hyperparameters that a refit learned, values by name of the parameter; or what a
            request is for.
        trial: The trial itself; None for an event that was read.
    """

    kind: Kind
    trial_id: int | None = None
    X: tuple[float, ...] = ()
    t: float = nan
    context: tuple[float, ...] = ()
    informative: bool = True
    information_gain: float | None = None
    skipped: bool = False
    Y: tuple[float, ...] = ()
    Yvar: tuple[float, ...] = ()
    reason: str = ""
    fit: dict[str, list[float]] | None = None
    trial: Trial | None = field(default=None, compare=False)

    @classmethod
    def of(
        cls,
        kind: Kind,
        trial: Trial,
        Y: tuple[float, ...] = (),
        Yvar: tuple[float, ...] = (),
        reason: str = "",
    ) -> Event:
        """Return what is done to a trial."""
        event = cls(kind, trial.id, Y=Y, Yvar=Yvar, reason=reason, trial=trial)
        if kind not in OPENING:
            return event
        context = trial.context
        return replace(
            event,
            X=tuple(trial.X.flatten().tolist()),
            t=trial.t,
            context=() if context is None else tuple(context.flatten().tolist()),
            informative=trial.informative,
            information_gain=trial.information_gain,
            skipped=trial.skipped,
        )

    def notify(self, listener: Callable[..., object] | None) -> None:
        """Call a function of ``Optimizer.add_listener``, if there is one for this kind."""
        if listener is None:
            return
        if self.trial is None:
            listener(self.fit)
        elif self.Y:
            listener(self.trial, self.trial.labels.outcomes_by_name(self.Y))
        elif self.kind == "ask":
            listener(self.trial)
        else:
            listener(self.trial, self.reason)

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
            None if self.information_gain is None else _pack([self.information_gain]),
            int(self.skipped),
            _pack(self.Y),
            _pack(self.Yvar),
            self.reason,
            None if self.fit is None else json.dumps(self.fit, sort_keys=True),
        )

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Event:
        """Return the event of a row, after a check of each value.

        Raises:
            ValueError: if :meth:`to_row` returns no such row, naming the column.
        """
        values = dict(zip(EVENT_COLUMNS.split(", "), row, strict=True))
        for name in ("X", "context", "Y", "Yvar"):
            values[name] = _unpack(name, values[name])
        values["t"] = t = _unpack_time(values["t"])
        gain = _unpack("information_gain", values["information_gain"])
        informative, skipped, fit = values["informative"], values["skipped"], values["fit"]
        values |= {"informative": informative == 1, "skipped": skipped == 1}
        values["information_gain"] = gain[0] if gain else None
        values["fit"] = None if fit is None else _read_fit(fit)
        event = cls(**values)
        opens, tells, has_fit = (
            event.kind in each for each in (OPENING, ("tell",), ("refit", "request"))
        )
        number, Y, Yvar = event.trial_id, event.Y, event.Yvar
        is_good = {
            "kind": event.kind in get_args(Kind),
            "trial_id": number is None if has_fit else type(number) is int and number >= 1,
            "X": bool(event.X) == opens and all(map(isfinite, event.X)),
            "t": isfinite(t) if opens else isnan(t),
            "context": (opens or not event.context) and all(map(isfinite, event.context)),
            "informative": informative in (0, 1),
            "information_gain": len(gain) <= 1 and not any(map(isnan, gain)),
            "skipped": skipped in (0, 1),
            "Y": bool(Y) == tells and all(map(isfinite, Y)),
            "Yvar": len(Yvar) in (0, len(Y)) and all(0 <= each < inf for each in Yvar),
            "reason": isinstance(event.reason, str),
            "fit": (event.fit is not None) == has_fit,
        }
        for name, good in is_good.items():
            _check(name, values[name], good)
        return event

    def __str__(self) -> str:
        if self.trial_id is None:
            return shortened(f"{self.kind}: {self.fit}", LONGEST_WORDS)
        words = f"{self.kind} of trial {self.trial_id}"
        if self.trial is not None:
            words = f"{self.kind}: {self.trial}"
        elif self.X:
            words += f", X={list(self.X)}, t={self.t!r}"
            words += f", context={list(self.context)}" if self.context else ""
            words += ", skipped" if self.skipped else ""
        for name, numbers in (("outcome", self.Y), ("variance", self.Yvar)):
            words += f", {name} {' '.join(map(str, numbers))}" if numbers else ""
        return shortened(words + (f" ({self.reason})" if self.reason else ""), LONGEST_WORDS)


@dataclass(frozen=True)
class Request:
    """What an ask is for, where it is for a batch of actions, or for one of some choices.

    Args:
        q: Number of actions that are chosen together; None is one action.
        choices: Actions that can be chosen, ``n x d``; None is the whole search space.
    """

    q: int | None = None
    choices: Tensor | None = None

    @property
    def event(self) -> Event:
        """The event that goes before those of its trials."""
        values: dict[str, list[float]] = {} if self.q is None else {"q": [float(self.q)]}
        if self.choices is not None:
            values |= {"num_choices": [float(len(self.choices))]}
            values |= {"choices": self.choices.flatten().tolist()}
        return Event("request", fit=values)

    @classmethod
    def of(cls, event: Event) -> Request:
        """Return the request of an event; raise ``LookupError`` or ``ValueError`` for another."""
        values = event.fit or {}
        q = int(values["q"][0]) if "q" in values else None
        if "choices" not in values:
            return cls(q)
        choices = torch.tensor(values["choices"], dtype=torch.float64)
        return cls(q, choices.view(int(values["num_choices"][0]), -1))

    def place(self, X: Tensor) -> int | None:
        """Return the first row of an action, ``1 x d``, among the choices; None if none is it."""
        if self.choices is None:
            return None
        equal = (self.choices == X).all(dim=-1)
        return int(equal.to(torch.uint8).argmax()) if equal.any() else None


class EventSink:
    """Receives the changes of an optimizer before they take effect; this one keeps none.

    The writer of a journal stores them, a replay puts the recorded actions in place of the new.
    """

    def check(self) -> None:
        """Raise if the optimizer may differ from what was stored, or the journal is closed.

        Called before an event draws from the random generator, which no other code may have used.
        """

    def reconcile(self, X: Tensor) -> Tensor:
        """Return the actions to take, ``q x d``, where ``X`` was chosen.

        A replay returns the recorded actions, where both differ by rounding only.
        """
        return X

    @contextmanager
    def transaction(self, *events: Event) -> Iterator[None]:
        """Return a context manager whose body makes the events take effect.

        They are committed when the body has ended, with those of the transactions in it, of which
        there are only some where there are no events here. If it raises, none of them was ever
        stored, and the optimizer can no longer be used; except for an ``InputDataError``, which is
        raised before anything has changed.
        """
        yield

    def invalidate(self, why: str) -> None:
        """Refuse further events, since a change was interrupted."""

    def close(self) -> None:
        """Release the journal."""


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
    return digest_of(generator.get_state().numpy().tobytes())[:32]


def parse_json(text: Any) -> Any:
    """Return what a text says in JSON.

    Raises:
        ValueError: if the text is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from error


def _pack(values: Sequence[float]) -> bytes | None:
    return struct.pack(f"<{len(values)}d", *values) if values else None


def _pack_time(t: float) -> bytes | None:
    if isinstance(t, Instant):
        return struct.pack("<dq", t, t.nanoseconds)
    return None if isnan(t) else _pack([t])


def _unpack(name: str, data: Any) -> tuple[float, ...]:
    if data is None:
        return ()
    _check(name, data, isinstance(data, bytes) and len(data) > 0 and len(data) % 8 == 0)
    return struct.unpack(f"<{len(data) // 8}d", data)


def _unpack_time(data: Any) -> float:
    if isinstance(data, bytes) and len(data) == 16:
        return Instant(*struct.unpack("<dq", data))
    numbers = _unpack("t", data)
    _check("t", numbers, len(numbers) <= 1)
    return numbers[0] if numbers else nan


def _read_fit(text: Any) -> dict[str, list[float]]:
    """Return what a refit learned, lists of numbers by name.

    Raises:
        ValueError: if the text is another.
    """
    try:
        found: dict[str, list[float]] = parse_json(text)
        numbers = [value for values in found.values() for value in values]
        good = all(type(value) in (int, float) and abs(float(value)) <= inf for value in numbers)
    except (TypeError, AttributeError, OverflowError):
        good = False
    _check("fit", text, good)
    return found


def _check(name: str, value: object, good: bool) -> None:
    if not good:
        raise ValueError(f"its {name} is {shortened(repr(value), 60)}")
