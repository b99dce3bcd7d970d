"""Figures of a run and of its model."""

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from tvbo import recipes
from tvbo.evaluation import run
from tvbo.plotting import live, plot_history, plot_slices
from tvbo.plotting.parameters import parameter_axes
from tvbo.storage import read_run

# Text that Matplotlib would read as a formula that is wrong.
NAME = "$\\frac$\x1b[31m"
GRID = torch.cartesian_prod(*[torch.linspace(0, 1, 4, dtype=torch.float64)] * 2)
SPACES = {
    "box": {"bounds": [(0.0, 1.0)] * 2},
    "mixed": {"bounds": {NAME: (0.0, 1.0), "n": (0, 4), "kind": ["a", NAME, "c"]}},
    "grid": {"choices": GRID},
    "listed": {"choices": torch.rand(7, 2, generator=torch.Generator().manual_seed(0)).double()},
    "outcomes": {"bounds": [(0.0, 1.0)], "constraints": {NAME: (None, 0.5)}},
}


def recorded(path, space):
    kernel = ScaleKernel(RBFKernel()).double()
    options = {"covar_module": kernel, "forgetting_rate": 0.02, "noise_variance": 0.01}
    optimizer = recipes.tv_gp_ucb(**options, **SPACES[space])
    optimizer.record(path)
    names = optimizer.labels.outcomes
    for _ in range(4):
        trial = optimizer.ask()
        value = trial.X[0, 0].item()
        optimizer.tell(trial, dict.fromkeys(names, value) if names else value)
    optimizer.fail(optimizer.ask(), "crashed")
    return optimizer


@pytest.mark.parametrize("space", SPACES)
def test_every_panel_is_drawn(tmp_path, space):
    optimizer = recorded(tmp_path / "run.db", space)
    rows, best = read_run(tmp_path / "run.db"), optimizer.recommend()
    d = {"mixed": 3, "outcomes": 1}.get(space, 2)
    figure = plot_slices(optimizer)
    # A map with its color bar, of two numbers that have many values.
    assert len(figure.axes) == d + 2 * (space == "box")
    panel = figure.axes[0]
    assert len(panel.collections[-1].get_offsets()) == 4
    axes = parameter_axes(optimizer.search_space.parameters, optimizer.search_space.dim)
    [axis] = [each for each in axes if each.name == next(iter(optimizer.importance()))]
    assert [*panel.lines[-1].get_xdata()] == axis.values(best.X) * 2
    history = plot_history(
        rows, NAME, best=best, drift=optimizer.drift(), limits={NAME: (-1.0, 0.5)}
    )
    # The outcomes, the failed trial, the parameters, and the half-life.
    assert len(history.axes) == len(rows.outcome_names) + 1 + d + 1
    assert [len(line.get_xdata()) for line in history.axes[0].lines[:2]] == [5, 4]
    assert [*history.axes[-2].lines[-1].get_xdata()] == [best.t]
    for each in (figure, history):
        each.savefig(tmp_path / "figure.svg")


def test_a_history_of_the_newest(tmp_path):
    recorded(tmp_path / "run.db", "box")
    figure = plot_history(read_run(tmp_path / "run.db"), newest=2)
    assert [*figure.axes[0].lines[1].get_xdata()] == [4.0]


def test_a_live_view(tmp_path):
    InteractiveShell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
    from IPython.utils.capture import capture_output

    optimizer = recipes.tv_gp_ucb(bounds=[(0.0, 1.0)])
    with pytest.raises(ValueError, match="record"), live(optimizer):
        pass
    optimizer.record(tmp_path / "run.db")
    InteractiveShell.instance()
    with capture_output() as shown, live(optimizer, seconds=0.0):
        run(lambda trial: 1.0, optimizer, horizon=2, progress=False)
    assert len(shown.outputs) == 4  # At the beginning, of each outcome, and at the end.
    assert all("image/png" in each.data for each in shown.outputs)
    with capture_output() as shown:
        optimizer.tell(optimizer.ask(), 1.0)
    assert shown.outputs == []
    InteractiveShell.clear_instance()
