"""Figure of the fit of a panel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tvbo.logs import PanelFit
from tvbo.plotting.figure import COLORS, finish_axes, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_ARMS, SHOWN_GAPS = 4, 96
"""Arms and gaps after the log that are shown."""


def plot_panel_fit(fit: PanelFit) -> Figure:
    """Plot what a fit expects after the log: the arms that become the best, with their bands."""
    start = 0.0 if fit.last_time is None else fit.last_time
    ahead = start + fit.round_length * torch.arange(1, SHOWN_GAPS + 1, dtype=torch.float64)
    forecast = fit.forecast(ahead)
    # Those that are the best for most of the time, and then those with the largest means.
    wins = torch.bincount(forecast.mean.argmax(dim=1), minlength=fit.num_arms)
    ranks = forecast.mean.mean(dim=0).argsort().argsort()
    order = torch.argsort(wins * 1e6 + ranks, descending=True)
    figure = new_figure(8.0, 4.2)
    axes = figure.subplots()
    for color, arm in zip(COLORS, order[:SHOWN_ARMS].tolist(), strict=False):
        axes.plot(ahead, forecast.mean[:, arm], color=color, label=fit.arms[arm])
        axes.fill_between(
            ahead, forecast.lower[:, arm], forecast.upper[:, arm], color=color, alpha=0.12
        )
    finish_axes(axes, f"time (unit: {fit.time_unit})", "forecast, with 95 % bands", plain=True)
    title = f"arms, {min(SHOWN_ARMS, fit.num_arms)} of {fit.num_arms}"
    axes.legend(frameon=False, title=title, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure
