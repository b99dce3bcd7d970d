"""Saved fits: kernels as data, and files of JSON with a version."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

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
from torch import Tensor

from tvbo.kernels import ContextActionKernel, CovarianceMatrixKernel, IdentityKernel, TaskKernel
from tvbo.kernels.batch import ColumnKernel
from tvbo.values import shortened


class SavedFitError(ValueError):
    """A file that is no saved fit or one of a later version, or a kernel that cannot be saved."""


Options = dict[str, Any]
Made = TypeVar("Made")

LONGEST_NUMBER = 25
"""Characters of a number in a file of ours, and some more."""


def _ard(kernel: Any) -> Options:
    # Left out where it is None, which not every class takes for one column.
    return {} if kernel.ard_num_dims is None else {"ard_num_dims": kernel.ard_num_dims}


LEAVES: dict[type[Kernel], Callable[[Any], Options]] = {
    CategoricalKernel: _ard,
    ConstantKernel: lambda kernel: {},
    CovarianceMatrixKernel: lambda kernel: {"covar_matrix": kernel.covar_matrix.tolist()},
    IdentityKernel: lambda kernel: {},
    LinearKernel: _ard,
    MaternKernel: lambda kernel: {**_ard(kernel), "nu": kernel.nu},
    PeriodicKernel: _ard,
    PolynomialKernel: lambda kernel: {"power": kernel.power},
    RBFKernel: _ard,
    RQKernel: _ard,
    TaskKernel: lambda kernel: dict(
        zip(("num_tasks", "rank"), kernel.covar_factor.shape[-2:], strict=True)
    ),
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
            name: {"dtype": str(value.dtype).removeprefix("torch."), "values": value.tolist()}
            for name, value in kernel.state_dict().items()
            if ".lower_bound" not in name and ".upper_bound" not in name and "prior" not in name
        },
        "learned": [name for name, value in kernel.named_parameters() if value.requires_grad],
    }


def kernel_from_data(data: dict[str, Any]) -> Kernel:
    """Return the kernel of :func:`kernel_to_data`.

    Raises:
        SavedFitError: if a class of kernel or constraint is not known here, or parameters do not
            belong to the kernel.
    """
    state = {
        name: torch.tensor(saved["values"], dtype=getattr(torch, saved["dtype"]))
        for name, saved in data["state"].items()
    }
    kernel = _built(data["form"], sum(value.numel() for value in state.values())).double()
    bounds = {name: x for name, x in kernel.state_dict().items() if name.endswith("_bound")}
    try:
        kernel.load_state_dict({**bounds, **state})
    except RuntimeError as error:
        raise SavedFitError(f"Expected parameters of the saved kernel. Got {error}.") from error
    for name, parameter, constraint in kernel.named_parameters_and_constraints():
        parameter.requires_grad_(name in data["learned"])
        if constraint is not None and not constraint.transform(parameter).isfinite().all():
            raise SavedFitError(f"Expected finite parameters. Got {name}={parameter.tolist()}.")
    return kernel


def _form(kernel: Kernel) -> dict[str, Any]:
    kind, parts = type(kernel), list[Kernel]()
    if kernel.batch_shape:
        raise SavedFitError(
            f"Expected a kernel without a batch. Got batch_shape={tuple(kernel.batch_shape)}."
        )
    if kind in LEAVES:
        options = LEAVES[kind](kernel)
        if kernel.active_dims is not None:
            options["active_dims"] = kernel.active_dims.tolist()
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
    if form["class"] not in kinds:
        raise SavedFitError(
            f"Expected a saved kernel of {', '.join(sorted(kinds))}. Got {form['class']!r}."
        )
    options = {
        name: torch.tensor(value, dtype=torch.float64) if name == "covar_matrix" else value
        for name, value in form["options"].items()
    }
    if math.prod(options.get(name, 1) for name in ("ard_num_dims", "num_tasks", "rank")) > size:
        raise SavedFitError(f"Expected a kernel of {size} parameters. Got options {options}.")
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
    if saved["class"] not in CONSTRAINTS or saved["transform"] not in TRANSFORMS:
        raise SavedFitError(f"Expected a known constraint. Got {saved}.")
    transform, inverse = TRANSFORMS[saved["transform"]]
    if saved["class"] == "Positive":
        return Positive(transform=transform, inv_transform=inverse)
    bounds: list[Tensor] = [
        torch.tensor(saved[end], dtype=torch.float64) for end in ("lower", "upper") if end in saved
    ]
    kind: type[Interval] = CONSTRAINTS[saved["class"]]
    return kind(*bounds, transform=transform, inv_transform=inverse)


@contextmanager
def reading(path: str | Path, kind: str) -> Iterator[None]:
    """Raise one class of error, whatever an open file leads to that is no saved fit.

    Raises:
        SavedFitError: for any error.
    """
    try:
        yield
    except SavedFitError:
        raise
    except Exception as error:
        raise SavedFitError(
            f"Expected a saved {kind}. Got {path}, which is none, or damaged: "
            f"{type(error).__name__}: {shortened(error, 200)}"
        ) from error


def finite_json(text: str | bytes) -> Any:
    """Return the content of JSON all of whose numbers are finite.

    Raises:
        ValueError: if one is not, or it is no JSON.
    """

    def number(words: str) -> float:
        value = float(words)
        if not math.isfinite(value):
            raise ValueError(f"Expected finite numbers. Got {words[:LONGEST_NUMBER]}.")
        return value

    def integer(words: str) -> int:
        if len(words) > LONGEST_NUMBER:
            raise ValueError(f"Expected numbers of 64 bits. Got {words[:LONGEST_NUMBER]}...")
        return int(words)

    return json.loads(text, parse_float=number, parse_int=integer, parse_constant=number)


def from_plain(kind: Callable[..., Made], values: dict[str, Any]) -> Made:
    """Make a dataclass of values from a file, of the types that its annotations name.

    Raises:
        TypeError: if one is of another type, or they are not the fields of the class.
        ValueError: if a rate or a variance is out of range.
    """
    for each in fields(kind):  # type: ignore[arg-type]
        fits = PLAIN_TYPES.get(str(each.type))
        if fits is not None and each.name in values and not fits(values[each.name]):
            raise TypeError(f"Expected {each.name} of type {each.type}. Got {values[each.name]!r}.")
    for name, most in (("forgetting_rate", 1.0), ("noise_variance", math.inf)):
        if not 0 <= (values.get(name) or 0.0) <= most:
            raise ValueError(f"Expected {name} from 0 to {most}. Got {values[name]}.")
    return kind(**values)


def check_index(name: str, index: int, rows: list[Any]) -> None:
    """Raise a ValueError unless an index is one of a list."""
    if not 0 <= index < len(rows):
        raise ValueError(f"Expected {name} among {len(rows)} rows. Got {index}.")


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(_is_number, value))


def _each(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


PLAIN_TYPES: dict[str, Callable[[object], bool]] = {
    "bool": lambda value: isinstance(value, bool),
    "float": _is_number,
    "float | None": lambda value: value is None or _is_number(value),
    "int": lambda value: type(value) is int,
    "list[float]": _each(_is_number),
    "list[str]": _each(lambda value: isinstance(value, str)),
    "list[tuple[float, float]]": _each(_is_pair),
    "list[tuple[int, float]]": _each(_is_pair),
    "str": lambda value: isinstance(value, str),
    "tuple[float, float]": _is_pair,
}
"""Whether a value is of a type, by its annotation."""


def write_saved(path: str | Path, kind: str, number: int, content: dict[str, Any]) -> None:
    """Write content as JSON with a header.

    Args:
        path: The file.
        kind: What the file holds, such as ``"tvbo.DriftFit"``.
        number: Version of the form of the content.
        content: In types of JSON.
    """
    header = {"format": kind, "version": number, "tvbo": version("botorch-tvbo")}
    text = json.dumps({**header, **content}, indent=1, allow_nan=False)
    Path(path).write_text(text + "\n", encoding="utf-8")


def read_saved(path: str | Path, kind: str, number: int) -> dict[str, Any]:
    """Return the content of a file of :func:`write_saved`, of this version or an earlier one.

    Args:
        path: The file.
        kind: What the file has to hold.
        number: The latest version that can be read.

    Raises:
        SavedFitError: if the file holds something else, or is of a later version.
        OSError: if the file cannot be read.
    """
    try:
        content = finite_json(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise SavedFitError(
            f"Expected a saved {kind}. Got {path}, which is no JSON of finite numbers."
        ) from error
    if not isinstance(content, dict) or content.get("format") != kind:
        what = content.get("format") if isinstance(content, dict) else None
        raise SavedFitError(
            f"Expected a saved {kind}. Got {path}, "
            + (f"which is a {what}." if isinstance(what, str) else "which is another JSON file.")
        )
    found = content.get("version")
    if not isinstance(found, int) or not 1 <= found <= number:
        raise SavedFitError(
            f"Expected a {kind} of version 1 to {number}. Got version {found} in {path}, written "
            f"by tvbo {content.get('tvbo')}; a later tvbo may read it."
        )
    return content
