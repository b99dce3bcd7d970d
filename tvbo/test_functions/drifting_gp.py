"""Functions and logs drawn from the Markov model of Bogunovic et al. (2016)."""

from __future__ import annotations

import math
from copy import deepcopy

import torch
from gpytorch.kernels import Kernel
from torch import Generator, Tensor

from tvbo.kernels.temporal import check_forgetting_rate, decay_exponent
from tvbo.randomness import PROBLEM_SEED, default_generator
from tvbo.test_functions.panel import PanelProblem
from tvbo.values import as_numbers, check_count

JITTER = 1e-8
"""Jitter as a share of the mean variance, added to the diagonal of a covariance."""


def drifting_gp(
    choices: Tensor,
    covar_module: Kernel,
    forgetting_rate: float,
    horizon: int,
    noise_variance: float = 0.0,
    generator: Generator | None = None,
) -> PanelProblem:
    r"""Draw a function from the Markov model (3)-(4) of Bogunovic et al. (2016).

    .. math:: f_1 = g_1, \quad f_{t+1} = \sqrt{1-\varepsilon}\,f_t + \sqrt{\varepsilon}\,g_{t+1}

    with independent draws :math:`g_t` of ``GP(0, k)``; every :math:`f_t` has the same distribution.

    Args:
        choices: ``n x d`` actions.
        covar_module: The kernel ``k`` over actions.
        forgetting_rate: ε per unit of time, in [0, 1].
        horizon: Number of times ``1, ..., T``.
        noise_variance: Variance of the observation noise.
        generator: Source of the draw and of the noise; default a new one with a fixed seed.

    Raises:
        ValueError: if ε lies outside [0, 1], or ``horizon`` is not positive.

    Example:
        >>> problem = drifting_gp(unit_grid(50), RBFKernel(), forgetting_rate=0.03, horizon=200)
    """
    rate = check_forgetting_rate(forgetting_rate).item()
    check_count(horizon=horizon)
    generator = default_generator(generator, PROBLEM_SEED)
    choices = as_numbers("choices", choices)
    root = covariance_root(choices, covar_module)
    values = drifting_values(root, rate, torch.arange(horizon), generator)
    return PanelProblem(values, choices=choices, noise_variance=noise_variance, generator=generator)


def drifting_values(
    root: Tensor, forgetting_rate: float, times: Tensor, generator: Generator
) -> Tensor:
    """Return a draw from the Markov model (3)-(4), ``T x n``.

    Args:
        root: Cholesky factor of the covariance from :func:`covariance_root`, ``n x n``.
        forgetting_rate: ε per unit of time.
        times: ``T``, increasing.
        generator: Source of the draw.
    """
    normal = torch.randn(len(root), len(times), dtype=torch.float64, generator=generator)
    values = (root @ normal).mT.contiguous()
    rate = torch.tensor(forgetting_rate, dtype=torch.float64)
    # The share of the variance that is new since the time before.
    fresh = -torch.expm1(times.diff() * torch.log1p(-rate))
    for i, share in enumerate(fresh.tolist(), start=1):
        values[i] *= math.sqrt(share)
        values[i] += math.sqrt(1 - share) * values[i - 1]
    return values


@torch.no_grad()
def covariance_root(
    choices: Tensor, covar_module: Kernel, correlation: Tensor | None = None
) -> Tensor:
    """Return the Cholesky factor, ``n x n``, of a covariance with jitter of its mean variance.

    Covariances of smooth kernels on a fine grid are singular to rounding.

    Args:
        choices: The choices, ``n x d``.
        covar_module: Their kernel.
        correlation: What multiplies the covariance, such as that of their times, ``n x n``.
    """
    covar = deepcopy(covar_module).to(choices)(choices).to_dense()
    covar = covar if correlation is None else covar * correlation
    jitter = JITTER * covar.diagonal().mean() * torch.eye(len(covar), dtype=covar.dtype)
    return torch.linalg.cholesky(covar + jitter)


def unit_grid(points_per_side: int, dim: int = 2) -> Tensor:
    """Return equally spaced points of ``[0, 1]^dim``, ``points_per_side**dim x dim``.

    Raises:
        ValueError: if there are fewer than two points per side, or no dimension.
    """
    if points_per_side < 2 or dim < 1:
        raise ValueError(
            f"Expected points_per_side >= 2 and dim >= 1. Got {points_per_side}, {dim}."
        )
    side = torch.linspace(0, 1, points_per_side, dtype=torch.float64)
    return torch.cartesian_prod(*[side] * dim).reshape(-1, dim)


def drifting_gp_log(
    train_X: Tensor,
    covar_module: Kernel,
    forgetting_rate: float,
    noise_variance: float,
    generator: Generator | None = None,
) -> Tensor:
    """Draw the rewards of a log from the same model, at any actions and real times.

    Args:
        train_X: Rows, ``n x d``, of which the last column is time; the draw costs ``O(n^3)``.
        covar_module: The kernel over the other columns.
        forgetting_rate: ε per unit of time, in [0, 1].
        noise_variance: Variance of the observation noise.
        generator: Source of the draw; default a new one with a fixed seed.

    Returns:
        Rewards, ``n x 1``.

    Raises:
        ValueError: if ε lies outside [0, 1], or ``noise_variance`` is negative.
    """
    rate = check_forgetting_rate(forgetting_rate)
    if noise_variance < 0:
        raise ValueError(f"Expected noise_variance >= 0. Got {noise_variance}.")
    generator = default_generator(generator, PROBLEM_SEED)
    train_X = as_numbers("train_X", train_X)
    actions, times = train_X[:, :-1], train_X[:, -1]
    lag = (times.unsqueeze(-1) - times).abs()
    correlation = torch.exp(lag * decay_exponent(rate))
    root = covariance_root(actions, covar_module, correlation)
    normal = torch.randn(2, len(root), dtype=torch.float64, generator=generator)
    return (root @ normal[0] + float(noise_variance**0.5) * normal[1])[:, None]
