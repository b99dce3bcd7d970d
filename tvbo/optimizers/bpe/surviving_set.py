"""The actions that may still be the best, of a finite set or of a box."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from linear_operator.utils.cholesky import psd_safe_cholesky
from scipy.optimize import minimize
from torch import Generator, Tensor
from torch.autograd.functional import jacobian

from tvbo.optimizers.bpe.confidence import Width
from tvbo.randomness import draw_seed
from tvbo.rounding import CERTAIN, TIE_TOLERANCE, argmax
from tvbo.spaces import Box
from tvbo.values import check_positive

MIN_NOISE_SHARE = 10 * CERTAIN
"""Share of the largest prior variance: with less noise, rounding may make the covariance of a long
round's outcomes indefinite."""

MAX_CACHED_ENTRIES = 25_000_000
"""Entries up to which the whole covariance is stored: 200 MB, of 5,000 actions left."""

NUM_SOBOL_POINTS = 4096
"""Number of Sobol points in the box, of which the share left measures the region."""

MIN_POOL_SIZE = 1024
"""Number of points of the region that are looked at, where so many can be found."""

NUM_STARTS = 4
"""Number of starts of the maximization of the lower bound."""

MAX_HALVINGS = 24
"""Number of times that the neighbourhood is halved in which further points are drawn."""

SLSQP_STEPS = 20
"""Largest number of SLSQP iterations; the start is the best of many points already."""

STEP_SHARES = torch.tensor([1.0, 1 - 1e-6, 1 - 1e-4, 0.999, 0.99, 0.95, 0.8, 0.5]).double()
"""Shares of the step from start to result that are tried, where the result lies outside."""

MARGIN_SHARE = 1e-9
"""Share of the prior standard deviation by which a point has to lie inside to be chosen, so that
rounding cannot put it outside when it is evaluated again in another batch."""

