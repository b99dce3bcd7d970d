"""Times in tables: what a text, a number of digits or a unit stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tvbo.values import TableError

if TYPE_CHECKING:
    from datetime import datetime

    import pandas as pd

ISO_8601 = "in ISO 8601, such as 2026-01-31T12:00"

DIGITS = {6: "%Y%m", 8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
"""Dates and times written as one number, by its number of digits."""

YEARS = (1900, 2100)
"""Years in which numbers of these digits are dates."""

STEPS = (1e3, 1e6, 1e9)
"""Ratios of the units in which clocks count: seconds, milliseconds, microseconds, nanoseconds."""

ROUND_UNITS = (
    *(f"{count}{unit}" for unit in ("ns", "us", "ms") for count in (1, 10, 100)),
    *("1s", "10s", "1min", "10min", "1h", "1D", "7D", "30D", "365D"),
)
"""Units of time for logs whose gaps differ."""


def from_iso(texts: pd.Series, utc: bool = False) -> pd.Series:
    """Return texts in ISO 8601 as timestamps, and NaT for every other text.

    Args:
        texts: Texts, or timestamps, which stay as they are.
        utc: Whether to convert all to UTC, those without an offset unchanged. Otherwise all have
            the same offset, or none.
    """
    import pandas as pd

    # pandas would also read "now" and "today", as the moment of the call.
    dated = texts.where(texts.astype(str).str.match(r"\d{4}"))
    return pd.to_datetime(dated, errors="coerce", format="ISO8601", utc=utc)


def from_text(texts: pd.Series) -> pd.Series:
    """Return texts in ISO 8601, or as 31.01.2026 12:00, as timestamps in UTC, and NaT for others.

    Without an offset they are not converted.
    """
    import pandas as pd

    times = from_iso(texts, utc=True)
    for form in ("%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S"):
        # pandas would also read "now", whatever the form.
        rest = texts.where(times.isna() & texts.astype(str).str.match(r"\d{1,2}\."))
        times = times.fillna(pd.to_datetime(rest, errors="coerce", format=form, utc=True))
    return times


def from_digits(numbers: pd.Series) -> pd.Series | None:
    """Return numbers such as 20250120 or 202501310800 as timestamps, and NaT for every other one.

    None if fewer than half are dates, as of times that are numbers.
    """
    import pandas as pd

    texts = numbers.map("{:.0f}".format)
    lengths = texts.str.len()
    if (length := lengths.mode()[0]) not in DIGITS:
        return None
    written = texts.where((lengths == length) & (numbers % 1 == 0))
    dates = pd.to_datetime(written, errors="coerce", format=DIGITS[length])
    is_date = dates.dt.year.between(*YEARS)
    return dates.where(is_date) if is_date.mean() >= 0.5 else None


def change_of_unit(numbers: np.ndarray) -> tuple[int, int] | None:
    """Return the places of two numbers between which a clock begins to count in a smaller unit.

    There the times, in order, become about a thousand times as large at once, as do their gaps.
    None if there is no such place.

    Args:
        numbers: Times, ``n``, in any order.
    """
    values, places = np.unique(numbers, return_index=True)
    steps = np.asarray(STEPS)
    with np.errstate(all="ignore"):
        is_jump = (abs(np.log2(values[1:] / values[:-1] / steps[:, None])) < 1).any(axis=0)
    for i in is_jump.nonzero()[0] + 1:
        before, after = np.diff(values[:i]), np.diff(values[i:])
        if min(len(before), len(after)) < 2:
            continue
        if (abs(np.log10(np.median(after) / np.median(before) / steps)) < 1).any():
            return int(places[i - 1]), int(places[i])
    return None


def round_unit(gaps: pd.Series) -> str:
    """Return a unit of time for timestamps with these gaps.

    It is the median gap where nine tenths of them are multiples of it, as in a log at even times
    with holes, in the largest unit that divides it, such as ``5min``, or else the round unit
    nearest to it.
    """
    import pandas as pd

    median = gaps.median()
    if (gaps % median == pd.Timedelta(0)).mean() >= 0.9:
        units = ("D", "h", "min", "s", "ms", "us", "ns")
        unit = next(unit for unit in units if median % pd.Timedelta(f"1{unit}") == pd.Timedelta(0))
        return f"{median // pd.Timedelta(f'1{unit}')}{unit}"
    ratios = [abs(np.log(pd.Timedelta(unit) / median)) for unit in ROUND_UNITS]
    return ROUND_UNITS[int(np.argmin(ratios))]


def parse_timedelta(name: str, text: str) -> pd.Timedelta:
    """Return a length of time such as ``10min``, given as the option ``name``.

    Raises:
        TableError: if it is none, has no unit, or is not above zero.
    """
    import pandas as pd

    # pandas would read a number without a unit as nanoseconds.
    has_unit = isinstance(text, str) and any(map(str.isalpha, text))
    try:
        # And several lengths as their sum.
        step = pd.Timedelta(text) if has_unit and "," not in text else pd.NaT
    except ValueError as error:
        raise TableError(f"Expected {name} like 10min or 1h. Got {text!r}.") from error
    if not step > pd.Timedelta(0):
        what = "" if has_unit else ", without a unit"
        raise TableError(f"Expected {name} like 10min or 1h. Got {text!r}{what}.")
    return step


def duration(time_unit: str) -> pd.Timedelta | None:
    """Return the length of a unit of time such as ``"5min"``; None if its name is of no duration.

    Args:
        time_unit: Name of the unit. A number alone is no duration.
    """
    try:
        return parse_timedelta("time_unit", time_unit)
    except TableError:
        return None


def to_timestamp(name: str, value: datetime | str) -> pd.Timestamp:
    """Return a moment, or a text in ISO 8601, given as the argument ``name``, as a timestamp.

    Raises:
        ValueError: if it is none.
    """
    import pandas as pd

    if (stamp := from_iso(pd.Series([value])).iloc[0]) is pd.NaT:
        raise ValueError(f"Expected a timestamp {ISO_8601} as {name}. Got {value!r}.")
    return stamp


def units_since(origin: pd.Timestamp, stamp: pd.Timestamp, unit: str) -> float:
    """Return how long after an origin a timestamp is, in units of time.

    One without an offset has that of the origin.

    Raises:
        TableError: if it has an offset, and the origin has none.
    """
    if stamp.tz is None:
        stamp = stamp.tz_localize(origin.tz)
    elif origin.tz is None:
        raise TableError(f"Expected a time without an offset, as in the log. Got {stamp}.")
    return float((stamp - origin) / parse_timedelta("time_unit", unit))
