"""Figure of a backtest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tvbo.evaluation import BacktestResult
from tvbo.plotting.figure import algorithm_styles, draw_band, finish_axes, name_lines, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_backtest(result: BacktestResult) -> Figure:
    """Plot the cumulative regret of each algorithm over the times that were played.

    The band is one standard error of the sum so far, from the blocks of the result. Names stand
    beside the lines, in the order of their ends, with the mean regret.

    Args:
        result: The backtest.
    """
    figure = new_figure(8.5, 4.6)
    ax = figure.subplots()
    rounds = torch.arange(1, len(result.times) + 1)
    for name, (color, line) in algorithm_styles(result.regret).items():
        mean = result.results[name].mean
        series = result.regret[name].nanmean(dim=0)
        total, error = cumulative(series, result.blocks)
        width = 2.6 if name == result.subject else 1.6
        label = f"{name} {mean:.3g}"
        ax.plot(rounds, total, color=color, linestyle=line, linewidth=width, label=label)
        draw_band(ax, rounds, total, error, color, alpha=0.1)
    for first in result.fold_of_time.diff().nonzero().flatten().tolist():
        ax.axvline(first + 1.5, color="black", linewidth=0.8, linestyle=":")
    ax.set(xlim=(1, len(rounds)), ylim=(0, None))
    step = result.times.diff().median().item() if len(result.times) > 1 else 1.0
    unit = f" ({result.unit})" if result.unit else ""
    steps = f"times played, in steps of {step:g} × {result.time_unit}"
    finish_axes(ax, steps, f"cumulative regret{unit}", plain=True)
    title = "Simulation: functions drawn from the fitted model" if result.simulated else "Backtest"
    ax.set_title(f"{title}; mean regret beside the names", fontsize=10)
    name_lines(ax)
    return figure


def cumulative(series: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return the sum of a series so far, and its standard error from the blocks so far.

    With ``m`` blocks so far and the standard deviation s of their sums, the error of the total is
    :math:`s \sqrt{m}`; zero until there are two.

    Args:
        series: ``S``.
        blocks: Label of the block of each value, ``S``, increasing.
    """
    _, index = blocks.unique(return_inverse=True)
    count = int(index[-1]) + 1
    sums = torch.zeros(count, dtype=series.dtype).index_add(0, index, series)
    error = torch.zeros(count + 1, dtype=series.dtype)
    for m in range(2, count + 1):
        error[m] = sums[:m].std() * m**0.5
    return series.cumsum(0), error[index + 1]
