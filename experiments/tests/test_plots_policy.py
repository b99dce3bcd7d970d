"""The picture of a policy: what is drawn is what was given."""

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError

from experiments.plots.policy import plot_policy
from tvbo.plotting import save_figure
from tvbo.recommendation import Policy, Recommendation

LABELS = ("stiffness (N/m)", "damping (N s/m)")
LOAD = "load (kg)"


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def make_policy():
    """Contexts out of order, as a user may give them."""
    X = tensor([20.0, 5.0], [10.0, 4.0], [40.0, 7.0])
    values = (2.0, 0.2, 0.02), (1.0, 0.1, 0.01), (4.0, 0.4, 0.04)
    return Policy(
        [
            Recommendation(x, mean, deviation, 3.0, tensor(context))
            for x, (context, mean, deviation) in zip(X.split(1), values, strict=True)
        ]
    )


def lines(ax):
    return {line.get_label(): line.get_xydata().tolist() for line in ax.get_lines()}


def saved(figure, path):
    save_figure(figure, path)
    return path.stat().st_size > 10_000


def test_policy_shows_action_and_value_by_context(tmp_path):
    optimal = tensor([21.0, 5.5], [11.0, 4.5], [41.0, 7.5])
    figure = plot_policy(make_policy(), LABELS, LOAD, optimal, tensor(0.3, 0.2, 0.5))
    stiffness, damping, value = figure.axes
    assert lines(stiffness) == {
        "policy": [[1, 10], [2, 20], [4, 40]],
        "optimum": [[1, 11], [2, 21], [4, 41]],
    }
    assert lines(damping)["policy"] == [[1, 4], [2, 5], [4, 7]]
    assert lines(value) == {
        "policy": [[1, 0.1], [2, 0.2], [4, 0.4]],
        "optimum": [[1, 0.2], [2, 0.3], [4, 0.5]],
    }
    (band,) = value.collections
    edges = {tuple(round(x, 9) for x in point) for point in band.get_paths()[0].vertices.tolist()}
    assert edges == {(1, 0.08), (1, 0.12), (2, 0.16), (2, 0.24), (4, 0.32), (4, 0.48)}
    assert [ax.get_ylabel() for ax in figure.axes] == [*LABELS, "predicted reward"]
    assert {ax.get_xlabel() for ax in figure.axes} == {LOAD}
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "± 2 standard deviations",
        "policy",
        "optimum",
    ]
    assert saved(figure, tmp_path / "policy.png")


def test_policy_alone_and_within_the_box(tmp_path):
    figure = plot_policy(make_policy(), LABELS, LOAD, bounds=tensor([0.0, 1.0], [100.0, 9.0]))
    stiffness, damping, value = figure.axes
    assert [stiffness.get_ylim(), damping.get_ylim()] == [(0, 100), (1, 9)]
    assert list(lines(stiffness)) == list(lines(value)) == ["policy"]
    assert saved(figure, tmp_path / "policy.png")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"labels": LABELS[:1]}, ValueError),
        ({"optimal": torch.zeros(3, 1)}, BotorchTensorDimensionError),
        ({"optimal_value": torch.zeros(2)}, BotorchTensorDimensionError),
        ({"bounds": torch.zeros(2, 3)}, BotorchTensorDimensionError),
    ],
)
def test_bad_arguments_of_a_policy(options, error):
    with pytest.raises(error):
        plot_policy(make_policy(), **{"labels": LABELS, "context_label": LOAD, **options})
