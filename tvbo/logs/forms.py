"""Forms of drift that are compared, by evidence and by prediction."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from gpytorch.kernels import Kernel

from tvbo.kernels import SeasonalKernel, TemporalDecayKernel, TemporalKernel, TemporalMaternKernel
from tvbo.kernels.temporal import check_markov
from tvbo.models.time_varying_gp import make_temporal_kernel
from tvbo.spaces.times import duration

LAST_PART = 0.25
"""Share of the log, at its end, on which one-step-ahead predictions are scored."""


START = 0.3
"""Rate ρ from which the forms are searched, by the unit of time."""


def exponential(rate: float = START) -> TemporalDecayKernel:
    """Return exponential decay with a start for ρ, and ε anywhere in [0, 1]."""
    kernel = make_temporal_kernel(-math.expm1(-rate))
    kernel.requires_grad_(True)
    return kernel


def _matern(unit: float) -> list[TemporalKernel]:
    kernel = TemporalMaternKernel().double()
    kernel.lengthscale = 5.0
    return [kernel]


Forms = dict[str, Callable[[float], list[TemporalKernel]]]
"""What makes the temporal kernels of forms of drift, by name, in a unit of about one gap."""

EXPONENTIAL = "exponential"

FORMS: Forms = {
    EXPONENTIAL: lambda unit: [exponential()],
    "matern32": _matern,
    "two-scales": lambda unit: [exponential(1.0), exponential(0.03)],
}
"""The forms of drift that ``temporal_kernel="auto"`` compares."""


def describe(kernel: TemporalKernel) -> dict[str, Any]:
    """Return class and parameters of a temporal kernel, in types of JSON."""
    given = [name for name in ("nu", "num_harmonics") if hasattr(kernel, name)]
    learned = [name.removeprefix("raw_") for name, _ in kernel.named_parameters()]
    values = {name: getattr(kernel, name) for name in given}
    values |= {name: getattr(kernel, name).item() for name in learned}
    return {"class": type(kernel).__name__, **values}


def describe_kernel(kernel: TemporalKernel, time_unit: str) -> str:
    """Return class and parameters of a temporal kernel as text."""
    words = describe(kernel)
    name = words.pop("class")
    numbers = ", ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in words.items())
    return f"{name} ({numbers}; time in {time_unit})"


def in_time(amount: float, unit: str) -> str:
    """Return an amount of time as text, in its unit, and in hours if that is one of pandas."""
    text = f"{amount:.4g} × {unit}"
    if (step := duration(unit)) is None:
        return text
    return f"{text} = {amount * step.total_seconds() / 3600:.3g} h"


def forms_of(temporal_kernel: TemporalKernel | Sequence[TemporalKernel] | str) -> Forms:
    """Return the forms of drift to compare.

    Raises:
        TypeError: if a kernel is no temporal kernel.
        ValueError: if it is none of these, or a kernel is not Markov.
    """
    if temporal_kernel == "auto":
        return FORMS
    if isinstance(temporal_kernel, str):
        if temporal_kernel not in FORMS:
            raise ValueError(
                "Expected a temporal kernel, a list of them, None, 'auto', or one of "
                f"{', '.join(FORMS)}. Got {temporal_kernel!r}."
            )
        return {temporal_kernel: FORMS[temporal_kernel]}
    kernels = [temporal_kernel] if isinstance(temporal_kernel, Kernel) else temporal_kernel
    given = [check_markov(kernel) for kernel in kernels]
    if not given:
        raise ValueError("Expected a temporal kernel, or a list of them. Got none.")
    name = " + ".join(type(kernel).__name__ for kernel in given)
    return {name: lambda unit: [in_unit_of_time(kernel, unit) for kernel in given]}


def in_unit_of_time(kernel: TemporalKernel, unit: float) -> TemporalKernel:
    """Return a copy of a temporal kernel for times divided by ``unit``.

    Raises:
        ValueError: if a parameter in that unit breaks a constraint of the kernel.
    """
    kernel = deepcopy(kernel).double()
    if unit == 1.0:
        return kernel
    for name, _ in kernel.named_parameters():
        name = name.removeprefix("raw_")
        if isinstance(kernel, SeasonalKernel) and name == "lengthscale":
            # It has no unit.
            continue
        value = getattr(kernel, name)
        is_rate = name == "forgetting_rate"
        changed = -torch.expm1(unit * torch.log1p(-value)) if is_rate else value / unit
        try:
            setattr(kernel, name, changed.detach())
        except RuntimeError as error:
            raise ValueError(
                f"Expected {name} within the constraint of {type(kernel).__name__} in every unit "
                f"of time. Got {changed.item():.3g} for times divided by {unit:g}."
            ) from error
    return kernel


@dataclass(frozen=True)
class PanelCandidate:
    """A row of the table of evidence.

    Args:
        temporal_kernel: Name of the form of drift.
        has_season: Whether there is a season.
        num_parameters: Number ``k`` of parameters that were maximized.
        log_likelihood: Log marginal likelihood of the values in the user's unit.
        evidence: The same less ``k / 2 log N``, with ``N`` values.
        predictive_score: Mean log density of a value of the last quarter of the log by the model
            fitted to the first three: one step ahead, of a panel from one random arm at each time;
            None where it was not needed. The other numbers are None of a form that is judged by it
            alone, and was not taken.
    """

    temporal_kernel: str
    has_season: bool
    num_parameters: int | None
    log_likelihood: float | None
    evidence: float | None
    predictive_score: float | None


@dataclass(frozen=True)
class DriftComparison:
    """Forms of drift of a log, and the model of the one that was chosen.

    Args:
        evidence: The forms that were compared.
        chosen: Index of the one that was chosen.
        reason: Why, in a sentence.
        messages: Remarks on the reliability of the comparison.
        temporal_kernels: Temporal kernels of the chosen form.
        covar_modules: Kernel over actions of each of them.
        noise_variance: σ²; None if each outcome had a known one.
        mean: The prior mean.
    """

    evidence: list[PanelCandidate] = field(repr=False)
    chosen: int
    reason: str
    messages: list[str]
    temporal_kernels: list[TemporalKernel] = field(repr=False)
    covar_modules: list[Kernel] = field(repr=False)
    noise_variance: float | None
    mean: float
