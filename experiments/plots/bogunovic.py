"""Figures 2 and 3 of Bogunovic et al. (2016): average regret."""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.claims import Reproduction
from experiments.plots.regret import plot_regret_against, plot_regret_panels
from tvbo.plotting.regret import plot_average_regret

PRIOR = "prior s.d."
"""Unit of the reward of drawn functions."""


def plot_matched_case(result: Reproduction) -> Figure:
    """Plot the average regret of all algorithms, a panel for each true ε."""
    panels: dict[str, dict[str, Tensor]] = {}
    for name, rows in result.regret.items():
        algorithm, rate = name.split(", ")
        panels.setdefault(rate, {})[algorithm] = rows
    return plot_regret_panels(panels, unit=PRIOR)


def plot_wrong_rate(result: Reproduction) -> Figure:
    """Plot average regret against the assumed ε."""
    ax = _plot_against(result, "assumed_rates", "ε assumed by TV-GP-UCB, per round")
    # Linear around 0, where a logarithmic axis is undefined.
    ax.set_xscale("symlog", linthresh=1e-3, linscale=0.5)
    ax.set_xticks(
        [0, 0.001, 0.003, 0.01, 0.03, 0.1], ["0", "0.001", "0.003", "0.01", "0.03", "0.1"]
    )
    ax.set_xlim(-2e-4, 0.12)
    ax.axvline(result.settings["true_rate"], color="black", linestyle=":", linewidth=1)
    ax.annotate("true ε", (result.settings["true_rate"], 0), (4, 4), textcoords="offset points")
    return ax.figure


def plot_wrong_length(result: Reproduction) -> Figure:
    """Plot average regret against the block length."""
    ax = _plot_against(result, "block_lengths", "block length N of R-GP-UCB, rounds")
    matched = result.settings["matched_block_length"]
    ax.axvline(matched, color="black", linestyle=":", linewidth=1)
    ax.annotate("N by the rule", (matched, 0), (4, 4), textcoords="offset points")
    return ax.figure


def plot_temperatures(result: Reproduction) -> Figure:
    """Plot the average regret of all algorithms."""
    ax = plot_average_regret(result.regret, unit="°C", time_label="round (10 minutes each)")
    return ax.figure


def plot_traffic(result: Reproduction) -> Figure:
    """Plot the average regret of all algorithms, a panel for each test day."""
    fitted = {"TV-GP-UCB": f"TV-GP-UCB, fitted ε = {result.settings['forgetting_rate']:.2f}"}
    panels = {
        f"day {day}": {fitted.get(name, name): rows[:, i] for name, rows in result.regret.items()}
        for i, day in enumerate(result.settings["test_days"])
    }
    return plot_regret_panels(panels, unit="mph", time_label="round (5 minutes each)")


def _plot_against(result: Reproduction, setting: str, label: str) -> Axes:
    regret = torch.stack([rows.mean(dim=1) for rows in result.regret.values()])
    return plot_regret_against(torch.tensor(result.settings[setting]), regret, label, unit=PRIOR)
