"""The actions that may still be the best, of a finite set or of a box."""

from __future__ import annotations

from collections.abc import Callable

import torch
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Generator, Tensor

from tvbo.optimizers.bpe.confidence import Width
from tvbo.randomness import draw_seed
from tvbo.rounding import CERTAIN, TIE_TOLERANCE, argmax
from tvbo.spaces import Box
from tvbo.values import check_positive

MIN_NOISE_SHARE = 10 * CERTAIN
"""Share of the largest prior variance: with less noise, rounding may make the covariance of a long
round's outcomes indefinite."""

NUM_SOBOL_POINTS = 4096
"""Number of Sobol points in the box, of which the share left measures the region."""

MIN_POOL_SIZE = 1024
"""Number of points of the region that are looked at, where so many can be found."""

MAX_HALVINGS = 24
"""Number of times that the neighbourhood is halved in which further points are drawn."""

MARGIN_SHARE = 1e-9
"""Share of the prior standard deviation by which a point has to lie inside to be chosen, so that
rounding cannot put it outside when it is evaluated again in another batch."""


class RoundPosterior:
    r"""Posterior of a function given the outcomes of one round, and its bounds :math:`L_r, U_r`.

    Mean and standard deviation :math:`\tilde\mu, \tilde\sigma` are those of a Gaussian process with
    mean zero (Vakili et al., 2023, Section 6).

    Args:
        covar_module: The kernel, without gradients of its parameters.
        X: Actions whose outcomes arrived, ``n x d``.
        Y: The outcomes, ``n``.
        noise: Their noise variances, ``n``.
        width: How far the bounds are from the mean.

    Raises:
        NotPSDError: if the kernel is not positive semi-definite.
    """

    def __init__(self, covar_module: Kernel, X: Tensor, Y: Tensor, noise: Tensor, width: Width):
        self.covar_module, self.X, self.width = covar_module, X, width
        self.root = psd_safe_cholesky(to_dense(covar_module(X, X)) + noise.diag())
        solved = torch.linalg.solve_triangular(self.root, Y.unsqueeze(-1), upper=False)
        self.solved = solved.squeeze(-1)

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return posterior mean and standard deviation at rows ``m x d``, ``m`` each."""
        cross = to_dense(self.covar_module(self.X, X))
        V = torch.linalg.solve_triangular(self.root, cross, upper=False)
        variance = self.covar_module(X, diag=True) - V.square().sum(dim=0)
        return self.solved @ V, variance.clamp_min(0.0).sqrt()

    def bounds(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return lower and upper bounds at rows ``m x d``, ``m`` each."""
        mean, standard_deviation = self.moments(X)
        half = self.width.offset + self.width.multiplier * standard_deviation
        return mean - half, mean + half


class SurvivingSet:
    r"""The actions left of a finite set, and their variances given the points of a round.

    With :math:`V = L^{-1} k(X_k, \cdot)`, L the Cholesky factor of the chosen points' covariance,
    one more point adds one row to V, and takes its square off the variances
    :math:`\sigma^2_{k,r}`. A choice costs O(k m) for m actions left, without a solve.

    Nothing is changed in place but by :meth:`condition`, so that a copy may end a round on trial.

    Args:
        X: The actions, ``n x d``.
        covar_module: The kernel, float64.
        noise_variance: λ².

    Attributes:
        X: Actions left, ``m x d``.
        variance: Of each, given this round's chosen points, ``m``.
        num_chosen: Number of points chosen in this round.
        max_variance: The largest prior variance.
    """

    def __init__(self, X: Tensor, covar_module: Kernel, noise_variance: float):
        self.X, self.covar_module, self.noise_variance = X, covar_module, noise_variance
        self.max_variance: float = covar_module(X, diag=True).max().item()
        check_positive(max_variance=self.max_variance)
        self.start()

    @property
    def size(self) -> float:
        """Number of actions left."""
        return len(self.X)

    def survives(self, X: Tensor) -> Tensor:
        """Return whether each row is left, ``n``."""
        return (X.unsqueeze(-2) == self.X).all(dim=-1).any(dim=-1)

    def start(self) -> None:
        """Begin a round, without chosen points."""
        self.variance = self.covar_module(self.X, diag=True).clone()
        self.num_chosen = 0
        self._V = self.X.new_empty(0, len(self.X))

    def choose(self, generator: Generator) -> Tensor:
        """Return the action with the largest variance, ``1 x d``; ties are broken at random.

        It is among the chosen ones only after :meth:`condition`.
        """
        return self.X[[int(argmax(self.variance, generator))]]

    def condition(self, X: Tensor) -> None:
        """Add an action left, ``1 x d``, to the chosen ones."""
        # The nearest, since what another CPU recorded may differ in the last bits.
        place = int((self.X - X).square().sum(dim=-1).argmin())
        covar = to_dense(self.covar_module(X, self.X))[0]
        if (k := self.num_chosen) == len(self._V):
            self._V = torch.cat([self._V, self._V.new_empty(max(k, 64), len(self.X))])
        white = covar - self._V[:k, place] @ self._V[:k]
        self._V[k] = white / (self.variance[place] + self.noise_variance).sqrt()
        self.variance -= self._V[k].square()
        self.num_chosen += 1

    def best(self, posterior: RoundPosterior, generator: Generator) -> Tensor:
        """Return the action left with the largest posterior mean, ``1 x d``."""
        return self.X[[int(argmax(posterior.moments(self.X)[0]))]]

    def remove(self, posterior: RoundPosterior, generator: Generator) -> None:
        """Keep the actions whose upper bound reaches the largest lower bound."""
        lower, upper = posterior.bounds(self.X)
        # Actions that reach it but for rounding are kept: the maximizer may be among them.
        kept = upper >= lower.max() - _slack(lower, upper)
        self.X = self.X[kept]


