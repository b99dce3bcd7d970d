"""Whether two optimizers have the same settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import Module

from tvbo.storage.database import JournalError
from tvbo.values import shortened

ROUNDING = 1e-9
"""Relative difference of settings that another processor may have rounded otherwise."""


class OtherSettingsError(JournalError):
    """A journal of another problem, or of other settings, than the optimizer given."""


LEAVES = (type, FunctionType, BuiltinFunctionType, Tensor, np.ndarray, np.generic, str, int, float)
"""Types that are compared whole."""


def check_compatibility(recorded: object, given: object, path: Path) -> None:
    """Raise if two optimizers differ in class, problem, settings or seed.

    Their trials, what they learned and how much they drew from their generators is not compared.

    Args:
        recorded: The optimizer when recording began.
        given: The caller's optimizer.
        path: The journal, for the message.

    Raises:
        OtherSettingsError: naming the first difference.
        JournalError: if the recorded optimizer cannot be compared.
    """
    try:
        difference = next(_differences("", recorded, given, {}), None)
    except Exception as error:  # Any error: the recorded one may be forged.
        raise JournalError(
            f"Expected a stored optimizer that can be compared. Got {type(error).__name__}: "
            f"{error}, in {path}."
        ) from error
    if difference is not None:
        name, *both = difference
        one, two = (shortened(repr(each)) for each in both)
        raise OtherSettingsError(
            f"Expected a journal of this problem and these settings. Got {path}, which differs in "
            f"{name or 'class'}: it has {one}, where {two} was given."
        )


def _differences(
    name: str, one: Any, two: Any, compared: dict[tuple[int, int], Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Iterate over where two objects differ, and what each has there."""
    # An object may be held in several places, and by its own parts. Both are kept alive, since
    # others could get their ids.
    if (id(one), id(two)) in compared:
        return
    compared[id(one), id(two)] = one, two
    if isinstance(one, Generator) and isinstance(two, Generator):
        if one.initial_seed() != two.initial_seed():
            yield f"the seed of {name}", one.initial_seed(), two.initial_seed()
        return
    parts = _parts(one), _parts(two)
    if (
        type(one) is not type(two)
        or parts[0].keys() != parts[1].keys()
        or (not parts[0] and not _equal(one, two))
    ):
        yield name, one, two
    else:
        for key, part in parts[0].items():
            yield from _differences(f"{name}{key}".removeprefix("."), part, parts[1][key], compared)


def _parts(thing: Any) -> dict[str, Any]:
    """Return the parts by which an object is compared, by name; none if it is compared whole."""
    if isinstance(thing, LEAVES):
        return {}
    if isinstance(thing, list | tuple):
        return {f"[{i}]": part for i, part in enumerate(thing)}
    if isinstance(thing, Mapping):
        return {f"[{key!r}]": part for key, part in thing.items()}
    if isinstance(thing, partial):
        found = {"func": thing.func, "args": thing.args, "keywords": thing.keywords}
    elif isinstance(thing, MethodType):
        found = {"__func__": thing.__func__, "__self__": thing.__self__}
    elif isinstance(thing, Module):
        # Parameters, buffers, submodules and public scalars such as nu; no caches.
        found = {**thing._parameters, **thing._buffers, **thing._modules} | {
            name: value
            for name, value in vars(thing).items()
            if type(value) in (bool, int, float, str) and name[0] != "_" and name != "training"
        }
    elif is_dataclass(thing):
        found = {each.name: getattr(thing, each.name) for each in fields(thing) if each.init}
    else:
        found = _settings(thing)
    return {f".{name}": part for name, part in found.items()}


def _settings(thing: Any) -> dict[str, Any]:
    """Return the attributes named like an argument of the constructor, by its name.

    With an underscore before it or not; those of the base class first, which define the problem.
    What a run learns has other names. Where no attribute is named like an argument, all are
    included.
    """
    state = dict(getattr(thing, "__dict__", {}))
    arguments = [
        name
        for each in reversed(type(thing).__mro__)
        if isinstance(each.__dict__.get("__init__"), FunctionType)
        for name in list(signature(vars(each)["__init__"]).parameters)[1:]
    ]
    found = {name: state[key] for name in arguments for key in (name, f"_{name}") if key in state}
    return found if found or not arguments else state


def _equal(one: Any, two: Any) -> bool:
    """Return whether two values of one type are the same but for rounding."""
    if isinstance(one, float) or (isinstance(one, np.ndarray) and one.dtype.kind in "bif"):
        one, two = torch.as_tensor(np.asarray(one)), torch.as_tensor(np.asarray(two))
    if isinstance(one, Tensor):
        if one.shape != two.shape or one.dtype != two.dtype:
            return False
        if one.numel() == 0 or not one.is_floating_point():
            return torch.equal(one, two)
        size = one.detach().nan_to_num(posinf=0, neginf=0).abs().max().item()
        return torch.allclose(one, two, rtol=ROUNDING, atol=ROUNDING * size, equal_nan=True)
    if getattr(type(one), "__eq__", None) is object.__eq__ and not isinstance(one, type):
        # Of a class without settings: the types are the same.
        return not isinstance(one, FunctionType | BuiltinFunctionType) or one is two
    return bool(one == two)
