"""Figures of the model of an optimizer: along each parameter, and over two of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tvbo.optimizers import GPOptimizer
from tvbo.plotting.figure import BEST, FAILED, MODEL, TOLD, finish_axes, new_figure
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

BAND = 1.96
"""Half the width of a 95 % band, in standard deviations."""

FOUR_COLUMNS = 4
"""Panels beside one another, at most."""


def plot_slices(
    optimizer: GPOptimizer,
    t: Time | None = None,
    context: Context | None = None,
    title: str = "",
) -> Figure:
    """Plot the model along each parameter through what is recommended, and over the two main ones.

    Each panel has the posterior mean of the first outcome with its 95 % band, without noise; the
    outcomes observed, the newer the darker, whose other parameters differ; actions that failed; and
    where constraints probably break or trials fail. The last one is a map of the mean over the two
    numbers that matter most, if there are two.

    Args:
        optimizer: The optimizer; it is not modified.
        t: The time; None is that of the newest open ask or outcome.
        context: The context, where contexts were declared.
        title: Title of the figure.

    Raises:
        InputDataError, BotorchTensorDimensionError: as :meth:`GPOptimizer.recommend`.
    """
    slices = Slices(optimizer, t, context)
    names = [(each,) for each in slices.axes] + ([pair] if (pair := slices.main_pair) else [])
    columns = min(FOUR_COLUMNS, len(names))
    lines = -(-len(names) // columns)
    figure = new_figure(3.6 * columns, 3.0 * lines, title)
    for place, each in enumerate(names):
        slices.draw(figure.add_subplot(lines, columns, place + 1), *each)
    return figure


class Slices:
    """The model of an optimizer through the action that is recommended.

    Args:
        optimizer: The optimizer.
        t: The time; None is that of the newest open ask or outcome.
        context: The context, where contexts were declared.

    Attributes:
        best: The recommended action, of several objectives the best compromise by the first.
        axes: The parameters.
    """

    def __init__(self, optimizer: GPOptimizer, t: Time | None, context: Context | None):
        self.optimizer, self.t, self.context = optimizer, t, context
        several = optimizer.goals.num_objectives > 1
        front = optimizer.front(context, t, 1) if several else [optimizer.recommend(context, t)]
        self.best = front[0]
        space = optimizer.search_space
        self.axes = parameter_axes(space.parameters, space.dim)

    @property
    def main_pair(self) -> tuple[ParameterAxis, ParameterAxis] | None:
        """The two numbers that matter most; None if there are fewer, or the set is finite."""
        matter = self.optimizer.importance()
        numbers = [each for each in self.axes if not each.is_discrete]
        if len(numbers) < 2 or isinstance(self.optimizer.search_space, FiniteSpace):
            return None
        first, second = sorted(numbers, key=lambda each: -matter[each.name])[:2]
        return first, second

    def draw(self, ax: Axes, along: ParameterAxis, up: ParameterAxis | None = None) -> None:
        """Draw the model along a parameter, or over two."""
        if up is None:
            self._draw_line(ax, along)
        else:
            self._draw_map(ax, along, up)
            up.finish(ax, "y")
        along.finish(ax, "x")

    def _draw_line(self, ax: Axes, along: ParameterAxis) -> None:
        X = self._rows_along(along)
        x = np.array(along.values(X))
        order = np.argsort(x, kind="stable")
        x, found = x[order], self._predicted(X).iloc[order]
        mean, half = found["mean"].to_numpy(), BAND * found["standard_deviation"].to_numpy()
        if along.is_discrete or isinstance(self.optimizer.search_space, FiniteSpace):
            ax.errorbar(x, mean, half, fmt="o", color=MODEL, markersize=4, alpha=0.8)
        else:
            ax.plot(x, mean, color=MODEL)
            ax.fill_between(x, mean - half, mean + half, color=MODEL, alpha=0.2, linewidth=0)
        if (bad := _is_bad(found, self.optimizer)).any():
            across = ax.get_xaxis_transform()
            if along.is_discrete:
                ax.bar(x[bad], 1, 1, color=FAILED, alpha=0.12, transform=across)
            else:
                ax.fill_between(
                    x, 0, 1, bad, color=FAILED, alpha=0.12, linewidth=0, transform=across
                )
        held = self.optimizer.observations[-NUM_TRIED:]
        outcomes = self.optimizer.goals.signs[0].item() * held.Y[:, 0]
        tried = along.values(held.X)
        ax.scatter(
            tried, outcomes, 12, color=TOLD, alpha=_fading(len(tried)), linewidth=0, zorder=3
        )
        failed = along.values(self._failed())
        ax.plot(failed, [0.03] * len(failed), "x", color=FAILED, transform=ax.get_xaxis_transform())
        ax.axvline(along.values(self.best.X)[0], color=BEST, linestyle="--", linewidth=1.5)
        finish_axes(ax, "", self.optimizer.labels.outcome_columns[0], plain=True)

    def _draw_map(self, ax: Axes, along: ParameterAxis, up: ParameterAxis) -> None:
        bounds = self.optimizer.search_space.bounds
        one, two = (each.columns_along(NUM_LINES, bounds[:, each.columns]) for each in (along, up))
        X = self.best.X.repeat(len(one) * len(two), 1)
        X[:, along.columns] = one.repeat(len(two), 1)
        X[:, up.columns] = two.repeat_interleave(len(one), 0)
        found, shape = self._predicted(X), (len(two), len(one))
        x, y = (np.reshape(each.values(X), shape) for each in (along, up))
        drawn = ax.contourf(x, y, found["mean"].to_numpy().reshape(shape), 10, cmap="Greens")
        bar = ax.figure.colorbar(drawn, ax=ax)
        bar.set_label(visible(self.optimizer.labels.outcome_columns[0]), parse_math=False)
        if (bad := _is_bad(found, self.optimizer)).any():
            kinds = {"colors": [FAILED], "alpha": 0.35}
            ax.contourf(x, y, bad.reshape(shape).astype(float), [0.5, 1.5], **kinds)
        held = self.optimizer.observations[-NUM_TRIED:]
        tried = along.values(held.X), up.values(held.X)
        ax.scatter(*tried, 12, color=TOLD, alpha=_fading(len(held)), linewidth=0)
        failed = self._failed()
        ax.plot(along.values(failed), up.values(failed), "x", color=FAILED)
        ax.plot(along.values(self.best.X), up.values(self.best.X), "*", color=BEST, markersize=14)

    def _rows_along(self, along: ParameterAxis) -> Tensor:
        """Return actions that differ in one parameter, ``n x d``; of a finite set maybe all."""
        space = self.optimizer.search_space
        if isinstance(space, FiniteSpace):
            same = space.choices == self.best.X
            same[:, along.columns] = True
            line = space.choices[same.all(dim=-1)]
            return line if len(line) > 1 else space.choices[: NUM_LINES**2]
        columns = along.columns_along(NUM_POINTS, space.bounds[:, along.columns])
        X = self.best.X.repeat(len(columns), 1)
        X[:, along.columns] = columns
        return X

    def _predicted(self, X: Tensor) -> pd.DataFrame:
        return self.optimizer.predict(X, self.t, self.context)

    def _failed(self) -> Tensor:
        """Return the actions of the newest trials that failed or expired."""
        log = self.optimizer.trial_log.newest
        lost = [each.trial.X for each in log if each.ending in ("failed", "expired")][-NUM_TRIED:]
        return torch.cat([self.best.X[:0], *lost])


def _is_bad(found: pd.DataFrame, optimizer: GPOptimizer) -> np.ndarray:
    """Return at which actions constraints probably break, or trials fail."""
    bad = np.zeros(len(found), dtype=bool)
    for name, least in (
        ("feasibility", optimizer.goals.min_feasibility),
        ("probability_of_success", MIN_SUCCESS),
    ):
        if name in found:
            bad |= found[name].to_numpy() < least
    return bad


def _fading(number: int) -> Sequence[float]:
    """Return how dark observations are, the newest the darkest."""
    return np.linspace(0.15, 0.9, number).tolist()
