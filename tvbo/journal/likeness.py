"""Whether two optimizers were made alike, and where they differ if not."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Generator, Tensor

from tvbo.journal.errors import JournalError

if TYPE_CHECKING:
    from tvbo.optimizers.base import Optimizer

PROBLEM = ("domain", "contexts", "columns")
"""Compared first: they say what is asked, the rest says how it is answered."""

FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, type)


def describe(optimizer: Optimizer) -> dict[str, str]:
    """What an optimizer is, in words for a person."""
    kind = type(optimizer)
    low, high = optimizer.domain.bounds.tolist()
    contexts = optimizer.contexts
    return {
        "optimizer": f"{kind.__module__}.{kind.__qualname__}",
        "domain": f"{type(optimizer.domain).__name__}, from {_short(low)} to {_short(high)}",
        "contexts": "none"
        if contexts is None
        else f"{type(contexts).__name__}, c = {contexts.dim}",
        "columns": str(optimizer.columns),
    }


def check_likeness(recorded: Optimizer, given: Optimizer, path: Path) -> None:
    """Raise if the optimizers differ in class, problem or settings.

    Their trials, what they learned and their generators are not compared.

    Args:
        recorded: As it was when recording began.
        given: As the caller made it.
        path: The journal, for the message.

    Raises:
        JournalError: naming the first difference.
    """
    difference = next(_differences(recorded, given), None)
    if difference is not None:
        name, one, two = difference
        raise JournalError(
            f"Expected a journal of this problem and these settings. Got {path}, which differs in "
            f"{name}: it has {_short(one)}, where {_short(two)} was given."
        )


def _differences(recorded: Optimizer, given: Optimizer) -> Iterator[tuple[str, object, object]]:
    if type(recorded) is not type(given):
        yield "class", type(recorded).__name__, type(given).__name__
        return
    for name in PROBLEM:
        yield from _compare(name, getattr(recorded, name), getattr(given, name))
    yield from _compare("", recorded, given)


def _compare(name: str, one: object, two: object) -> Iterator[tuple[str, object, object]]:
    """Places at which two objects differ, with what stands there."""
    if type(one) is not type(two):
        yield name, one, two
    elif isinstance(one, Tensor):
        if not (one.shape == two.shape and one.dtype == two.dtype and torch.equal(one, two)):
            yield name, one, two
    elif isinstance(one, np.ndarray):
        if not np.array_equal(one, two, equal_nan=one.dtype.kind in "fc"):
            yield name, one, two
    elif isinstance(one, torch.nn.Module):
        yield from _compare_modules(name, one, two)
    elif isinstance(one, Mapping):
        for key in one.keys() | two.keys():
            yield from _compare(f"{name}[{key!r}]", one.get(key), two.get(key))
    elif isinstance(one, list | tuple):
        if len(one) != len(two):
            yield name, one, two
        for i, pair in enumerate(zip(one, two, strict=False)):
            yield from _compare(f"{name}[{i}]", *pair)
    elif isinstance(one, FUNCTIONS):
        if _full_name(one) != _full_name(two):
            yield name, one, two
        if isinstance(one, MethodType):
            yield from _compare(name, one.__self__, two.__self__)
    elif isinstance(one, partial):
        parts = ("func", "args", "keywords")
        yield from _compare(name, *([getattr(each, part) for part in parts] for each in (one, two)))
    elif _settings(one) is not None:
        inside, beside = _settings(one), _settings(two)
        for key in dict.fromkeys([*inside, *beside]):
            where = f"{name}.{key}" if name else key
            yield from _compare(where, inside.get(key), beside.get(key))
    elif not (one == two or (one != one and two != two)):
        yield name, one, two


def _compare_modules(
    name: str, one: torch.nn.Module, two: torch.nn.Module
) -> Iterator[tuple[str, object, object]]:
    kinds = [{key: type(part) for key, part in module.named_modules()} for module in (one, two)]
    if kinds[0] != kinds[1]:
        yield name, one, two
        return
    values = [{**module.state_dict(), **_plain(module)} for module in (one, two)]
    for key in dict.fromkeys([*values[0], *values[1]]):
        yield from _compare(f"{name}.{key}", values[0].get(key), values[1].get(key))


def _plain(module: torch.nn.Module) -> dict[str, object]:
    """Numbers and words among the attributes of a module and its parts, such as ``nu``."""
    return {
        f"{place}.{name}".lstrip("."): value
        for place, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, int | float | str) and not name.startswith("_") and name != "training"
    }


def _settings(thing: object) -> dict[str, object] | None:
    """What an object was made with; None for what has no attributes, as a number.

    These are the fields of a data class, else the attributes that bear the name of an argument of
    the constructor, with an underscore before it or not. What a run learns has other names. Of a
    class that keeps its arguments under none of these, everything counts.
    """
    if isinstance(thing, Generator):
        return {}
    if is_dataclass(thing):
        return {field.name: getattr(thing, field.name) for field in fields(thing) if field.init}
    if not hasattr(thing, "__dict__"):
        return None
    held, arguments = vars(thing), _arguments(type(thing))
    found = {name: held[key] for name in arguments for key in (name, f"_{name}") if key in held}
    return found if found or not arguments else dict(held)


def _arguments(kind: type) -> list[str]:
    """Names of the arguments of a constructor, and of those that it may hand on."""
    names = [
        name
        for each in kind.__mro__
        if isinstance(each.__dict__.get("__init__"), FunctionType)
        for name in list(inspect.signature(each.__init__).parameters)[1:]
    ]
    return list(dict.fromkeys(names))


def _full_name(function: object) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}"


def _short(value: object, width: int = 120) -> str:
    if isinstance(value, Tensor):
        value = value.tolist() if value.numel() <= 12 else f"{tuple(value.shape)} {value.flatten()}"
    elif isinstance(value, FUNCTIONS):
        value = _full_name(value)
    words = " ".join(str(value).split())
    return words if len(words) <= width else words[: width - 3] + "..."
