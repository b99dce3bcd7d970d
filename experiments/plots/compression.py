"""Figures of compression: model order by round, and model order and regret by budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tvbo.plotting.figure import COLORS, LINES, new_figure
from tvbo.plotting.regret import draw_means

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_model_order(
    model_order: Mapping[str, Tensor],
    bound: float | None = None,
    ax: Axes | None = None,
    bound_label: str = "bound",
) -> Axes:
    """Plot the number of observations in the model by round (Bedi et al., Figures 1 to 3, bottom).

    Args:
        model_order: Model order of each algorithm, ``T`` or ``replicates x T``. Of several
            replicates the mean is drawn, with a band of one standard error.
        bound: Upper bound on the model order, such as
            ``information_model_order_bound``, drawn as a dotted line; the axis is
            then logarithmic and begins at 1.
        ax: Axes to draw on; default those of a new figure.
        bound_label: Label of the bound in the legend.

    Raises:
        ValueError: if ``bound`` is not positive and finite.
    """
    if bound is not None and not 0 < bound < float("inf"):
        raise ValueError(f"Expected bound > 0 and finite. Got {bound}.")
    if ax is None:
        ax = new_figure().subplots()
    draw_means(
        ax,
        {name: torch.atleast_2d(rows).to(torch.float64) for name, rows in model_order.items()},
    )
    if bound is None:
        ax.set_ylim(bottom=0)
    else:
        ax.axhline(bound, color="black", linestyle=":", linewidth=1.8, label=bound_label)
        # Models begin empty: mask the logarithm of 0 instead of clipping it.
        ax.set_yscale("log", nonpositive="mask")
        ax.set_ylim(bottom=1)
    ax.set_xlim(left=1)
    ax.set_xlabel("round")
    ax.set_ylabel("observations in the model")
    ax.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return ax


def plot_budget(
    budgets: Tensor,
    model_order: Tensor,
    regret: Tensor,
    dense_model_order: Tensor | None = None,
    dense_regret: Tensor | None = None,
    marks: Mapping[str, float] | None = None,
    unit: str = "",
) -> Figure:
    r"""Plot model order and average regret against the budget :math:`\epsilon`.

    Bedi et al., (2.12). Means over replicates with a band of one standard error. Where actions are
    skipped, the model order is also the number of evaluations.

    Args:
        budgets: ``m`` budgets in nats, above 0, increasing.
        model_order: ``m x replicates``, the number of observations held at the end of a run.
        regret: ``m x replicates``, average regret of a run, in the unit of the reward.
        dense_model_order: ``replicates``, the model order of runs without a budget, drawn as a line
            for reference.
        dense_regret: ``replicates``, the average regret of runs without a budget, drawn as a line
            for reference.
        marks: Budgets to mark, by name.
        unit: Unit of the reward.

    Raises:
        ValueError: if the budgets are not as stated, or a shape does not match.
    """
    if budgets.ndim != 1 or len(budgets) == 0 or not (budgets > 0).all():
        raise ValueError(f"Expected budgets > 0, of shape m. Got {budgets.tolist()}.")
    if (budgets.diff() <= 0).any():
        raise ValueError(f"Expected budgets that increase. Got {budgets.tolist()}.")
    for name, values in (("model_order", model_order), ("regret", regret)):
        if values.ndim != 2 or len(values) != len(budgets):
            raise ValueError(
                f"Expected {name} of shape {len(budgets)} x replicates. "
                f"Got {name}.shape={tuple(values.shape)}."
            )
    figure = new_figure(9.0, 3.8)
    left, right = figure.subplots(1, 2)
    for ax, values, dense, label in (
        (left, model_order, dense_model_order, "observations in the model, at the end"),
        (right, regret, dense_regret, f"average regret ({unit})" if unit else "average regret"),
    ):
        _draw_band(ax, budgets, values.to(torch.float64))
        if dense is not None:
            _draw_reference(ax, torch.atleast_1d(dense).to(torch.float64))
        for (name, budget), color in zip((marks or {}).items(), COLORS[2:], strict=False):
            ax.axvline(budget, color=color, linestyle=":", linewidth=1.8, label=name)
        ax.set_xscale("log")
        ax.set_xlabel(r"budget $\epsilon$ (nats)")
        ax.set_ylabel(label)
        ax.grid(alpha=0.3)
    left.set_yscale("log", nonpositive="mask")
    right.set_ylim(bottom=0)
    figure.legend(
        *left.get_legend_handles_labels(), frameon=False, ncols=4, loc="outside lower center"
    )
    return figure


def _draw_band(ax: Axes, setting: Tensor, values: Tensor) -> None:
    mean = values.mean(dim=1)
    ax.plot(setting, mean, "o-", color=COLORS[0], markersize=4, label="with the budget")
    if values.shape[1] > 1:
        error = values.std(dim=1) / values.shape[1] ** 0.5
        ax.fill_between(
            setting, mean - error, mean + error, color=COLORS[0], alpha=0.2, linewidth=0
        )


def _draw_reference(ax: Axes, values: Tensor) -> None:
    mean = values.mean().item()
    ax.axhline(mean, color=COLORS[1], linestyle=LINES[1], linewidth=1.8, label="dense (budget 0)")
    if len(values) > 1:
        error = values.std().item() / len(values) ** 0.5
        ax.axhspan(mean - error, mean + error, color=COLORS[1], alpha=0.2, linewidth=0)
