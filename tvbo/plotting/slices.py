"""Figures of the model of an optimizer: along each parameter, and over two of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tvbo.optimizers import GPOptimizer
from tvbo.plotting.figure import BAND, BEST, FAILED, MODEL, TOLD, finish_axes, new_figure
from tvbo.plotting.parameters import ParameterAxis, parameter_axes
from tvbo.spaces import FiniteSpace
from tvbo.spaces.labels import Context, Time
from tvbo.terminal import visible

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUM_POINTS, NUM_LINES = 60, 30
"""Number of points of a line, and of lines of a map."""

NUM_TRIED = 300
"""Number of the newest observations that are drawn."""

MIN_SUCCESS = 0.5
"""Probability of success below which a region is shown as one that fails."""


def plot_slices(
    optimizer: GPOptimizer, t: Time | None = None, context: Context | None = None, title: str = ""
) -> Figure:
    """Plot the model along each parameter through what is recommended, and over the two main ones.

    Each panel has the posterior mean of the first outcome with its 95 % band, without noise; the
    outcomes observed, the newer the darker, whose other parameters differ; actions that failed; and
    where constraints probably break or trials fail. The parameters that matter most come first. The
    last panel is a map of the mean over the first two that have many values, if there are two.

    Args:
        optimizer: The optimizer; it is not modified.
        t: The time; None is that of the newest open ask or outcome.
        context: The context, where contexts were declared.
        title: Title of the figure.

    Raises:
        InputDataError, BotorchTensorDimensionError: as :meth:`GPOptimizer.recommend`.
    """
    slices = Slices(optimizer, t, context)
    columns = min(4, len(slices.panels))
    lines = -(-len(slices.panels) // columns)
    figure = new_figure(3.6 * columns, 3.0 * lines, title)
    for place, panel in enumerate(slices.panels, start=1):
        slices.draw(figure.add_subplot(lines, columns, place), *panel)
    return figure


class Slices:
    """The model of an optimizer through the action that is recommended.

    Args:
        optimizer: The optimizer.
        t: The time; None is that of the newest open ask or outcome.
        context: The context, where contexts were declared.

    Attributes:
        best: The recommended action, of several objectives the best compromise by the first.
        importance: What matters, the most first.
        panels: What can be drawn: each parameter, those that matter first, and two of them.
    """

    def __init__(self, optimizer: GPOptimizer, t: Time | None, context: Context | None):
        self.optimizer, self.t, self.context = optimizer, t, context
        several = optimizer.goals.num_objectives > 1
        front = optimizer.front(context, t, 1) if several else [optimizer.recommend(context, t)]
        self.best, self.importance = front[0], optimizer.importance()
        space = optimizer.search_space
        axes = parameter_axes(space.parameters, space.dim)
        axes.sort(key=lambda axis: -self.importance[axis.name])
        self.panels: list[tuple[ParameterAxis, ...]] = [(axis,) for axis in axes]
        numbers = [axis for axis in axes if not axis.is_discrete]
        if len(numbers) > 1 and not isinstance(space, FiniteSpace):
            self.panels.append((numbers[0], numbers[1]))
        self._held = optimizer.observations[-NUM_TRIED:]
        lost = [each for each in optimizer.trial_log.newest if each.ending in ("failed", "expired")]
        self._lost = torch.cat([self.best.X[:0], *(each.trial.X for each in lost[-NUM_TRIED:])])

    def draw(self, ax: Axes, along: ParameterAxis, up: ParameterAxis | None = None) -> None:
        """Draw the model along a parameter, or over two."""
        tried: dict[str, Any] = {"color": TOLD, "linewidth": 0, "zorder": 3}
        tried["alpha"] = np.linspace(0.15, 0.9, len(self._held))
        if up is None:
            self._draw_line(ax, along)
            outcomes = self.optimizer.goals.signs[0].item() * self._held.Y[:, 0]
            ax.scatter(along.values(self._held.X), outcomes, 12, **tried)
            lost, foot = along.values(self._lost), ax.get_xaxis_transform()
            ax.plot(lost, [0.03] * len(lost), "x", color=FAILED, transform=foot)
            ax.axvline(along.values(self.best.X)[0], color=BEST, linestyle="--", linewidth=1.5)
            finish_axes(ax, "", self.optimizer.labels.outcome_columns[0], plain=True)
        else:
            self._draw_map(ax, along, up)
            ax.scatter(along.values(self._held.X), up.values(self._held.X), 12, **tried)
            ax.plot(along.values(self._lost), up.values(self._lost), "x", color=FAILED)
            best = along.values(self.best.X), up.values(self.best.X)
            ax.plot(*best, "*", color=BEST, markersize=14, zorder=4)
            up.finish(ax, "y")
        along.finish(ax, "x")

    def _draw_line(self, ax: Axes, along: ParameterAxis) -> None:
        """Draw mean, band, and where not to go along a parameter."""
        space = self.optimizer.search_space
        if isinstance(space, FiniteSpace):
            same = space.choices == self.best.X
            same[:, along.columns] = True
            X = space.choices[same.all(dim=-1)]
            # Of a set that is no grid, all choices are shown.
            X = X if len(X) > 1 else space.choices[: NUM_LINES**2]
        else:
            columns = along.columns_along(NUM_POINTS, space.bounds[:, along.columns])
            X = self.best.X.repeat(len(columns), 1)
            X[:, along.columns] = columns
        x, (found, bad) = np.array(along.values(X)), self._predicted(X)
        mean, half = found["mean"].to_numpy(), BAND * found["standard_deviation"].to_numpy()
        across: dict[str, Any] = {"alpha": 0.12, "linewidth": 0, "color": FAILED}
        across["transform"] = ax.get_xaxis_transform()
        if along.is_discrete or isinstance(space, FiniteSpace):
            ax.errorbar(x, mean, half, fmt="o", color=MODEL, markersize=4, alpha=0.8)
            ax.bar(x[bad], 1, 1 if along.is_discrete else 0.01 * np.ptp(x), **across)
        else:
            ax.plot(x, mean, color=MODEL)
            ax.fill_between(x, mean - half, mean + half, color=MODEL, alpha=0.2, linewidth=0)
            ax.fill_between(x, 0, 1, bad, **across)

    def _draw_map(self, ax: Axes, along: ParameterAxis, up: ParameterAxis) -> None:
        """Draw the mean, and where not to go, over two parameters."""
        bounds = self.optimizer.search_space.bounds
        one, two = (axis.columns_along(NUM_LINES, bounds[:, axis.columns]) for axis in (along, up))
        X, shape = self.best.X.repeat(len(one) * len(two), 1), (len(two), len(one))
        X[:, along.columns] = one.repeat(len(two), 1)
        X[:, up.columns] = two.repeat_interleave(len(one), 0)
        x, y = (np.reshape(axis.values(X), shape) for axis in (along, up))
        found, bad = self._predicted(X)
        drawn = ax.contourf(x, y, found["mean"].to_numpy().reshape(shape), 10, cmap="Greens")
        bar = ax.figure.colorbar(drawn, ax=ax)
        bar.set_label(visible(self.optimizer.labels.outcome_columns[0]), parse_math=False)
        if bad.any():
            shade = bad.reshape(shape).astype(float)
            ax.contourf(x, y, shade, [0.5, 1.5], colors=[FAILED], alpha=0.35)

    def _predicted(self, X: Tensor) -> tuple[pd.DataFrame, Any]:
        """Return what to expect of actions, and whether they are probably not allowed."""
        found = self.optimizer.predict(X, self.t, self.context)
        bad = np.zeros(len(found), dtype=bool)
        for name, least in (
            ("feasibility", self.optimizer.goals.min_feasibility),
            ("probability_of_success", MIN_SUCCESS),
        ):
            if name in found:
                bad |= found[name].to_numpy() < least
        return found, bad
