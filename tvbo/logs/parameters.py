"""Parameters of the model of a log: kernels with initial values, what is learned, an optimum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.kernels import CategoricalKernel
from gpytorch.constraints import Positive
from gpytorch.kernels import Kernel, MaternKernel, ProductKernel, RBFKernel, ScaleKernel
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from tvbo.logs.dataset import outcome_unit

Array = NDArray[np.float64]

SMALLEST_COLUMN = 1e-300
"""Smallest standard deviation of an action column; lengthscales may be much smaller."""

RAW_RANGE = 8.0
"""Range of a raw kernel parameter on both sides of its start: a factor of 3,000 for a logarithm.
Beyond it the likelihood is flat and the covariance numerically singular."""

AT_BOUND = 1e-3
"""Distance from a bound, as a share of the range, at which a parameter is reported to be there."""

NOISE_SHARES = (1e-6, 0.1, 10.0)
"""Smallest, initial and largest σ², as shares of the variance of the outcomes."""


def times_factor(kernel: Kernel, factor: float) -> Kernel:
    """Return ``factor`` times a kernel, which is shared; the factor is not learned."""
    scaled = ScaleKernel(kernel, outputscale_constraint=Positive(transform=None)).double()
    scaled.outputscale = torch.tensor(factor, dtype=torch.float64)
    scaled.raw_outputscale.requires_grad_(False)
    return scaled


def scaled_kernel(
    base: type[RBFKernel] | type[MaternKernel],
    actions: Tensor,
    Y: Tensor,
    categories: Sequence[int] = (),
) -> Kernel:
    """Return a kernel with a lengthscale per action column and an output scale.

    It is the product of ``base`` over the columns of numbers and BoTorch's
    :class:`~botorch.models.kernels.CategoricalKernel` over those of categories. Initial
    lengthscales are the standard deviation of each column, and one for categories; the initial
    scale is the variance of the outcomes. The raw parameters are logarithms, in which a likelihood
    is closest to quadratic.

    Args:
        base: Class of the kernel over numbers.
        actions: ``n x d``.
        Y: ``n``.
        categories: Columns whose values are numbers of categories.

    Raises:
        InputDataError: if a standard deviation is too large or too small for double precision.
    """
    columns = [column for column in range(actions.shape[-1]) if column not in categories]
    parts: list[Kernel] = []
    if columns:
        numbers = base(
            ard_num_dims=len(columns),
            active_dims=tuple(columns) if categories else None,
            lengthscale_constraint=_positive(),
        ).double()
        numbers.lengthscale = _spread(actions[:, columns])
        parts.append(numbers)
    if categories:
        labels = CategoricalKernel(
            ard_num_dims=len(categories),
            active_dims=tuple(categories),
            lengthscale_constraint=_positive(),
        ).double()
        labels.lengthscale = torch.ones(len(categories), dtype=torch.float64)
        parts.append(labels)
    kernel = ScaleKernel(
        parts[0] if len(parts) == 1 else ProductKernel(*parts), outputscale_constraint=_positive()
    ).double()
    unit = outcome_unit(Y)
    kernel.outputscale = (Y / unit).var(correction=0) * unit**2
    return kernel


def _positive() -> Positive:
    return Positive(transform=torch.exp, inv_transform=torch.log)


def _spread(actions: Tensor) -> Tensor:
    """Return the standard deviation of each column, one for a constant column."""
    # Divided by a power of two first, because squares of very large or small numbers overflow.
    exponent = torch.frexp(actions.abs().amax(dim=0)).exponent - 1
    spread = torch.ldexp(torch.ldexp(actions, -exponent).std(dim=0, correction=0), exponent)
    if ((spread > 0) & ((spread < SMALLEST_COLUMN) | (spread > 1 / SMALLEST_COLUMN))).any():
        raise InputDataError(
            f"Expected action columns with standard deviations between {SMALLEST_COLUMN:g} and "
            f"{1 / SMALLEST_COLUMN:g}, or constant ones. Got {spread.tolist()}."
        )
    return torch.where(spread > 0, spread, 1.0)


class NuisanceParameters:
    """log σ² if it is learned, then the raw kernel parameters that require gradients.

    Args:
        covar_module: The kernel, whose parameters are modified; their present values are the start.
        noise_variance: A fixed σ², or None to learn it.
        outcome_variance: Variance of the outcomes. A learned σ² starts at a tenth of it, and is
            bounded by 1e-6 and 10 times it.
    """

    def __init__(self, covar_module: Kernel, noise_variance: float | None, outcome_variance: float):
        self.noise_variance = noise_variance
        self.kernel_parameters: list[Parameter] = []
        self.names: list[str] = []
        self.bounds: list[tuple[float, float]] = []
        start = []
        if noise_variance is None:
            low, first, high = (math.log(share * outcome_variance) for share in NOISE_SHARES)
            self.names.append("noise variance")
            start.append(np.array([first]))
            self.bounds.append((low, high))
        for name, parameter, constraint in covar_module.named_parameters_and_constraints():
            if not parameter.requires_grad:
                continue
            raw = parameter.detach().flatten().numpy().copy()
            start.append(raw)
            if constraint is None or constraint.enforced:
                self.bounds += [(x - RAW_RANGE, x + RAW_RANGE) for x in raw]
            else:
                box = (float(constraint.lower_bound), float(constraint.upper_bound))
                self.bounds += [box] * len(raw)
            self.kernel_parameters.append(parameter)
            self.names += [name.replace("raw_", "")] * len(raw)
        self.start = np.concatenate(start) if start else np.empty(0)

    def with_fixed_noise(self, noise_variance: float) -> NuisanceParameters:
        """Return the same parameters with the same bounds, but a fixed noise variance."""
        held = copy(self)
        held.noise_variance = noise_variance
        if self.noise_variance is None:
            held.names, held.start, held.bounds = self.names[1:], self.start[1:], self.bounds[1:]
        return held

    def assign(self, values: Array) -> Tensor:
        """Set the parameters of the kernel; return σ², with a gradient if it is learned."""
        rest = torch.as_tensor(values, dtype=torch.float64)
        if self.noise_variance is None:
            noise, rest = rest[0].exp().requires_grad_(), rest[1:]
        else:
            noise = torch.tensor(self.noise_variance, dtype=torch.float64)
        with torch.no_grad():
            for parameter in self.kernel_parameters:
                part, rest = rest[: parameter.numel()], rest[parameter.numel() :]
                parameter.copy_(part.reshape(parameter.shape))
        return noise

    def at_bounds(self, values: Array) -> list[str]:
        """Return the names of parameters at a bound, without duplicates."""
        names = [
            name
            for name, x, (low, high) in zip(self.names, values, self.bounds, strict=True)
            # An unbounded range has no length; there the distance itself counts.
            if min(x - low, high - x) <= AT_BOUND * (high - low if high - low < math.inf else 1.0)
        ]
        return list(dict.fromkeys(names))


@dataclass(frozen=True)
class Optimum:
    """A maximum of the likelihood over all parameters, or over all but the rate.

    Args:
        log_rate: Logarithm of ρ.
        nuisance: The other parameters, as a flat vector.
        log_likelihood: Log likelihood at the maximum.
        slope: Derivative with respect to log ρ, which is also that of the profile.
        converged: False if the optimizer stopped for another reason than a small gradient.
        message: The message of the optimizer.
    """

    log_rate: float
    nuisance: Array
    log_likelihood: float
    slope: float
    converged: bool
    message: str

    @property
    def vector(self) -> Array:
        """All parameters, beginning with log ρ."""
        return np.concatenate([[self.log_rate], self.nuisance])
