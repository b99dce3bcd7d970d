"""The state of an optimizer as plain data: JSON for its objects, tensors for its numbers.

It takes the place of a pickle where the file is not trusted. Nothing that the file names is
imported or called: objects are made without their constructors, of classes that
:func:`~tvbo.storage.objects.class_of_library` allows or of which the caller's own optimizer holds
objects. Functions are those of the caller's optimizer, each in its own place, or GPyTorch's.
"""

from __future__ import annotations

import io
import json
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

from tvbo.storage.objects import (
    BY_PARTS,
    MISSING,
    class_of_library,
    full_name,
    function_of_library,
    held_by,
    parts_of,
    plain_attributes,
    repr_without_address,
    set_attributes,
)
from tvbo.storage.recorded import Recorded

Value = None | bool | int | float | str | list[int]
"""A scalar, or ``[i]`` for node ``i``."""

Node = dict[str, Any]

SCALARS = (bool, int, float, str)


class StateError(Exception):
    """A state that cannot be stored, read, or restored with the optimizer given."""


@dataclass(frozen=True)
class State:
    """The objects of an optimizer, each stored once.

    Args:
        root: The optimizer itself.
        nodes: One for each object that is no scalar.
        tensors: Those that the nodes refer to by number.
        classes: Classes of the objects by full name; empty for a state that was read from bytes.
        modules: Names of the modules that define classes and functions; likewise.
    """

    root: Value
    nodes: list[Node]
    tensors: list[Tensor]
    classes: Mapping[str, type] = field(default_factory=dict)
    modules: Iterable[str] = ()

    @classmethod
    def of(cls, optimizer: Recorded) -> State:
        """Return the state of an optimizer, without its journal.

        Raises:
            StateError: if its objects cannot be walked, such as lists nested too deeply.
        """
        encoder = _Encoder()
        try:
            root = encoder.value(optimizer)
        except Exception as error:
            raise StateError(f"{type(error).__name__}: {error}") from error
        return cls(root, encoder.nodes, encoder.tensors, encoder.classes, encoder.modules)

    @classmethod
    def from_bytes(cls, data: bytes) -> State:
        """Read what :meth:`to_bytes` wrote, by ``torch.load(weights_only=True)`` and JSON.

        Raises:
            StateError: if the bytes are something else.
        """
        try:
            found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            graph = json.loads(found["graph"])
            state = cls(graph["root"], graph["nodes"], found["tensors"])
            if not all(type(node) is dict for node in state.nodes):
                raise TypeError("a node is no object")
            if not all(isinstance(tensor, Tensor) for tensor in state.tensors):
                raise TypeError("a tensor is none")
        except Exception as error:  # Any error: the bytes may be forged.
            raise StateError(f"{type(error).__name__}: {error}") from error
        return state

    def to_bytes(self) -> bytes:
        """Return the state as bytes; tensors that share memory go on sharing it."""
        file = io.BytesIO()
        graph = json.dumps({"root": self.root, "nodes": self.nodes})
        torch.save({"graph": graph, "tensors": self.tensors}, file)
        return file.getvalue()

    @property
    def opaque(self) -> list[str]:
        """Classes of the objects that cannot be stored: without them a state is incomplete."""
        return sorted({node["opaque"] for node in self.nodes if "opaque" in node})

    def unreadable(self, classes: Iterable[str]) -> list[str]:
        """Return the classes that cannot be restored with an optimizer that holds ``classes``."""
        named = {node["object"] for node in self.nodes if "object" in node} - {*classes}
        return [*self.opaque, *sorted(name for name in named if class_of_library(name) is MISSING)]

    def node(self, value: Value) -> Node | None:
        """Return the node of a value; None for a scalar."""
        return self.nodes[value[0]] if isinstance(value, list) else None

    def restore(self, like: Recorded | None, classes: Mapping[str, type]) -> Recorded:
        """Make an optimizer in this state.

        Args:
            like: Provides functions, and objects that cannot be stored, each in its own place.
                They are not copied. None provides none.
            classes: Classes of the objects of ``like``, by full name.

        Raises:
            StateError: if the state names a class or function that may not be used, or has the
                wrong form.
        """
        try:
            beside = MISSING if like is None else like
            optimizer: Recorded = _Decoder(self, classes).value(self.root, beside)
        except StateError:
            raise
        except Exception as error:  # Any error: the state may be forged.
            raise StateError(f"{type(error).__name__}: {error}") from error
        if like is not None and type(optimizer) is not type(like):
            raise StateError(f"a {type(optimizer).__name__} instead of a {type(like).__name__}")
        return optimizer


