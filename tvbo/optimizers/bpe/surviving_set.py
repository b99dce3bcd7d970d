"""The actions of a finite set that may still be the best."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Generator, Tensor

from tvbo.models.incremental.growing_cholesky import grown_capacity
from tvbo.optimizers.bpe.bounds import RoundBounds
from tvbo.rounding import TIE_TOLERANCE, any_largest, first_largest
from tvbo.spaces import FiniteSpace

MAX_CACHED = 25_000_000
"""Entries up to which the whole covariance is stored: 200 MB, of 5,000 actions left."""

TIE = 1e-10
"""Share of the largest prior variance below which differences of variances are ties. It is tighter
than elsewhere, since late in a round all variances are small."""


class SurvivingSet:
    r"""Represent the actions of a finite set that may still be the best.

    Variances :math:`\sigma^2_{k,r}` are updated: with :math:`V = L^{-1} k(X_k, \cdot)`, L the
    Cholesky factor of the chosen points' covariance, one more point adds one row to V, and takes
    its square off the variances. A choice costs O(k m) for m actions left, without a solve.

    Args:
        search_space: The set.
        covar_module: The kernel, float64.
        noise_variance: λ².

    Attributes:
        X: Actions left, ``m x d``.
        variance: Of each, given this round's chosen points, ``m``.
    """

    def __init__(self, search_space: FiniteSpace, covar_module: Kernel, noise_variance: float):
        self.search_space = search_space
        self.covar_module = covar_module
        self.noise_variance = noise_variance
        self.X = search_space.choices
        self._index = torch.arange(len(self.X))
        with torch.no_grad():
            self._prior = covar_module(self.X, diag=True)
        if not (torch.isfinite(self._prior).all() and (self._prior >= 0).all()):
            raise ValueError(
                "Expected a kernel with finite variances >= 0 on the choices. "
                f"Got variances from {self._prior.min():.3g} to {self._prior.max():.3g}."
            )
        self.max_variance = self._prior.max().item()
        self._covar: Tensor | None = None
        self.start()

    @property
    def num_points(self) -> int:
        """Number of actions of the whole set, removed or not."""
        return len(self.search_space.choices)

    @property
    def size(self) -> int:
        """Number of actions left."""
        return len(self.X)

    @property
    def chosen(self) -> Tensor:
        """Points chosen in this round, ``k x d``."""
        return self.X[self._chosen]

    def survives(self, X: Tensor) -> Tensor:
        """Return whether each row is left, ``n``.

        Raises:
            InputDataError: if a row is none of the choices.
        """
        left = torch.zeros(self.num_points, dtype=torch.bool)
        left[self._index] = True
        return left[self.search_space.index(X)]

    def start(self) -> None:
        """Begin a round, without chosen points."""
        if self._covar is None and self.size**2 <= MAX_CACHED:
            with torch.no_grad():
                self._covar = to_dense(self.covar_module(self.X, self.X))
        self.variance = self._prior.clone()
        self._chosen: list[int] = []
        self._V = self.X.new_empty(0, self.size)

    def choose(self, generator: Generator) -> Tensor:
        """Return the action with the largest variance, ``1 x d``; ties are broken at random.

        It is among the chosen ones only after :meth:`condition`.
        """
        place = any_largest(self.variance, generator, self.max_variance, TIE)
        return self.X[place : place + 1].clone()

    def condition(self, X: Tensor) -> None:
        """Add an action left, ``1 x d``, to the chosen ones; condition on it."""
        place = int(torch.nonzero((self.X == X).all(dim=-1)))
        count = len(self._chosen)
        if count == len(self._V):
            V = self._V.new_empty(grown_capacity(count, count + 1), self.size)
            V[:count] = self._V
            self._V = V
        row = self._row(place)
        if count > 0:
            held = self._V[:count]
            row = row - held[:, place] @ held
        row = row / (self.variance[place] + self.noise_variance).sqrt()
        self._V[count] = row
        self.variance -= row.square()
        self._chosen.append(place)

    def highest(self, bounds: RoundBounds) -> Tensor:
        """Return the action with the largest posterior mean among those left, ``1 x d``."""
        with torch.no_grad():
            best = first_largest(bounds.moments(self.X)[0])
        return self.X[best : best + 1].clone()

    def remove(self, bounds: RoundBounds, generator: Generator) -> tuple[float, float]:
        """Keep the actions whose upper bound reaches the largest lower bound; begin a round.

        Returns:
            The largest lower bound; the largest standard deviation before.
        """
        with torch.no_grad():
            mean, deviation = bounds.moments(self.X)
        half = bounds.width.half(deviation)
        threshold = (mean - half).max()
        # Actions that reach it but for rounding are kept: the maximizer may be among them.
        slack = TIE_TOLERANCE * (mean.abs() + half).max()
        kept = torch.nonzero(mean + half >= threshold - slack).squeeze(-1)
        # New tensors throughout: a preview works on a shallow copy.
        self.X, self._index, self._prior = self.X[kept], self._index[kept], self._prior[kept]
        if self._covar is not None:
            self._covar = self._covar[kept][:, kept]
        self.start()
        return threshold.item(), deviation.max().item()

    def _row(self, place: int) -> Tensor:
        if self._covar is not None:
            return self._covar[place]
        with torch.no_grad():
            row: Tensor = to_dense(self.covar_module(self.X[place : place + 1], self.X))
        return row.squeeze(0)
