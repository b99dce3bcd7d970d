"""Covariances of rows with the innovations of the observations."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Whitened:
    r"""How the function at some rows depends on what was observed.

    The innovations are the outcomes whitened by the Cholesky factor of their covariance, so that
    the posterior covariance of two sets of rows is the prior one less the products of their ``V``.

    Args:
        V: Covariances of the rows with the innovations, ``... x q x k``, one tensor for each group
            of observations.
        mean: Posterior mean less the prior mean, ``... x q``.
        reduction: Prior variance less posterior variance, ``... x q``.
        prior: Prior variance, ``... x q``; None if it was not computed.
    """

    V: tuple[Tensor, ...]
    mean: Tensor
    reduction: Tensor
    prior: Tensor | None = None

    def explained(self, other: Whitened) -> Tensor:
        """Return prior less posterior covariances with other rows, ``... x q x p``."""
        return explained(self.V, other.V)


def explained(V: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> Tensor:
    """Return what observations explain of covariances, from covariances with their innovations.

    Args:
        V: Of the first rows, ``... x q x k``, one tensor for each group of observations.
        other: Of the second rows, ``... x p x k``.

    Returns:
        ``... x q x p``.
    """
    first, *rest = (mine @ theirs.mT for mine, theirs in zip(V, other, strict=True))
    return sum(rest, start=first)
