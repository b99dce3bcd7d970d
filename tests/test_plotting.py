import math

import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo import recipes, run
from tvbo.models import DriftFit
from tvbo.plotting import plot_average_regret, plot_drift_fit, plot_tracking, save_figure
from tvbo.problems import drifting_gp, unit_grid


def make_fit(rate, low, high):
    rho = -math.log1p(-rate) if rate < 1 else math.inf
    return DriftFit(
        forgetting_rate=rate,
        forgetting_rate_interval=(low, high),
        level=0.95,
        time_unit="1h",
        half_life=2 * math.log(2) / rho if rho else math.inf,
        noise_variance=0.1,
        mean=0.0,
        lengthscales=[],
        outputscale=None,
        log_likelihood=-10.0,
        lr_statistic=3.0,
        lr_pvalue=0.04,
        round_length=1.0,
        block_length=20,
        n_observations=50,
        messages=[],
        profile=[(low, -11.9), (rate, -10.0), (high, -11.9)],
        covar_module=RBFKernel(),
    )


def test_average_regret_is_what_is_drawn():
    regret = {"a": torch.tensor([[4.0, 2.0], [2.0, 2.0]]), "b": torch.tensor([1.0, 3.0])}
    ax = plot_average_regret(regret, unit="°C", time_label="step")
    lines = {line.get_label(): line.get_ydata().tolist() for line in ax.get_lines()}
    assert lines == {"a": [3.0, 2.5], "b": [1.0, 2.0]}
    assert ax.get_ylabel() == "average regret (°C)"
    assert ax.get_xlabel() == "step"
    assert ax.get_ylim()[0] == 0


@pytest.mark.parametrize("ends", [(0.03, 0.02, 0.05), (0.0, 0.0, 0.01), (0.6, 0.2, 1.0)])
def test_drift_fit_names_the_unit(ends, tmp_path):
    figure = plot_drift_fit(make_fit(*ends))
    left, right = figure.axes
    assert "per 1h" in left.get_xlabel()
    assert "1h" in right.get_xlabel()
    save_figure(figure, tmp_path / "fit.png")
    assert (tmp_path / "fit.png").stat().st_size > 10_000


def test_tracking(tmp_path):
    problem = drifting_gp(unit_grid(5), RBFKernel(), 0.1, horizon=20)
    histories = {
        name: run(
            problem, recipes.random_search(choices=problem.choices), horizon=20, progress=False
        )
        for name in ("one", "two", "three")
    }
    figure = plot_tracking(problem, histories, {k: h.regret for k, h in histories.items()})
    titles = [ax.get_title() for ax in figure.axes]
    assert titles[:3] == [
        "the function at t = 6",
        "the function at t = 13",
        "the function at t = 20",
    ]
    save_figure(figure, tmp_path / "tracking.png")
