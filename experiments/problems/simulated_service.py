"""A simulated service: its settings are tuned while load, weather, season and drift move them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from torch import Generator, Tensor

from tvbo.randomness import PROBLEM_SEED, default_generator
from tvbo.spaces import InputLayout, Parameters
from tvbo.test_functions.base import DriftingProblem

HOURS_PER_DAY = 24.0
WIDTH = 0.25
"""Width of the peak of the revenue, in ranges of a setting."""

BASE, HEIGHT = 50.0, 100.0
"""Revenue of an hour far from the peak, and how much larger it is there, on average over time."""

NOISE = {"revenue": 4.0, "latency": 4.0}
"""Standard deviations of the noise, in the units of the outcomes."""

SHORTEST, LONGEST = 5.0, 50.0
"""Shortest and longest delay in hours."""

LOSS = 0.1
"""Probability that an outcome never arrives."""


class SimulatedService(DriftingProblem):
    r"""A service whose best settings depend on its contexts, have a season, and drift.

    A round is an hour. In each, the service runs with a ``batch`` (1 to 12 requests), a ``cache``
    (0 to 10 GB) and a ``rule`` (one of three): 396 actions. Who chooses knows the ``load`` (0 to 5)
    and the ``temperature`` (10 to 35 degrees). The revenue of an hour is, with :math:`u` the two
    numbers scaled to [0, 1] and r the rule,

    .. math:: 50 + h_r(t) \exp\Big(-\frac{\|u - c(t, z)\|^2}{2 w^2}\Big), \quad w = \tfrac14.

    The center of the peak moves with the contexts z, along ``batch`` also with the hour of the day,
    and along both slowly with time. The heights of the rules drift, so that another one becomes the
    best. The latency is linear in both numbers and the load, other for each rule, and drifts.
    Without its noise it must stay at ``limit`` or below.

    An outcome comes 5 to 50 hours after its trial, most within 20, and one in ten never does. To
    measure the outcome of a trial costs ``price``. Contexts, noise and delays are drawn once, so
    that several algorithms with one seed meet the same.

    Args:
        horizon: Number of rounds, at times 1, 2, ..., ``horizon``.
        price: Price of an evaluation, in units of the revenue, at least 0.
        generator: Source of all that is random; default a new one with a fixed seed.

    Attributes:
        parameters: Names and types of an action.
        context_parameters: The same of a context.
        choices: All actions, ``396 x 5``: both numbers, and a column for each rule.
        contexts: Load and temperature of each round, ``horizon x 2``.
        noise: Noise of revenue and latency of each round, ``horizon x 2``.
        delays: Time from each round to its outcome, ``horizon``; infinite if it gets lost.

    Raises:
        ValueError: if ``horizon`` is below 1, or ``price`` is negative or not finite.
        InputDataError: when evaluated, if a row is no action of the service in a context.

    Example:
        >>> service = SimulatedService(horizon=200)
        >>> optimizer = recipes.tv_cgp_ucb(
        ...     bounds=service.parameters,
        ...     context_bounds=service.context_parameters,
        ...     objectives=["revenue"],
        ...     constraints={"latency": (None, service.limit)},
        ... )
        >>> trial = optimizer.ask(t=1.0, context=service.context(1.0))
        >>> service.measure(trial.parameters, 1.0)
    """

    limit = 100.0
    """Largest latency that is allowed, in milliseconds."""

    def __init__(self, horizon: int = 300, price: float = 10.0, generator: Generator | None = None):
        if horizon < 1 or not 0 <= price < math.inf:
            raise ValueError(f"Expected horizon >= 1 and price >= 0. Got {horizon}, {price}.")
        generator = default_generator(generator, PROBLEM_SEED)
        self.parameters = Parameters.of(
            {"batch": (1, 12), "cache": (0, 10), "rule": ["fifo", "fair", "short"]}
        )
        self.context_parameters = Parameters.of({"load": (0.0, 5.0), "temperature": (10.0, 35.0)})
        layout = InputLayout(self.parameters.dim, self.context_parameters.dim)
        super().__init__(layout, NOISE["revenue"] ** 2, generator)
        self.choices = self.parameters.combinations()
        self.horizon, self.price = horizon, price
        options: dict[str, Any] = {"dtype": torch.float64, "generator": generator}
        self.phases = 2 * math.pi * torch.rand(6, **options)
        """Phases in radians: season, drift along both numbers, rules, latency, temperature."""
        self.periods = 180 + 140 * torch.rand(4, **options)
        """Periods of the drifts in hours: along both numbers, of the rules, of the latency."""
        self.contexts = self._draw_contexts(generator)
        self.noise = torch.tensor(list(NOISE.values())) * torch.randn(horizon, 2, **options)
        late = (LONGEST - SHORTEST) * torch.rand(horizon, **options) ** 3
        lost = torch.rand(horizon, **options) < LOSS
        self.delays = (SHORTEST + late).round().masked_fill(lost, math.inf)

    def _draw_contexts(self, generator: Generator) -> Tensor:
        """Return contexts: the load wanders within hours, the temperature within days."""
        steps = torch.randn(self.horizon, dtype=torch.float64, generator=generator)
        wander = [steps[0].item()]
        for step in steps[1:].tolist():
            wander.append(0.8 * wander[-1] + 0.6 * step)
        load = torch.special.ndtr(torch.tensor(wander, dtype=torch.float64))
        hours = torch.arange(1, self.horizon + 1, dtype=torch.float64)
        week = torch.sin(2 * math.pi * hours / 110 + self.phases[5])
        lower, upper = self.context_parameters.bounds
        contexts: Tensor = lower + (upper - lower) * torch.stack([load, 0.5 + 0.5 * week], dim=-1)
        return contexts

    def context(self, t: float) -> Tensor:
        """Return load and temperature at one of the times 1, 2, ..., ``horizon``, ``2``.

        Raises:
            InputDataError: if ``t`` is none of these times.
        """
        return self.contexts[self._round(t)]

    def delay(self, t: float) -> float:
        """Return how long after a round its outcome arrives; infinite if it gets lost."""
        return self.delays[self._round(t)].item()

    def row(self, parameters: Mapping[str, Any] | Tensor, t: float) -> Tensor:
        """Return the row ``[action | context | time]``, ``1 x 8``, of an action in a round.

        Args:
            parameters: The action by name, or as columns, ``5`` or ``1 x 5``.
            t: The time of the round.
        """
        if not isinstance(parameters, Tensor):
            parameters = self.parameters.encode(parameters)
        return self.layout.rows(parameters.reshape(1, -1), float(t), self.context(t))

    def measure(self, parameters: Mapping[str, Any] | Tensor, t: float) -> dict[str, float]:
        """Return revenue and latency of an action, as measured in a round: with noise.

        Args:
            parameters: As of :meth:`row`.
            t: As of :meth:`row`.
        """
        return self.observe(self.row(parameters, t))

    def observe(self, X: Tensor) -> dict[str, float]:
        """Return revenue and latency of one row ``1 x 8``, with the noise of its round."""
        true = torch.cat([self.evaluate_true(X), self.latency(X)])
        noise = self.noise[self._round(X[0, -1].item())]
        return dict(zip(NOISE, (true + noise).tolist(), strict=True))

    def regret(self, parameters: Mapping[str, Any] | Tensor, t: float) -> tuple[float, bool]:
        """Return what an action loses against the best one in a round, and whether it is feasible.

        The regret of an action whose latency is above the limit is that of the worst feasible one.

        Args:
            parameters: As of :meth:`row`.
            t: As of :meth:`row`.
        """
        row = self.row(parameters, t)
        is_feasible = self.latency(row).item() <= self.limit
        return self.optimal_value(t) - self.scored_value(row), is_feasible

    def scored_value(self, X: Tensor) -> float:
        """Return the revenue of one row; above the limit, that of the worst feasible action."""
        if self.latency(X).item() <= self.limit:
            return self.evaluate_true(X).item()
        d = self.parameters.dim
        return self.feasible_range(X[0, -1].item(), X[0, d:-1])[0]

    def latency(self, X: Tensor) -> Tensor:
        """Return the latency without noise, in milliseconds, ``n``, of rows ``n x 8``."""
        u, which, z, t = self._split(X)
        slope = torch.tensor([60.0, -25.0], dtype=torch.float64)
        return self._latency_offset(z, t).gather(-1, which).squeeze(-1) + u @ slope

    def optimal_value(self, t: float, context: Tensor | None = None) -> float:
        """Return the largest revenue of a feasible action.

        Args:
            t: The time.
            context: The context; None is that of the round at ``t``.
        """
        return self.feasible_range(t, context)[1]

    def feasible_range(self, t: float, context: Tensor | None = None) -> tuple[float, float]:
        """Return the smallest and the largest revenue of a feasible action, of all actions.

        Args:
            t: The time.
            context: The context; None is that of the round at ``t``.
        """
        rows = self.layout.rows(self.choices, t, self.context(t) if context is None else context)
        feasible = self.evaluate_true(rows)[self.latency(rows) <= self.limit]
        return feasible.min().item(), feasible.max().item()

    def optimal_action(self, t: float) -> Tensor:
        """Return the feasible action with the largest revenue in a round, ``1 x 5``."""
        rows = self.layout.rows(self.choices, t, self.context(t))
        values = self.evaluate_true(rows).masked_fill(self.latency(rows) > self.limit, -math.inf)
        return self.choices[[int(values.argmax())]]

    def _evaluate_true(self, X: Tensor) -> Tensor:
        u, which, z, t = self._split(X)
        square = (u - self._center(z, t)).square().sum(-1)
        height = self._heights(t).gather(-1, which).squeeze(-1)
        return BASE + height * torch.exp(-square / (2 * WIDTH**2))

    def _split(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return scaled numbers ``n x 2``, the rule ``n x 1``, scaled contexts and times ``n``."""
        d = self.parameters.dim
        actions = self.parameters.snap(X[:, :d])
        lower, upper = self.parameters.bounds
        unit = (actions - lower) / (upper - lower)
        rule = unit[:, 2:].argmax(-1, keepdim=True)
        return unit[:, :2], rule, self._unit_context(X[:, d:-1]), X[:, -1]

    def _unit_context(self, context: Tensor) -> Tensor:
        lower, upper = self.context_parameters.bounds
        unit: Tensor = (context - lower) / (upper - lower)
        return unit

    def _wave(self, t: Tensor, which: int) -> Tensor:
        return torch.sin(2 * math.pi * t / self.periods[which] + self.phases[which + 1])

    def _center(self, z: Tensor, t: Tensor) -> Tensor:
        """Return the centers of the peak, ``n x 2``."""
        season = torch.sin(2 * math.pi * t / HOURS_PER_DAY + self.phases[0])
        first = 0.5 + 0.2 * season + 0.26 * (z[:, 0] - 0.5) + 0.05 * self._wave(t, 0)
        second = 0.5 + 0.24 * self._wave(t, 1) + 0.24 * (z[:, 1] - 0.5)
        return torch.stack([first, second], dim=-1)

    def _heights(self, t: Tensor) -> Tensor:
        """Return the height of the peak of each rule, ``n x 3``."""
        angle = 2 * math.pi * t / self.periods[2] + self.phases[3]
        third = 2 * math.pi * torch.arange(3, dtype=torch.float64) / 3
        return HEIGHT * (1 + 0.2 * torch.sin(angle.unsqueeze(-1) + third))

    def _latency_offset(self, z: Tensor, t: Tensor) -> Tensor:
        """Return the latency of each rule where both scaled numbers are 0, ``n x 3``."""
        common = 65.0 + 25.0 * z[:, 0] + 15.0 * self._wave(t, 3)
        return common.unsqueeze(-1) + torch.tensor([0.0, 6.0, -6.0], dtype=torch.float64)

    def _round(self, t: float) -> int:
        if not (1 <= t <= self.horizon and float(t).is_integer()):
            raise InputDataError(f"Expected one of the times 1 to {self.horizon}. Got {t}.")
        return int(t) - 1
