"""Pictures of compression: what is drawn is what was given."""

import math

import numpy as np
import torch

from experiments.plots.compression import plot_budget, plot_model_order
from tvbo.plotting import save_figure

BUDGETS = torch.tensor([0.01, 0.1, 1.0])
ORDER = torch.tensor([[100, 104, 90], [20, 22, 24], [4, 4, 7]])
REGRET = torch.tensor([[0.3, 0.1, 0.2], [0.4, 0.6, 0.5], [0.9, 0.8, 1.3]])


def line(ax, label):
    (found,) = [each for each in ax.get_lines() if each.get_label() == label]
    return found


def band(collection):
    """Lowest and highest value of a band at each place."""
    vertices = collection.get_paths()[0].vertices
    places = np.unique(vertices[:, 0])
    at = [vertices[vertices[:, 0] == x, 1] for x in places]
    return np.array([v.min() for v in at]), np.array([v.max() for v in at])


def test_model_order_is_the_mean_over_trials():
    ax = plot_model_order({"a": torch.tensor([[0, 1, 2], [0, 1, 4]]), "b": torch.tensor([0, 1, 1])})
    assert line(ax, "a").get_xydata().tolist() == [[1, 0], [2, 1], [3, 3]]
    assert line(ax, "b").get_ydata().tolist() == [0, 1, 1]
    assert ax.get_yscale() == "linear"
    assert ax.get_ylim()[0] == 0
    assert ax.get_ylabel() == "observations in the model"


def test_a_bound_is_named_and_makes_the_axis_logarithmic(tmp_path):
    sizes = {"dense": torch.arange(50).repeat(3, 1), "ε = 0.1": torch.arange(50).clamp(max=8)}
    ax = plot_model_order(sizes, bound=2000, bound_label="bound at ε = 0.1")
    bound = line(ax, "bound at ε = 0.1")
    assert set(bound.get_ydata()) == {2000}
    assert bound.get_linestyle() == ":"
    assert ax.get_yscale() == "log"
    low, high = ax.get_ylim()
    assert low == 1
    assert high > 2000
    assert "bound at ε = 0.1" in [text.get_text() for text in ax.get_legend().get_texts()]
    # An empty model has no logarithm: it is left out, not drawn at the bottom.
    assert not np.isfinite(ax.yaxis.get_transform().transform(np.array([0.0]))).any()
    save_figure(ax.figure, tmp_path / "order.png")
    assert (tmp_path / "order.png").stat().st_size > 10_000


def test_budget_draws_means_and_standard_errors():
    left, right = plot_budget(BUDGETS, ORDER, REGRET, unit="°C").axes
    for ax, values in ((left, ORDER.double().numpy()), (right, REGRET.double().numpy())):
        drawn = line(ax, "with the budget")
        assert np.allclose(drawn.get_xdata(), BUDGETS)
        assert np.allclose(drawn.get_ydata(), values.mean(axis=1))
        (collection,) = ax.collections
        error = values.std(axis=1, ddof=1) / math.sqrt(3)
        low, high = band(collection)
        assert np.allclose(low, values.mean(axis=1) - error)
        assert np.allclose(high, values.mean(axis=1) + error)
        assert ax.get_xscale() == "log"
        assert "nats" in ax.get_xlabel()
    assert left.get_yscale() == "log"
    assert right.get_ylim()[0] == 0
    assert right.get_ylabel() == "average regret (°C)"
