"""What a stored state may consist of: values, plain objects, classes and functions of libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from copyreg import __newobj__  # type: ignore[attr-defined]  # Not in typeshed.
from functools import partial
from types import FunctionType, MemberDescriptorType
from typing import Any

import numpy as np
import torch
from gpytorch.models import ExactGP
from torch import Generator, Tensor
from torch.nn import Parameter

from tvbo.spaces.labels import Instant

GPYTORCH = ("constraints", "kernels", "likelihoods", "means", "priors")
CLASSES_FROM = (
    *(f"tvbo.{name}" for name in ("acquisition", "fit", "kernels", "models", "optimizers")),
    *("tvbo.optim", "tvbo.retention", "tvbo.spaces", "tvbo.trial"),
    *(f"gpytorch.{name}" for name in GPYTORCH),
    "botorch.models.transforms",
    "torch.distributions",
    "torch.nn.modules",
)
"""Packages whose classes hold numbers and settings only."""

FUNCTIONS_FROM = (
    *(f"gpytorch.{name}" for name in GPYTORCH),
    "gpytorch.module",
    "gpytorch.utils.transforms",
    "tvbo.kernels",
    "tvbo.models",
)
"""Packages of functions that are kept in kernels, likelihoods, constraints and models."""

LIBRARIES = ("tvbo", "torch", "gpytorch", "botorch", "linear_operator")
"""Packages whose ``__getstate__`` and ``__setstate__`` are called."""

MISSING: Any = object()

DTYPES = {str(each): each for each in vars(torch).values() if isinstance(each, torch.dtype)}

BY_PARTS: dict[str, tuple[type, Callable[[Any], Iterable[Any]], Callable[[list[Any]], Any]]] = {
    kind.__name__: (kind, take_apart, build)
    for kind, take_apart, build in (
        (tuple, list, tuple),
        (set, list, set),
        (frozenset, list, frozenset),
        (torch.Size, list, torch.Size),
        (range, lambda r: (r.start, r.stop, r.step), lambda parts: range(*parts)),
        (Instant, lambda t: (float(t), t.nanoseconds), lambda parts: Instant(*parts)),
        (slice, lambda s: (s.start, s.stop, s.step), lambda parts: slice(*parts)),
        (type(...), lambda _: (), lambda _: ...),
        (torch.device, lambda device: (str(device),), lambda parts: torch.device(*parts)),
        (torch.dtype, lambda dtype: (str(dtype),), lambda parts: DTYPES[parts[0]]),
        (Parameter, lambda p: (p.detach(), p.requires_grad), lambda parts: Parameter(*parts)),
        (np.ndarray, lambda a: (torch.from_numpy(a.copy()),), lambda parts: parts[0].numpy()),
        (np.generic, lambda n: (n.dtype.str, n.item()), lambda p: np.dtype(p[0]).type(p[1])),
        (Generator, lambda g: (g.get_state(), g.initial_seed()), lambda p: _generator(p[0])),
        (partial, lambda p: (p.func, p.args, p.keywords), lambda p: partial(p[0], *p[1], **p[2])),
    )
}
"""Types whose values are made at once from their parts: the type, to parts, from parts."""


def parts_of(thing: Any) -> tuple[str, list[Any]] | None:
    """Return the key in ``BY_PARTS`` and the parts of a value; None for a value of other types."""
    kind = np.generic if isinstance(thing, np.generic) else type(thing)
    if kind.__name__ not in BY_PARTS or BY_PARTS[kind.__name__][0] is not kind:
        return None
    if kind in (np.generic, np.ndarray) and not _fits_into_tensor(thing.dtype):
        return None
    return kind.__name__, list(BY_PARTS[kind.__name__][1](thing))


def full_name(thing: Any) -> str:
    """Return ``module.name`` of a class or function."""
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', thing)}"


def plain_attributes(thing: object) -> dict[str, Any] | None:
    """Return the attributes of an object that is nothing but these; None for any other.

    A class of the caller's with its own pickling methods, such as ``__getstate__``, is none: they
    are not called, since restoring would have to call others with what stands in the file.
    """
    kind = type(thing)
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__:
        return None
    for name in ("__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__"):
        own = getattr(kind, name, None)
        if own not in (None, getattr(object, name, None)) and not _is_of_library(own):
            return None
    try:
        reduced: Any = object.__reduce_ex__(thing, 2)
    except TypeError:  # A lock, an open file.
        return None
    function, arguments, state, *items = reduced
    if function is not __newobj__ or arguments != (kind,) or items != [None, None]:
        return None
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    found = {**(attributes or {}), **(slots or {})}
    if isinstance(thing, ExactGP):
        # A cache of objects of many classes, which GPyTorch makes again when it is None.
        found["prediction_strategy"] = None
    return found


def set_attributes(thing: Any, attributes: dict[str, Any]) -> None:
    """Set attributes of a new object, without calling code that is not a library's.

    Raises:
        TypeError: if its class has a ``__setstate__`` of the caller's; none such is ever stored.
    """
    kind = type(thing)
    if hasattr(kind, "__setstate__"):
        if not _is_of_library(kind.__setstate__):
            raise TypeError(f"{full_name(kind)}, which has a __setstate__ of its own")
        thing.__setstate__(attributes)
        return
    members = {name: found for each in kind.__mro__ for name, found in vars(each).items()}
    for key, value in attributes.items():
        if isinstance(members.get(key), MemberDescriptorType):  # One of __slots__.
            object.__setattr__(thing, key, value)
        else:
            # Not by setattr, which would call the setter of a property.
            vars(thing)[key] = value


def class_of_library(name: str) -> type:
    """Return a class of ``CLASSES_FROM`` by its full name; ``MISSING`` if there is none."""
    found = _loaded(name, CLASSES_FROM)
    return found if isinstance(found, type) else MISSING


def function_of_library(name: str) -> FunctionType:
    """Return a function of ``FUNCTIONS_FROM`` by its full name; ``MISSING`` if there is none."""
    found = _loaded(name, FUNCTIONS_FROM)
    return found if isinstance(found, FunctionType) else MISSING


def _loaded(name: str, packages: tuple[str, ...]) -> Any:
    """Return what has that full name in some packages, as far as they are loaded, or MISSING."""
    module, rest = name, ""
    while module and module not in sys.modules:
        module, _, last = module.rpartition(".")
        rest = f"{last}.{rest}" if rest else last
    found: Any = sys.modules.get(module)
    for part in rest.split("."):
        # Not by getattr, which may run code.
        found = getattr(found, "__dict__", {}).get(part)
    is_there = any(f"{module}.".startswith(f"{package}.") for package in packages)
    return found if is_there and full_name(found) == name else MISSING


def _is_of_library(function: object) -> bool:
    return str(getattr(function, "__module__", "")).split(".")[0] in LIBRARIES


def repr_without_address(thing: object) -> str:
    """Return what an object says of itself; "" if that holds an address, which is never equal."""
    try:
        words = repr(thing)
    except Exception:  # Any error: it is the caller's class.
        return ""
    return "" if " at 0x" in words else words


def held_by(function: FunctionType) -> list[object]:
    """Return defaults and outer variables of a function; None for a variable without a value."""
    held: list[object] = [function.__defaults__, function.__kwdefaults__]
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:
            held.append(None)
    return held


def _fits_into_tensor(dtype: np.dtype[Any]) -> bool:
    return dtype.isnative and (dtype.kind in "bi" or dtype.str[1:] in ("u1", "f2", "f4", "f8"))


def _generator(state: Tensor) -> Generator:
    generator = Generator()
    generator.set_state(state)
    return generator
