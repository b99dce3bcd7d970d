"""Figures of the parts of a contextual kernel: shares of the variance, posteriors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.models import SingleTaskGP
from torch import Tensor

from tvbo.models import IncrementalGP
from tvbo.models.kernel_parts import KernelParts, part_posterior
from tvbo.plotting.figure import COLORS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HATCHES = ("", "///", "...", "\\\\\\", "xx")


def plot_kernel_parts(parts: Mapping[str, KernelParts], ax: Axes | None = None) -> Axes:
    """Plot the shares of the variance by part of the kernel, for one or several models.

    Bars are not stacked, since the shares of correlated parts need not add to one. The rest, the
    covariance of parts, has a bar of its own, which may be negative.

    Args:
        parts: For the name of each model, the result of ``explained_variance``.
        ax: Axes to draw on; default those of a new figure.

    Raises:
        ValueError: if there are no models, or more than five, the number of hatches.
    """
    if not 1 <= len(parts) <= len(HATCHES):
        raise ValueError(f"Expected 1 to {len(HATCHES)} models. Got {len(parts)}.")
    if ax is None:
        ax = new_figure(6.4, 3.8).subplots()
    tables = {
        name: {**each.shares, "residual": each.residual, "covariance": each.covariance}
        for name, each in parts.items()
    }
    known = ("action", "context", "interaction", "residual", "covariance")
    shown = [part for part in known if any(part in table for table in tables.values())]
    width = 0.8 / len(tables)
    for number, (name, table) in enumerate(tables.items()):
        present = [i for i, part in enumerate(shown) if part in table]
        bars = ax.bar(
            [i + (number - (len(tables) - 1) / 2) * width for i in present],
            [table[shown[i]] for i in present],
            width=width,
            color=COLORS[number],
            hatch=HATCHES[number],
            edgecolor="white",
            label=name,
        )
        ax.bar_label(bars, fmt=_percent, fontsize=8, padding=2)
    ax.axhline(0.0, color="black", linewidth=0.8)
    ax.set_xticks(range(len(shown)), shown)
    ax.margins(y=0.12)
    ax.yaxis.set_major_formatter(lambda share, _: _percent(share))
    ax.set_ylabel("share of the variance of outcomes")
    ax.grid(alpha=0.3, axis="y")
    ax.set_axisbelow(True)
    if len(tables) > 1:
        ax.legend(frameon=False, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return ax


def plot_part(
    model: SingleTaskGP | IncrementalGP,
    part: str,
    X: Tensor,
    feature: int,
    label: str,
    unit: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Plot one centered part of the function along a line, with two standard deviations.

    The average over the line is subtracted, since the levels of the parts are not identifiable.

    Args:
        model: A model that ``part_posterior`` supports.
        part: ``"action"``, ``"context"`` or ``"interaction"``.
        X: Rows along the line, ``n x d``, at least two.
        feature: The column of the horizontal axis.
        label: Label of that column, with its unit.
        unit: Unit of the outcome.
        ax: Axes to draw on; default those of a new figure.

    Raises:
        BotorchTensorDimensionError: if there are fewer than two rows.
        ValueError: if the kernel has no such part.
    """
    if X.ndim != 2 or len(X) < 2:
        raise BotorchTensorDimensionError(
            f"Expected at least two rows, n x d. Got X.shape={tuple(X.shape)}."
        )
    mean, variance = part_posterior(model, part, X, centered=True)
    if ax is None:
        ax = new_figure(4.8, 3.6).subplots()
    position, spread = X[:, feature], 2 * torch.sqrt(variance)
    ax.fill_between(
        position,
        mean - spread,
        mean + spread,
        color=COLORS[0],
        alpha=0.25,
        linewidth=0,
        label="± 2 standard deviations",
    )
    ax.plot(position, mean, color=COLORS[0], linewidth=1.8, label="mean")
    ax.axhline(0.0, color="black", linewidth=0.8, linestyle=":")
    ax.set_xlabel(label)
    name = f"{part} part less its average"
    ax.set_ylabel(f"{name} ({unit})" if unit else name)
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return ax


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("-", "−")
