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
from tvbo.values import did_you_mean

VERSION = 1
"""Version of the format."""

OPTIONS = (
    *("minimize", "time_unit", "time_zone", "objectives", "min_feasibility"),
    *("forgetting_rate", "noise_variance", "beta", "initial"),
    *("duration", "max_step", "max_rate"),
)
FORM = {
    "": ("version", "parameters", "contexts", "constraints", "seed", *OPTIONS),
    "float": ("type", "bounds", "log"),
    "integer": ("type", "bounds", "log"),
    "category": ("type", "values", "ordered"),
    "bool": ("type",),
    "fixed": ("type", "value"),
}
"""Entries of the file, and of a parameter of each type."""


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
    except tomllib.TOMLDecodeError as error:
        raise SpaceError(f"Expected TOML in {name}. Got {error}.") from error
    except RecursionError as error:
        raise SpaceError(
            f"Expected TOML in {name}. Got tables or lists nested too deeply."
        ) from error
    version = found.get("version", VERSION)
    if version != VERSION:
        raise SpaceError(
            f"Expected version = {VERSION} in {name}, which this tvbo reads. Got {version!r}."
        )
    _check_names(found, FORM[""], name)
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
    if not isinstance(entry, Mapping):
        raise SpaceError(
            f"Expected limits of the constraint {name}, such as {{ max = 100.0 }} or [0.0, 100.0], "
            f"in {where}. Got {entry!r}."
        )
    _check_names(entry, ("min", "max"), f"the constraint {name}, in {where}")
    return entry.get("min"), entry.get("max")


def _parameter(name: str, entry: Any, where: str) -> Any:
    # Not at the top, since it takes a third of a second.
    from ConfigSpace import Categorical, Constant, Float, Integer

    if isinstance(entry, list):
        kinds = {type(each) for each in entry}
        if kinds and kinds <= {str, bool}:
            return entry
        if kinds <= {int, float} and len(entry) == 2:
            return tuple(entry)
    kind = entry.get("type") if isinstance(entry, Mapping) else None
    if not kind or kind not in FORM:
        raise SpaceError(
            f'Expected a table such as {name} = {{ type = "float", bounds = [0.0, 1.0] }} with a '
            f"type in {', '.join(filter(None, FORM))}, two bounds, or texts in the {where}. Got "
            f"{entry!r}."
        )
    _check_names(entry, FORM[kind], f"{name}, {where}")
    flags = {flag: entry[flag] for flag in ("log", "ordered") if flag in entry}
    try:
        if not all(isinstance(flag, bool) for flag in flags.values()):
            raise TypeError(f"{', '.join(flags)} is neither true nor false")
        match kind:
            case "float":
                lower, upper = entry["bounds"]
                return Float(name, (float(lower), float(upper)), **flags)
            case "integer":
                lower, upper = entry["bounds"]
                if not type(lower) is type(upper) is int:
                    raise TypeError("its bounds are not whole")
                return Integer(name, (lower, upper), **flags)
            case "category":
                if not isinstance(entry["values"], list):
                    raise TypeError("its values are no list")
                return Categorical(name, entry["values"], **flags)
            case "fixed":
                return Constant(name, entry["value"])
        return [False, True]
    except (KeyError, TypeError, ValueError) as error:
        raise SpaceError(
            f"Expected {', '.join(FORM[kind][1:])} of {name} for a {kind} in the {where}. Got "
            f"{entry!r}: {type(error).__name__}: {error}."
        ) from error


def _check_names(entries: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for each in entries:
        if each not in known:
            raise SpaceError(
                f"Expected entries {', '.join(known)} in {where}. Got {each!r}"
                f"{did_you_mean(each, known)}"
            )
