"""The parameters other than the drift rate, as one flat vector."""

from __future__ import annotations

import math
from copy import copy

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

RAW_RANGE = 8.0
"""Range of a raw kernel parameter on both sides of its start: a factor of 3,000 for a logarithm.
Beyond it the likelihood is flat and the covariance numerically singular."""

AT_BOUND = 1e-3
"""Distance from a bound, as a share of the range, at which a parameter is reported to be there."""

NOISE_SHARES = (1e-6, 0.1, 10.0)
"""Smallest, initial and largest σ², as shares of the variance of the outcomes."""


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

    def assign(self, values: NDArray[np.float64]) -> Tensor:
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

    def at_bounds(self, values: NDArray[np.float64]) -> list[str]:
        """Return the names of parameters at a bound, without duplicates."""
        names = [
            name
            for name, x, (low, high) in zip(self.names, values, self.bounds, strict=True)
            # An unbounded range has no length; there the distance itself counts.
            if min(x - low, high - x) <= AT_BOUND * (high - low if high - low < math.inf else 1.0)
        ]
        return list(dict.fromkeys(names))
