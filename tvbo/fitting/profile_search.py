"""Points of a profile likelihood, each started where those before it point to."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tvbo.fitting.maximize import LikelihoodMaximizer, Optimum
from tvbo.fitting.quadratic import Quadratic

ROOT_TOLERANCE = 1e-4
"""Of log ρ at the ends of an interval: a ten-thousandth of ρ."""

FIRST_STEP = 0.25
"""In log ρ, from the maximum outwards, at most; each next step may be half as long again."""


class ProfileWalk:
    r"""The profile likelihood around a maximum.

    Near the maximum the other parameters move in a straight line with log ρ, and
    :math:`z = \sqrt{2 (\ell_{max} - \ell(\rho))}` grows in proportion to the distance in log ρ. So
    the line gives the start of each point, and Newton's method on ``z`` finds where the profile
    has fallen by a given amount in few points.

    Args:
        maximizer: Of the likelihood at hand.
        best: The maximum.
        model: The quadratic model of the likelihood there in the whole vector, or None.
        points: Points already known, by log ρ; those computed are added.
        on_point: Told before each point.
    """

    def __init__(
        self,
        maximizer: LikelihoodMaximizer,
        best: Optimum,
        model: Quadratic | None,
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
        """The profile at a rate."""
        if log_rate not in self.points:
            self.on_point()
            self.points[log_rate] = self.maximizer.maximize_at(
                log_rate, self._start(log_rate), self.model
            )
        return self.points[log_rate]

    def _start(self, log_rate: float) -> np.ndarray:
        """The other parameters that are to be expected at a rate."""
        near = sorted(self.points, key=lambda known: abs(known - log_rate))[:2]
        first = self.points[near[0]].nuisance
        if self.slope is not None and near[0] == self.best.log_rate:
            return first + self.slope * (log_rate - near[0])
        reach = abs(near[1] - near[0])
        if self.slope is None or reach < ROOT_TOLERANCE or abs(near[0] - log_rate) > reach:
            return first
        share = (log_rate - near[0]) / (near[1] - near[0])
        return first + share * (self.points[near[1]].nuisance - first)

    def crossing(self, inner: float, drop: float, direction: float) -> float:
        """Where, going outwards, the profile first lies ``drop`` below the maximum.

        Args:
            inner: A log ρ where it does not yet.
            drop: In nats.
            direction: 1 to higher rates, -1 to lower.
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
            # d z / d log ρ = -slope / z; it must rise outwards for Newton's method to be of use.
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
