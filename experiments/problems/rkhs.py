"""Functions of known norm in the reproducing kernel Hilbert space (RKHS) of a kernel."""

from __future__ import annotations

from copy import deepcopy

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from gpytorch.kernels import Kernel
from torch import Generator, Tensor

from experiments.problems.static_functions import StaticFunction
from tvbo.randomness import PROBLEM_SEED, default_generator
from tvbo.spaces.observations import check_finite
from tvbo.test_functions.drifting_gp import covariance_root
from tvbo.values import as_numbers


class RKHSFunction(StaticFunction):
    r""":math:`f(x) = \sum_i \alpha_i k(x, z_i)`, of norm :math:`\sqrt{\alpha^\top K \alpha}`.

    The reward is the function itself. Regret bounds of kernel bandits assume such a function, and
    their confidence widths need its norm ``C_k``.

    Args:
        choices: The actions, ``n x d``.
        centers: The points :math:`z_i`, ``m x d``.
        weights: The weights :math:`\alpha_i`, ``m``.
        covar_module: The kernel ``k``.
        noise_variance: Variance of the observation noise.
        generator: Source of the noise; default a new one with a fixed seed.

    Raises:
        BotorchTensorDimensionError: if shapes do not agree.
        InputDataError: if a number is not finite, or the choices contain duplicates.
        ValueError: if ``noise_variance`` is negative.
    """

    def __init__(
        self,
        choices: Tensor,
        centers: Tensor,
        weights: Tensor,
        covar_module: Kernel,
        noise_variance: float = 0.0,
        generator: Generator | None = None,
    ):
        centers = as_numbers("centers", centers)
        weights = as_numbers("weights", weights)
        if centers.ndim != 2 or weights.shape != centers.shape[:1]:
            raise BotorchTensorDimensionError(
                "Expected centers m x d and weights m. "
                f"Got {tuple(centers.shape)} and {tuple(weights.shape)}."
            )
        check_finite("centers", centers)
        check_finite("weights", weights)
        self.dim = centers.shape[1]
        self.centers = centers
        self.weights = weights
        self.covar_module = deepcopy(covar_module).to(centers)
        super().__init__(choices, 0.0, 1.0, noise_variance, generator)
        self.values = self.function(self.choices)
        """Values at the choices, ``n``."""

    @classmethod
    def draw(
        cls,
        choices: Tensor,
        covar_module: Kernel,
        num_centers: int = 100,
        noise_variance: float = 0.0,
        generator: Generator | None = None,
    ) -> RKHSFunction:
        r"""Draw the interpolation of a Gaussian process at uniform random points.

        With :math:`K = L L^\top` and a standard normal ``z``, the draw is :math:`L z`, its
        interpolation has weights :math:`L^{-\top} z`, and its norm is that of ``z``, about the
        square root of ``num_centers``. It is smaller where points are so close together that the
        jitter of ``L`` matters; :attr:`norm` is the exact value.

        Args:
            choices: The actions, ``n x d``; the points are drawn in their bounding box.
            covar_module: Kernel of the process.
            num_centers: Number of points.
            noise_variance: Variance of the observation noise.
            generator: Source of points, draw and noise; default a new one with a fixed seed.

        Raises:
            ValueError: if ``num_centers`` is not positive.
        """
        if num_centers < 1:
            raise ValueError(f"Expected num_centers >= 1. Got {num_centers}.")
        generator = default_generator(generator, PROBLEM_SEED)
        choices = as_numbers("choices", choices)
        low, high = choices.aminmax(dim=0)
        uniform = torch.rand(
            num_centers, choices.shape[-1], dtype=torch.float64, generator=generator
        )
        centers = low + (high - low) * uniform
        root = covariance_root(centers, covar_module)
        normal = torch.randn(num_centers, 1, dtype=torch.float64, generator=generator)
        weights = torch.linalg.solve_triangular(root.mT, normal, upper=True).squeeze(-1)
        return cls(choices, centers, weights, covar_module, noise_variance, generator)

    @property
    def norm(self) -> float:
        """Norm of the function in the RKHS of the kernel."""
        return self.weights.dot(self.function(self.centers)).sqrt().item()

    @property
    def minimum(self) -> float:
        """Smallest value at a choice, which GP-UCB-SDF assumes for pending trials."""
        return self.values.min().item()

    def function(self, X: Tensor) -> Tensor:
        """Return the values, ``n``, of actions ``n x d``."""
        with torch.no_grad():
            values: Tensor = self.covar_module(X, self.centers).to_dense() @ self.weights
        return values
