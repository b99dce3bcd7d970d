"""Recorded panels whose context is the time of day."""

from __future__ import annotations

import math

import torch
from botorch.exceptions.errors import InputDataError
from torch import Generator, Tensor

from tvbo.problems.panel import PanelProblem
from tvbo.search_space import InputLayout
from tvbo.validation import check_finite

HOURS_PER_DAY = 24.0
MICROSECONDS = 3.6e9
"""In an hour."""


def time_of_day(t: Tensor | float) -> Tensor:
    r"""The place of a time on the circle of the day, where midnight is no edge.

    .. math:: (\cos 2 \pi t / 24, \sin 2 \pi t / 24)

    Two times of day that are :math:`\Delta` hours apart lie :math:`2 \sin(\pi \Delta / 24)` apart.
    The same time of different days, to a microsecond, is the same point to the last digit.

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
    """A recorded panel with the time of day as its context; times in hours since a midnight.

    The context follows from the time, so values are looked up by action and time alone: rows are
    ``[action | cos | sin | time]``.

    Args:
        values: ``T x n``.
        times: ``T``, strictly increasing, in hours since a midnight.
        choices: ``n x d``, the actions; default the indices ``0, ..., n - 1`` in one column.
        noise_variance: Variance of noise added to what is observed.
        generator: Source of the noise.

    Raises:
        As :class:`tvbo.problems.PanelProblem`; when it is evaluated, an InputDataError if the
        context of a row is not the time of day at its time.
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
        """The times of day that were recorded, from midnight on, ``m x 2``."""
        return _on_circle(torch.unique(_microseconds(self.times)))

    def _evaluate_true(self, X: Tensor) -> Tensor:
        given, due = X[:, self.search_space.dim : -1], time_of_day(X[:, -1])
        wrong = ~torch.isclose(given, due, rtol=0.0, atol=1e-6).all(dim=-1)
        if wrong.any():
            raise InputDataError(
                f"Expected the time of day {due[wrong][0].tolist()} at t={X[wrong][0, -1]:g}. "
                f"Got {given[wrong][0].tolist()}."
            )
        return super()._evaluate_true(X)

    def context(self, t: float) -> Tensor:
        """The time of day at time ``t``, 2."""
        return time_of_day(t)


def _microseconds(t: Tensor) -> Tensor:
    """Since the midnight before, rounded; from hours."""
    return (t * MICROSECONDS).round().remainder(HOURS_PER_DAY * MICROSECONDS)


def _on_circle(microseconds: Tensor) -> Tensor:
    angle = 2 * math.pi * microseconds / (HOURS_PER_DAY * MICROSECONDS)
    return torch.stack([angle.cos(), angle.sin()], dim=-1)
