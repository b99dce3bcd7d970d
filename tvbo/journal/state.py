"""An optimizer as plain data: JSON for the structure, tensors for the numbers.

Reading such a state runs nothing that it names. Objects are made without their constructors, and
only of classes that the caller's optimizer holds or that :mod:`tvbo.journal.library` lists;
functions come from there alone.
"""

from __future__ import annotations

import io
import json
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from copyreg import __newobj__
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from inspect import signature
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import Module, Parameter

from tvbo.journal import library
from tvbo.journal.library import full_name

if TYPE_CHECKING:
    from tvbo.optimizers.base import Optimizer

Value = None | bool | int | float | str | list[int]
"""A scalar, or ``[i]`` for node ``i``."""

SEQUENCES = {kind.__name__: kind for kind in (list, tuple, set, frozenset)}
MAPPINGS = {kind.__name__: kind for kind in (dict, OrderedDict)}
MISSING = object()


class StateError(Exception):
    """A state that cannot be read, or not onto the optimizer given."""


@dataclass(frozen=True)
class State:
    """The objects of an optimizer, each written once.

    Args:
        root: Stands for the optimizer.
        nodes: One for each object that is no scalar.
        tensors: Those that the nodes refer to by number.
        classes: Those of the objects, by full name; empty for a state that was read.
        modules: Names of the modules that its classes and functions come from; likewise.
    """

    root: Value
    nodes: list[dict[str, Any]]
    tensors: list[Tensor]
    classes: Mapping[str, type] = None
    modules: frozenset[str] = frozenset()

    @classmethod
    def of(cls, optimizer: Optimizer) -> State:
        """The state of an optimizer, without its journal.

        Raises:
            StateError: if its objects cannot be walked, such as lists in lists without end.
        """
        writer = _Writer()
        try:
            root = writer.value(optimizer)
        except Exception as error:
            raise StateError(f"{type(error).__name__}: {error}") from error
        return cls(root, writer.nodes, writer.tensors, writer.classes, frozenset(writer.modules))

    @classmethod
    def from_bytes(cls, data: bytes) -> State:
        """The state that :meth:`to_bytes` wrote.

        Raises:
            StateError: if it is none.
        """
        try:
            found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            graph = json.loads(found["graph"])
            state = cls(graph["root"], graph["nodes"], found["tensors"])
            if not all(type(node) is dict for node in state.nodes):
                raise TypeError("a node is no object")
            if not all(isinstance(tensor, Tensor) for tensor in state.tensors):
                raise TypeError("a tensor is none")
        except Exception as error:  # Whatever stands in the file.
            raise StateError(f"{type(error).__name__}: {error}") from error
        return state

    def to_bytes(self) -> bytes:
        """As ``torch.load(weights_only=True)`` reads it: the graph as JSON, and the tensors."""
        file = io.BytesIO()
        graph = json.dumps({"root": self.root, "nodes": self.nodes})
        torch.save({"graph": graph, "tensors": self.tensors}, file)
        return file.getvalue()

    @property
    def opaque(self) -> list[str]:
        """Classes of objects that have no plain form: a state without them is not complete."""
        return sorted({node["opaque"] for node in self.nodes if "opaque" in node})

    def unreadable(self, classes: Iterable[str]) -> list[str]:
        """What in it could not be read onto an optimizer that holds some classes."""
        known = {*classes, *library.classes()}
        named = {node["object"] for node in self.nodes if "object" in node}
        return [*self.opaque, *sorted(named - known)]

    def node(self, value: Value) -> dict[str, Any] | None:
        """What a value stands for; None for a scalar."""
        return self.nodes[value[0]] if isinstance(value, list) else None

    def attribute(self, name: str) -> Any:
        """A scalar attribute of the optimizer."""
        return self.node(self.root)["state"][name]

    def onto(self, like: Optimizer, classes: Mapping[str, type]) -> Optimizer:
        """An optimizer in this state.

        Args:
            like: Gives its functions, and its objects that have no plain form, each to the same
                place. They are not copied.
            classes: Of its objects, by full name.

        Raises:
            StateError: if the state names what neither ``like`` nor the library has, or is none of
                the same class.
        """
        try:
            made = _Reader(self, classes).value(self.root, like)
        except StateError:
            raise
        except Exception as error:  # Whatever stands in the file.
            raise StateError(f"{type(error).__name__}: {error}") from error
        if type(made) is not type(like):
            raise StateError(f"a {type(made).__name__} instead of a {type(like).__name__}")
        return made


