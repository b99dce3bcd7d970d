"""What is learned beside the drift rate, as one flat vector."""

from __future__ import annotations

import math
from copy import copy

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

RAW_RANGE = 8.0
"""How far a raw kernel parameter may move from its start: a factor of 3,000 for one kept as a
logarithm. Farther out the likelihood is flat, and the covariance singular to rounding."""

AT_BOUND = 1e-3
"""Share of its range within which a parameter is said to be at an end of it."""

NOISE_SHARES = (1e-6, 0.1, 10.0)
"""Smallest, first and largest σ², as shares of the variance of the rewards."""


class NuisanceParameters:
    """log σ² if it is learned, then the raw kernel parameters that require gradients.

    Args:
        covar_module: The kernel, whose parameters are moved; they start where they stand.
        noise_variance: A fixed σ², or None to learn it.
        reward_variance: Variance of the rewards: a learned σ² starts at a tenth of it and stays
            between 1e-6 and 10 times it.
    """

    def __init__(self, covar_module: Kernel, noise_variance: float | None, reward_variance: float):
        self.noise_variance = noise_variance
        self.kernel_parameters = []
        self.names, start, self.bounds = [], [], []
        if noise_variance is None:
            low, first, high = (math.log(share * reward_variance) for share in NOISE_SHARES)
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

    def holding(self, noise_variance: float) -> NuisanceParameters:
        """The same parameters in the same ranges, with the noise variance fixed at a value."""
        held = copy(self)
        held.noise_variance = noise_variance
        if self.noise_variance is None:
            held.names, held.start, held.bounds = self.names[1:], self.start[1:], self.bounds[1:]
        return held

    def place(self, values: np.ndarray) -> Tensor:
        """Set the kernel; return σ², which requires a gradient if it is learned."""
        values = torch.as_tensor(values, dtype=torch.float64)
        if self.noise_variance is None:
            noise, values = values[0].exp().requires_grad_(), values[1:]
        else:
            noise = torch.tensor(self.noise_variance, dtype=torch.float64)
        with torch.no_grad():
            for parameter in self.kernel_parameters:
                part, values = values[: parameter.numel()], values[parameter.numel() :]
                parameter.copy_(part.reshape(parameter.shape))
        return noise

    def at_bounds(self, values: np.ndarray) -> list[str]:
        """Names of those that stand at an end of their range, each once."""
        names = [
            name
            for name, x, (low, high) in zip(self.names, values, self.bounds, strict=True)
            # A range open to one side has no length to take a share of.
            if min(x - low, high - x) <= AT_BOUND * (high - low if high - low < math.inf else 1.0)
        ]
        return list(dict.fromkeys(names))
