"""How rows depend on what was observed, through innovations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from tvbo.models.streaming.innovations import CERTAIN


@dataclass(frozen=True, eq=False)
class Whitened:
    r"""How rows depend on what was observed.

    Args:
        V: Covariances with the innovations, ``... x q x k`` for each group of observations; the
            products of all are what the observations explain of the rows' covariances.
        mean: Posterior mean less the prior mean, ``... x q``.
        reduction: Prior variance less posterior variance, ``... x q``.
        prior: Prior variance, ``... x q``, where it is remembered.
    """

    V: tuple[Tensor, ...]
    mean: Tensor
    reduction: Tensor
    prior: Tensor | None = None

    def explained(self, other: Whitened) -> Tensor:
        """What the observations explain of the covariances with other rows, ``... x q x p``."""
        products = [mine @ theirs.mT for mine, theirs in zip(self.V, other.V, strict=True)]
        return sum(products[1:], start=products[0])


def innovation_root(covar: Tensor, noise: Tensor, prior: Tensor) -> Tensor:
    """Cholesky factor of the covariance of outcomes given all before, ``... x q x q``.

    Args:
        covar: Posterior covariances of the function, ``... x q x q``.
        noise: Noise variances, ``... x q``.
        prior: Prior covariances, ``... x q x q``.

    Raises:
        InputDataError: if an outcome is certain already.
    """
    root, info = torch.linalg.cholesky_ex(covar + torch.diag_embed(noise))
    variance = prior.diagonal(dim1=-2, dim2=-1)
    certain = root.diagonal(dim1=-2, dim2=-1).square() <= CERTAIN * variance
    if (info > 0).any() or certain.any():
        raise InputDataError(
            "Expected outcomes that are not certain already. Got one whose variance is zero to "
            "rounding: a repeat without noise, or a covariance that is not positive semi-definite."
        )
    return root
