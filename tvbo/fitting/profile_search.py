"""Points of a profile likelihood, with starts extrapolated from known points."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tvbo.fitting.maximize import LikelihoodMaximizer, Optimum
from tvbo.fitting.quadratic import Array, QuadraticModel

ROOT_TOLERANCE = 1e-4
"""Tolerance of log ρ at the ends of an interval: a ten-thousandth of ρ."""

FIRST_STEP = 0.25
"""First step in log ρ outwards from the maximum, at most; each later one is up to a half longer."""


class ProfileSearch:
    r"""Points and crossings of the profile likelihood around a maximum.

    Near the maximum the other parameters are linear in log ρ, and
    :math:`z = \sqrt{2 (\ell_{max} - \ell(\rho))}` is proportional to the distance in log ρ. So a
    line gives the start of each point, and Newton's method on ``z`` finds with few points where the
    profile is lower by a given amount.

    Args:
        maximizer: Maximizer of the likelihood.
        best: The maximum.
        model: Quadratic model of the likelihood there, in the whole vector, or None.
        points: Known points by log ρ, to which computed ones are added.
        on_point: Called before each point is computed.
    """

    def __init__(
        self,
        maximizer: LikelihoodMaximizer,
        best: Optimum,
        model: QuadraticModel | None,
        points: dict[float, Optimum],
        on_point: Callable[[], None],
    ):
        self.maximizer, self.best, self.points = maximizer, best, points
        self.on_point = on_point
        self.model, self.slope, self.curvature = None, None, None
        if model is not None:
            self.model = model.without_first()
            self.slope = -np.linalg.solve(self.model.hessian, model.hessian[1:, 0])
            self.curvature = model.hessian[0, 0] + model.hessian[0, 1:] @ self.slope

    def at(self, log_rate: float) -> Optimum:
        """Return the point of the profile at a rate."""
        if log_rate not in self.points:
            self.on_point()
            self.points[log_rate] = self.maximizer.maximize_at(
                log_rate, self._start(log_rate), self.model
            )
        return self.points[log_rate]

    def _start(self, log_rate: float) -> Array:
        """Return the other parameters that are expected at a rate."""
        near = sorted(self.points, key=lambda known: abs(known - log_rate))[:2]
        first: Array = self.points[near[0]].nuisance
        if self.slope is not None and near[0] == self.best.log_rate:
            extrapolated: Array = first + self.slope * (log_rate - near[0])
            return extrapolated
        reach = abs(near[1] - near[0])
        if self.slope is None or reach < ROOT_TOLERANCE or abs(near[0] - log_rate) > reach:
            return first
        share = (log_rate - near[0]) / (near[1] - near[0])
        return first + share * (self.points[near[1]].nuisance - first)

    def crossing(self, inner: float, drop: float, direction: float) -> float:
        """Return the first log ρ outwards at which the profile is ``drop`` below the maximum.

        Args:
            inner: A log ρ at which it is higher.
            drop: Difference in nats.
            direction: 1 for higher rates, -1 for lower ones.
        """
        depth, step, outer = math.sqrt(2 * drop), FIRST_STEP, None
        guess = inner + direction * step
        if self.curvature is not None:
            guess = inner + direction * min(step, depth / math.sqrt(self.curvature))
        while True:
            point = self.at(guess)
            fallen = math.sqrt(max(0.0, 2 * (self.best.log_likelihood - point.log_likelihood)))
            if fallen < depth:
                if abs(guess - inner) > 0.99 * step:
                    step *= 1.5
                inner = guess
            else:
                outer = guess
            if outer is not None and abs(outer - inner) < ROOT_TOLERANCE:
                return guess
            # d z / d log ρ = -slope / z; Newton's method applies if z increases outwards.
            rise = -point.slope * direction
            newton = math.inf
            if fallen > 0 and rise > 0:
                newton = guess + direction * (depth - fallen) * fallen / rise
                if abs(newton - guess) < ROOT_TOLERANCE:
                    return newton
            ends = (inner, inner + direction * step if outer is None else outer)
            if min(ends) < newton < max(ends):
                guess = newton
            else:
                guess = ends[1] if outer is None else 0.5 * (inner + outer)
