"""A drifting draw of a Gaussian process on a box, from random Fourier features."""

from __future__ import annotations

import math

import torch
from botorch.exceptions.errors import InputDataError
from torch import Generator, Tensor

from tvbo.kernels.temporal import check_forgetting_rate
from tvbo.randomness import PROBLEM_SEED, default_generator
from tvbo.test_functions.box_problem import UNIT_SQUARE, BoxProblem
from tvbo.test_functions.drifting_gp import drifting_values


class DriftingFeatures(BoxProblem):
    r"""A draw from the Markov model of Bogunovic et al. (2016) on the unit square.

    .. math:: f(x, t) = \frac{1}{\sqrt m} \sum_{j=1}^m a_j(t) \cos \omega_j^\top x
        + b_j(t) \sin \omega_j^\top x

    The frequencies are drawn from the spectral density of the RBF kernel, and the weights follow
    :math:`a(t + 1) = \sqrt{1-\varepsilon}\,a(t) + \sqrt{\varepsilon}\,g(t + 1)` with standard
    normal g, so that every value has mean 0 and variance 1, and the correlation over a lag of s is
    :math:`(1-\varepsilon)^{s/2}`. It is not standardized again. Times are the integers from 0 to
    ``horizon``; its values between them are not defined.

    Args:
        horizon: Last time, an integer above 0.
        forgetting_rate: ε per unit of time, in [0, 1].
        lengthscale: Lengthscale of the RBF kernel, above 0.
        num_features: Number m of frequencies.
        noise_variance: Variance of the observation noise, in the unit of the prior variance.
        generator: Source of frequencies and weights, then of the noise; default a new one with a
            fixed seed.

    Raises:
        ValueError: if an argument is out of range.
        InputDataError: when evaluated, if a time is not an integer in ``[0, horizon]``.
    """

    def __init__(
        self,
        horizon: int,
        forgetting_rate: float = 0.03,
        lengthscale: float = 0.2,
        num_features: int = 256,
        noise_variance: float = 0.0,
        generator: Generator | None = None,
    ):
        rate = check_forgetting_rate(forgetting_rate).item()
        if not float(horizon).is_integer():
            raise ValueError(f"Expected a horizon that is an integer. Got {horizon}.")
        if not 0 < lengthscale < math.inf or num_features < 1:
            raise ValueError(
                "Expected lengthscale > 0 and num_features >= 1. "
                f"Got {lengthscale}, {num_features}."
            )
        generator = default_generator(generator, PROBLEM_SEED)
        super().__init__(UNIT_SQUARE, horizon, noise_variance, generator)
        normal = torch.randn(2, num_features, dtype=torch.float64, generator=generator)
        self.frequencies = normal / lengthscale
        """Frequencies in radians per unit, ``2 x m``."""
        root = torch.eye(2 * num_features, dtype=torch.float64)
        self.weights = drifting_values(root, rate, int(horizon) + 1, generator)
        """Weights of cosines, then of sines, ``horizon + 1 x 2 m``."""

    @property
    def mean(self) -> float:
        """0, the mean of the process."""
        return 0.0

    @property
    def scale(self) -> float:
        """1, the standard deviation of the process."""
        return 1.0

    def function(self, X: Tensor, t: Tensor) -> Tensor:
        """Return the values, ``n``, of actions ``n x 2`` at times ``n``."""
        angle = X @ self.frequencies
        features = torch.cat([angle.cos(), angle.sin()], dim=-1)
        return (features * self.weights[t.long()]).sum(-1) / math.sqrt(self.frequencies.shape[-1])

    def _check_times(self, t: Tensor) -> None:
        super()._check_times(t)
        between = t != t.round()
        if between.any():
            raise InputDataError(f"Expected times that are integers. Got t={t[between][0]:g}.")

    def _best_action(self, t: float) -> Tensor:
        return self._search(t)
