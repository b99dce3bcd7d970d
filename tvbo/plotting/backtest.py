"""Figure of a backtest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tvbo.evaluation import BacktestResult
from tvbo.plotting.figure import algorithm_styles, name_lines, new_figure
from tvbo.terminal import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_backtest(result: BacktestResult) -> Figure:
    """Plot the cumulative regret of each algorithm over the times that were played.

    The band is one standard error of the sum so far, from the blocks of the result. Names stand at
    the ends of the lines, with the mean regret. Where a choice had no reading, its regret counts as
    the mean.

    Args:
        result: The backtest.
    """
    figure = new_figure(8.5, 4.6)
    ax = figure.subplots()
    means = {name: each.mean for name, each in result.results.items()}
    rounds = torch.arange(1, len(result.times) + 1)
    ends: list[tuple[float, str, str]] = []
    styles = algorithm_styles(result.regret)
    for name, rows in result.regret.items():
        color, line = styles[name]
        series = rows.nanmean(dim=0)
        series = torch.where(series.isnan(), means[name], series)
        total, error = cumulative(series, result.blocks)
        width = 2.6 if name == result.subject else 1.6
        ax.plot(rounds, total, color=color, linestyle=line, linewidth=width)
        ax.fill_between(rounds, total - error, total + error, color=color, alpha=0.1, linewidth=0)
        ends.append((total[-1].item(), f"{name} {means[name]:.3g}", color))
    for fold in result.fold_of_time.unique()[1:]:
        first = int((result.fold_of_time == fold).nonzero()[0])
        ax.axvline(first + 0.5, color="black", linewidth=0.8, linestyle=":")
    ax.set_ylim(bottom=0)
    ax.set_xlim(1, len(rounds))
    unit = f" ({visible(result.unit)})" if result.unit else ""
    ax.set_ylabel(f"cumulative regret{unit}", parse_math=False)
    step = result.times.diff().median().item() if len(result.times) > 1 else 1.0
    steps = f"{step:g} × {visible(result.time_unit)}"
    ax.set_xlabel(f"times played, in steps of {steps}", parse_math=False)
    title = "Simulation: functions drawn from the fitted model" if result.simulated else "Backtest"
    ax.set_title(f"{title}; mean regret beside the names", fontsize=10)
    ax.grid(alpha=0.3)
    name_lines(ax, ends)
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
