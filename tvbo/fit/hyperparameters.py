"""Learned hyperparameters by name, in the user's units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from tvbo.kernels import TemporalKernel
from tvbo.models import TimeVaryingGP
from tvbo.models.raw import raw_row_kernel


def read_hyperparameters(
    model: TimeVaryingGP, names: Sequence[str], row: Tensor
) -> dict[str, float]:
    """Return length-scales, rates and prior standard deviation of a model in the user's units.

    Args:
        model: The model.
        names: Names of the columns of its rows but time, which comes last.
        row: ``1 x d``, where the prior standard deviation is taken.
    """
    found: dict[str, float] = {}

    def add(name: str, value: float) -> None:
        number = sum(known.split(" ")[0] == name for known in found) + 1
        found[name if number == 1 else f"{name} {number}"] = value

    for kernel in model.temporal_kernels:
        for raw, _ in kernel.named_parameters():
            name = raw.removeprefix("raw_")
            is_rate = name == "forgetting_rate"
            add(name if is_rate else f"temporal_{name}", getattr(kernel, name).item())
    transform = getattr(model, "input_transform", None)
    ranges = torch.ones(len(names) + 1, dtype=torch.float64)
    if transform is not None:
        ranges = transform.coefficient.flatten()
    for kernel, columns in _smooth_kernels(model.covar_module, list(range(len(names) + 1))):
        scales = kernel.lengthscale.detach().flatten()
        if len(scales) == len(columns):
            for column, scale in zip(columns, (scales * ranges[columns]).tolist(), strict=True):
                add(f"lengthscale_{names[column]}", scale)
        else:
            # In the unit cube, if the ranges of its columns differ.
            is_uniform = bool((ranges[columns] == ranges[columns[0]]).all())
            add("lengthscale", scales[0].item() * (ranges[columns[0]].item() if is_uniform else 1))
    with torch.no_grad():
        found["signal_deviation"] = raw_row_kernel(model)(row, diag=True).sqrt().item()
    return found


def _smooth_kernels(kernel: Kernel, columns: list[int]) -> Iterator[tuple[Kernel, list[int]]]:
    """Yield the kernels with length-scales that are not of time, each with its columns of a row."""
    if isinstance(kernel, TemporalKernel):
        return
    if isinstance(kernel, Kernel) and kernel.active_dims is not None:
        columns = [columns[i] for i in kernel.active_dims.tolist()]
    if isinstance(kernel, Kernel) and kernel.has_lengthscale:
        yield kernel, columns
    for child in kernel.children():
        yield from _smooth_kernels(child, columns)
