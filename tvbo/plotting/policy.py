"""What a contextual optimizer learned: the best action in each context, and the function behind."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.models.model import Model
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from tvbo.optimizers.recommendation import Policy
from tvbo.plotting.figure import COLORS, LINES, new_figure
from tvbo.validation import check_last_dimension

MAP_SIDE = 60
"""Points along either side of a map."""


def plot_policy(
    policy: Policy,
    labels: Sequence[str],
    context_label: str,
    optimal: Tensor | None = None,
    optimal_value: Tensor | None = None,
    bounds: Tensor | None = None,
    value_label: str = "predicted reward",
) -> Figure:
    """The best action in each context, and what is expected of it.

    One panel for each coordinate of the action, since they differ in unit, and one for the
    predicted value with a band of two posterior standard deviations, noise left out. The band is
    that of the value: where the function is flat, another action may do as well, and no band says
    so.

    Args:
        policy: Over contexts of one column, in any order.
        labels: Of the coordinates, ``d``, with their units.
        context_label: Of the context, with its unit.
        optimal: The truly best actions, ``m x d``, where known; drawn dashed.
        optimal_value: Their true values, ``m``, where known.
        bounds: Of the actions, ``2 x d``: each panel then shows the whole of its range, so that a
            coordinate that the context does not matter for looks it. None fits the panels.
        value_label: Of the predicted value, with its unit.

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
    """Policies at several times, one over the other: where the best action has drifted to.

    Take each policy when the loop has reached its time. Asked of one optimizer for later times,
    they name the same actions: what drifts is known from outcomes only, and the mean returns to the
    prior.

    Args:
        policies: In the order of the legend, up to seven that lines can tell apart.
        labels: As in :func:`plot_policy`.
        context_label: See there.
        optimal: The truly best actions at each time, each ``m x d``; drawn thin, in black, with
            the line style of their time.
        bounds: See :func:`plot_policy`.
        value_label: See there.
        time_label: What a time is called in the legend.

    Raises:
        BotorchTensorDimensionError: as :func:`plot_policy`.
        ValueError: if there are no policies, more than seven, or not as many optima.
    """
    if not 1 <= len(policies) <= len(LINES):
        raise ValueError(f"Expected 1 to {len(LINES)} policies. Got {len(policies)}.")
    if optimal is not None and len(optimal) != len(policies):
        raise ValueError(f"Expected optimal for {len(policies)} times. Got {len(optimal)}.")
    best = [None] * len(policies) if optimal is None else optimal
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
    """Posterior mean and standard deviation over two columns, such as one action and the context.

    Args:
        model: Of one output, over rows of ``d`` columns.
        row: Where the other columns stand, ``d``: other actions and the time, for example.
        features: The two columns that vary: across, and upwards.
        bounds: Their ranges, ``2 x 2``, lower then upper.
        labels: Of these columns, with their units.
        value_label: Of the mean, with its unit.
        optimal: A line on the maps, ``m x 2``: where the optimum is known to lie.

    Raises:
        BotorchTensorDimensionError: if ``row``, ``bounds`` or ``optimal`` has another shape.
        ValueError: if the two columns are the same, or one is none of the row's.
    """
    if row.ndim != 1 or bounds.shape != (2, 2):
        raise BotorchTensorDimensionError(
            "Expected one row, d, and bounds, 2 x 2. "
            f"Got row.shape={tuple(row.shape)}, bounds.shape={tuple(bounds.shape)}."
        )
    across, up = features
    if across == up or not {across, up} <= set(range(len(row))):
        raise ValueError(f"Expected two different columns of {len(row)}. Got {features}.")
    if optimal is not None:
        check_last_dimension("optimal", optimal, 2)
    axis = torch.linspace(0.0, 1.0, MAP_SIDE, dtype=torch.float64)
    x, y = (low + (high - low) * axis for low, high in bounds.T)
    rows = row.expand(MAP_SIDE**2, -1).clone()
    grid = torch.cartesian_prod(y, x)
    rows[:, up], rows[:, across] = grid.unbind(-1)
    with torch.no_grad():
        # Line by line, since a posterior of all rows is joint, and grows with their square.
        posteriors = [model.posterior(line) for line in rows.split(MAP_SIDE)]
        maps = {
            value_label: torch.cat([each.mean[:, 0] for each in posteriors]),
            "posterior standard deviation": torch.cat(
                [each.variance[:, 0].sqrt() for each in posteriors]
            ),
        }
    figure = new_figure(9.5, 3.9)
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    for ax, (name, values) in zip(axes, maps.items(), strict=True):
        # From dark to light in one direction: grey print keeps the order.
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
    """A panel for each coordinate, and one for the value."""
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


def _style(count: int) -> dict[str, object]:
    """With few contexts, say which were asked about."""
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