Smooth = Callable[[Tensor], Tensor]
"""Map from rows ``m x d`` to values ``m``, differentiable by autograd."""


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

    def whitened(self, X: Tensor) -> Tensor:
        """Return :math:`L^{-1} k(X_n, X)` at rows ``m x d``, ``n x m``."""
        cross = to_dense(self.covar_module(self.X, X))
        V: Tensor = torch.linalg.solve_triangular(self.root, cross, upper=False)
        return V

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return posterior mean and standard deviation at rows ``m x d``, ``m`` each."""
        V = self.whitened(X)
        variance = self.covar_module(X, diag=True) - V.square().sum(dim=0)
        # The gradient of a root at zero is infinite.
        return self.solved @ V, variance.clamp_min(torch.finfo(X.dtype).tiny).sqrt()

    def bounds(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return lower and upper bounds at rows ``m x d``, ``m`` each."""
        mean, standard_deviation = self.moments(X)
        half = self.width.half(standard_deviation)
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
        chosen: Points chosen in this round, ``k x d``.
        max_variance: The largest prior variance.
    """

    def __init__(self, X: Tensor, covar_module: Kernel, noise_variance: float):
        self.X = X
        self.covar_module = covar_module
        self.noise_variance = noise_variance
        self.max_variance = covar_module(X, diag=True).max().item()
        check_positive(max_variance=self.max_variance)
        self._covar: Tensor | None = None
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
        self.chosen = self.X.new_empty(0, self.X.shape[-1])
        self._V = self.X.new_empty(0, len(self.X))

    def choose(self, generator: Generator) -> Tensor:
        """Return the action with the largest variance, ``1 x d``; ties are broken at random.

        It is among the chosen ones only after :meth:`condition`.
        """
        return self.X[[int(argmax(self.variance, generator))]]

    def condition(self, X: Tensor) -> None:
        """Add an action left, ``1 x d``, to the chosen ones."""
        if self._covar is None and len(self.X) ** 2 <= MAX_CACHED_ENTRIES:
            self._covar = to_dense(self.covar_module(self.X, self.X))
        place = int(torch.nonzero((self.X == X).all(dim=-1)))
        covar = (
            to_dense(self.covar_module(X, self.X))[0] if self._covar is None else self._covar[place]
        )
        white = self._V[: len(self.chosen), place]
        self._append(X, covar, white, self.variance[place])

    def best(self, posterior: RoundPosterior) -> Tensor:
        """Return the action left with the largest posterior mean, ``1 x d``."""
        return self.X[[int(argmax(posterior.moments(self.X)[0]))]]

    def remove(self, posterior: RoundPosterior, generator: Generator) -> None:
        """Keep the actions whose upper bound reaches the largest lower bound."""
        lower, upper = posterior.bounds(self.X)
        # Actions that reach it but for rounding are kept: the maximizer may be among them.
        kept = upper >= lower.max() - _slack(lower, upper)
        self.X = self.X[kept]
        self._covar = None if self._covar is None else self._covar[kept][:, kept]
        self.start()

    def _append(self, X: Tensor, covar: Tensor, white: Tensor, variance: Tensor) -> None:
        """Add a point with its covariances, its column of V, and its variance."""
        count = len(self.chosen)
        if count == len(self._V):
            self._V = torch.cat([self._V, self._V.new_empty(max(count, 64), len(self.X))])
        row = (covar - white @ self._V[:count]) / (variance + self.noise_variance).sqrt()
        self._V[count] = row
        self.variance -= row.square()
        self.chosen = torch.cat([self.chosen, X])


class SurvivingRegion(SurvivingSet):
    r"""The part of a box that may still contain the best action.

    The region is stored as the constraints that define it: x is left if
    :math:`U_j(x) \ge \max_z L_j(z)` for all rounds j that ended with outcomes. So
    :meth:`survives` is exact for any point, and no chosen point ever lies outside.

    Two maximizations are approximate. The variance and the lower bound are maximized over a pool
    of points of the region, then from the best of them by SLSQP within the constraints; a result
    outside is moved back towards its start until it is inside. If the largest lower bound is
    missed, the threshold is smaller and more is kept, so that the maximizer is no less safe. If the
    largest variance is missed, the round explores slightly less well. The pool holds those of
    4,096 Sobol points that lie inside; where they are fewer than 1,024, points in ever smaller
    neighbourhoods of them are added. The point of largest lower bound is always inside, so that the
    region is never empty.

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
        self._unit: float = self.max_variance**0.5
        self._margin: float = MARGIN_SHARE * self._unit
        self.constraints: tuple[tuple[RoundPosterior, float], ...] = ()

    @property
    def size(self) -> float:
        """Share of the box that is left, by the Sobol points."""
        return len(self._sobol) / NUM_SOBOL_POINTS

    def survives(self, X: Tensor) -> Tensor:
        """Return whether each row lies in the region, ``n``."""
        return self._is_inside(X, margin=0.0)

    def choose(self, generator: Generator) -> Tensor:
        """Return the action with the largest variance found, ``1 x d``."""
        point = super().choose(generator)
        if len(self.chosen) == 0:
            return point
        posterior = self._given_chosen()
        return self._maximize(point, lambda X: posterior.moments(X)[1].square(), self._unit**2)

    def condition(self, X: Tensor) -> None:
        """Add a point of the region, ``1 x d``, to the chosen ones."""
        covar = to_dense(self.covar_module(X, self.X))[0]
        white = self._given_chosen().whitened(X)[:, 0]
        self._append(X, covar, white, self.covar_module(X, diag=True)[0] - white.square().sum())

    def best(self, posterior: RoundPosterior) -> Tensor:
        """Return the point of the region with the largest posterior mean found, ``1 x d``."""
        start = super().best(posterior)
        return self._maximize(start, lambda X: posterior.moments(X)[0], self._unit)

    def remove(self, posterior: RoundPosterior, generator: Generator) -> None:
        """Keep the part whose upper bound reaches the largest lower bound found."""
        points = torch.cat([self.X, self.chosen])
        lower, upper = posterior.bounds(points)
        # Far from all outcomes many bounds are equal but for rounding; the first ones are taken.
        step = (TIE_TOLERANCE * lower.abs().max()).clamp_min(torch.finfo(lower.dtype).tiny)
        order = (lower / step).round().argsort(descending=True, stable=True)
        starts = points[order[:NUM_STARTS]].split(1)
        peaks = torch.cat(
            [self._maximize(x, lambda X: posterior.bounds(X)[0], self._unit) for x in starts]
        )
        threshold = (posterior.bounds(peaks)[0].max() - _slack(lower, upper)).item()
        self.constraints = (*self.constraints, (posterior, threshold))
        self._sobol = self._sobol[self._is_inside(self._sobol, self._margin)]
        self._fill(torch.cat([points, peaks]), generator)
        self.start()

    def _given_chosen(self) -> RoundPosterior:
        """Return the posterior given the points of this round, as if their outcomes were 0."""
        zeros = self.chosen.new_zeros(len(self.chosen))
        noise = zeros + self.noise_variance
        return RoundPosterior(self.covar_module, self.chosen, zeros, noise, Width(0.0))

    def _is_inside(self, X: Tensor, margin: float) -> Tensor:
        left = torch.ones(len(X), dtype=torch.bool)
        for posterior, threshold in self.constraints:
            left[left.clone()] = posterior.bounds(X[left])[1] >= threshold + margin
        return left

    def _fill(self, near: Tensor, generator: Generator) -> None:
        """Fill the pool with the Sobol points left and, if these are few, points near them."""
        near = near[self.survives(near)]
        pool, reach = self._sobol, 0.5 * (self.box[1] - self.box[0])
        for _ in range(MAX_HALVINGS):
            if len(pool) >= MIN_POOL_SIZE:
                break
            pick = torch.randint(len(near), (MIN_POOL_SIZE,), generator=generator)
            drawn = torch.rand(near[pick].shape, dtype=near.dtype, generator=generator)
            tried = (near[pick] + reach * (2 * drawn - 1)).clamp(*self.box)
            pool = torch.cat([pool, tried[self._is_inside(tried, self._margin)]])
            reach = reach / 2
        self.X = torch.cat([near, pool]) if len(pool) < MIN_POOL_SIZE else pool

    def _maximize(self, start: Tensor, value: Smooth, unit: float) -> Tensor:
        """Return a point of the region with a value at least that of the start, which lies in it.

        By SLSQP in coordinates of the unit box. Values and constraints are divided by their unit,
        since it has absolute tolerances.
        """
        lower, span = self.box[0], self.box[1] - self.box[0]

        def negative(x: Tensor) -> Tensor:
            return value((lower + x * span).unsqueeze(0)).squeeze(0) / -unit

        def slack(x: Tensor) -> Tensor:
            X = (lower + x * span).unsqueeze(0)
            above = [posterior.bounds(X)[1] - least for posterior, least in self.constraints]
            return (torch.cat(above) - self._margin) / self._unit

        with warnings.catch_warnings():
            # SLSQP steps out of the bounds by rounding, and is set back there.
            warnings.simplefilter("ignore", RuntimeWarning)
            found = minimize(
                **_for_scipy(negative),
                x0=((start[0] - lower) / span).numpy(),
                bounds=[(0.0, 1.0)] * len(span),
                constraints=[{"type": "ineq", **_for_scipy(slack)}] if self.constraints else [],
                method="SLSQP",
                options={"maxiter": SLSQP_STEPS},
            )
        end = (lower + torch.from_numpy(found.x).nan_to_num(0.5).clamp(0, 1) * span).clamp(
            *self.box
        )
        # Where a constraint is active, the result lies slightly outside as often as inside.
        tried = start + STEP_SHARES.unsqueeze(-1) * (end - start)
        tried = torch.cat([tried[self._is_inside(tried, self._margin)], start])
        return tried[[int(argmax(value(tried)))]]


def _slack(lower: Tensor, upper: Tensor) -> Tensor:
    """Return by how much bounds may differ by rounding."""
    return TIE_TOLERANCE * torch.maximum(lower.abs(), upper.abs()).max()


def _for_scipy(function: Smooth) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """Return a function of a tensor, and its derivative, as functions of an array."""
    return {
        "fun": lambda x: function(torch.from_numpy(x)).numpy(),
        "jac": lambda x: jacobian(function, torch.from_numpy(x)).numpy(),
    }
