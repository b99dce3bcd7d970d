"""Recorded panels with the time of day as context."""

from __future__ import annotations

import math

import torch
from botorch.exceptions.errors import InputDataError
from torch import Generator, Tensor

from tvbo.spaces import InputLayout
from tvbo.spaces.observations import check_finite
from tvbo.test_functions.panel import PanelProblem

HOURS_PER_DAY = 24.0
MICROSECONDS = 3.6e9
"""Microseconds per hour."""


def time_of_day(t: Tensor | float) -> Tensor:
    r"""Return the time of day as a point on the unit circle, continuous at midnight.

    .. math:: (\cos 2 \pi t / 24, \sin 2 \pi t / 24)

    Times of day that differ by :math:`\Delta` hours have the distance :math:`2 \sin(\pi \Delta /
    24)`. Times are rounded to microseconds, so that the same time of different days is exactly the
    same point.

    Args:
        t: Hours since a midnight, ``...``.

    Returns:
        Points of the unit circle, ``... x 2``, float64.

    Raises:
        InputDataError: if a time is not finite.
    """
    t = torch.as_tensor(t, dtype=torch.float64)
    check_finite("t", t)
    return _on_circle(_microseconds(t))


class TimeOfDayPanel(PanelProblem):
    """A recorded panel with the time of day as context; times are in hours since a midnight.

    Rows are ``[action | cos | sin | time]``. The time determines the context, so values are looked
    up by action and time.

    Args:
        values: ``T x n``.
        times: ``T``, strictly increasing, in hours since a midnight.
        choices: The actions, ``n x d``; default the indices ``0, ..., n - 1`` in one column.
        noise_variance: Variance of noise added to the values.
        generator: Source of the noise.

    Raises:
        BotorchTensorDimensionError: if the shapes do not agree.
        InputDataError: if a value or time is not finite, or times do not increase; when evaluated,
            if the context of a row is not the time of day of its time.
    """

    def __init__(
        self,
        values: Tensor,
        times: Tensor,
        choices: Tensor | None = None,
        noise_variance: float = 0.0,
        generator: Generator | None = None,
    ):
        super().__init__(values, times, choices, noise_variance, generator)
        self.layout = InputLayout(self.search_space.dim, num_contexts=2)

    @property
    def contexts(self) -> Tensor:
        """The recorded times of day, from midnight on, ``m x 2``."""
        return _on_circle(torch.unique(_microseconds(self.times)))

    def _evaluate_true(self, X: Tensor) -> Tensor:
        given, expected = X[:, self.search_space.dim : -1], time_of_day(X[:, -1])
        wrong = ~torch.isclose(given, expected, rtol=0.0, atol=1e-6).all(dim=-1)
        if wrong.any():
            raise InputDataError(
                f"Expected the time of day {expected[wrong][0].tolist()} at t={X[wrong][0, -1]:g}. "
                f"Got {given[wrong][0].tolist()}."
            )
        return super()._evaluate_true(X)

    def context(self, t: float) -> Tensor:
        """Return the time of day at time ``t``, ``2``."""
        return time_of_day(t)


def _microseconds(t: Tensor) -> Tensor:
    """Return hours as microseconds since the last midnight, rounded."""
    return (t * MICROSECONDS).round().remainder(HOURS_PER_DAY * MICROSECONDS)


def _on_circle(microseconds: Tensor) -> Tensor:
    angle = 2 * math.pi * microseconds / (HOURS_PER_DAY * MICROSECONDS)
    return torch.stack([angle.cos(), angle.sin()], dim=-1)
