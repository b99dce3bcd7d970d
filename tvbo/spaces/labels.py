"""How a caller states actions, contexts and times: names, types, and a unit of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from fractions import Fraction
from functools import cache
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from tvbo.spaces.parameters import Parameters
from tvbo.spaces.times import ISO_8601, from_iso, parse_timedelta
from tvbo.values import Frame, Named, as_number, as_numbers, check_names, column, is_named

if TYPE_CHECKING:
    import pandas as pd

Time = float | date | np.datetime64 | str
"""A time: a number, or a timestamp of pandas, Python or NumPy, or in ISO 8601."""

Context = Tensor | Named
"""A context: numbers, or values by name."""

Outcome = Tensor | float | Sequence[float] | Named
"""An outcome: one number, or several in their order or by name."""

OUTCOME = "outcome"
"""Column of an outcome without a name."""

MOMENTS = ("variance", "mean", "standard_deviation")
"""Ends of the names of columns beside that of an outcome."""

RESERVED = frozenset(
    [
        *("trial", "t", "how", "state", "status", "reason", "ending", "evaluated", "informative"),
        *("outcome", "outcome_variance", "variance", "reward", "mean", "standard_deviation"),
        *("value", "optimal_value", "regret", "average_regret", "information_gain", "model_size"),
        *("ask_seconds", "seconds", "evaluation_seconds"),
    ]
)
"""Names that a parameter may not have, since tables have such columns."""

MAX_OUTCOME = 1e30
"""Largest outcome: the search for the best action computes powers of it."""

LARGEST_TIME = 1e300
"""Largest time: differences of times must be finite as well."""


class Instant(float):
    """A timestamp as a number, which a float64 holds to some 200 nanoseconds only.

    Args:
        number: Units of time since the beginning of 1970.
        nanoseconds: The same in nanoseconds.

    Raises:
        TypeError: if the nanoseconds are no whole number.
        OverflowError: if there is no such timestamp.
    """

    nanoseconds: int

    def __new__(cls, number: float, nanoseconds: int) -> Instant:
        """Return the number, which knows its timestamp."""
        made = super().__new__(cls, number)
        made.nanoseconds = index(nanoseconds)
        if abs(made.nanoseconds) >= 2**63:
            raise OverflowError(f"Expected a timestamp. Got {nanoseconds} ns since 1970.")
        return made

    def __getnewargs__(self) -> tuple[float, int]:  # type: ignore[override]  # One more than float.
        return float(self), self.nanoseconds


@dataclass(frozen=True)
class TimeScale:
    """Timestamps as numbers: units of time since the beginning of 1970.

    Args:
        unit: The unit, as pandas writes it, such as ``"1h"`` or ``"15min"``.
        zone: Time zone of timestamps, such as ``"UTC"``; those of other zones are converted, and
            those without are refused. None: timestamps have no time zone.

    Raises:
        ValueError: if the unit is not a positive span of time, or there is no such zone.
    """

    unit: str
    zone: str | None = None

    def __post_init__(self) -> None:
        import pandas as pd

        parse_timedelta("time_unit", self.unit)
        try:
            pd.Timestamp(0, tz=self.zone)
        except (KeyError, OSError, TypeError, ValueError) as error:
            raise ValueError(
                f"Expected time_zone such as 'UTC' or 'Europe/Berlin'. Got {self.zone!r}."
            ) from error

    def to_number(self, t: Any) -> float:
        """Return a timestamp, or a text in ISO 8601, as a number.

        Raises:
            InputDataError: if it is none, or has a time zone and the scale has none, or the
                reverse.
        """
        import pandas as pd

        try:
            stamp = from_iso(pd.Series([t])).iloc[0] if isinstance(t, str) else pd.Timestamp(t)
            nanoseconds = stamp.value
        except (OverflowError, TypeError, ValueError) as error:
            raise InputDataError(
                f"Expected a time between 1678 and 2261. Got {t!r}: {error}."
            ) from error
        if stamp is pd.NaT:
            raise InputDataError(f"Expected a timestamp {ISO_8601}. Got {t!r}.")
        if (stamp.tzinfo is None) != (self.zone is None):
            wanted = "without a time zone" if self.zone is None else "with a time zone"
            given = f"time_zone={self.zone!r}" if self.zone else "no time_zone"
            raise InputDataError(
                f"Expected times {wanted}, since {given} was given with time_unit. Got {t!r}."
            )
        return Instant(nanoseconds / _nanoseconds(self.unit), nanoseconds)

    def to_span(self, span: Any) -> float:
        """Return a span of time, such as a ``timedelta``, as a number.

        Raises:
            InputDataError: if it is none, or not within 292 years.
        """
        import pandas as pd

        try:
            length = pd.Timedelta(span)
            nanoseconds: int = length.value
        except (OverflowError, TypeError, ValueError) as error:
            raise InputDataError(f"Expected a span of time. Got {span!r}: {error}.") from error
        if length is pd.NaT:
            raise InputDataError(f"Expected a span of time. Got {span!r}.")
        return nanoseconds / _nanoseconds(self.unit)

    def to_stamp(self, t: float) -> pd.Timestamp:
        """Return the timestamp that a number was made of; of another number to the microsecond."""
        import pandas as pd

        if isinstance(t, Instant):
            nanoseconds = t.nanoseconds
        else:
            # In whole numbers, since a product of floats would be truncated.
            nanoseconds = 1000 * round(Fraction(t) * _nanoseconds(self.unit) / 1000)
        stamp = pd.Timestamp(nanoseconds, tz=None if self.zone is None else "UTC")
        return stamp if self.zone is None else stamp.tz_convert(self.zone)


@cache  # Not on the scale, which is stored.
def _nanoseconds(unit: str) -> int:
    return parse_timedelta("time_unit", unit).value


@dataclass(frozen=True)
class Labels:
    """Names of parameters and the unit of time, by which a caller knows rows of numbers.

    Args:
        actions: Parameters of actions; None where these are tensors.
        contexts: Parameters of contexts; None where these are tensors, or there are none.
        time: The scale of timestamps; None where times are numbers.
        outcomes: Names of the outcomes; empty for one without a name.

    Raises:
        ValueError: if a name is empty, or stands for two columns of a table.
    """

    actions: Parameters | None = None
    contexts: Parameters | None = None
    time: TimeScale | None = None
    outcomes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        outcomes = [name for name in self.outcomes if name != OUTCOME]
        names = [*RESERVED, *outcomes]
        names += [f"{name}_{end}" for name in outcomes for end in MOMENTS]
        for parameters in (self.actions, self.contexts):
            names += [] if parameters is None else parameters.names
        if not all(name.strip() for name in names):
            raise ValueError(
                f"Expected names of parameters and outcomes. Got {min(names, key=str.strip)!r}."
            )
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise ValueError(
                "Expected names of parameters and outcomes that differ from one another and from "
                "the columns of tables, such as 't', 'outcome' and 'reason'. "
                f"Got {', '.join(sorted(twice))}."
            )

    def to_row(self, X: Tensor, t: float, context: Tensor | None) -> dict[str, Any]:
        """Return time, action ``1 x d`` and context ``c`` by column of a table."""
        row = {"t": self.stamp(t)} | _by_name(self.actions, X, "action")
        return row if context is None else row | _by_name(self.contexts, context, "context")

    def parameters(self, X: Tensor) -> dict[str, Any]:
        """Return the values of an action, ``1 x d``, by name.

        Raises:
            ValueError: if the parameters were declared without names.
        """
        if self.actions is None:
            raise ValueError(
                "Expected parameters with names, such as bounds={'x': (0.0, 1.0)}. Got an action "
                "of an optimizer whose actions are tensors: X has the numbers."
            )
        return self.actions.decode(X)

    def columns(self, num_actions: int, num_contexts: int) -> list[str]:
        """Return the columns of actions and contexts in a table."""
        actions = self.actions.names if self.actions else _numbered("action", num_actions)
        contexts = self.contexts.names if self.contexts else _numbered("context", num_contexts)
        return actions + contexts

    def feature_names(self, num_actions: int, num_contexts: int) -> list[str]:
        """Return the names of the columns of a model's row but time."""
        names = self.actions.column_names if self.actions else _numbered("action", num_actions)
        names += self.contexts.column_names if self.contexts else _numbered("context", num_contexts)
        return names[: num_actions + num_contexts]

    def to_json(self) -> dict[str, Any]:
        """Return the labels as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Labels:
        """Return the labels of plain data, as :meth:`to_json` returns them."""
        actions, contexts = (
            None if data[name] is None else Parameters.from_json(data[name])
            for name in ("actions", "contexts")
        )
        time = None if data["time"] is None else TimeScale(**data["time"])
        return cls(actions, contexts, time, tuple(map(str, data["outcomes"])))

    @property
    def outcome_columns(self) -> list[str]:
        """Names of the columns of outcomes in a table."""
        return [*self.outcomes] or [OUTCOME]

    def outcomes_by_name(self, Y: Sequence[float]) -> Any:
        """Return outcomes by name; the only one, without a name, as a number."""
        return dict(zip(self.outcomes, Y, strict=True)) if self.outcomes else Y[0]

    def outcome(self, name: str, Y: Any) -> Tensor:
        """Return outcomes, or their variances, as ``1 x m``.

        Args:
            name: ``"Y"`` or ``"Yvar"``.
            Y: ``m`` numbers, or a dict or Series by name.

        Raises:
            InputDataError: if a name is missing or unknown, or a value is no finite number, beyond
                1e30, or a negative variance.
            BotorchTensorDimensionError: if their number is wrong.
        """
        if is_named(Y):
            columns = self.outcome_columns
            given = dict(Y.items())
            check_names(given, columns, "outcomes")
            Y = [as_number(each, given[each]) for each in columns]
        values = as_numbers(name, Y)
        num_outcomes = max(len(self.outcomes), 1)
        if values.numel() != num_outcomes:
            wanted = "one number" if num_outcomes == 1 else f"{num_outcomes} numbers, of "
            raise BotorchTensorDimensionError(
                f"Expected {name} to be {wanted}{', '.join(self.outcomes)}. "
                f"Got {name}.shape={tuple(values.shape)}."
            )
        # Checked here, where they have the sign of the caller.
        least, most = (0.0, MAX_OUTCOME**2) if name == "Yvar" else (-MAX_OUTCOME, MAX_OUTCOME)
        if not ((least <= values) & (values <= most)).all():
            raise InputDataError(
                f"Expected {name} between {least:g} and {most:g}. Got {values.tolist()}."
            )
        return values.reshape(1, num_outcomes)

    def outcomes_of(
        self, table: Frame, outcome: str | None, variance: str | None
    ) -> list[tuple[dict[str, Any], list[Any] | None]]:
        """Return the outcomes of each row by name, and their variances if there is a column.

        Args:
            table: The table.
            outcome: Column of the outcomes; None are those of their names.
            variance: Column of the variances; None if there is none.

        Raises:
            InputDataError: if a column is missing, or is given by name for several outcomes.
        """
        names = self.outcome_columns
        if len(names) > 1 and (outcome is not None or variance is not None):
            raise InputDataError(
                f"Expected columns {', '.join(names)}, and neither outcome nor variance: tell() "
                f"takes variances. Got {outcome!r} and {variance!r}."
            )
        columns = [column(table, name) for name in (names if outcome is None else [outcome])]
        Y = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        if variance is None:
            return [(each, None) for each in Y]
        return [(each, [cell]) for each, cell in zip(Y, column(table, variance), strict=True)]

    def number(self, t: Any) -> float:
        """Return a checked time as a number.

        Raises:
            InputDataError: if it is a timestamp and no unit was stated, has another kind of time
                zone, or is not finite.
        """
        if isinstance(t, date | np.datetime64 | str):
            if self.time is None:
                raise InputDataError(
                    "Expected a number for t, unless a recipe has time_unit='1h' for timestamps. "
                    f"Got {t!r}."
                )
            t = self.time.to_number(t)
        number = as_number("t", t)
        if not abs(number) <= LARGEST_TIME:
            raise InputDataError(
                f"Expected a time between {-LARGEST_TIME:g} and {LARGEST_TIME:g}. Got t={number}."
            )
        return t if isinstance(t, Instant) else number

    def span(self, span: Any) -> float:
        """Return a span of time, a number of units, a ``timedelta`` or text, as a number."""
        if not isinstance(span, timedelta | np.timedelta64 | str):
            return as_number("a span of time", span)
        if self.time is None:
            raise InputDataError(
                "Expected a number of units of time, or time_unit='1h' in the recipe. "
                f"Got {span!r}."
            )
        return self.time.to_span(span)

    def later(self, t: float, span: float) -> float:
        """Return the time that is later than another by a span."""
        if self.time is None or not isinstance(t, Instant):
            return t + span
        nanoseconds = t.nanoseconds + round(span * _nanoseconds(self.time.unit))
        return Instant(nanoseconds / _nanoseconds(self.time.unit), nanoseconds)

    def stamp(self, t: Any) -> Any:
        """Return a number as a timestamp where a unit was stated; anything else as it is."""
        return self.time.to_stamp(t) if self.time is not None and isinstance(t, int | float) else t


def _by_name(parameters: Parameters | None, row: Tensor, kind: str) -> dict[str, Any]:
    """Return the values of an action or a context by name, numbered where they have none."""
    if parameters is not None:
        return parameters.decode(row)
    values = row.reshape(-1).tolist()
    return dict(zip(_numbered(kind, len(values)), values, strict=True))


def _numbered(kind: str, number: int) -> list[str]:
    return [f"{kind}_{i}" for i in range(number)]
