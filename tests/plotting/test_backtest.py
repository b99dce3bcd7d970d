import math

import torch

from tvbo.evaluation import backtest
from tvbo.plotting import plot_backtest, save_figure
from tvbo.plotting.backtest import cumulative


def test_lines_end_at_the_total_regret(tmp_path):
    values = torch.randn(60, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    names = ["always_best", "random", "sw_ucb"]
    given = {"train": slice(0, 20), "folds": 2, "starts": 2, "progress": False, "unit": "$/h"}
    result = backtest(values, None, names, time_unit="10min", **given)
    figure = plot_backtest(result)
    (ax,) = figure.axes
    lines = [line for line in ax.lines if len(line.get_xdata()) == 40]
    for name, line in zip(names, lines, strict=True):
        total = 40 * result.results[name].mean
        assert math.isclose(line.get_ydata()[-1], total)
    written = {text.get_text().split()[0] for text in ax.get_legend().get_texts()}
    assert written == set(names)
    save_figure(figure, tmp_path / "backtest.png")


def test_error_of_the_sum_of_blocks_so_far():
    generator = torch.Generator().manual_seed(1)
    series = torch.rand(12, dtype=torch.float64, generator=generator)
    total, error = cumulative(series, torch.arange(12) // 4)
    torch.testing.assert_close(total, series.cumsum(0))
    sums = series.reshape(3, 4).sum(dim=1)
    assert error[:4].tolist() == [0.0] * 4
    assert math.isclose(error[4].item(), (sums[:2].std() * math.sqrt(2)).item())
    assert math.isclose(error[-1].item(), (sums.std() * math.sqrt(3)).item())
