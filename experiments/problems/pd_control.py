"""Tuning of a controller under changing load and actuator wear."""

from __future__ import annotations

import math

import torch
from botorch.exceptions.errors import InputDataError
from torch import Generator, Tensor

from tvbo.spaces import InputLayout
from tvbo.test_functions.base import DriftingProblem


class PDControl(DriftingProblem):
    r"""Tune a proportional-derivative controller of a mass under changing load and wear.

    A mass of :math:`m` kg starts 1 m from its target. The controller commands a force
    :math:`u = -(k_p e + k_d \dot e)`, of which a worn actuator delivers the share :math:`b(t)`:

    .. math:: m \ddot e = b(t)\,u, \quad e(0) = 1, \quad \dot e(0) = 0

    A round is one such step, which is short compared with the wear, so that :math:`b` is constant
    within it. Its cost is that of linear-quadratic control, of error and commanded force,

    .. math:: J = \int_0^\infty e^2 + \rho u^2\,d\tau
        = \frac{m}{2 b k_d}\big(1 + \rho k_p^2\big) + \frac{k_d}{2 k_p},

    which follows by integrating the equation of motion multiplied by :math:`e` and by
    :math:`\dot e`: :math:`\int \dot e^2 = k_p / 2 k_d`, :math:`\int e \dot e = -1/2`.

    The reward is :math:`-\ln J`. The cost is a sum of powers, so its logarithm is convex in
    :math:`(\log k_p, \log k_d)` and the reward has a single peak. A regret of 0.01 is one per cent
    more than the optimal cost, at any load; the noise is relative to the cost.

    Without bounds the optimal gains are :math:`k_p = 1/\sqrt\rho` for any load, and
    :math:`k_d = \sqrt{2 m k_p / b(t)}`, with :math:`J = k_d / k_p`: a heavier load or a weaker
    actuator needs more damping.

    Rows are ``[log10 kp | log10 kd | load | time]``: gains in N/m and N s/m, load in kg, time in
    rounds or in any unit that ``wear`` and ``season_period`` share.

    Args:
        control_weight: ρ, in m²/N²; with the default the optimal ``kp`` is 20 N/m.
        load_bounds: Smallest and largest load, in kg.
        wear: Rate of the loss of actuator strength: :math:`b(t) = e^{-\text{wear}\,t}` per unit of
            time, times the season; 0 is no drift.
        season: Amplitude :math:`a` of a seasonal factor :math:`e^{a \sin(2 \pi t / P)}` of ``b``,
            such as that of temperature.
        season_period: The period ``P`` of the season.
        noise_variance: Variance of the noise in the reward; its root is the relative error with
            which the cost is measured.
        generator: Source of the noise; default a new one with a fixed seed.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> problem = PDControl(wear=0.01)
        >>> optimizer = recipes.tv_cgp_ucb(
        ...     bounds=problem.bounds, context_bounds=problem.context_bounds
        ... )
    """

    def __init__(
        self,
        control_weight: float = 0.0025,
        load_bounds: tuple[float, float] = (0.5, 8.0),
        wear: float = 0.0,
        season: float = 0.0,
        season_period: float = 100.0,
        noise_variance: float = 0.0,
        generator: Generator | None = None,
    ):
        if not 0 < control_weight < math.inf:
            raise ValueError(f"Expected control_weight > 0. Got {control_weight}.")
        if len(load_bounds) != 2 or not 0 < load_bounds[0] < load_bounds[1] < math.inf:
            raise ValueError(f"Expected load_bounds 0 < lower < upper. Got {load_bounds}.")
        if not 0 <= wear < math.inf:
            raise ValueError(f"Expected wear >= 0. Got {wear}.")
        if not math.isfinite(season) or not 0 < season_period < math.inf:
            raise ValueError(
                f"Expected a finite season and season_period > 0. Got {season}, {season_period}."
            )
        super().__init__(InputLayout(2, 1), noise_variance, generator)
        self.control_weight = control_weight
        self.load_bounds = load_bounds
        self.wear = wear
        self.season = season
        self.season_period = season_period

    @property
    def bounds(self) -> Tensor:
        """Bounds of the ``log10`` of the gains, ``2 x 2``: from 1 to 100 for both."""
        return torch.tensor([[0.0, 0.0], [2.0, 2.0]], dtype=torch.float64)

    @property
    def context_bounds(self) -> Tensor:
        """Smallest and largest load in kg, ``2 x 1``."""
        return torch.tensor(self.load_bounds, dtype=torch.float64).unsqueeze(-1)

    def strength(self, t: Tensor | float) -> Tensor:
        """Return the share ``b(t)`` of the force that is delivered, in the shape of ``t``."""
        t = torch.as_tensor(t, dtype=torch.float64)
        season = self.season * torch.sin(2 * math.pi * t / self.season_period)
        return torch.exp(season - self.wear * t)

    def cost(self, X: Tensor) -> Tensor:
        """Return the cost J in m² s without noise, ``n``, of rows ``n x 4``.

        Raises:
            BotorchTensorDimensionError: if rows have another width.
            InputDataError: if a value is not finite, or a load not positive.
        """
        return torch.exp(-self.evaluate_true(X))

    def optimal_value(self, t: float, context: Tensor | None = None) -> float:
        """Return the largest reward in the box at time ``t`` under the load ``context``."""
        action = self.optimal_action(t, context).unsqueeze(0)
        return self.evaluate_true(self.layout.rows(action, t, context)).item()

    def optimal_action(self, t: float, context: Tensor | None = None) -> Tensor:
        """Return the optimal ``(log10 kp, log10 kd)`` at time ``t`` under the load ``context``.

        If the unconstrained optimum lies outside the box, the optimum lies on an edge, since the
        cost is convex, and is the best of the optima of the four edges.

        Raises:
            BotorchTensorDimensionError: if the context has the wrong size, or is missing.
            InputDataError: if it is not finite, or a load not positive.
        """
        bounds = self.bounds
        [row] = self.layout.rows(bounds[:1], t, context)
        self.evaluate_true(row.unsqueeze(0))
        load, strength = row[2], self.strength(t)
        best_kp = torch.tensor(self.control_weight, dtype=torch.float64).rsqrt()
        best = torch.stack([best_kp, (2 * load * best_kp / strength).sqrt()]).log10()
        if ((best >= bounds[0]) & (best <= bounds[1])).all():
            return best
        ends = 10**bounds
        kp, kd = ends[:, 0], ends[:, 1]
        # On each edge, the gain at which its derivative is zero.
        kd_at_kp = (load * (1 + self.control_weight * kp**2) * kp / strength).sqrt()
        kp_at_kd = (strength * kd**2 / (2 * self.control_weight * load)) ** (1 / 3)
        gains = torch.cat([torch.stack([kp, kd_at_kp], -1), torch.stack([kp_at_kd, kd], -1)])
        candidates = gains.log10().clamp(*bounds)
        values = self.evaluate_true(self.layout.rows(candidates, t, context))
        return candidates[values.argmax()]

    def _evaluate_true(self, X: Tensor) -> Tensor:
        load = X[:, 2]
        if (load <= 0).any():
            raise InputDataError(f"Expected a load > 0 kg. Got {load.min().item():g}.")
        kp, kd = (10 ** X[:, :2]).unbind(-1)
        delivered = self.strength(X[:, 3]) * kd
        cost = load / (2 * delivered) * (1 + self.control_weight * kp**2) + kd / (2 * kp)
        return -cost.log()
