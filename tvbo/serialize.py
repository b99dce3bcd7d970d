"""Objects as types of JSON and back: dataclasses, arrays, kernels, and the options of recipes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from pkgutil import resolve_name
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import torch
from botorch.models.kernels import CategoricalKernel
from gpytorch import constraints, kernels, means, priors
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from gpytorch.priors import Prior
from gpytorch.utils.transforms import inv_sigmoid, inv_softplus

from tvbo import kernels as own
from tvbo.kernels.batch import ColumnKernel
from tvbo.values import shortened

MAX_SIZE = 4096
"""Largest number of dimensions, tasks or harmonics of a kernel of a file."""


class SerializationError(ValueError):
    """An object that cannot be stored as data, or data that is of none."""


def to_data(value: Any) -> Any:
    """Return a value in types of JSON, for :func:`from_data`."""
    if isinstance(value, MODULES):
        return kernel_to_data(value)
    if is_dataclass(value):
        data = {each.name: to_data(getattr(value, each.name)) for each in fields(value)}
        return {"class": type(value).__name__, **data}
    if isinstance(value, list | tuple):
        return [to_data(each) for each in value]
    if isinstance(value, dict):
        return {name: to_data(each) for name, each in value.items()}
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.tolist()
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
        [dtype] = get_args(options[1])
        array = np.array(data, dtype)
        if not np.isfinite(array).all():
            raise ValueError("Expected arrays of finite numbers. Got others.")
        return array
    if hint is torch.Tensor:
        return torch.tensor(data, dtype=torch.float64)
    if isinstance(hint, type) and issubclass(hint, tuple):  # One with names.
        parts = zip(get_type_hints(hint).values(), data, strict=True)
        return hint(*(from_data(each, part) for each, part in parts))
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


MODULES = (Kernel, Mean, Prior, Interval)

ARGUMENTS: dict[type, tuple[str, ...]] = {
    kernels.AdditiveKernel: ("kernels",),
    CategoricalKernel: ("ard_num_dims", "active_dims"),
    ColumnKernel: ("base_kernel", "columns"),
    kernels.ConstantKernel: ("active_dims",),
    own.ConstantTemporalKernel: (),
    own.ContextActionKernel: ("action_kernel", "context_kernel", "structure"),
    own.CovarianceMatrixKernel: ("covar_matrix", "active_dims"),
    own.IdentityKernel: ("active_dims",),
    kernels.LinearKernel: ("ard_num_dims", "active_dims"),
    kernels.MaternKernel: ("nu", "ard_num_dims", "active_dims"),
    kernels.PeriodicKernel: ("ard_num_dims", "active_dims"),
    kernels.PolynomialKernel: ("power", "active_dims"),
    kernels.ProductKernel: ("kernels",),
    kernels.RBFKernel: ("ard_num_dims", "active_dims"),
    kernels.RQKernel: ("ard_num_dims", "active_dims"),
    kernels.ScaleKernel: ("base_kernel",),
    own.SeasonalKernel: ("period", "num_harmonics"),
    own.TaskKernel: ("num_tasks", "rank", "active_dims"),
    own.TemporalDecayKernel: (),
    own.TemporalMaternKernel: ("nu",),
    means.ConstantMean: (),
    means.ZeroMean: (),
    priors.GammaPrior: ("concentration", "rate"),
    priors.HalfCauchyPrior: ("scale",),
    priors.HalfNormalPrior: ("scale",),
    priors.LogNormalPrior: ("loc", "scale"),
    priors.NormalPrior: ("loc", "scale"),
    priors.UniformPrior: ("low", "high"),
    constraints.GreaterThan: ("lower_bound", "transform"),
    constraints.Interval: ("lower_bound", "upper_bound", "transform"),
    constraints.LessThan: ("upper_bound", "transform"),
    constraints.Positive: ("transform",),
}
"""What can be saved, and the arguments with which it is made again."""

OTHER_NAMES: dict[str, Callable[[Any], Any]] = {
    # These are whole numbers, not of 64 bits.
    "active_dims": lambda part: None if part.active_dims is None else part.active_dims.tolist(),
    "columns": lambda kernel: kernel.active_dims.tolist(),
    "kernels": lambda kernel: list(kernel.kernels),
    "num_tasks": lambda kernel: kernel.covar_factor.shape[-2],
    "rank": lambda kernel: kernel.covar_factor.shape[-1],
    "transform": lambda constraint: _transform_name(constraint),
}
"""Arguments that are no attribute, or have another form as one."""

PRIOR_ARGUMENTS = {"mean_prior": "constant_prior"}
"""Arguments of priors that have another name in the kernel or mean."""

TRANSFORMS: dict[str, tuple[Any, Any]] = {
    "none": (None, None),
    "exp": (torch.exp, torch.log),
    "softplus": (torch.nn.functional.softplus, inv_softplus),
    "sigmoid": (torch.sigmoid, inv_sigmoid),
}
"""Transforms of constraints, and their inverses, by name."""


def kernel_to_data(module: Any) -> dict[str, Any]:
    """Return a kernel, a mean, or a prior or constraint of one, as data.

    Its class and arguments, and of a kernel and a mean parameters, constraints and priors.

    Raises:
        SerializationError: if its class or a transform is not known here, or it has a batch.
    """
    is_model_part = isinstance(module, Kernel | Mean)
    if type(module) not in ARGUMENTS or (is_model_part and module.batch_shape):
        known = ", ".join(kind.__name__ for kind in ARGUMENTS)
        raise SerializationError(
            f"Expected a kernel that can be saved, without a batch. Got {type(module).__name__}: "
            f"those that can are composed of {known}."
        )
    values = {
        name: OTHER_NAMES[name](module) if name in OTHER_NAMES else getattr(module, name)
        for name in ARGUMENTS[type(module)]
    }
    # Those that are None are left out, which not every class takes for one column.
    arguments = {name: option_to_data(value) for name, value in values.items() if value is not None}
    data = {"class": type(module).__name__, "arguments": arguments}
    if is_model_part:
        data["parameters"] = {
            name: {
                "raw": parameter.tolist(),
                "learned": parameter.requires_grad,
                "constraint": to_data(module.constraint_for_parameter_name(name)),
            }
            for name, parameter in module.named_parameters(recurse=False)
        }
        data["priors"] = {name: to_data(getattr(module, name)) for name in module._priors}
    return data


def kernel_from_data(data: Mapping[str, Any]) -> Any:
    """Return what :func:`kernel_to_data` described.

    Raises:
        ValueError: if parameters are not those of the kernel, or out of their range.
    """
    kind: Any = {kind.__name__: kind for kind in ARGUMENTS}[data["class"]]
    arguments = {name: option_from_data(value) for name, value in data["arguments"].items()}
    for name, value in arguments.items():
        if isinstance(value, int) and value > MAX_SIZE:
            raise ValueError(f"Expected {name} <= {MAX_SIZE}. Got {value}.")
    if "transform" in arguments:
        arguments["transform"], arguments["inv_transform"] = TRANSFORMS[arguments["transform"]]
    if issubclass(kind, Prior | Interval):
        return kind(**arguments)
    parts = arguments.pop("kernels", [])
    arguments |= {
        PRIOR_ARGUMENTS.get(name, name): kernel_from_data(each)
        for name, each in data["priors"].items()
    }
    kernel: Any = kind(*parts, **arguments).double()
    for name, saved in data["parameters"].items():
        parameter, constraint = getattr(kernel, name), saved["constraint"]
        value = torch.tensor(saved["raw"], dtype=torch.float64)
        if constraint is not None:
            # Under its GPyTorch name, the constraint of the new kernel is replaced.
            kernel.register_constraint(name, kernel_from_data(constraint))
            in_range = kernel.constraint_for_parameter_name(name)
            transformed = in_range.transform(value)
            if not (in_range.check(transformed) and transformed.isfinite().all()):
                raise ValueError(f"Expected {name} in its range. Got {transformed.tolist()}.")
        if value.shape != parameter.shape or not value.isfinite().all():
            raise ValueError(f"Expected {name} of {tuple(parameter.shape)}. Got {value.tolist()}.")
        parameter.requires_grad_(saved["learned"]).data.copy_(value)
    return kernel


def _transform_name(constraint: Interval) -> str:
    """Return the name of the transform of a constraint."""
    own = constraint._transform
    if isinstance(own, torch.nn.Softplus):
        return "softplus"
    for name, (transform, _) in TRANSFORMS.items():
        if transform is own:
            return name
    raise SerializationError(f"Expected a transform {', '.join(TRANSFORMS)}. Got {own}.")


TAG = "class"
"""Key of the class of an object that is no type of JSON."""

LIBRARIES = (
    "botorch.acquisition",
    *(f"tvbo.{name}" for name in ("acquisition", "fit", "optimizers", "retention", "spaces")),
)
"""Packages of the classes that options may be of."""


def option_to_data(value: Any) -> Any:
    """Return an option of a recipe as types of JSON, for :func:`option_from_data`.

    An object is its class and the arguments of its constructor, which it holds by their names.

    Raises:
        SerializationError: if it is, or holds, an object of other code, naming that.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {TAG: "float", "value": str(value)}
    if isinstance(value, torch.Tensor | np.ndarray):
        return {TAG: "Tensor", "value": torch.as_tensor(value).tolist()}
    if isinstance(value, Mapping) and TAG not in value:
        return {str(name): option_to_data(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [option_to_data(each) for each in value]
    if isinstance(value, MODULES):
        return kernel_to_data(value)
    if isinstance(value, partial) and not value.args:
        called, arguments = option_to_data(value.func), option_to_data(value.keywords)
        return {TAG: "partial", "function": called, "arguments": arguments}
    kind = value if isinstance(value, type) else type(value)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if not kind.__module__.startswith(LIBRARIES):
        raise SerializationError(shortened(getattr(value, "__qualname__", name)))
    if isinstance(value, type):
        return {TAG: "type", "value": name}
    arguments = {}
    for each in inspect.signature(kind).parameters.values():
        held = getattr(value, each.name)
        arguments[each.name] = option_to_data(held)
    return {TAG: name, "arguments": arguments}


def option_from_data(data: Any) -> Any:
    """Return the option that :func:`option_to_data` described; only classes of the libraries.

    Raises:
        SerializationError: if it holds an object of other code, or of a class that is not there.
    """
    if isinstance(data, list):
        return [option_from_data(each) for each in data]
    if not isinstance(data, dict):
        return data
    if (kind := data.get(TAG)) is None:
        return {name: option_from_data(each) for name, each in data.items()}
    if kind in {each.__name__ for each in ARGUMENTS}:
        return kernel_from_data(data)
    match kind:
        case "float":
            return float(data["value"])
        case "Tensor":
            return torch.tensor(data["value"], dtype=torch.float64)
        case "partial":
            function, arguments = map(option_from_data, (data["function"], data["arguments"]))
            return partial(function, **arguments)
        case "type":
            return _class_of(data["value"])
        case "foreign":
            raise SerializationError(f"Expected options that are data. Got {data['value']}.")
    arguments = {name: option_from_data(each) for name, each in data["arguments"].items()}
    made = _class_of(kind)
    for each in inspect.signature(made).parameters.values():
        if each.kind is each.VAR_POSITIONAL:
            return made(*arguments[each.name])
    return made(**arguments)


def _class_of(name: str) -> type:
    """Return a class of the libraries by module and name."""
    module, found = name.partition(":")[0], None
    if f"{module}.".startswith(tuple(f"{each}." for each in LIBRARIES)):
        with suppress(ImportError, AttributeError, ValueError):
            found = resolve_name(name)
    if not isinstance(found, type) or found.__module__ != module:
        raise SerializationError(f"Expected a class of {', '.join(LIBRARIES)}. Got {name!r:.200}.")
    return found
