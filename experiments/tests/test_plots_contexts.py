"""Pictures of contextual optimization: what is drawn is what was given."""

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from gpytorch.kernels import RBFKernel

from experiments.kernel_parts import KernelParts, part_posterior
from experiments.plots.contexts import (
    plot_kernel_parts,
    plot_part,
    plot_policy_over_time,
    plot_posterior_map,
)
from tvbo.models import ContextualGP
from tvbo.plotting import save_figure
from tvbo.recommendation import Policy, Recommendation

LABELS = ("stiffness (N/m)", "damping (N s/m)")
LOAD = "load (kg)"


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def make_policy(t=3.0, shift=0.0):
    """Contexts out of order, as a user may give them."""
    X = tensor([20.0, 5.0], [10.0, 4.0], [40.0, 7.0]) + shift
    values = (2.0, 0.2, 0.02), (1.0, 0.1, 0.01), (4.0, 0.4, 0.04)
    return Policy(
        [
            Recommendation(x, mean, deviation, t, tensor(context))
            for x, (context, mean, deviation) in zip(X.split(1), values, strict=True)
        ]
    )


@pytest.fixture
def model(generator):
    X = torch.rand(20, 4, generator=generator, dtype=torch.float64)
    kernels = [RBFKernel().double() for _ in range(2)]
    return ContextualGP(
        X,
        torch.sin(5 * X).sum(-1, keepdim=True),
        torch.full((20, 1), 0.01, dtype=torch.float64),
        context_features=[2],
        time_feature=3,
        structure="both",
        action_kernel=kernels[0],
        context_kernel=kernels[1],
        forgetting_rate=0.1,
    )


def saved(figure, path):
    save_figure(figure, path)
    return path.stat().st_size > 10_000


def test_policies_over_time(tmp_path):
    policies = [make_policy(), make_policy(t=50.0, shift=1.0)]
    optimal = [policy.X + 0.5 for policy in policies]
    figure = plot_policy_over_time(
        policies, LABELS, LOAD, optimal, tensor([0.0, 0.0], [50.0, 9.0]), time_label="round"
    )
    stiffness, damping, value = figure.axes
    assert [line.get_ydata().tolist() for line in stiffness.get_lines()] == [
        [10.5, 20.5, 40.5],
        [10, 20, 40],
        [11.5, 21.5, 41.5],
        [11, 21, 41],
    ]
    # What belongs together has one line style.
    styles = [line.get_linestyle() for line in damping.get_lines()]
    assert styles[0] == styles[1] != styles[2] == styles[3]
    assert stiffness.get_ylim() == (0, 50)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "round = 3",
        "round = 50",
        "optimum, same line style",
    ]
    assert value.get_ylabel() == "predicted reward"
    assert saved(figure, tmp_path / "policies.png")


def test_posterior_map_is_the_posterior(model, tmp_path):
    """Away from the diagonal, so that exchanged axes would show."""
    row, bounds = tensor(0.3, 0.4, 0.5, 1.0), tensor([0.0, 0.2], [2.0, 0.6])
    figure = plot_posterior_map(
        model, row, (2, 1), bounds, (LOAD, LABELS[1]), "mean", tensor([0.0, 0.3], [2.0, 0.5])
    )
    mean, deviation = figure.axes[:2]
    assert [ax.get_title() for ax in (mean, deviation)] == ["mean", "posterior standard deviation"]
    assert mean.get_xlim() == (0.0, 2.0)
    assert mean.get_ylim() == pytest.approx((0.2, 0.6))
    assert (mean.get_xlabel(), mean.get_ylabel()) == (LOAD, LABELS[1])
    shown = [ax.collections[0].get_array().reshape(60, 60) for ax in (mean, deviation)]
    for i, j in ((0, 59), (59, 0), (20, 41)):
        corner = row.clone()
        # Row i of a map is a height, column j a place across.
        corner[1], corner[2] = 0.2 + 0.4 * i / 59, 2.0 * j / 59
        with torch.no_grad():
            posterior = model.posterior(corner.unsqueeze(0))
        assert shown[0][i, j] == pytest.approx(posterior.mean.item(), abs=1e-8)
        assert shown[1][i, j] == pytest.approx(posterior.variance.sqrt().item(), abs=1e-6)
    assert saved(figure, tmp_path / "map.png")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"row": torch.zeros(1, 4)}, BotorchTensorDimensionError),
        ({"bounds": torch.zeros(2, 1)}, BotorchTensorDimensionError),
        ({"features": (1, 1)}, ValueError),
        ({"features": (1, 4)}, ValueError),
        ({"optimal": torch.zeros(3, 1)}, BotorchTensorDimensionError),
    ],
)
def test_bad_arguments_of_a_map(model, options, error):
    good = {
        "row": torch.zeros(4, dtype=torch.float64),
        "features": (2, 1),
        "bounds": tensor([0.0, 0.0], [1.0, 1.0]),
        "labels": (LOAD, LABELS[1]),
    }
    with pytest.raises(error):
        plot_posterior_map(model, **{**good, **options})


def test_kernel_parts_are_bars(tmp_path):
    """A negative covariance points downwards; a part that a kernel has not, has no bar."""
    both = KernelParts({"action": 0.6, "context": 0.3, "interaction": 0.2}, 0.1, -0.2, 4.0, 30)
    additive = KernelParts({"action": 0.5, "context": 0.3}, 0.15, 0.05, 4.0, 30)
    ax = plot_kernel_parts({"both": both, "additive": additive})
    first, second = ax.containers
    assert [bar.get_height() for bar in first] == [0.6, 0.3, 0.2, 0.1, -0.2]
    assert [bar.get_height() for bar in second] == [0.5, 0.3, 0.15, 0.05]
    # The bars of a part stand together, at its name.
    names = [text.get_text() for text in ax.get_xticklabels()]
    assert names == ["action", "context", "interaction", "residual", "covariance"]
    places = [round(bar.get_x() + bar.get_width() / 2) for bar in second]
    assert places == [0, 1, 3, 4]
    assert first[0].get_hatch() != second[0].get_hatch()
    assert ax.get_ylim()[0] < -0.2
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["both", "additive"]
    assert saved(ax.figure, tmp_path / "parts.png")


def test_a_part_is_its_centered_posterior(model, tmp_path):
    rows = torch.full((9, 4), 0.5, dtype=torch.float64)
    rows[:, 2] = torch.linspace(0.0, 1.0, 9)
    ax = plot_part(model, "context", rows, 2, LOAD, "N")
    mean, variance = part_posterior(model, "context", rows, centered=True)
    curve = next(line for line in ax.get_lines() if line.get_label() == "mean")
    assert curve.get_xdata().tolist() == rows[:, 2].tolist()
    assert curve.get_ydata().tolist() == mean.tolist()
    ends = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert ends.max() == pytest.approx((mean + 2 * variance.sqrt()).max().item())
    assert (ax.get_xlabel(), ax.get_ylabel()) == (LOAD, "context part less its average (N)")
    assert saved(ax.figure, tmp_path / "part.png")
