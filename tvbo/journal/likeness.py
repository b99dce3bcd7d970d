"""Whether two optimizers were made alike, and where they differ if not; by their stored states."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tvbo.journal.errors import JournalError
from tvbo.journal.state import State, Value

if TYPE_CHECKING:
    from tvbo.optimizers.base import Optimizer

PROBLEM = ("search_space", "contexts", "layout")
"""Compared first: they say what is asked, the rest says how it is answered."""

TENSORS = ("Tensor", "Parameter", "ndarray")
MAPPINGS = ("dict", "OrderedDict")
SEQUENCES = ("list", "tuple", "deque", "Size", "range", "slice", "partial")

ROUNDING = 1e-9
"""Relative difference of settings that another processor may have rounded otherwise."""

Difference = tuple[str, str, str]
"""Where two states differ, and what stands there in each, in words."""


def describe(optimizer: Optimizer) -> dict[str, str]:
    """What an optimizer is, in words for a person."""
    kind, space = type(optimizer), optimizer.search_space
    low, high = space.bounds.tolist()
    contexts = optimizer.contexts
    return {
        "optimizer": f"{kind.__module__}.{kind.__qualname__}",
        "search space": f"{type(space).__name__}, from {_short(low)} to {_short(high)}",
        "contexts": "none"
        if contexts is None
        else f"{type(contexts).__name__}, c = {contexts.dim}",
        "layout": str(optimizer.layout),
    }


def check_likeness(recorded: State, given: State, path: Path) -> None:
    """Raise if the optimizers of two states differ in class, problem, settings or seed.

    Their trials, what they learned and how far their generators have gone are not compared.

    Args:
        recorded: As it was when recording began.
        given: As the caller made it.
        path: The journal, for the message.

    Raises:
        JournalError: naming the first difference.
    """
    try:
        difference = next(differences(recorded, given), None)
    except Exception as error:  # Whatever stands in the file.
        raise JournalError(
            f"Expected a stored state that can be compared. Got {type(error).__name__}: {error}, "
            f"in {path}."
        ) from error
    if difference is not None:
        name, one, two = difference
        raise JournalError(
            f"Expected a journal of this problem and these settings. Got {path}, which differs in "
            f"{name}: it has {one}, where {two} was given."
        )


def differences(one: State, two: State) -> Iterator[Difference]:
    """Settings in which two states differ."""
    return _Comparison(one, two).run()


class _Comparison:
    def __init__(self, one: State, two: State):
        self._one = one
        self._two = two
        self._seen: set[tuple[int, int]] = set()

    def run(self) -> Iterator[Difference]:
        roots = (self._one.node(self._one.root), self._two.node(self._two.root))
        kinds = [_name(root.get("object", "")) for root in roots]
        if roots[0].get("object") != roots[1].get("object"):
            yield "class", *kinds
            return
        for name in PROBLEM:
            yield from self._values(name, *(root["state"].get(name) for root in roots))
        yield from self._values("", self._one.root, self._two.root)

    def _values(self, name: str, one: Value, two: Value) -> Iterator[Difference]:
        mine, other = self._one.node(one), self._two.node(two)
        if mine is None or other is None:
            if mine is not other or not _equal(one, two):
                yield self._difference(name, one, two)
        elif (one[0], two[0]) not in self._seen:
            self._seen.add((one[0], two[0]))
            yield from self._nodes(name, one, two)

    def _nodes(self, name: str, one: Value, two: Value) -> Iterator[Difference]:
        mine, other = self._one.node(one), self._two.node(two)
        [kind, *_], [other_kind, *_] = mine, other
        differ = False
        if kind != other_kind:
            differ = True
        elif kind in TENSORS:
            pair = self._one.tensors[mine[kind]], self._two.tensors[other[kind]]
            differ = not _same_tensor(*pair)
        elif kind == "Generator":
            if mine["seed"] != other["seed"]:
                yield f"the seed of {name}", str(mine["seed"]), str(other["seed"])
        elif kind in MAPPINGS:
            pairs = _items(self._one, mine), _items(self._two, other)
            for key in dict.fromkeys([*pairs[0], *pairs[1]]):
                yield from self._values(f"{name}[{key}]", *(each.get(key) for each in pairs))
        elif kind in ("set", "frozenset"):
            found = [
                sorted(self._words(state, each) for each in node[kind])
                for state, node in ((self._one, mine), (self._two, other))
            ]
            differ = found[0] != found[1]
        elif kind in SEQUENCES:
            differ = len(mine[kind]) != len(other[kind])
            yield from self._sequences(name, mine[kind], other[kind])
        elif kind == "object" and mine["object"] == other["object"]:
            is_module = "module" in mine
            pairs = [
                _of_module(state, node) if is_module else _settings(node)
                for state, node in ((self._one, mine), (self._two, other))
            ]
            for key in dict.fromkeys([*pairs[0], *pairs[1]]):
                where = f"{name}.{key}" if name else key
                yield from self._values(where, *(each.get(key) for each in pairs))
        elif kind in ("function", "method") and mine[kind] == other[kind]:
            yield from self._values(name, mine.get("of"), other.get("of"))
            held = mine.get("holds", []), other.get("holds", [])
            differ = len(held[0]) != len(held[1])
            yield from self._sequences(name, *held)
        else:
            differ = mine != other
        if differ:
            yield self._difference(name, one, two)

    def _sequences(self, name: str, mine: list[Value], other: list[Value]) -> Iterator[Difference]:
        for i, pair in enumerate(zip(mine, other, strict=False)):
            yield from self._values(f"{name}[{i}]", *pair)

    def _difference(self, name: str, one: Value, two: Value) -> Difference:
        return name, self._words(self._one, one), self._words(self._two, two)

    def _words(self, state: State, value: Value) -> str:
        node = state.node(value)
        if node is None:
            return _short(repr(value))
        [kind, *_] = node
        if kind in TENSORS:
            return _short(state.tensors[node[kind]])
        if kind in ("list", "tuple", "set", "frozenset", "Size"):
            return _short(f"{kind} [{', '.join(self._words(state, each) for each in node[kind])}]")
        if kind == "opaque":
            return _short(node["words"] or node["opaque"])
        if kind == "object":
            settings = {} if "module" in node else _settings(node)
            held = [f"{k}={v!r}" for k, v in settings.items() if not isinstance(v, list)]
            return _short(f"{_name(node['object'])}({', '.join(held)})")
        return _short(node[kind] if isinstance(node[kind], str) else json.dumps(node))


def _items(state: State, node: dict[str, Any]) -> dict[str, Value]:
    """The values of a mapping by their keys, in words."""
    [pairs] = node.values()
    return {_key(state, key): value for key, value in pairs}


def _key(state: State, key: Value) -> str:
    node = state.node(key)
    if node is None:
        return str(key)
    [kind, *_] = node
    if kind in SEQUENCES:
        return f"({', '.join(_key(state, part) for part in node[kind])})"
    if kind == "frozenset":
        # The same set may stand in another order.
        return f"{{{', '.join(sorted(_key(state, part) for part in node[kind]))}}}"
    return json.dumps(node)


def _of_module(state: State, node: dict[str, Any]) -> dict[str, Value]:
    """Parameters, buffers, parts, and plain attributes such as ``nu``; no caches, no hooks."""
    held = node["state"]
    found = {}
    for name in ("_parameters", "_buffers", "_modules"):
        found |= _items(state, state.node(held[name]))
    return found | {
        key: value
        for key, value in held.items()
        if type(value) in (bool, int, float, str) and key[0] != "_" and key != "training"
    }


def _settings(node: dict[str, Any]) -> dict[str, Value]:
    return {name: node["state"].get(key) for name, key in node["settings"].items()}


def _equal(one: Value, two: Value) -> bool:
    if type(one) is not type(two):
        return False
    if isinstance(one, float):
        return isclose(one, two, rel_tol=ROUNDING, abs_tol=0) or (one != one and two != two)
    return one == two


def _same_tensor(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    if one.numel() == 0 or not one.is_floating_point():
        return torch.equal(one, two)
    size = one.nan_to_num(posinf=0, neginf=0).abs().max().item()
    return torch.allclose(one, two, rtol=ROUNDING, atol=ROUNDING * size, equal_nan=True)


def _name(full: str) -> str:
    return full.rpartition(".")[2]


def _short(value: object, width: int = 120) -> str:
    if isinstance(value, Tensor):
        value = value.tolist() if value.numel() <= 12 else f"{tuple(value.shape)} {value.flatten()}"
    words = " ".join(str(value).split())
    return words if len(words) <= width else words[: width - 3] + "..."
