"""Figures of policies and of posteriors over two columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any, cast

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior
from torch import Tensor

from tvbo.optimizers.recommendation import Policy
from tvbo.plotting.figure import COLORS, LINES, new_figure
from tvbo.spaces.observations import check_last_dimension

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAP_SIDE = 60
"""Number of grid points along each side of a map."""


def plot_policy(
    policy: Policy,
    labels: Sequence[str],
    context_label: str,
    optimal: Tensor | None = None,
    optimal_value: Tensor | None = None,
    bounds: Tensor | None = None,
    value_label: str = "predicted reward",
) -> Figure:
    """Plot the recommended action in each context, and its predicted value.

    One panel for each coordinate of the action, since they differ in unit, and one for the
    predicted value with a band of two posterior standard deviations, without noise. The band does
    not show the uncertainty of the action: where the function is flat, other actions may be as
    good.

    Args:
        policy: A policy over contexts of one column, in any order.
        labels: Labels of the ``d`` coordinates of the action, with their units.
        context_label: Label of the context, with its unit.
        optimal: The true optima, ``m x d``, where known; drawn dashed.
        optimal_value: The true optimal values, ``m``, where known; drawn dashed.
        bounds: Bounds of the actions, ``2 x d``, as limits of the panels, so that a coordinate that
            does not depend on the context appears constant. None fits the limits to the data.
        value_label: Label of the predicted value, with its unit.

    Raises:
        BotorchTensorDimensionError: if the contexts have more than one column (maps over two are
            not drawn), or shapes disagree.
        ValueError: if there are not as many labels as coordinates.
    """
    _check(policy, labels, optimal, bounds)
    if optimal_value is not None and optimal_value.shape != policy.mean.shape:
        raise BotorchTensorDimensionError(
            f"Expected optimal_value of shape {tuple(policy.mean.shape)}. "
            f"Got optimal_value.shape={tuple(optimal_value.shape)}."
        )
    figure, axes = _panels(labels, context_label, bounds)
    order = policy.contexts[:, 0].argsort()
    context = policy.contexts[order, 0]
    style = _style(len(policy))
    for i, ax in enumerate(axes[:-1]):
        ax.plot(context, policy.X[order, i], color=COLORS[0], label="policy", **style)
        if optimal is not None:
            ax.plot(context, optimal[order, i], "k--", linewidth=1.3, label="optimum")
    mean, spread = policy.mean[order], 2 * policy.standard_deviation[order]
    value = axes[-1]
    value.fill_between(
        context,
        mean - spread,
        mean + spread,
        color=COLORS[0],
        alpha=0.25,
        linewidth=0,
        label="± 2 standard deviations",
    )
    value.plot(context, mean, color=COLORS[0], label="policy", **style)
    if optimal_value is not None:
        value.plot(context, optimal_value[order], "k--", linewidth=1.3, label="optimum")
    value.set_ylabel(value_label)
    _legend(figure, value)
    return figure


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
        _check(policy, labels, actions, bounds)
    figure, axes = _panels(labels, context_label, bounds)
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
    axes[-1].set_ylabel(value_label)
    _legend(figure, axes[-1])
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


def _panels(
    labels: Sequence[str], context_label: str, bounds: Tensor | None
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a panel for each coordinate and one for the value."""
    count = len(labels) + 1
    figure = new_figure(3.4 * count, 3.5)
    axes = figure.subplots(1, count, sharex=True)
    for ax, label in zip(axes, [*labels, ""], strict=True):
        ax.set_xlabel(context_label)
        ax.set_ylabel(label)
        ax.grid(alpha=0.3)
    if bounds is not None:
        for ax, (low, high) in zip(axes, bounds.T.tolist(), strict=False):
            ax.set_ylim(low, high)
    return figure, list(axes)


def _style(count: int) -> dict[str, Any]:
    """Return line properties, with markers if there are few contexts."""
    return {"linewidth": 1.8, "marker": "o" if count <= 25 else None, "markersize": 3.5}


def _legend(figure: Figure, ax: Axes) -> None:
    handles, names = ax.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=len(names), frameon=False)


def _check(
    policy: Policy, labels: Sequence[str], optimal: Tensor | None, bounds: Tensor | None
) -> None:
    if policy.contexts.shape[-1] != 1:
        raise BotorchTensorDimensionError(
            "Expected a policy over contexts of one column. "
            f"Got policy.contexts.shape={tuple(policy.contexts.shape)}."
        )
    if len(labels) != policy.X.shape[-1]:
        raise ValueError(
            f"Expected {policy.X.shape[-1]} labels, one per coordinate. Got {list(labels)}."
        )
    if optimal is not None and optimal.shape != policy.X.shape:
        raise BotorchTensorDimensionError(
            f"Expected optimal of shape {tuple(policy.X.shape)}. "
            f"Got optimal.shape={tuple(optimal.shape)}."
        )
    if bounds is not None and bounds.shape != (2, policy.X.shape[-1]):
        raise BotorchTensorDimensionError(
            f"Expected bounds of shape 2 x {policy.X.shape[-1]}. "
            f"Got bounds.shape={tuple(bounds.shape)}."
        )
