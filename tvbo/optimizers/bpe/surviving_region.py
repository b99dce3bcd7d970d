"""The region of a box that may still contain the best action."""

from __future__ import annotations

from functools import partial

import torch
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Generator, Tensor

from tvbo.models.incremental.growing_cholesky import grown_capacity
from tvbo.optimizers.bpe.bounds import RoundBounds
from tvbo.optimizers.bpe.search import Smooth, climb
from tvbo.optimizers.bpe.surviving_set import TIE
from tvbo.randomness import draw_seed
from tvbo.rounding import TIE_TOLERANCE, any_largest, first_largest, power_of_two
from tvbo.spaces import Box

SOBOL_POINTS = 4096
"""Number of Sobol points in the box, of which the share left measures the region."""

POOL = 1024
"""Size of the pool of points of the region, where so many can be found."""

STARTS = 4
"""Number of starts of the maximization of the lower bound."""

HALVINGS = 24
"""Number of times the neighbourhood that is sampled for further points is halved."""

BACK = torch.tensor([1.0, 1 - 1e-6, 1 - 1e-4, 0.999, 0.99, 0.95, 0.8, 0.5], dtype=torch.float64)
"""Shares of the step from start to result that are tried, where the result lies outside."""

MARGIN = 1e-9
"""Share of the prior standard deviation by which a point has to lie inside to be chosen, so that
rounding cannot put it outside when it is evaluated again in another batch."""


