"""A trial with the prediction of its outcome, and the hyperparameters of that prediction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from tvbo.fit.drift import DenseGP
from tvbo.kernels import TemporalKernel
from tvbo.models.at_bounds import AtBound
from tvbo.models.raw import RawRowKernel
from tvbo.retention import Prediction


@dataclass(frozen=True)
class PredictedTrial:
    """A trial that was asked, with what the model said of its outcome then.

    Args:
        prediction: Mean and variance by the outcomes told before the ask, and the noise variance,
            NaN where it came with the outcome and none has come.
        outcome: The outcome told; NaN where there is none.
        is_fitted: Whether all hyperparameters were given or fitted by then; before the first fit
            they are defaults.
        model_size: Number of observations that the prediction rested on.
        parameters: Hyperparameters in the user's units, by name.
        form: The form of drift in words.
        half_life: Lag at which the correlation over time has fallen to one half, in the user's unit
            of time; infinite without drift, NaN for a sum of several forms.
        at_bounds: The learned parameters at a bound of their constraint.
        told_before: Number of outcomes told before the ask.
        told_as: Number of the outcome in the order of telling, from 1; None where there is none.
    """

    prediction: Prediction
    is_fitted: bool
    model_size: int
    parameters: dict[str, float]
    form: str
    half_life: float
    at_bounds: tuple[AtBound, ...]
    told_before: int
    outcome: float = math.nan
    told_as: int | None = None

    @property
    def z(self) -> float:
        """The outcome minus its prediction, in predictive standard deviations, noise included.

        NaN where there is no outcome, or neither variance nor noise.
        """
        if self.prediction.variance + self.prediction.noise_variance == 0:
            return math.nan
        return self.prediction.standardized(self.outcome)

    @property
    def is_judged(self) -> bool:
        """Whether the outcome can be compared with a prediction of the fitted model."""
        return self.is_fitted and math.isfinite(self.z)


def read_parameters(model: DenseGP, names: Sequence[str], row: Tensor) -> dict[str, float]:
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
        found["signal_deviation"] = RawRowKernel(model)(row, diag=True).sqrt().item()
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
