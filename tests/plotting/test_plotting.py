import math

import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo import recipes, run
from tvbo.logs import DriftFit
from tvbo.plotting import plot_drift_fit, save_figure
from tvbo.plotting.regret import plot_average_regret
from tvbo.plotting.tracking import plot_tracking
from tvbo.test_functions import MovingPeak, drifting_gp
from tvbo.test_functions.drifting_gp import unit_grid


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


def test_an_algorithm_has_one_color_in_all_figures():
    def colors(*names):
        ax = plot_average_regret({name: torch.ones(3) for name in names})
        return {line.get_label(): line.get_color() for line in ax.get_lines()}

    first = colors("GP-UCB", "TV-GP-UCB, fitted ε", "GP-UCB-SDF", "one of mine")
    second = colors("another", "one of mine", "TV-GP-UCB", "tv_gp_ucb", "gp_ucb")
    assert first["GP-UCB"] == second["gp_ucb"]
    assert first["TV-GP-UCB, fitted ε"] == second["TV-GP-UCB"] == second["tv_gp_ucb"]
    assert len(set(first.values())) == 4
    assert len(set(second.values())) == 4


@pytest.mark.parametrize("ends", [(0.03, 0.02, 0.05), (0.0, 0.0, 0.01), (0.6, 0.2, 1.0)])
def test_drift_fit_names_the_unit(ends, tmp_path):
    figure = plot_drift_fit(make_fit(*ends))
    left, right = figure.axes
    assert "per 1h" in left.get_xlabel()
    assert "1h" in right.get_xlabel()
    save_figure(figure, tmp_path / "fit.png")
    assert (tmp_path / "fit.png").stat().st_size > 10_000


@pytest.mark.parametrize("problem", [MovingPeak(), drifting_gp(unit_grid(5), RBFKernel(), 0.1, 40)])
def test_tracking(problem, tmp_path):
    """The maps hold the second half of the rounds, and the distances in words are theirs."""
    histories = {
        name: run(problem, recipes.random_search(choices=unit_grid(5)), horizon=40, progress=False)
        for name in ("one", "two")
    }
    regret = {name: history.regret for name, history in histories.items()}
    figure = plot_tracking(problem, histories, regret | {"three": regret["two"].expand(3, 40)})
    *rows, bottom = figure.subfigs
    for row, (name, history) in zip(rows, histories.items(), strict=True):
        optimum = torch.stack([problem.optimal_action(float(t)) for t in range(21, 41)])
        titles = [ax.get_title() for ax in row.axes]
        assert titles == [f"rounds {n}–{n + 3}" for n in range(21, 41, 4)]
        lines = [ax.get_lines() for ax in row.axes]
        drawn = [torch.cat([torch.tensor(each[i].get_xydata()) for each in lines]) for i in (1, 2)]
        assert torch.equal(drawn[0], optimum)
        assert torch.equal(drawn[1], history.X[20:])
        near = (history.X[20:] - optimum).norm(dim=-1).median()
        assert row.get_suptitle().startswith(f"{name}: half of its actions within {near:.2f} of")
    (ax,) = bottom.axes
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    lines = {line.get_label(): line.get_ydata()[-1] for line in ax.get_lines()}
    assert names == sorted(lines, key=lines.get, reverse=True)
    rounds, rolling = ax.get_lines()[0].get_data()
    assert rounds.tolist() == list(range(4, 41))
    assert rolling[0] == pytest.approx(regret["one"][:4].mean())
    save_figure(figure, tmp_path / "tracking.png")
