"""Optimizers as bytes: a pickle that may be limited to known classes, beside its tensors."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from importlib.metadata import version
from types import FunctionType, MethodType
from typing import Any

import torch
from gpytorch.models import ExactGP
from torch import Tensor, UntypedStorage
from torch.nn import Module
from torch.storage import TypedStorage

from tvbo.storage.database import JournalError

GPYTORCH = ("constraints", "kernels", "likelihoods", "means", "priors")
CLASSES_FROM = (
    *(f"tvbo.{name}" for name in ("acquisition", "fit", "kernels", "models", "optimizers")),
    *("tvbo.optim", "tvbo.quadratic_model", "tvbo.retention", "tvbo.spaces", "tvbo.trial"),
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

VALUES = {
    "builtins": ("complex", "frozenset", "range", "set", "slice", "Ellipsis"),
    "collections": ("OrderedDict", "deque"),
    "functools": ("partial",),
    "numpy": ("dtype", "ndarray"),
    "numpy._core.multiarray": ("_reconstruct", "scalar"),
    "torch": ("Size", "device"),
    "torch._C": ("Generator",),
    "torch._utils": ("_rebuild_parameter", "_rebuild_tensor_v2"),
}
"""What values of other types are made by, by module."""

LIBRARIES = ("botorch-tvbo", "torch", "gpytorch", "botorch", "linear_operator", "numpy")
"""Packages whose objects may have other attributes in another version."""

Held = Mapping[tuple[str, str], Any]
"""Classes and functions by module and name."""


class StateError(JournalError):
    """An optimizer that cannot be stored, or bytes that are not one's."""


def to_bytes(optimizer: object) -> tuple[bytes, Held]:
    """Return an optimizer without its journal as bytes, and the classes and functions it holds.

    Tensors that share memory go on sharing it.

    Raises:
        StateError: if something in it cannot be pickled.
    """
    file, made = io.BytesIO(), io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(optimizer)
    except Exception as error:  # Any error: a class of the caller's may have a __getstate__.
        hint = ""
        if any(name in str(error) for name in ("Kernel.__init__", "register_prior")):
            hint = (
                " GPyTorch keeps such a function for each prior added by register_prior, and for "
                "those given to its periodic, cosine, linear and constant kernels: leave them out."
            )
        raise StateError(
            "Expected an optimizer whose functions and classes stand at the top of a module, so "
            "that another process finds them: no lambda, no function within a function. Got "
            f"{type(error).__name__}: {error}.{hint}"
        ) from error
    graph = torch.frombuffer(file.getbuffer(), dtype=torch.uint8)
    torch.save({"graph": graph, "storages": pickler.storages}, made)
    return made.getvalue(), pickler.held


def from_bytes(data: bytes, held: Held | None) -> Any:
    """Return the optimizer that :func:`to_bytes` made bytes of.

    Args:
        data: The bytes.
        held: Classes and functions that may be used beside those of the libraries; None for all
            that the bytes name, **which can run any code**.

    Raises:
        StateError: if they are of something else, or name what may not be used.
    """
    try:
        found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        file = io.BytesIO(found["graph"].numpy().tobytes())
        return _Unpickler(file, found["storages"], held).load()
    except Exception as error:  # Any error: the bytes may be forged, and unpickling may run code.
        raise StateError(f"{type(error).__name__}: {error}") from error


def current_versions() -> str:
    """Return the versions of the libraries of whose classes a stored optimizer consists."""
    return ", ".join(f"{name} {version(name)}" for name in LIBRARIES)


class _Pickler(pickle.Pickler):
    """Notes storages of tensors, and classes and functions, as it goes."""

    def __init__(self, file: io.BytesIO):
        super().__init__(file, protocol=4)
        self.storages: list[Tensor] = []
        self.held: dict[tuple[str, str], Any] = {}
        self._numbers: dict[int, int] = {}

    def persistent_id(self, thing: Any) -> Any:
        if not isinstance(thing, TypedStorage):
            return None
        storage = thing._untyped_storage
        number = self._numbers.setdefault(storage._cdata, len(self.storages))
        if number == len(self.storages):
            # Keeps the storage alive, so that no other one gets its address.
            self.storages.append(torch.empty(0, dtype=torch.uint8).set_(storage))
        return number, thing.dtype

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, type | FunctionType):
            self.held[thing.__module__, thing.__qualname__] = thing
        elif isinstance(thing, ExactGP) and thing.prediction_strategy is not None:
            # A cache of objects of many classes, which GPyTorch makes again when it is None.
            reduced = list(thing.__reduce_ex__(4))
            reduced[2] = {**reduced[2], "prediction_strategy": None}
            return tuple(reduced)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    """Finds only what a stored optimizer may consist of, unless it is trusted."""

    def __init__(self, file: io.BytesIO, storages: list[Tensor], held: Held | None):
        super().__init__(file)
        self._storages = storages
        self._held = held

    def persistent_load(self, pid: Any) -> TypedStorage:
        number, dtype = pid
        storage: UntypedStorage = self._storages[number].untyped_storage()
        return TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)

    def find_class(self, module: str, name: str) -> Any:
        if self._held is None:
            return super().find_class(module, name)
        if (module, name) in self._held:
            return self._held[module, name]
        if (module, name) == ("builtins", "getattr"):
            return _method
        if module == "torch" and isinstance(vars(torch).get(name), torch.dtype):
            return vars(torch)[name]
        if name in VALUES.get(module, ()):
            return super().find_class(module, name)
        if _is_in(module, CLASSES_FROM + FUNCTIONS_FROM):
            found = super().find_class(module, name)
            if isinstance(found, type) and _is_in(found.__module__, CLASSES_FROM):
                return found
            if isinstance(found, FunctionType) and _is_in(found.__module__, FUNCTIONS_FROM):
                return found
        raise pickle.UnpicklingError(f"{module}.{name}, which the optimizer given does not hold")


def _method(owner: Any, name: str) -> MethodType:
    """Return a method of a module, such as GPyTorch keeps with its priors."""
    function = getattr(type(owner), name, None)
    if (
        isinstance(owner, Module)
        and isinstance(function, FunctionType)
        and _is_in(function.__module__, FUNCTIONS_FROM)
    ):
        return MethodType(function, owner)
    raise pickle.UnpicklingError(f"{name} of a {type(owner).__name__}")


def _is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)
