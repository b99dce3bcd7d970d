"""Draws of the paper's Markov model on a finite set."""

from __future__ import annotations

import math

import torch
from gpytorch.kernels import Kernel
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Generator, Tensor

from tvbo.columns import check_forgetting_rate
from tvbo.problems.panel import PanelProblem
from tvbo.randomness import default_generator


def drifting_gp(
    choices: Tensor,
    covar_module: Kernel,
    forgetting_rate: float,
    horizon: int,
    noise_variance: float = 0.0,
    generator: Generator | None = None,
) -> PanelProblem:
    r"""A function drawn from :math:`f_{t+1} = \sqrt{1-\varepsilon} f_t + \sqrt{\varepsilon} g_t`.

    Equations (3)-(4) of Bogunovic et al. (2016): every :math:`f_t` and every :math:`g_t` is a draw
    of ``GP(0, k)``.

    Args:
        choices: ``n x d`` actions.
        covar_module: The kernel ``k`` over actions.
        forgetting_rate: ε per unit of time, in [0, 1].
        horizon: Number of times ``1, ..., T``.
        noise_variance: Variance of the observation noise.
        generator: Source of the draw and of the noise; default a fresh one with seed 0.

    Raises:
        ValueError: if ε lies outside [0, 1], or ``horizon`` is not positive.

    Example:
        >>> problem = drifting_gp(grid(50), RBFKernel(), forgetting_rate=0.03, horizon=200)
    """
    rate = check_forgetting_rate(forgetting_rate).item()
    if horizon < 1:
        raise ValueError(f"Expected horizon >= 1. Got {horizon}.")
    generator = default_generator(generator)
    choices = torch.as_tensor(choices, dtype=torch.float64)
    with torch.no_grad():
        covar = covar_module.to(choices)(choices).to_dense()
        root = psd_safe_cholesky(covar)
        normal = torch.randn(len(choices), horizon, dtype=torch.float64, generator=generator)
        values = (root @ normal).mT.contiguous()
        for t in range(1, horizon):
            values[t] = math.sqrt(1 - rate) * values[t - 1] + math.sqrt(rate) * values[t]
    return PanelProblem(
        values, choices=choices, noise_variance=noise_variance, generator=generator
    )


def unit_grid(points_per_side: int, dim: int = 2) -> Tensor:
    """Equally spaced points of ``[0, 1]^dim``, ``points_per_side**dim x dim``.

    Raises:
        ValueError: if there are fewer than two points per side, or no dimension.
    """
    if points_per_side < 2 or dim < 1:
        raise ValueError(
            f"Expected points_per_side >= 2 and dim >= 1. Got {points_per_side}, {dim}."
        )
    side = torch.linspace(0, 1, points_per_side, dtype=torch.float64)
    return torch.cartesian_prod(*[side] * dim).reshape(-1, dim)
