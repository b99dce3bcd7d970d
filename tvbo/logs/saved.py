"""Saved fits: dataclasses, arrays and kernels as data, in files of JSON with a version."""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from types import NoneType
from typing import Any, Self, get_args, get_origin, get_type_hints

import numpy as np
import torch
from botorch.models.kernels import CategoricalKernel
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PolynomialKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from gpytorch.utils.transforms import inv_sigmoid, inv_softplus
from numpy.typing import NDArray

from tvbo.kernels import (
    ConstantTemporalKernel,
    ContextActionKernel,
    CovarianceMatrixKernel,
    IdentityKernel,
    SeasonalKernel,
    TaskKernel,
    TemporalDecayKernel,
    TemporalMaternKernel,
)
from tvbo.kernels.batch import ColumnKernel
from tvbo.terminal import html_table
from tvbo.values import shortened

SAVED_VERSION = 3
"""Version of the form of the files."""

MAX_SIZE = 4096
"""Largest number of dimensions, tasks or harmonics of a kernel of a file."""

DTYPES = {name: np.dtype(name) for name in ("float64", "float32", "int64", "bool")}


class SavedFitError(ValueError):
    """A file that is no saved fit or one of a later version, or a kernel that cannot be saved."""


class SavedFit:
    """A dataclass that can be saved: its fields are numbers, text, arrays, kernels or dataclasses.

    A class of its own says in ``__post_init__`` which values do not go together.
    """

    messages: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, in types of JSON."""
        raise NotImplementedError

    def summary(self) -> dict[str, str]:
        """Return the numbers by name, as text."""
        raise NotImplementedError

    def __repr__(self) -> str:
        lines = [f"{name}: {text}" for name, text in self.summary().items()]
        return "\n".join([type(self).__name__, *lines, *self.messages])

    def _repr_html_(self) -> str:
        return html_table(self.summary())

    def to_json(self, path: str | Path) -> None:
        """Write :meth:`to_dict` as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")

    def save(self, path: str | Path) -> None:
        """Write all of the fit to a file of JSON, for :meth:`load`.

        Raises:
            SavedFitError: if a kernel has a part of a class that tvbo does not know.
        """
        header = {"format": f"tvbo.{type(self).__name__}", "version": SAVED_VERSION}
        content = {**header, "tvbo": version("botorch-tvbo"), "fit": to_data(self)}
        text = json.dumps(content, indent=1, allow_nan=False)
        Path(path).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the fit that :meth:`save` wrote; the file is data, and no code of it is run.

        Raises:
            SavedFitError: if the file is no saved fit, or one of a later version.
            OSError: if it cannot be read.
        """
        raw, kind = Path(path).read_bytes(), f"tvbo.{cls.__name__}"
        try:
            content = json.loads(raw, parse_constant=_no_number)
            found, number = content["format"], content["version"]
            if found != kind or number != SAVED_VERSION:
                raise SavedFitError(
                    f"Expected a {kind} of version {SAVED_VERSION}. Got {shortened(found)} of "
                    f"version {shortened(number)} in {path}, of tvbo {content.get('tvbo')!r:.20}."
                )
            fit: Self = from_data(cls, content["fit"])
            return fit
        except SavedFitError:
            raise
        except Exception as error:
            raise SavedFitError(
                f"Expected a saved {kind}. Got {path}, which is none, or damaged: "
                f"{type(error).__name__}: {shortened(error, 200)}"
            ) from error


def to_data(value: Any) -> Any:
    """Return a value in types of JSON, for :func:`from_data`."""
    if isinstance(value, Kernel):
        return kernel_to_data(value)
    if is_dataclass(value):
        data = {each.name: to_data(getattr(value, each.name)) for each in fields(value)}
        return {"class": type(value).__name__, **data}
    if isinstance(value, list | tuple):
        return [to_data(each) for each in value]
    if isinstance(value, dict):
        return {name: to_data(each) for name, each in value.items()}
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, np.ndarray):
        raw = b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"dtype": str(value.dtype), "shape": list(value.shape), "base64": raw}
    if isinstance(value, float) and math.isinf(value):
        return {"float": str(value)}
    return value


def from_data(hint: Any, data: Any) -> Any:
    """Return the value of a type that :func:`to_data` described.

    Args:
        hint: The type, as the annotation of a dataclass has it.
        data: The description.

    Raises:
        TypeError: if it describes a value of another type.
        ValueError: if values do not go together.
    """
    kind, options = get_origin(hint), get_args(hint)
    if NoneType in options:
        return None if data is None else from_data(options[0], data)
    if kind is list and isinstance(data, list):
        return [from_data(options[0], each) for each in data]
    if kind is dict and isinstance(data, dict):
        return {str(name): from_data(options[1], each) for name, each in data.items()}
    if kind is tuple and isinstance(data, list):
        return tuple(from_data(each, part) for each, part in zip(options, data, strict=True))
    if kind is np.ndarray:
        return _array(data)
    if isinstance(hint, type) and issubclass(hint, Kernel):
        kernel = kernel_from_data(data)
        if isinstance(kernel, hint):
            return kernel
    elif is_dataclass(hint) and isinstance(hint, type):
        known = {each.__name__: each for each in (hint, *_subclasses(hint))}
        made, hints = known[data["class"]], get_type_hints(known[data["class"]])
        values = {each.name: from_data(hints[each.name], data[each.name]) for each in fields(made)}
        return made(**values)
    elif hint is float and isinstance(data, dict):
        return math.inf if data["float"] == "inf" else -math.inf
    elif type(data) is hint or (hint is float and type(data) is int):
        return data
    raise TypeError(f"Expected {hint}. Got {shortened(data)}.")


def _subclasses(kind: type) -> list[type]:
    direct: list[type] = kind.__subclasses__()
    return direct + [each for child in direct for each in _subclasses(child)]


def _array(data: dict[str, Any]) -> NDArray[Any]:
    """Return an array of finite numbers; it is no larger than its text."""
    raw, dtype = b64decode(data["base64"], validate=True), DTYPES[data["dtype"]]
    array = np.frombuffer(bytearray(raw), dtype)
    if any(type(size) is not int or size < 0 for size in data["shape"]):
        raise ValueError(f"Expected a shape. Got {shortened(data['shape'])}.")
    if not np.isfinite(array).all():
        raise ValueError("Expected arrays of finite numbers. Got others.")
    return array.reshape(data["shape"])


def _no_number(text: str) -> None:
    raise ValueError(f"Expected numbers. Got {text}.")


ARGUMENTS: dict[type[Kernel], tuple[str, ...]] = {
    AdditiveKernel: ("kernels",),
    CategoricalKernel: ("ard_num_dims", "active_dims"),
    ColumnKernel: ("base_kernel", "columns"),
    ConstantKernel: ("active_dims",),
    ConstantTemporalKernel: (),
    ContextActionKernel: ("action_kernel", "context_kernel", "structure"),
    CovarianceMatrixKernel: ("covar_matrix", "active_dims"),
    IdentityKernel: ("active_dims",),
    LinearKernel: ("ard_num_dims", "active_dims"),
    MaternKernel: ("nu", "ard_num_dims", "active_dims"),
    PeriodicKernel: ("ard_num_dims", "active_dims"),
    PolynomialKernel: ("power", "active_dims"),
    ProductKernel: ("kernels",),
    RBFKernel: ("ard_num_dims", "active_dims"),
    RQKernel: ("ard_num_dims", "active_dims"),
    ScaleKernel: ("base_kernel",),
    SeasonalKernel: ("period", "num_harmonics"),
    TaskKernel: ("num_tasks", "rank", "active_dims"),
    TemporalDecayKernel: (),
    TemporalMaternKernel: ("nu",),
}
"""Kernels that can be saved, and the arguments with which they are made again."""

OTHER_NAMES: dict[str, Callable[[Any], Any]] = {
    "columns": lambda kernel: kernel.active_dims,
    "kernels": lambda kernel: list(kernel.kernels),
    "num_tasks": lambda kernel: kernel.covar_factor.shape[-2],
    "rank": lambda kernel: kernel.covar_factor.shape[-1],
}
"""Arguments that are no attribute of the kernel."""

CONSTRAINTS: dict[type[Interval], tuple[str, ...]] = {
    GreaterThan: ("lower_bound",),
    Interval: ("lower_bound", "upper_bound"),
    LessThan: ("upper_bound",),
    Positive: (),
}
"""Constraints that can be saved, and their bounds."""

TRANSFORMS: dict[str, tuple[Any, Any]] = {
    "none": (None, None),
    "exp": (torch.exp, torch.log),
    "softplus": (torch.nn.functional.softplus, inv_softplus),
    "sigmoid": (torch.sigmoid, inv_sigmoid),
}
"""Transforms of constraints, and their inverses, by name."""


def kernel_to_data(kernel: Kernel) -> dict[str, Any]:
    """Return a kernel as types of JSON: its classes, their arguments, constraints and parameters.

    Priors are not kept.

    Raises:
        SavedFitError: if a class of kernel or constraint is not known here, or it has a batch.
    """
    if type(kernel) not in ARGUMENTS or kernel.batch_shape:
        known = ", ".join(kind.__name__ for kind in ARGUMENTS)
        raise SavedFitError(
            f"Expected a kernel composed of {known}, without a batch, to save it as data. Got "
            f"{type(kernel).__name__} with batch_shape={tuple(kernel.batch_shape)}."
        )
    values = {
        name: OTHER_NAMES[name](kernel) if name in OTHER_NAMES else getattr(kernel, name)
        for name in ARGUMENTS[type(kernel)]
    }
    return {
        "class": type(kernel).__name__,
        # Those that are None are left out, which not every class takes for one column.
        "arguments": {name: to_data(value) for name, value in values.items() if value is not None},
        "parameters": {
            name: {
                "raw": parameter.tolist(),
                "learned": parameter.requires_grad,
                "constraint": _constraint_to_data(kernel.constraint_for_parameter_name(name)),
            }
            for name, parameter in kernel.named_parameters(recurse=False)
        },
    }


def kernel_from_data(data: dict[str, Any]) -> Kernel:
    """Return the kernel of :func:`kernel_to_data`.

    Raises:
        ValueError: if parameters are not those of the kernel, or out of their range.
    """
    kinds = {kind.__name__: kind for kind in ARGUMENTS}
    arguments = {name: _argument(name, value) for name, value in data["arguments"].items()}
    parts = arguments.pop("kernels", [])
    kernel: Kernel = kinds[data["class"]](*parts, **arguments).double()
    for name, saved in data["parameters"].items():
        parameter, constraint = getattr(kernel, name), saved["constraint"]
        value = torch.tensor(saved["raw"], dtype=torch.float64)
        if constraint is not None:
            # Under its GPyTorch name, the constraint of the new kernel is replaced.
            kernel.register_constraint(name, _constraint_from_data(constraint))
            in_range = kernel.constraint_for_parameter_name(name)
            transformed = in_range.transform(value)
            if not (in_range.check(transformed) and transformed.isfinite().all()):
                raise ValueError(f"Expected {name} in its range. Got {transformed.tolist()}.")
        if value.shape != parameter.shape or not value.isfinite().all():
            raise ValueError(f"Expected {name} of {tuple(parameter.shape)}. Got {value.tolist()}.")
        parameter.requires_grad_(saved["learned"]).data.copy_(value)
    return kernel


def _argument(name: str, value: Any) -> Any:
    """Return an argument of a kernel, which is a part, a list of parts, a matrix or a plain one."""
    if isinstance(value, dict):
        return kernel_from_data(value)
    if name == "kernels":
        return [kernel_from_data(part) for part in value]
    if isinstance(value, int) and value > MAX_SIZE:
        raise ValueError(f"Expected {name} <= {MAX_SIZE}. Got {value}.")
    return torch.tensor(value, dtype=torch.float64) if name == "covar_matrix" else value


def _constraint_to_data(constraint: Interval | None) -> dict[str, Any] | None:
    if constraint is None:
        return None
    names = [
        name
        for name, (transform, _) in TRANSFORMS.items()
        if transform is constraint._transform
        or (name == "softplus" and isinstance(constraint._transform, torch.nn.Softplus))
    ]
    if type(constraint) not in CONSTRAINTS or not names:
        raise SavedFitError(
            f"Expected constraints {', '.join(kind.__name__ for kind in CONSTRAINTS)} with "
            f"transforms {', '.join(TRANSFORMS)}. Got {constraint} with {constraint._transform}."
        )
    bounds = [getattr(constraint, name).tolist() for name in CONSTRAINTS[type(constraint)]]
    return {"class": type(constraint).__name__, "bounds": bounds, "transform": names[0]}


def _constraint_from_data(data: dict[str, Any]) -> Interval:
    kinds = {kind.__name__: kind for kind in CONSTRAINTS}
    transform, inverse = TRANSFORMS[data["transform"]]
    bounds = [torch.tensor(bound, dtype=torch.float64) for bound in data["bounds"]]
    return kinds[data["class"]](*bounds, transform=transform, inv_transform=inverse)
