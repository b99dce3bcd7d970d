"""Whether two optimizers have the same settings, by a comparison of their stored states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from inspect import signature
from math import isclose
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from tvbo.storage.database import JournalError
from tvbo.storage.objects import class_of_library
from tvbo.storage.state import State, Value
from tvbo.values import shortened

PROBLEM = ("search_space", "contexts", "layout", "minimize", "time_scale")
"""Attributes that are compared first, since they define the problem."""

ROUNDING = 1e-9
"""Relative difference of settings that another processor may have rounded otherwise."""


class OtherSettingsError(JournalError):
    """A journal of another problem, or of other settings, than the optimizer given."""


Difference = tuple[str, str, str]
"""Where two states differ, and what each has there, in words."""


def check_compatibility(recorded: State, given: State, path: Path) -> None:
    """Raise if the optimizers of two states differ in class, problem, settings or seed.

    Their trials, what they learned and how much they drew from their generators is not compared.

    Args:
        recorded: State when recording began.
        given: State of the caller's optimizer; not read from a file.
        path: The journal, for the message.

    Raises:
        OtherSettingsError: naming the first difference.
        JournalError: if the recorded state cannot be compared.
    """
    try:
        difference = next(differences(recorded, given), None)
    except Exception as error:  # Any error: the recorded state may be forged.
        raise JournalError(
            f"Expected a stored state that can be compared. Got {type(error).__name__}: {error}, "
            f"in {path}."
        ) from error
    if difference is not None:
        name, one, two = difference
        raise OtherSettingsError(
            f"Expected a journal of this problem and these settings. Got {path}, which differs in "
            f"{name}: it has {one}, where {two} was given."
        )


def differences(one: State, two: State) -> Iterator[Difference]:
    """Iterate over the settings in which two states differ.

    Args:
        one: Any state.
        two: State of a live optimizer; its classes say which attributes are settings.
    """
    trees = _Tree(one, two.classes), _Tree(two, two.classes)
    roots = one.node(one.root) or {}, two.node(two.root) or {}
    if roots[0]["object"] != roots[1]["object"]:
        yield "class", _last(roots[0]["object"]), _last(roots[1]["object"])
        return
    compared: set[tuple[int, int]] = set()
    for name in PROBLEM:
        mine, other = (root["state"].get(name) for root in roots)
        yield from _compare(trees, name, mine, other, compared)
    yield from _compare(trees, "", one.root, two.root, compared)


def settings_of(kind: object, state: Mapping[str, Value]) -> dict[str, Value]:
    """Return the attributes that say what an object was made with, by their public names.

    These are the fields of a data class, else the attributes named like an argument of the
    constructor, with an underscore before it or not. What a run learns has other names. Where no
    attribute is named like an argument, or the class is unknown, all attributes count.

    Args:
        kind: Class of the object, or ``MISSING``.
        state: Its attributes.
    """
    if is_dataclass(kind):
        # A field that is younger than the journal has its default there.
        return {
            each.name: state.get(each.name, _default(each)) for each in fields(kind) if each.init
        }
    if not isinstance(kind, type):  # Several classes of the caller's have this name.
        return {**state}
    arguments = [
        name
        for each in kind.__mro__
        if isinstance(each.__dict__.get("__init__"), FunctionType)
        for name in list(signature(vars(each)["__init__"]).parameters)[1:]
    ]
    found = {name: state[key] for name in arguments for key in (name, f"_{name}") if key in state}
    return found if found or not arguments else {**state}


def _default(of_field: Field[Any]) -> Value:
    """Return the default of a field, None if it has none that is a number or a text."""
    return of_field.default if isinstance(of_field.default, bool | int | float | str) else None


@dataclass(frozen=True)
class _Item:
    """A value in the form in which all types of values are compared.

    Args:
        kind: Its type; values of different types differ.
        content: What is compared at once: a scalar, a tensor, a seed, the members of a set.
        parts: What is compared part by part, by the words that name the part in an error.
    """

    kind: str
    content: object = None
    parts: dict[str, Value] = field(default_factory=dict)


class _Tree:
    """The values of a state as items.

    Args:
        state: The state.
        classes: Classes by full name, for the settings of their objects.
    """

    def __init__(self, state: State, classes: Mapping[str, type]):
        self._state = state
        self._classes = classes

    def item(self, value: Value) -> _Item:
        node = self._state.node(value)
        if node is None:
            return _Item(type(value).__name__, value)
        match node:
            case {"tensor": place}:
                return _Item("tensor", self._state.tensors[place])
            case {"kind": "Parameter" | "ndarray" as kind, "parts": [array, *_]}:
                return _Item(kind, self.item(array).content)
            case {"kind": "Generator", "parts": [_, seed]}:
                return _Item("Generator", seed)
            case {"kind": "set" | "frozenset" as kind, "parts": parts}:
                # Equal sets may be stored in different orders.
                return _Item(kind, sorted(map(self.words, parts)))
            case {"kind": kind, "parts": parts}:
                return _Item(kind, len(parts), _numbered(parts))
            case {"object": name, "state": state}:
                kind = self._classes.get(name, class_of_library(name))
                if isinstance(kind, type) and issubclass(kind, Module):
                    settings = self._settings_of_module(state)
                else:
                    settings = settings_of(kind, state)
                return _Item(name, None, {f".{key}": each for key, each in settings.items()})
            case {"method": name, "of": owner}:
                return _Item(f"method {name}", None, {"": owner})
            case {"function": name}:
                return _Item(f"function {name}", None, _numbered(node.get("holds", [])))
        [kind, content] = next(iter(node.items()))
        if kind in ("dict", "OrderedDict"):
            return _Item(kind, None, {f"[{self.words(k)}]": each for k, each in content})
        if kind in ("list", "deque"):
            return _Item(kind, len(content), _numbered(content))
        # A class, or an object that cannot be stored.
        return _Item(f"{kind} {content}", node.get("words"))

    def words(self, value: Value) -> str:
        """Return a value in words, the same for equal keys of a mapping."""
        node, item = self._state.node(value), self.item(value)
        if node is None or isinstance(item.content, Tensor):
            return _words_of(item.content)
        if "object" in node:
            return _last(item.kind)
        if "opaque" in node:
            return str(node["words"] or node["opaque"])
        parts = map(self.words, node.get("parts") or node.get("list") or ())
        members = item.content if isinstance(item.content, list) else parts
        return f"{item.kind} [{', '.join(map(str, members))}]"

    def _settings_of_module(self, state: dict[str, Value]) -> dict[str, Value]:
        """Return parameters, buffers, submodules and public scalars such as ``nu``; no caches."""
        found: dict[str, Value] = {}
        for name in ("_parameters", "_buffers", "_modules"):
            found |= {key[2:-2]: each for key, each in self.item(state[name]).parts.items()}
        return found | {
            key: each
            for key, each in state.items()
            if type(each) in (bool, int, float, str) and key[0] != "_" and key != "training"
        }


def _compare(
    trees: tuple[_Tree, _Tree], name: str, one: Value, two: Value, compared: set[tuple[int, int]]
) -> Iterator[Difference]:
    if isinstance(one, list) and isinstance(two, list):
        # An object may be held in several places, and by its own parts.
        if (one[0], two[0]) in compared:
            return
        compared.add((one[0], two[0]))
    mine, other = trees[0].item(one), trees[1].item(two)
    if mine.kind == other.kind == "Generator" and mine.content != other.content:
        yield f"the seed of {name}", str(mine.content), str(other.content)
    elif mine.kind != other.kind or not _equal(mine.content, other.content):
        yield name, shortened(trees[0].words(one)), shortened(trees[1].words(two))
    if mine.kind == other.kind:
        for key in dict.fromkeys([*mine.parts, *other.parts]):
            parts = mine.parts.get(key), other.parts.get(key)
            where = f"{name}{key}".removeprefix(".")
            yield from _compare(trees, where, *parts, compared)


def _equal(one: object, two: object) -> bool:
    """Return whether two contents of one type are the same but for rounding."""
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        if one.shape != two.shape or one.dtype != two.dtype:
            return False
        if one.numel() == 0 or not one.is_floating_point():
            return torch.equal(one, two)
        size = one.nan_to_num(posinf=0, neginf=0).abs().max().item()
        return torch.allclose(one, two, rtol=ROUNDING, atol=ROUNDING * size, equal_nan=True)
    if isinstance(one, float) and isinstance(two, float):
        return isclose(one, two, rel_tol=ROUNDING, abs_tol=0) or (one != one and two != two)
    return one == two


def _numbered(parts: list[Value]) -> dict[str, Value]:
    return {f"[{i}]": part for i, part in enumerate(parts)}


def _last(full_name: str) -> str:
    return full_name.rpartition(".")[2]


def _words_of(value: object) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    return str(value.tolist() if value.numel() <= 12 else f"{tuple(value.shape)} {value.flatten()}")
