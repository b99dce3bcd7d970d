"""Regret in several panels, and against a setting."""

import pytest
import torch

from experiments.plots.regret import plot_regret_against, plot_regret_panels
from tvbo.plotting import save_figure


def test_panels_share_their_axes(tmp_path):
    small, large = torch.ones(3, 5), 100 * torch.ones(3, 5)
    panels = {f"day {i}": {"a": small * i, "b": small} for i in range(4)}
    panels["day 4"] = {"a": large, "b": small}
    figure = plot_regret_panels(panels, unit="mph", time_label="step", columns=3)
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert [ax.get_title() for ax in shown] == list(panels)
    # One scale for all, from zero, that holds the panel with the most regret.
    low, high = shown[0].get_ylim()
    assert low == 0
    assert high >= 100
    assert all(ax.get_ylim() == (low, high) for ax in shown)
    assert figure.get_supylabel() == "average regret (mph)"
    # The lowest panel of each column names the axis, though the last row is not full.
    assert [bool(ax.get_xlabel()) for ax in shown] == [False, False, True, True, True]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]
    save_figure(figure, tmp_path / "panels.png")
    assert (tmp_path / "panels.png").stat().st_size > 10_000


def test_regret_against_a_setting():
    setting = torch.tensor([0.1, 0.2])
    ax = plot_regret_against(setting, torch.tensor([[1.0, 3.0], [4.0, 4.0]]), "ε", unit="°C")
    (line,) = ax.get_lines()
    assert line.get_ydata().tolist() == [2.0, 4.0]
    (band,) = ax.collections
    ends = band.get_paths()[0].vertices[:, 1]
    assert (ends.min(), ends.max()) == pytest.approx((2 - 2**0.5, 4.0))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("ε", "average regret (°C)")
