"""Figures 1 to 3 of Bedi et al.: regret, clock time and model order, by acquisition."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.claims import Reproduction
from tvbo.plotting.figure import new_figure
from tvbo.plotting.regret import draw_means

PANEL_WIDTH, PANEL_HEIGHT = 3.3, 2.4


def plot_tables(result: Reproduction) -> Figure:
    """Plot regret, clock time and model order, without the models that were only timed."""

    def panels(curves: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        shown: dict[str, dict[str, Tensor]] = {}
        for name, rows in curves.items():
            acquisition, model = name.rsplit(", ", 1)
            if acquisition in ("UCB", "EI", "MPI") and model in ("dense", "compressed", "BKB"):
                shown.setdefault(acquisition, {})[model] = rows
        return shown

    return plot_compression(
        panels(result.regret),
        panels(result.curves["seconds"]),
        panels(result.curves["model_order"]),
        bound=min(result.settings["cell_bound"], result.settings["information_bound"]),
        unit="accuracy" if result.name == "bedi-table4" else "",
    )


def plot_compression(
    regret: Mapping[str, Mapping[str, Tensor]],
    seconds: Mapping[str, Mapping[str, Tensor]],
    model_order: Mapping[str, Mapping[str, Tensor]],
    bound: float,
    unit: str = "",
) -> Figure:
    """Plot average regret, clock time and model order by round, a column for each acquisition.

    Args:
        regret: Regret by acquisition and model, ``replicates x T``.
        seconds: Clock time of each round by acquisition and model, ``replicates x T``.
        model_order: Number of points in the model by acquisition and model, ``replicates x T``.
        bound: Upper bound on the order of the compressed model.
        unit: Unit of the reward.
    """
    figure = new_figure(PANEL_WIDTH * len(regret), 3 * PANEL_HEIGHT)
    axes = figure.subplots(3, len(regret), sharex=True, sharey="row", squeeze=False)
    for column, acquisition in enumerate(regret):
        rounds = torch.arange(1, next(iter(regret[acquisition].values())).shape[1] + 1)
        mean = {name: rows.cumsum(dim=1) / rounds for name, rows in regret[acquisition].items()}
        clock = {name: rows.cumsum(dim=1) for name, rows in seconds[acquisition].items()}
        for ax, curves in zip(
            axes[:, column], (mean, clock, model_order[acquisition]), strict=True
        ):
            draw_means(ax, curves)
        axes[0, column].set_title(acquisition, fontsize=10)
        axes[2, column].axhline(
            bound, color="black", linestyle=(0, (1, 1)), linewidth=1, label="bound on compressed"
        )
        axes[2, column].set_xlabel("round")
    label = f"average regret ({unit})" if unit else "average regret"
    for ax, text in zip(axes[:, 0], (label, "clock time (s)", "model order (points)"), strict=True):
        ax.set_ylabel(text)
    axes[0, 0].set_yscale("log")
    axes[2, 0].set_yscale("log")
    axes[1, 0].set(xlim=(1, None), ylim=(0, None))
    figure.legend(
        *axes[2, 0].get_legend_handles_labels(), frameon=False, ncols=3, loc="outside lower center"
    )
    return figure