class SurvivingRegion(SurvivingSet):
    r"""The part of a box that may still contain the best action.

    The region is stored as the constraints that define it: x is left if
    :math:`U_j(x) \ge \max_z L_j(z)` for all rounds j that ended with outcomes. So
    :meth:`survives` is exact for any point, and no chosen point ever lies outside.

    Its points are chosen from a pool: those of 4,096 Sobol points that lie inside; where they are
    fewer than 1,024, points in ever smaller neighbourhoods of them are added. The lower bound and
    the posterior mean are maximized by such neighbourhoods of the best point as well. If the
    largest lower bound is missed, the threshold is smaller and more is kept, so that the maximizer
    is no less safe. If the largest variance is missed, the round explores slightly less well. The
    point of largest lower bound is always inside, so that the region is never empty.

    Args:
        search_space: The box.
        covar_module: The kernel, float64.
        noise_variance: λ².
        generator: Source of the seed of the Sobol points.

    Attributes:
        X: The pool, ``m x d``.
    """

    def __init__(
        self, search_space: Box, covar_module: Kernel, noise_variance: float, generator: Generator
    ):
        self.box = search_space.bounds
        seed = draw_seed(generator)
        sobol = draw_sobol_samples(self.box, n=NUM_SOBOL_POINTS, q=1, seed=seed).squeeze(1)
        self._sobol = sobol.to(self.box)
        super().__init__(self._sobol, covar_module, noise_variance)
        self.constraints: tuple[tuple[RoundPosterior, float], ...] = ()

    @property
    def size(self) -> float:
        """Share of the box that is left, by the Sobol points."""
        return len(self._sobol) / NUM_SOBOL_POINTS

    def survives(self, X: Tensor, margin: float = 0.0) -> Tensor:
        """Return whether each row lies in the region, ``n``."""
        left = torch.ones(len(X), dtype=torch.bool)
        for posterior, threshold in self.constraints:
            left[left.clone()] = posterior.bounds(X[left])[1] >= threshold + margin
        return left

    def best(self, posterior: RoundPosterior, generator: Generator) -> Tensor:
        """Return the point of the region with the largest posterior mean found, ``1 x d``."""
        return self._maximize(lambda X: posterior.moments(X)[0], generator)

    def remove(self, posterior: RoundPosterior, generator: Generator) -> None:
        """Keep the part whose upper bound reaches the largest lower bound found."""
        peak = self._maximize(lambda X: posterior.bounds(X)[0], generator)
        lower, upper = posterior.bounds(peak)
        threshold = (lower - _slack(lower, upper)).item()
        self.constraints = (*self.constraints, (posterior, threshold))
        self._sobol = self._inside(self._sobol)
        self.X = torch.cat([peak, self._inside(self.X)])
        for halving in range(MAX_HALVINGS):
            if len(self.X) < MIN_POOL_SIZE:
                self.X = torch.cat([self.X, self._neighbours(self.X, halving, generator)])

    def _inside(self, X: Tensor) -> Tensor:
        """Return the rows that lie in the region, and not at its edge to rounding."""
        return X[self.survives(X, MARGIN_SHARE * self.max_variance**0.5)]

    def _neighbours(self, X: Tensor, halving: int, generator: Generator) -> Tensor:
        """Return points of the region near some of its points, within a share of the box."""
        pick = torch.randint(len(X), (MIN_POOL_SIZE,), generator=generator)
        drawn = torch.rand(X[pick].shape, dtype=X.dtype, generator=generator)
        reach = 0.5 ** (halving + 1) * (self.box[1] - self.box[0])
        return self._inside((X[pick] + reach * (2 * drawn - 1)).clamp(*self.box))

    def _maximize(self, value: Callable[[Tensor], Tensor], generator: Generator) -> Tensor:
        """Return the best point of the pool, or a better one found around it, ``1 x d``."""
        found = self.X
        for halving in range(MAX_HALVINGS):
            best = found[[int(argmax(value(found)))]]
            found = torch.cat([best, self._neighbours(best, halving, generator)])
        return found[[int(argmax(value(found)))]]


def _slack(lower: Tensor, upper: Tensor) -> Tensor:
    """Return by how much bounds may differ by rounding."""
    return TIE_TOLERANCE * torch.maximum(lower.abs(), upper.abs()).max()