class SurvivingRegion:
    r"""Represent the part of a box that may still contain the best action.

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
        generator: Scrambles the Sobol sequence.

    Attributes:
        X: The pool, ``m x d``.
        constraints: Bounds and threshold of each round that ended with outcomes.
        max_variance: The largest prior variance of the Sobol points.
    """

    num_points = None

    def __init__(
        self, search_space: Box, covar_module: Kernel, noise_variance: float, generator: Generator
    ):
        self.search_space = search_space
        self.covar_module = covar_module
        self.noise_variance = noise_variance
        seed = draw_seed(generator)
        sobol = draw_sobol_samples(search_space.bounds, n=SOBOL_POINTS, q=1, seed=seed).squeeze(1)
        self._spread = sobol.to(search_space.bounds)
        with torch.no_grad():
            prior = covar_module(self._spread, diag=True)
        if not (torch.isfinite(prior).all() and (prior >= 0).all()):
            raise ValueError(
                "Expected a kernel with finite variances >= 0 in the box. "
                f"Got variances from {prior.min():.3g} to {prior.max():.3g}."
            )
        self.max_variance = prior.max().item()
        self._margin = MARGIN * self.max_variance**0.5
        self._unit = power_of_two(self.max_variance)
        self.constraints: tuple[tuple[RoundBounds, float], ...] = ()
        self.X = self._spread
        self.start()

    @property
    def size(self) -> float:
        """Share of the box that is left, by the Sobol points."""
        return len(self._spread) / SOBOL_POINTS

    @property
    def chosen(self) -> Tensor:
        """Points chosen in this round, ``k x d``."""
        return self._points[: self._count]

    def survives(self, X: Tensor) -> Tensor:
        """Return whether each row lies in the region, ``n``."""
        return self._inside(X, margin=0.0)

    def start(self) -> None:
        """Begin a round, without chosen points."""
        self._count = 0
        self._points = self.X.new_empty(0, self.search_space.dim)
        self._root = self.X.new_empty(0, 0)
        self._V = self.X.new_empty(0, len(self.X))
        with torch.no_grad():
            self.variance = self.covar_module(self.X, diag=True).clone()

    def choose(self, generator: Generator) -> Tensor:
        """Return the action with the largest variance found, ``1 x d``.

        It is among the chosen ones only after :meth:`condition`.
        """
        place = any_largest(self.variance, generator, self.max_variance, TIE)
        point = self.X[place : place + 1]
        if self._count > 0:
            point = self._climb(point, self._variance_at, self._unit**2)
        return point.clone()

    def condition(self, X: Tensor) -> None:
        """Add a point of the region, ``1 x d``, to the chosen ones; condition on it."""
        count = self._count
        self._grow(count + 1)
        with torch.no_grad():
            cross = to_dense(self.covar_module(self.chosen, X))
            white = torch.linalg.solve_triangular(
                self._root[:count, :count], cross, upper=False
            ).squeeze(-1)
            variance = self.covar_module(X, diag=True).squeeze() - white.square().sum()
            scale = (variance + self.noise_variance).sqrt()
            row = to_dense(self.covar_module(X, self.X)).squeeze(0)
        row = (row - white @ self._V[:count]) / scale
        self._points[count] = X
        self._root[count, :count] = white
        self._root[count, count] = scale
        self._V[count] = row
        self.variance -= row.square()
        self._count = count + 1

    def highest(self, bounds: RoundBounds) -> Tensor:
        """Return the point of the region with the largest posterior mean found, ``1 x d``."""
        with torch.no_grad():
            best = first_largest(bounds.moments(self.X)[0])
        return self._climb(self.X[best : best + 1], lambda X: bounds.moments(X)[0], self._unit)

    def remove(self, bounds: RoundBounds, generator: Generator) -> tuple[float, float]:
        """Keep the part whose upper bound reaches the largest lower bound; begin a round.

        Returns:
            The largest lower bound found; the largest standard deviation of the pool before.
        """
        points = torch.cat([self.X, self.chosen])
        with torch.no_grad():
            mean, deviation = bounds.moments(points)
        lower = mean - bounds.width.half(deviation)
        # Far from all outcomes many bounds are equal but for rounding; the first ones are taken.
        step = (TIE_TOLERANCE * lower.abs().max()).clamp_min(torch.finfo(lower.dtype).tiny)
        steps = (lower / step).round()
        starts = points[steps.argsort(descending=True, stable=True)[:STARTS]]
        peaks = torch.cat([self._climb(x, bounds.lower, self._unit) for x in starts.split(1)])
        with torch.no_grad():
            heights = bounds.lower(peaks)
        threshold = heights.max().item()
        # Points that reach it but for rounding are kept, the maximizer among them.
        slack = TIE_TOLERANCE * (mean.abs() + bounds.width.half(deviation)).max().item()
        self.constraints = (*self.constraints, (bounds, threshold - slack))
        self._spread = self._spread[self._inside(self._spread, self._margin)]
        self._fill(torch.cat([points, peaks]), generator)
        self.start()
        return threshold, deviation.max().item()

    def _climb(self, start: Tensor, value: Smooth, unit: float) -> Tensor:
        """Return a point of the region with a value at least that of the start, which lies in it.

        Values and constraints are divided by ``unit``, since SLSQP has absolute tolerances.
        """
        within = [
            partial(_slack, bounds=bounds, least=threshold + self._margin, unit=self._unit)
            for bounds, threshold in self.constraints
        ]
        found = climb(start, self.search_space.bounds, lambda X: value(X) / unit, within)
        # Where a constraint is active, the result lies slightly outside as often as inside.
        tried = start + BACK.unsqueeze(-1) * (found - start)
        tried = torch.cat([tried[self._inside(tried, self._margin)], start])
        with torch.no_grad():
            best = first_largest(value(tried))
        return tried[best : best + 1]

    def _inside(self, X: Tensor, margin: float) -> Tensor:
        left = torch.ones(len(X), dtype=torch.bool)
        with torch.no_grad():
            for bounds, threshold in self.constraints:
                left[left.clone()] = bounds.upper(X[left]) >= threshold + margin
        return left

    def _fill(self, near: Tensor, generator: Generator) -> None:
        """Fill the pool with the Sobol points left and, if these are few, points near them."""
        near = near[self.survives(near)]
        pool, span = self._spread, self.search_space.bounds[1] - self.search_space.bounds[0]
        reach = 0.5 * span
        for _ in range(HALVINGS):
            if len(pool) >= POOL:
                break
            pick = torch.randint(len(near), (POOL,), generator=generator)
            step = (
                2 * torch.rand(POOL, self.search_space.dim, dtype=near.dtype, generator=generator)
                - 1
            )
            tried = (near[pick] + reach * step).clamp(*self.search_space.bounds)
            pool = torch.cat([pool, tried[self._inside(tried, self._margin)]])
            reach = reach / 2
        self.X = torch.cat([near, pool]) if len(pool) < POOL else pool

    def _variance_at(self, X: Tensor) -> Tensor:
        """Return the variance at rows, given the points chosen in this round."""
        white = torch.linalg.solve_triangular(
            self._root[: self._count, : self._count],
            to_dense(self.covar_module(self.chosen, X)),
            upper=False,
        )
        variance: Tensor = self.covar_module(X, diag=True) - white.square().sum(dim=0)
        return variance

    def _grow(self, needed: int) -> None:
        count = self._count
        if needed <= len(self._points):
            return
        capacity = grown_capacity(count, needed)
        points = self._points.new_empty(capacity, self.search_space.dim)
        root, V = self._root.new_zeros(capacity, capacity), self._V.new_empty(capacity, len(self.X))
        points[:count], V[:count] = self.chosen, self._V[:count]
        root[:count, :count] = self._root[:count, :count]
        self._points, self._root, self._V = points, root, V


def _slack(X: Tensor, bounds: RoundBounds, least: float, unit: float) -> Tensor:
    """Return the distance of the upper bound above ``least``, in units, ``m``."""
    return (bounds.upper(X) - least) / unit