class _Writer:
    """Turns objects into nodes, depth first."""

    def __init__(self):
        self.nodes: list[dict[str, Any]] = []
        self.tensors: list[Tensor] = []
        self.classes: dict[str, type] = {}
        self.modules: set[str] = set()
        # Objects are kept, so that their ids stay theirs.
        self._numbers: dict[int, tuple[int, object]] = {}

    def value(self, thing: object) -> Value:
        if thing is None or type(thing) in (bool, int, float, str):
            return thing
        if id(thing) not in self._numbers:
            number = len(self.nodes)
            self._numbers[id(thing)] = (number, thing)
            self.nodes.append({})
            self.nodes[number] = self._node(thing)
        return [self._numbers[id(thing)][0]]

    def _node(self, thing: object) -> dict[str, Any]:
        kind = type(thing)
        if kind in (Tensor, Parameter):
            grad = thing.requires_grad and thing.is_leaf
            return {kind.__name__: self._tensor(thing.detach()), "requires_grad": grad}
        if kind is Generator:
            return {"Generator": self._tensor(thing.get_state()), "seed": thing.initial_seed()}
        if kind is np.ndarray and _is_plain(thing.dtype):
            return {"ndarray": self._tensor(torch.from_numpy(thing.copy()))}
        if isinstance(thing, np.generic) and _is_plain(thing.dtype):
            return {"number": thing.item(), "dtype": thing.dtype.str}
        if kind is torch.dtype:
            return {"dtype": str(thing).removeprefix("torch.")}
        if kind is torch.device:
            return {"device": str(thing)}
        if kind in (torch.Size, range, slice):
            parts = (thing.start, thing.stop, thing.step) if kind is not torch.Size else thing
            return {kind.__name__: [self.value(part) for part in parts]}
        if thing is ...:
            return {"Ellipsis": None}
        if kind.__name__ in SEQUENCES and kind is SEQUENCES[kind.__name__]:
            return {kind.__name__: [self.value(each) for each in thing]}
        if kind.__name__ in MAPPINGS and kind is MAPPINGS[kind.__name__]:
            return {kind.__name__: [[self.value(k), self.value(v)] for k, v in thing.items()]}
        if kind is deque:
            return {"deque": [self.value(each) for each in thing], "maxlen": thing.maxlen}
        if kind is partial:
            parts = (thing.func, thing.args, thing.keywords)
            return {"partial": [self.value(part) for part in parts]}
        if isinstance(thing, FunctionType | BuiltinFunctionType | MethodType | type):
            return self._function(thing)
        return self._object(thing)

    def _tensor(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def _function(self, thing: Any) -> dict[str, Any]:
        name = full_name(thing)
        if (module := getattr(thing, "__module__", None)) is not None:
            self.modules.add(module)
        if isinstance(thing, type):
            self._add_class(thing)
            return {"class": name}
        if isinstance(thing, MethodType):
            return {"method": name, "of": self.value(thing.__self__)}
        node: dict[str, Any] = {"function": name}
        if isinstance(thing, FunctionType) and "<" in thing.__qualname__:
            # What sets it apart from others that were made in the same place.
            held = [thing.__defaults__, thing.__kwdefaults__]
            node["holds"] = [self.value(each) for each in [*held, *_cells(thing)]]
        return node

    def _object(self, thing: object) -> dict[str, Any]:
        kind = type(thing)
        name = self._add_class(kind)
        state = _plain_state(thing)
        if state is None:
            return {"opaque": name, "words": _words(thing)}
        node: dict[str, Any] = {"object": name}
        if isinstance(thing, Module):
            node["module"] = True
        else:
            node["settings"] = settings_of(kind, state)
        node["state"] = {key: self.value(each) for key, each in state.items()}
        return node

    def _add_class(self, kind: type) -> str:
        name = full_name(kind)
        self.modules.add(kind.__module__)
        self.classes[name] = kind if self.classes.get(name, kind) is kind else MISSING
        return name


class _Reader:
    """Turns nodes into objects, beside those that stand in the same places of another optimizer."""

    def __init__(self, state: State, classes: Mapping[str, type]):
        self._state = state
        self._classes = {**classes, **library.classes()}
        self._made: dict[int, object] = {}

    def value(self, value: Value, beside: object = MISSING) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        [number] = value
        if type(number) is not int or number < 0:
            raise StateError(f"number of a node {number!r}")
        if number not in self._made:
            self._made[number] = self._make(number, self._state.nodes[number], beside)
        return self._made[number]

    def _make(self, number: int, node: dict[str, Any], beside: object) -> object:
        match node:
            case {"Tensor": place, "requires_grad": grad}:
                return self._tensor(place).requires_grad_(grad)
            case {"Parameter": place, "requires_grad": grad}:
                return Parameter(self._tensor(place), requires_grad=grad)
            case {"Generator": place}:
                return Generator().set_state(self._tensor(place))
            case {"ndarray": place}:
                return self._tensor(place).numpy()
            case {"number": item, "dtype": kind}:
                return np.dtype(kind).type(item)
            case {"dtype": name} if isinstance(found := getattr(torch, name, None), torch.dtype):
                return found
            case {"device": name}:
                return torch.device(name)
            case {"Size": parts}:
                return torch.Size([self.value(part) for part in parts])
            case {"range": parts}:
                return range(*map(self.value, parts))
            case {"slice": parts}:
                return slice(*map(self.value, parts))
            case {"Ellipsis": _}:
                return ...
            case {"deque": parts, "maxlen": maxlen}:
                made = self._made[number] = deque(maxlen=maxlen)
                made.extend(map(self.value, parts))
                return made
            case {"partial": [function, arguments, keywords]}:
                known = beside if type(beside) is partial else partial(MISSING.__str__)
                return partial(
                    self.value(function, known.func),
                    *self.value(arguments, known.args),
                    **self.value(keywords, known.keywords),
                )
            case {"class": name}:
                return self._class(name)
            case {"function": name}:
                return self._function(name, beside)
            case {"method": name, "of": owner}:
                bound = isinstance(beside, MethodType)
                function = self._function(name, beside.__func__ if bound else MISSING)
                return MethodType(
                    function, self.value(owner, beside.__self__ if bound else MISSING)
                )
            case {"opaque": name}:
                if full_name(type(beside)) != name:
                    raise StateError(f"{name}, which has no plain form, stands at another place")
                return beside
            case {"object": name, "state": state}:
                return self._object(number, name, state, beside)
        [(kind, parts), *_] = node.items()
        if kind in SEQUENCES:
            return self._sequence(number, SEQUENCES[kind], parts, beside)
        if kind in MAPPINGS:
            made = self._made[number] = MAPPINGS[kind]()
            for key, value in parts:
                key = self.value(key)
                known = beside.get(key, MISSING) if isinstance(beside, Mapping) else MISSING
                made[key] = self.value(value, known)
            return made
        raise StateError(f"a node of kind {kind!r}")

    def _tensor(self, place: int) -> Tensor:
        if type(place) is not int or place < 0:
            raise StateError(f"number of a tensor {place!r}")
        return self._state.tensors[place]

    def _sequence(self, number: int, kind: type, parts: list[Value], beside: object) -> object:
        known = beside if isinstance(beside, list | tuple) else ()
        each = (
            self.value(part, known[i] if i < len(known) else MISSING)
            for i, part in enumerate(parts)
        )
        if kind is not list:
            return kind(each)
        made = self._made[number] = []
        made.extend(each)
        return made

    def _object(self, number: int, name: str, state: dict[str, Value], beside: object) -> object:
        kind = self._class(name)
        made = self._made[number] = kind.__new__(kind)
        held = _attributes(beside) if type(beside) is kind else {}
        values = {key: self.value(value, held.get(key, MISSING)) for key, value in state.items()}
        if hasattr(kind, "__setstate__"):
            # One of a library: _plain_state lets no other pass.
            if not library.is_ours(kind.__setstate__):
                raise StateError(f"{name}, which has a __setstate__ of its own")
            made.__setstate__(values)
        else:
            slots = {
                name
                for each in kind.__mro__
                for name, found in vars(each).items()
                if isinstance(found, MemberDescriptorType)
            }
            for key, value in values.items():
                if key in slots:
                    object.__setattr__(made, key, value)
                else:
                    # Past properties, whose setters are code.
                    vars(made)[key] = value
        return made

    def _class(self, name: str) -> type:
        found = self._classes.get(name, MISSING)
        if found is MISSING:
            raise StateError(f"the class {name}, which the optimizer given does not hold")
        return found

    @staticmethod
    def _function(name: str, beside: object) -> Any:
        if isinstance(beside, FunctionType | BuiltinFunctionType) and full_name(beside) == name:
            return beside
        if (found := library.functions().get(name)) is not None:
            return found
        raise StateError(f"the function {name}, which the optimizer given does not hold there")


def settings_of(kind: type, state: Mapping[str, object]) -> dict[str, str]:
    """Which attributes say what an object was made with: by name, the key of the attribute.

    These are the fields of a data class, else the attributes that bear the name of an argument of
    the constructor, with an underscore before it or not. What a run learns has other names. Of a
    class that keeps its arguments under none of these, everything counts.
    """
    if is_dataclass(kind):
        return {field.name: field.name for field in fields(kind) if field.init}
    arguments = _arguments(kind)
    found = {name: key for name in arguments for key in (name, f"_{name}") if key in state}
    return found if found or not arguments else {key: key for key in state}


def _arguments(kind: type) -> list[str]:
    """Names of the arguments of a constructor, and of those that it may hand on."""
    names = [
        name
        for each in kind.__mro__
        if isinstance(each.__dict__.get("__init__"), FunctionType)
        for name in list(signature(each.__init__).parameters)[1:]
    ]
    return list(dict.fromkeys(names))


def _plain_state(thing: object) -> dict[str, object] | None:
    """The attributes of an object that is nothing but these; None for another.

    Methods of the user's own that say how to pickle it are not called, nor can they be: they might
    be needed to bring it back.
    """
    kind = type(thing)
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__:
        return None
    for name in ("__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__"):
        own = getattr(kind, name, None)
        if own not in (None, getattr(object, name, None)) and not library.is_ours(own):
            return None
    try:
        function, arguments, state, *items = object.__reduce_ex__(thing, 2)
    except TypeError:  # A lock, a file.
        return None
    if function is not __newobj__ or arguments != (kind,) or items != [None, None]:
        return None
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    return {**(attributes or {}), **(slots or {})}


def _words(thing: object) -> str:
    """What an object says of itself, if that is the same for another of the same making."""
    try:
        words = repr(thing)
    except Exception:  # Whatever a user's __repr__ raises.
        return ""
    return "" if " at 0x" in words else words


def _is_plain(dtype: np.dtype) -> bool:
    """Whether tensors have the same kind of numbers."""
    return dtype.isnative and (dtype.kind in "bi" or dtype.str[1:] in ("u1", "f2", "f4", "f8"))


def _attributes(thing: object) -> dict[str, object]:
    return _plain_state(thing) or {}


def _cells(function: FunctionType) -> list[object]:
    """What a function took from around it; empty cells have nothing yet."""
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:
            cells.append(None)
    return cells
