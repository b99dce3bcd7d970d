"""What a stored state may consist of: values, plain objects, classes and functions of libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable
from copyreg import __newobj__
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Generator
from torch.nn import Parameter

TVBO = ("acquisition", "kernels", "models", "observations", "optimizers", "retention")
TVBO += ("search_space", "theory", "feedback.pending")
GPYTORCH = ("constraints", "kernels", "likelihoods", "means", "priors")
CLASSES_FROM = (
    *(f"tvbo.{name}" for name in TVBO),
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
)
"""Packages of functions that GPyTorch keeps in kernels, likelihoods and constraints."""

LIBRARIES = ("tvbo", "torch", "gpytorch", "botorch", "linear_operator")
"""Packages whose ``__getstate__`` and ``__setstate__`` are called."""

MISSING: Any = object()

BY_PARTS: dict[str, tuple[type, Callable[[Any], list[Any]], Callable[[list[Any]], Any]]] = {
    kind.__name__: (kind, take_apart, build)
    for kind, take_apart, build in (
        (tuple, list, tuple),
        (set, list, set),
        (frozenset, list, frozenset),
        (torch.Size, list, torch.Size),
        (range, lambda r: [r.start, r.stop, r.step], lambda parts: range(*parts)),
        (slice, lambda s: [s.start, s.stop, s.step], lambda parts: slice(*parts)),
        (type(...), lambda _: [], lambda _: ...),
        (torch.device, lambda device: [str(device)], lambda parts: torch.device(*parts)),
        (torch.dtype, lambda dtype: [str(dtype)], lambda parts: DTYPES[parts[0]]),
        (Parameter, lambda p: [p.detach(), p.requires_grad], lambda parts: Parameter(*parts)),
        (np.ndarray, lambda a: [torch.from_numpy(a.copy())], lambda parts: parts[0].numpy()),
        (
            Generator,
            lambda generator: [generator.get_state(), generator.initial_seed()],
            lambda parts: Generator().set_state(parts[0]),
        ),
        (
            partial,
            lambda p: [p.func, p.args, p.keywords],
            lambda parts: partial(parts[0], *parts[1], **parts[2]),
        ),
    )
}
"""Values that are made at once from their parts: type, to parts, from parts."""

DTYPES = {str(each): each for each in vars(torch).values() if isinstance(each, torch.dtype)}


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
        if own not in (None, getattr(object, name, None)) and not is_of_library(own):
            return None
    try:
        function, arguments, state, *items = object.__reduce_ex__(thing, 2)
    except TypeError:  # A lock, an open file.
        return None
    if function is not __newobj__ or arguments != (kind,) or items != [None, None]:
        return None
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    return {**(attributes or {}), **(slots or {})}


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


def is_of_library(function: object) -> bool:
    """Return whether a function is defined in one of ``LIBRARIES``."""
    return str(getattr(function, "__module__", "")).split(".")[0] in LIBRARIES


def repr_without_address(thing: object) -> str:
    """Return what an object says of itself; "" if that holds an address, which is never equal."""
    try:
        words = repr(thing)
    except Exception:  # Any error: it is the caller's class.
        return ""
    return "" if " at 0x" in words else words


def has_plain_numbers(array: np.ndarray | np.generic) -> bool:
    """Return whether a tensor can hold the same numbers as an array."""
    dtype = array.dtype
    return dtype.isnative and (dtype.kind in "bi" or dtype.str[1:] in ("u1", "f2", "f4", "f8"))


def held_by(function: FunctionType) -> list[object]:
    """Return defaults and outer variables of a function; None for a variable without a value."""
    held: list[object] = [function.__defaults__, function.__kwdefaults__]
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:
            held.append(None)
    return held
