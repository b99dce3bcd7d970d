"""SPACE.toml: what is tuned, in which contexts and units, as an optimizer."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from operator import index
from pathlib import Path
from typing import Any

from botorch.exceptions.errors import BotorchError

from tvbo import recipes
from tvbo.optimizers import GPOptimizer
from tvbo.values import check_names

VERSION = 1
"""Version of the format."""

OPTIONS = (
    *("minimize", "time_unit", "time_zone", "objectives", "min_feasibility"),
    *("forgetting_rate", "noise_variance", "beta", "initial"),
    *("duration", "max_step", "max_rate"),
)
ENTRIES = ("version", "parameters", "contexts", "constraints", "seed", *OPTIONS)
"""Entries of the file."""

FORMS = (
    '{ type = "float", bounds = [0.0, 1.0] } or "integer", perhaps with log = true',
    '{ type = "category", values = ["a", "b"] }, perhaps with ordered = true',
    '{ type = "bool" }, { type = "fixed", value = 4 }, [0.0, 1.0], [1, 8] or ["a", "b"]',
)
"""Forms of a parameter."""


class SpaceError(ValueError):
    """A SPACE file that is not as expected."""


def optimizer_of(text: str, name: str = "SPACE.toml") -> GPOptimizer:
    """Return the optimizer that a SPACE file describes.

    Args:
        text: The file.
        name: Its name, for errors.

    Raises:
        SpaceError: if the file is not TOML, of a newer version, or an entry is missing, unknown or
            out of range.
    """
    try:
        found = tomllib.loads(text)
        repr(found)  # As errors quote it.
        check_names(found, ENTRIES, "entries", optional=ENTRIES)
    except (tomllib.TOMLDecodeError, RecursionError, BotorchError) as error:
        raise SpaceError(f"Expected TOML of what is tuned in {name}: {error}") from error
    version = found.get("version", VERSION)
    if version != VERSION:
        raise SpaceError(
            f"Expected version = {VERSION} in {name}, which this tvbo reads. Got {version!r}."
        )
    options: dict[str, Any] = {each: found[each] for each in OPTIONS if each in found}
    recipe: Callable[..., GPOptimizer] = recipes.tv_gp_ucb
    options["bounds"] = _read_table(found, "parameters", _parameter, name)
    if "contexts" in found:
        recipe = recipes.tv_cgp_ucb
        options["context_bounds"] = _read_table(found, "contexts", _parameter, name)
    options["constraints"] = _read_table(found, "constraints", _limits, name)
    try:
        return recipe(**options, generator=index(found.get("seed", 0)))
    except (TypeError, ValueError, RuntimeError, BotorchError) as error:
        raise SpaceError(f"{error} In {name}.") from error


def read_text(space: Path) -> str:
    """Return the text of a SPACE file.

    Raises:
        SpaceError: if the file is not text in UTF-8.
    """
    try:
        return space.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpaceError(f"Expected text in {space}. Got {error}.") from error


def _read_table(
    found: Mapping[str, Any], entry: str, read: Callable[[str, Any, str], Any], name: str
) -> dict[str, Any] | None:
    """Return what is read of the entries of a table; None if the file has none, but it may."""
    table = found.get(entry)
    if table is None and entry != "parameters":
        return None
    where = f"{entry} of {name}"
    if not isinstance(table, Mapping) or not table:
        raise SpaceError(f"Expected a table for each of the {where}. Got {table!r}.")
    return {key: read(key, each, where) for key, each in table.items()}


def _limits(name: str, entry: Any, where: str) -> Any:
    """Return the lower and the upper limit of a constraint; None for one without a limit."""
    if isinstance(entry, list):
        return entry
    if not isinstance(entry, Mapping) or not entry.keys() <= {"min", "max"}:
        raise SpaceError(
            f"Expected limits of the constraint {name}, such as {{ max = 100.0 }} or [0.0, 100.0], "
            f"in {where}. Got {entry!r}."
        )
    return entry.get("min"), entry.get("max")


def _parameter(name: str, entry: Any, where: str) -> Any:
    # Not at the top, since it takes a third of a second.
    from ConfigSpace import Categorical, Constant, Float, Integer

    kinds = {type(each) for each in entry} if isinstance(entry, list) else set()
    try:
        match entry:
            case list() if kinds and kinds <= {str, bool}:
                return entry
            case [low, high] if kinds <= {int, float}:
                return low, high
            case {"type": "float", "bounds": [low, high], **flags}:
                return _made(Float, name, (float(low), float(high)), flags, "log")
            case {"type": "integer", "bounds": [low, high], **flags}:
                if not type(low) is type(high) is int:
                    raise TypeError("its bounds are not whole")
                return _made(Integer, name, (low, high), flags, "log")
            case {"type": "category", "values": [*values], **flags}:
                return _made(Categorical, name, values, flags, "ordered")
            case {"type": "fixed", "value": value, **flags}:
                return _made(Constant, name, value, flags)
            case {"type": "bool", **flags}:
                return _made(Categorical, name, [False, True], flags)
        raise ValueError("it has none of these forms")
    except (TypeError, ValueError) as error:
        raise SpaceError(
            f"Expected {name} = {', '.join(FORMS)}, in the {where}. Got {entry!r}: {error}."
        ) from error


def _made(kind: Any, name: str, values: Any, flags: Mapping[Any, Any], known: str = "") -> Any:
    """Return a parameter of ConfigSpace, whose only flag is the one that is known."""
    if not all(flag == known and isinstance(value, bool) for flag, value in flags.items()):
        raise ValueError(f"{', '.join(map(str, flags))} is no flag of it")
    return kind(name, values, **flags)
