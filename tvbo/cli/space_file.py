"""SPACE.toml: what is tuned, in which contexts and units, as an optimizer."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from botorch.exceptions.errors import BotorchError
from torch import Generator

from tvbo import recipes
from tvbo.optimizers import Optimizer
from tvbo.spaces.labels import Labels
from tvbo.storage.reader import read_description

SPACE = "space"
"""Name of the text of the SPACE file in a journal."""

VERSION = 1
"""Version of the format."""

UNITS = ("minimize", "time_unit", "time_zone")
OUTCOMES = ("objectives", "min_feasibility")
LIMITS = {"lower": "lower", "upper": "upper", "min": "lower", "max": "upper"}
LEARNED = ("forgetting_rate", "noise_variance", "beta", "initial")
FORM = {
    "": ("version", "parameters", "contexts", "seed", *UNITS, *OUTCOMES, "constraints", *LEARNED),
    "float": ("type", "bounds", "log"),
    "integer": ("type", "bounds", "log"),
    "category": ("type", "values", "ordered"),
    "bool": ("type",),
    "fixed": ("type", "value"),
}
"""Entries of the file, and of a parameter of each type."""


class SpaceError(ValueError):
    """A SPACE file that is not as expected."""


def optimizer_of(text: str, name: str = "SPACE.toml", labels: Labels | None = None) -> Optimizer:
    """Return the optimizer that a SPACE file describes.

    Args:
        text: The file.
        name: Its name, for errors.
        labels: The parameters as they were read before, which is faster than reading them again.

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
    spaces: dict[str, Any] = {}
    if labels is not None:
        spaces = {"bounds": labels.actions, "context_bounds": labels.contexts}
    else:
        spaces["bounds"] = _space(found.get("parameters"), f"parameters of {name}")
        if "contexts" in found:
            spaces["context_bounds"] = _space(found["contexts"], f"contexts of {name}")
    options: dict[str, Any] = {
        each: found[each] for each in (*UNITS, *OUTCOMES, *LEARNED) if each in found
    }
    if "constraints" in found:
        options["constraints"] = _constraints(found["constraints"], name)
    recipe: Callable[..., Optimizer] = (
        recipes.tv_cgp_ucb if "contexts" in found else recipes.tv_gp_ucb
    )
    try:
        generator = Generator().manual_seed(found.get("seed", 0))
        given = {each: space for each, space in spaces.items() if space is not None}
        return recipe(**given, **options, generator=generator)
    except (TypeError, ValueError, RuntimeError, BotorchError) as error:
        raise SpaceError(f"{error} In {name}.") from error


def optimizer_of_run(run: Path, space: Path | None = None) -> Optimizer:
    """Return an optimizer with the settings of a run, or of the SPACE file given."""
    if space is not None:
        return optimizer_of(read_text(space), str(space))
    meta, labels = read_description(run)
    if (text := meta.get(SPACE)) is None:
        raise SpaceError(
            f"Expected a run begun by tvbo new. Got {run}, which a program recorded: go on with "
            "Optimizer.open there."
        )
    return optimizer_of(text, f"the SPACE of {run}", labels)


def read_text(space: Path) -> str:
    """Return the text of a SPACE file.

    Raises:
        SpaceError: if the file is not text in UTF-8.
    """
    try:
        return space.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpaceError(f"Expected text in {space}. Got {error}.") from error


def _space(table: Any, where: str) -> dict[str, Any]:
    """Return parameters by name, as a recipe takes them."""
    if not isinstance(table, Mapping) or not table:
        raise SpaceError(f"Expected a table for each of the {where}. Got {table!r}.")
    return {name: _parameter(name, entry, where) for name, entry in table.items()}


def _constraints(table: Any, where: str) -> dict[str, Any]:
    """Return lower and upper limit by name of the outcome."""
    if not isinstance(table, Mapping) or not all(
        isinstance(each, Mapping | list) for each in table.values()
    ):
        raise SpaceError(
            "Expected limits for each of the constraints, such as latency = { max = 100.0 } or "
            f"[0.0, 100.0], in {where}. Got {table!r}."
        )
    return {name: _limits(name, entry, where) for name, entry in table.items()}


def _limits(name: str, entry: Any, where: str) -> Any:
    if isinstance(entry, list):
        return entry
    _check_names(entry, tuple(LIMITS), f"the constraint {name}, in {where}")
    named = {LIMITS[each]: limit for each, limit in entry.items()}
    if len(named) < len(entry):
        raise SpaceError(f"Expected each limit of {name} once, in {where}. Got {entry!r}.")
    return named.get("lower"), named.get("upper")


def _parameter(name: str, entry: Any, where: str) -> Any:
    # Not at the top, since it takes a third of a second.
    from ConfigSpace import Categorical, Constant, Float, Integer

    kinds_of_values = {type(each) for each in entry} if isinstance(entry, list) else set()
    if kinds_of_values and kinds_of_values <= {str, bool}:
        return entry
    if kinds_of_values and kinds_of_values <= {int, float} and len(entry) == 2:
        return tuple(entry)
    if not isinstance(entry, Mapping):
        raise SpaceError(
            f'Expected a table such as {name} = {{ type = "float", bounds = [0.0, 1.0] }}, two '
            f"bounds, or texts in the {where}. Got {entry!r}."
        )
    kind = entry.get("type")
    kinds = [each for each in FORM if each]
    if kind not in kinds:
        raise SpaceError(f"Expected type of {name} in {', '.join(kinds)}. Got {kind!r}, {where}.")
    _check_names(entry, FORM[kind], f"{name}, {where}")
    if kind == "bool":
        return [False, True]
    needed = FORM[kind][1]
    if needed not in entry:
        raise SpaceError(f"Expected {needed} of {name}. Got none, in the {where}.")
    value = entry[needed]
    for flag in ("log", "ordered"):
        if not isinstance(entry.get(flag, False), bool):
            raise SpaceError(f"Expected {flag} of {name}, true or false. Got {entry[flag]!r}.")
    if kind == "category" and not isinstance(value, list):
        raise SpaceError(f"Expected a list for values of {name}. Got {value!r}, in the {where}.")
    if kind == "integer" and not all(type(bound) is int for bound in value):
        raise SpaceError(f"Expected whole bounds of {name}. Got {value!r}, in the {where}.")
    try:
        match kind:
            case "float":
                lower, upper = value
                return Float(name, (float(lower), float(upper)), log=entry.get("log", False))
            case "integer":
                lower, upper = value
                return Integer(name, (lower, upper), log=entry.get("log", False))
            case "category":
                return Categorical(name, value, ordered=entry.get("ordered", False))
        return Constant(name, value)
    except (TypeError, ValueError) as error:
        raise SpaceError(
            f"Expected {needed} of {name} for a {kind}. Got {value!r}, in the {where}: {error}."
        ) from error


def _check_names(entries: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for each in entries:
        if each not in known:
            near = get_close_matches(each, known, n=1)
            raise SpaceError(
                f"Expected entries {', '.join(known)} in {where}. Got {each!r}"
                + (f"; did you mean {near[0]!r}?" if near else ".")
            )
