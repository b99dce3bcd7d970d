"""Figures of contextual models: policies over time, posteriors over two columns, kernel parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, cast

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior
from torch import Tensor

from experiments.kernel_parts import KernelParts, part_posterior
from experiments.plots.policy import legend_outside, policy_panels
from tvbo.models import EnsembleGP
from tvbo.plotting.figure import (
    COLORS,
    LINES,
    draw_band,
    finish_axes,
    legend_above,
    new_figure,
)
from tvbo.recommendation import Policy
from tvbo.spaces.observations import check_last_dimension

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAP_SIDE = 60
"""Number of grid points along each side of a map."""

HATCHES = ("", "///", "...", "\\\\\\", "xx")


def plot_policy_over_time(
    policies: Sequence[Policy],
    labels: Sequence[str],
    context_label: str,
    optimal: Sequence[Tensor] | None = None,
    bounds: Tensor | None = None,
    value_label: str = "predicted reward",
    time_label: str = "t",
) -> Figure:
    """Plot the policies of several times over one another, to show the drift of the best action.

    Compute each policy when the loop has reached its time. Policies that one optimizer predicts for
    later times recommend the same actions, since drift is known from outcomes only and the
    posterior mean returns to the prior.

    Args:
        policies: Policies in the order of the legend, at most seven, the number of line styles.
        labels: Labels of the ``d`` coordinates of the action, with their units.
        context_label: Label of the context, with its unit.
        optimal: The true optima at each time, each ``m x d``; drawn as thin black lines in the
            line style of their time.
        bounds: Bounds of the actions, ``2 x d``, as limits of the panels. None fits the limits to
            the data.
        value_label: Label of the predicted value, with its unit.
        time_label: Name of the time in the legend.

    Raises:
        BotorchTensorDimensionError: if the contexts have more than one column, or shapes disagree.
        ValueError: if there are no policies, more than seven, or not as many optima, or not as many
            labels as coordinates.
    """
    if not 1 <= len(policies) <= len(LINES):
        raise ValueError(f"Expected 1 to {len(LINES)} policies. Got {len(policies)}.")
    if optimal is not None and len(optimal) != len(policies):
        raise ValueError(f"Expected optimal for {len(policies)} times. Got {len(optimal)}.")
    best: Sequence[Tensor | None] = [None] * len(policies) if optimal is None else optimal
    for policy, actions in zip(policies, best, strict=True):
        # Which also checks the policy; the panels of the last one are drawn on.
        figure, axes = policy_panels(policy, labels, context_label, actions, bounds, value_label)
    for policy, actions, color, line in zip(policies, best, cycle(COLORS), LINES, strict=False):
        order = policy.contexts[:, 0].argsort()
        context = policy.contexts[order, 0]
        name = f"{time_label} = {policy.t:g}"
        for i, ax in enumerate(axes[:-1]):
            if actions is not None:
                ax.plot(context, actions[order, i], color="black", linestyle=line, linewidth=0.9)
            ax.plot(context, policy.X[order, i], color=color, linestyle=line, linewidth=2.0)
        axes[-1].plot(
            context, policy.mean[order], color=color, linestyle=line, linewidth=2.0, label=name
        )
    if optimal is not None:
        axes[-1].plot([], [], color="black", linewidth=0.9, label="optimum, same line style")
    legend_outside(axes[-1])
    return figure


def plot_posterior_map(
    model: Model,
    row: Tensor,
    features: tuple[int, int],
    bounds: Tensor,
    labels: tuple[str, str],
    value_label: str = "posterior mean",
    optimal: Tensor | None = None,
) -> Figure:
    """Plot posterior mean and standard deviation over two columns, such as action and context.

    Args:
        model: A single-outcome model of rows with ``d`` columns.
        row: Values of the other columns, ``d``, such as other actions and the time.
        features: The columns of the horizontal and of the vertical axis.
        bounds: Their ranges, ``2 x 2``, lower then upper.
        labels: Labels of these columns, with their units.
        value_label: Label of the mean, with its unit.
        optimal: The known optima, ``m x 2``, drawn as a line.

    Raises:
        BotorchTensorDimensionError: if ``row``, ``bounds`` or ``optimal`` has another shape.
        ValueError: if the two columns are equal, or one is not a column of ``row``.
    """
    if row.ndim != 1 or bounds.shape != (2, 2):
        raise BotorchTensorDimensionError(
            "Expected one row, d, and bounds, 2 x 2. "
            f"Got row.shape={tuple(row.shape)}, bounds.shape={tuple(bounds.shape)}."
        )
    horizontal, vertical = features
    if horizontal == vertical or not {horizontal, vertical} <= set(range(len(row))):
        raise ValueError(f"Expected two different columns of {len(row)}. Got {features}.")
    if optimal is not None:
        check_last_dimension("optimal", optimal, 2)
    axis = torch.linspace(0.0, 1.0, MAP_SIDE, dtype=torch.float64)
    x, y = (low + (high - low) * axis for low, high in bounds.T)
    rows = row.expand(MAP_SIDE**2, -1).clone()
    grid = torch.cartesian_prod(y, x)
    rows[:, vertical], rows[:, horizontal] = grid.unbind(-1)
    with torch.no_grad():
        # Line by line: the joint posterior of all rows would have a covariance of their square.
        posteriors = [
            cast(GPyTorchPosterior, model.posterior(line)) for line in rows.split(MAP_SIDE)
        ]
        maps = {
            value_label: torch.cat([each.mean[:, 0] for each in posteriors]),
            "posterior standard deviation": torch.cat(
                [each.variance[:, 0].sqrt() for each in posteriors]
            ),
        }
    figure = new_figure(9.5, 3.9)
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    for ax, (name, values) in zip(axes, maps.items(), strict=True):
        # A colormap of increasing lightness, which keeps the order in gray.
        image = ax.pcolormesh(
            x, y, values.reshape(MAP_SIDE, MAP_SIDE), cmap="cividis", shading="gouraud"
        )
        if optimal is not None:
            ax.plot(*optimal.T, color="white", linewidth=2.5)
            ax.plot(*optimal.T, "k--", linewidth=1.5, label="optimum")
            ax.legend(loc="upper left", fontsize=8)
        figure.colorbar(image, ax=ax)
        ax.set_title(name, fontsize=10)
        ax.set_xlabel(labels[0])
    axes[0].set_ylabel(labels[1])
    axes[0].set_xlim(*bounds[:, 0].tolist())
    axes[0].set_ylim(*bounds[:, 1].tolist())
    return figure


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
    model: SingleTaskGP | EnsembleGP,
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
    band = {"alpha": 0.25, "label": "± 2 standard deviations"}
    draw_band(ax, position, mean, spread, COLORS[0], **band)
    ax.plot(position, mean, color=COLORS[0], linewidth=1.8, label="mean")
    ax.axhline(0.0, color="black", linewidth=0.8, linestyle=":")
    name = f"{part} part less its average"
    finish_axes(ax, label, f"{name} ({unit})" if unit else name)
    legend_above(ax)
    return ax


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("-", "−")