class _Encoder:
    """Turns objects into nodes, depth first."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tensors: list[Tensor] = []
        self.classes: dict[str, type] = {}
        self.modules: set[str] = set()
        # Keeps the objects alive, so that no other one gets the id of one that is gone.
        self._numbers: dict[int, tuple[int, object]] = {}

    def value(self, thing: Any) -> Value:
        if thing is None or type(thing) in SCALARS:
            scalar: Value = thing
            return scalar
        if id(thing) not in self._numbers:
            number = len(self.nodes)
            self._numbers[id(thing)] = (number, thing)
            # Takes the number before the parts do, which may refer to this very object.
            self.nodes.append({})
            self.nodes[number] = self._node(thing)
        return [self._numbers[id(thing)][0]]

    def _node(self, thing: Any) -> Node:
        kind = type(thing)
        if kind is Tensor:
            self.tensors.append(thing.detach())
            return {"tensor": len(self.tensors) - 1, "grad": thing.requires_grad and thing.is_leaf}
        if kind in (list, deque):
            node = {"maxlen": thing.maxlen} if kind is deque else {}
            return node | {kind.__name__: [self.value(each) for each in thing]}
        if kind in (dict, OrderedDict):
            return {kind.__name__: [[self.value(k), self.value(v)] for k, v in thing.items()]}
        if (found := parts_of(thing)) is not None:
            return {"kind": found[0], "parts": [self.value(part) for part in found[1]]}
        if isinstance(thing, FunctionType | BuiltinFunctionType | MethodType | type):
            return self._function(thing)
        name = self._add_class(kind)
        attributes = plain_attributes(thing)
        if attributes is None:
            return {"opaque": name, "words": repr_without_address(thing)}
        return {"object": name, "state": {k: self.value(each) for k, each in attributes.items()}}

    def _function(self, thing: Any) -> Node:
        name = full_name(thing)
        if (module := getattr(thing, "__module__", None)) is not None:
            self.modules.add(module)
        if isinstance(thing, type):
            self._add_class(thing)
            return {"class": name}
        if isinstance(thing, MethodType):
            return {"method": name, "of": self.value(thing.__self__)}
        node: Node = {"function": name}
        if isinstance(thing, FunctionType) and "<" in thing.__qualname__:
            # Functions made in the same place differ by their defaults and outer variables.
            node["holds"] = [self.value(each) for each in held_by(thing)]
        return node

    def _add_class(self, kind: type) -> str:
        name = full_name(kind)
        self.modules.add(kind.__module__)
        # Two classes of one name, as made by a function that was called twice: neither is restored.
        self.classes[name] = kind if self.classes.get(name, kind) is kind else MISSING
        return name


class _Decoder:
    """Turns nodes into objects.

    Each value is made beside the one in the same place of ``like``, or ``MISSING``: functions, and
    objects that cannot be stored, are taken from there.
    """

    def __init__(self, state: State, classes: Mapping[str, type]):
        self._state = state
        self._classes = classes
        self._made: dict[int, Any] = {}

    def value(self, value: Value, beside: Any = MISSING) -> Any:
        if value is None or type(value) in SCALARS:
            return value
        [number] = value  # type: ignore[misc, str-unpack]  # A list, or a forged state.
        if type(number) is not int or number < 0:
            raise StateError(f"number of a node {number!r}")
        if number not in self._made:
            self._made[number] = self._make(number, self._state.nodes[number], beside)
        return self._made[number]

    def _make(self, number: int, node: Node, beside: Any) -> Any:
        made: Any
        match node:
            case {"tensor": place, "grad": grad}:
                if type(place) is not int or place < 0:
                    raise StateError(f"number of a tensor {place!r}")
                return self._state.tensors[place].requires_grad_(grad)
            case {"list": parts} | {"deque": parts}:
                made = self._made[number] = [] if "list" in node else deque(maxlen=node["maxlen"])
                made.extend(self._values(parts, beside))
                return made
            case {"dict": items} | {"OrderedDict": items}:
                made = self._made[number] = {} if "dict" in node else OrderedDict()
                known = beside if isinstance(beside, Mapping) else {}
                for key, value in items:
                    key = self.value(key)
                    made[key] = self.value(value, known.get(key, MISSING))
                return made
            case {"kind": name, "parts": parts}:
                found = parts_of(beside)
                same = found[1] if found is not None and found[0] == name else []
                return BY_PARTS[name][2](self._values(parts, same))
            case {"class": name}:
                return self._class(name)
            case {"function": name}:
                return self._function(name, beside)
            case {"method": name, "of": owner}:
                bound = beside if isinstance(beside, MethodType) else None
                function = self._function(name, getattr(bound, "__func__", MISSING))
                return MethodType(function, self.value(owner, getattr(bound, "__self__", MISSING)))
            case {"opaque": name}:
                if full_name(type(beside)) != name:
                    raise StateError(f"{name}, which cannot be stored, in another place")
                return beside
            case {"object": name, "state": state}:
                return self._object(number, name, state, beside)
        raise StateError(f"a node of kind {next(iter(node), None)!r}")

    def _values(self, parts: list[Value], beside: Any) -> list[Any]:
        known = list(beside) if isinstance(beside, list | tuple | deque) else []
        known += [MISSING] * (len(parts) - len(known))
        return [self.value(*pair) for pair in zip(parts, known, strict=False)]

    def _object(self, number: int, name: str, state: dict[str, Value], beside: Any) -> Any:
        kind: Any = self._class(name)
        made = self._made[number] = kind.__new__(kind)
        known = (plain_attributes(beside) or {}) if type(beside) is kind else {}
        values = {key: self.value(value, known.get(key, MISSING)) for key, value in state.items()}
        set_attributes(made, values)
        return made

    def _class(self, name: str) -> type:
        found = self._classes.get(name, MISSING)
        found = class_of_library(name) if found is MISSING else found
        if found is MISSING:
            raise StateError(f"the class {name}, which the optimizer given does not hold")
        return found

    @staticmethod
    def _function(name: str, beside: Any) -> Any:
        if isinstance(beside, FunctionType | BuiltinFunctionType) and full_name(beside) == name:
            return beside
        found = function_of_library(name)
        if found is MISSING:
            raise StateError(f"the function {name}, which the optimizer given does not hold there")
        return found
