"""Figure of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from botorch.exceptions.errors import BotorchTensorDimensionError
from torch import Tensor

from tvbo.plotting.figure import COLORS, draw_band, finish_axes, new_figure
from tvbo.recommendation import Policy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_MARKED = 25
"""Most contexts of which each has a marker."""


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
    figure, axes = policy_panels(
        policy, labels, context_label, optimal, bounds, value_label, optimal_value
    )
    order = policy.contexts[:, 0].argsort()
    context, mean = policy.contexts[order, 0], policy.mean[order]
    best = [None] * len(labels) if optimal is None else [*optimal.mT]
    width = 2 * policy.standard_deviation[order]
    band: dict[str, Any] = {"alpha": 0.25, "label": "± 2 standard deviations"}
    draw_band(axes[-1], context, mean, width, COLORS[0], **band)
    line = "o-" if len(policy) <= MAX_MARKED else "-"
    chosen = [*policy.X.mT, policy.mean]
    for ax, values, known in zip(axes, chosen, [*best, optimal_value], strict=True):
        ax.plot(context, values[order], line, color=COLORS[0], markersize=3.5, label="policy")
        if known is not None:
            ax.plot(context, known[order], "k--", linewidth=1.3, label="optimum")
    legend_outside(axes[-1])
    return figure


def policy_panels(
    policy: Policy,
    labels: Sequence[str],
    context_label: str,
    optimal: Tensor | None,
    bounds: Tensor | None,
    value_label: str,
    optimal_value: Tensor | None = None,
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a panel for each coordinate of the action and one for the value.

    Raises:
        BotorchTensorDimensionError: if shapes disagree with those of the policy.
        ValueError: if there are not as many labels as coordinates.
    """
    m, d = policy.X.shape
    expected = {
        "policy.contexts": (policy.contexts, (m, 1)),
        "optimal": (optimal, (m, d)),
        "optimal_value": (optimal_value, (m,)),
        "bounds": (bounds, (2, d)),
    }
    for name, (given, shape) in expected.items():
        if given is not None and given.shape != shape:
            raise BotorchTensorDimensionError(
                f"Expected {name} of shape {shape}. Got {name}.shape={tuple(given.shape)}."
            )
    if len(labels) != d:
        raise ValueError(f"Expected {d} labels, one per coordinate. Got {list(labels)}.")
    figure = new_figure(3.4 * (d + 1), 3.5)
    axes = [*figure.subplots(1, d + 1, sharex=True)]
    for ax, label in zip(axes, [*labels, value_label], strict=True):
        finish_axes(ax, context_label, label)
    if bounds is not None:
        for ax, limits in zip(axes, bounds.mT.tolist(), strict=False):
            ax.set_ylim(limits)
    return figure, axes


def legend_outside(ax: Axes) -> None:
    """Put the legend of one panel above the figure."""
    handles, names = ax.get_legend_handles_labels()
    ax.figure.legend(handles, names, loc="outside upper center", ncols=len(names), frameon=False)
