"""Parameters on axes: numbers, on a logarithmic scale or not, and categories."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tvbo.spaces.parameters import Category, Number, Parameters
from tvbo.terminal import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_CHARACTERS = 16
"""Characters of the name of a category on an axis."""

MOST_POINTS = 12
"""Number of values of a whole number up to which each is drawn as a point."""


@dataclass(frozen=True)
class ParameterAxis:
    """How the values of a parameter that varies stand on an axis.

    Args:
        name: Its name.
        columns: Its columns in a row of actions.
        part: Its values; None where it is a column of numbers without a name.
    """

    name: str
    columns: slice
    part: Number | Category | None = None

    @property
    def is_discrete(self) -> bool:
        """Whether it has few values, each of which is a point of its own."""
        return isinstance(self.part, Category) or self.count <= MOST_POINTS

    @property
    def count(self) -> float:
        """Number of values."""
        return torch.inf if self.part is None else self.part.count

    def places(self, values: Iterable[Any]) -> list[float]:
        """Return where values stand."""
        if isinstance(self.part, Category):
            words = [str(choice) for choice in self.part.choices]
            return [float(words.index(str(value))) for value in values]
        return [float(value) for value in values]

    def values(self, X: Tensor) -> list[float]:
        """Return where the values of rows of actions, ``n x d``, stand."""
        columns = X[:, self.columns]
        if self.part is None:
            return columns[:, 0].tolist()
        return self.places(self.part.decode(row) for row in columns.tolist())

    def columns_along(self, number: int, bounds: Tensor) -> Tensor:
        """Return its columns at values all along it, ``n x width``.

        Args:
            number: Number of values of one that has many.
            bounds: Smallest and largest value of its columns, ``2 x width``.
        """
        if self.part is not None and self.is_discrete:
            rows = [self.part.encode(value) for value in self.part.values()]
            return torch.tensor(rows, dtype=torch.float64)
        lower, upper = bounds[:, 0].tolist()
        columns = torch.linspace(lower, upper, number, dtype=torch.float64).unsqueeze(-1)
        return columns if self.part is None else self.part.nearest(columns)

    def finish(self, ax: Axes, which: str) -> None:
        """Scale and label the axis, ``"x"`` or ``"y"``."""
        axis = getattr(ax, f"{which}axis")
        axis.set_label_text(visible(self.name), parse_math=False)
        if isinstance(self.part, Category):
            words = [visible(str(choice))[:MAX_CHARACTERS] for choice in self.part.choices]
            axis.set_ticks(range(len(words)), words, parse_math=False)
        elif self.part is not None and self.part.is_log:
            getattr(ax, f"set_{which}scale")("log")


def parameter_axes(parameters: Parameters | None, dim: int) -> list[ParameterAxis]:
    """Return the axes of actions of ``dim`` columns."""
    if parameters is None:
        return [ParameterAxis(f"action_{i}", slice(i, i + 1)) for i in range(dim)]
    return [ParameterAxis(part.name, columns, part) for part, columns in parameters.in_columns()]
