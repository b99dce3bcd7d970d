"""Upper and lower bounds on the function from the outcomes of one round."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from tvbo.optimizers.bpe.confidence import Width
from tvbo.rounding import CERTAIN
from tvbo.values import copies_tensors

LEAST_NOISE = 10 * CERTAIN
"""Share of the largest prior variance: with less, rounding may make the covariance of a long
round's outcomes indefinite."""


def check_noise(name: str, variance: float, max_variance: float) -> None:
    """Raise ``InputDataError`` where a noise variance is too small for :class:`RoundBounds`.

    Args:
        name: Of the variance, for the message.
        variance: In squared units of the reward.
        max_variance: The largest prior variance.
    """
    least = LEAST_NOISE * max_variance
    if variance < least:
        raise InputDataError(
            f"Expected {name} >= {least:.3g}, {LEAST_NOISE:g} of the largest prior variance: with "
            f"less, rounding outdoes the noise. Got {variance:g}."
        )


@copies_tensors("X")
@dataclass(frozen=True, eq=False)
class RoundBounds:
    r"""Bounds :math:`U_r, L_r` from the outcomes that arrived (Vakili et al., 2023, Section 6).

    Mean and standard deviation :math:`\tilde\mu, \tilde\sigma` are those of a Gaussian process
    with mean zero, given only these outcomes.

    Args:
        covar_module: The kernel.
        X: Actions whose outcomes arrived, ``n x d``.
        root: Cholesky factor of the covariance of the outcomes, ``n x n``.
        gains: The outcomes, solved with it, ``n``.
        width: How far the bounds are from the mean.
    """

    covar_module: Kernel
    X: Tensor
    root: Tensor
    gains: Tensor
    width: Width

    @classmethod
    def given(
        cls, covar_module: Kernel, X: Tensor, Y: Tensor, noise: Tensor, width: Width
    ) -> RoundBounds:
        """From outcomes.

        Args:
            covar_module: The kernel.
            X: ``n x d``.
            Y: ``n``.
            noise: Noise variances, ``n``.
            width: How far the bounds are from the mean.

        Raises:
            InputDataError: if the kernel is not positive semi-definite.
        """
        with torch.no_grad():
            covar = to_dense(covar_module(X, X)) + torch.diag(noise)
        root, info = torch.linalg.cholesky_ex(covar)
        if info > 0:
            raise InputDataError(
                "Expected a covariance of outcomes that is positive definite. "
                f"Got one that is not, from row {int(info)} on."
            )
        gains = torch.linalg.solve_triangular(root, Y.unsqueeze(-1), upper=False).squeeze(-1)
        return cls(covar_module, X, root, gains, width)

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Posterior mean and standard deviation at rows, ``m x d``: ``m`` each."""
        V = torch.linalg.solve_triangular(
            self.root, to_dense(self.covar_module(self.X, X)), upper=False
        )
        variance = self.covar_module(X, diag=True) - V.square().sum(dim=0)
        # The gradient of a root at zero is infinite.
        return self.gains @ V, variance.clamp_min(torch.finfo(X.dtype).tiny).sqrt()

    def upper(self, X: Tensor) -> Tensor:
        """:math:`U_r`, ``m``, at rows ``m x d``."""
        mean, standard_deviation = self.moments(X)
        return mean + self.width.half(standard_deviation)

    def lower(self, X: Tensor) -> Tensor:
        """:math:`L_r`, ``m``, at rows ``m x d``."""
        mean, standard_deviation = self.moments(X)
        return mean - self.width.half(standard_deviation)
