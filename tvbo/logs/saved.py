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
from torch import Tensor

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

SAVED_VERSION = 2
"""Version of the form of the files."""

MOST_HARMONICS = 10_000
"""Harmonics that a kernel of a file may have."""

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
            content = _finite_json(raw)
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


def _finite_json(text: bytes) -> Any:
    """Return the content of JSON all of whose numbers are finite.

    Raises:
        ValueError: if one is not, or it is no JSON.
    """

    def number(words: str) -> float:
        value = float(words)
        if not math.isfinite(value):
            raise ValueError(f"Expected finite numbers. Got {words:.25}.")
        return value

    return json.loads(text, parse_float=number, parse_constant=number)


Options = dict[str, Any]


LEAVES: dict[type[Kernel], tuple[str, ...]] = {
    CategoricalKernel: ("ard_num_dims",),
    ConstantKernel: (),
    ConstantTemporalKernel: (),
    CovarianceMatrixKernel: ("covar_matrix",),
    IdentityKernel: (),
    LinearKernel: ("ard_num_dims",),
    MaternKernel: ("ard_num_dims", "nu"),
    PeriodicKernel: ("ard_num_dims",),
    PolynomialKernel: ("power",),
    RBFKernel: ("ard_num_dims",),
    RQKernel: ("ard_num_dims",),
    SeasonalKernel: ("period", "num_harmonics"),
    TaskKernel: (),
    TemporalDecayKernel: (),
    TemporalMaternKernel: ("nu",),
}
"""Kernels without parts, and the arguments with which they are made again."""

COMPOSED: dict[type[Kernel], Callable[[Any], tuple[list[Kernel], Options]]] = {
    AdditiveKernel: lambda kernel: (list(kernel.kernels), {}),
    ColumnKernel: lambda kernel: ([kernel.base_kernel], {"columns": kernel.active_dims.tolist()}),
    ContextActionKernel: lambda kernel: (
        [kernel.action_kernel, kernel.context_kernel],
        {"structure": kernel.structure},
    ),
    ProductKernel: lambda kernel: (list(kernel.kernels), {}),
    ScaleKernel: lambda kernel: ([kernel.base_kernel], {}),
}
"""Kernels of parts, and the parts and arguments with which they are made again."""

CONSTRAINTS = {kind.__name__: kind for kind in (GreaterThan, Interval, LessThan, Positive)}

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
    return {
        "form": _form(kernel),
        "state": {
            name: to_data(value.cpu().numpy())
            for name, value in kernel.state_dict().items()
            if ".lower_bound" not in name and ".upper_bound" not in name and "prior" not in name
        },
        "learned": [name for name, value in kernel.named_parameters() if value.requires_grad],
    }


def kernel_from_data(data: dict[str, Any]) -> Kernel:
    """Return the kernel of :func:`kernel_to_data`.

    Raises:
        ValueError: if a class of kernel or constraint is not known here, or parameters are not
            finite.
        RuntimeError: if parameters do not belong to the kernel.
    """
    state = {name: torch.from_numpy(_array(saved)) for name, saved in data["state"].items()}
    kernel = _built(data["form"], sum(value.numel() for value in state.values())).double()
    bounds = {name: x for name, x in kernel.state_dict().items() if name.endswith("_bound")}
    kernel.load_state_dict({**bounds, **state})
    for name, parameter, constraint in kernel.named_parameters_and_constraints():
        parameter.requires_grad_(name in data["learned"])
        value = parameter if constraint is None else constraint.transform(parameter)
        if not value.isfinite().all() or (constraint and not constraint.check(value)):
            raise ValueError(f"Expected parameters in their range. Got {name}={value.tolist()}.")
    return kernel


def _form(kernel: Kernel) -> dict[str, Any]:
    kind, parts = type(kernel), list[Kernel]()
    if kernel.batch_shape:
        raise SavedFitError(
            f"Expected a kernel without a batch. Got batch_shape={tuple(kernel.batch_shape)}."
        )
    if kind in LEAVES:
        # Those that are None are left out, which not every class takes for one column.
        values = {name: getattr(kernel, name) for name in (*LEAVES[kind], "active_dims")}
        options = {
            name: value.tolist() if isinstance(value, Tensor) else value
            for name, value in values.items()
            if value is not None
        }
        if isinstance(kernel, TaskKernel):
            options["num_tasks"], options["rank"] = kernel.covar_factor.shape[-2:]
    elif kind in COMPOSED:
        parts, options = COMPOSED[kind](kernel)
    else:
        known = ", ".join(sorted(known.__name__ for known in (*LEAVES, *COMPOSED)))
        raise SavedFitError(
            f"Expected a kernel composed of {known}, to save it as data. Got {kind.__name__}."
        )
    return {
        "class": kind.__name__,
        "options": options,
        "parts": [_form(part) for part in parts],
        "constraints": {
            name.removesuffix("_constraint"): _constraint_form(constraint)
            for name, constraint in kernel._constraints.items()
        },
    }


def _built(form: dict[str, Any], size: int) -> Kernel:
    """Return the kernel of a form, whose parameters are ``size`` numbers at most."""
    kinds = {kind.__name__: kind for kind in (*LEAVES, *COMPOSED)}
    options = {
        name: torch.tensor(value, dtype=torch.float64) if name == "covar_matrix" else value
        for name, value in form["options"].items()
    }
    if (
        math.prod(options.get(name, 1) for name in ("ard_num_dims", "num_tasks", "rank"))
        > max(1, size)
        or not 1 <= options.get("num_harmonics", 1) <= MOST_HARMONICS
    ):
        raise ValueError(f"Expected a kernel of {size} parameters. Got options {options}.")
    parts = [_built(part, size) for part in form["parts"]]
    kernel: Kernel = kinds[form["class"]](*parts, **options)
    for name, saved in form["constraints"].items():
        # Under its GPyTorch name, the constraint of the new kernel is replaced.
        kernel.register_constraint(name, _built_constraint(saved))
    return kernel


def _constraint_form(constraint: Interval) -> dict[str, Any]:
    names = [
        name
        for name, (transform, _) in TRANSFORMS.items()
        if transform is constraint._transform
        or (name == "softplus" and isinstance(constraint._transform, torch.nn.Softplus))
    ]
    if type(constraint).__name__ not in CONSTRAINTS or not names:
        raise SavedFitError(
            f"Expected constraints {', '.join(CONSTRAINTS)} with transforms "
            f"{', '.join(TRANSFORMS)}. Got {constraint} with {constraint._transform}."
        )
    bounds = {
        name: value.tolist()
        for name, value in (("lower", constraint.lower_bound), ("upper", constraint.upper_bound))
        if torch.isfinite(value).all()
    }
    return {"class": type(constraint).__name__, "transform": names[0], **bounds}


def _built_constraint(saved: dict[str, Any]) -> Interval:
    transform, inverse = TRANSFORMS[saved["transform"]]
    if saved["class"] == "Positive":
        return Positive(transform=transform, inv_transform=inverse)
    bounds: list[Tensor] = [
        torch.tensor(saved[end], dtype=torch.float64) for end in ("lower", "upper") if end in saved
    ]
    kind: type[Interval] = CONSTRAINTS[saved["class"]]
    return kind(*bounds, transform=transform, inv_transform=inverse)
