"""``tvbo demo``: learn a drift rate from a log, then track drifting optima, in two minutes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from gpytorch.kernels import RBFKernel
from rich.table import Table
from torch import Tensor

from tvbo.acquisition import LogBeta
from tvbo.cli.files import check_outputs, saving
from tvbo.cli.report import console, print_drift_fit, working
from tvbo.evaluation import History, run
from tvbo.fitting import DriftFit, fit_drift
from tvbo.optimizers import Optimizer, recipes
from tvbo.plotting import plot_tracking, save_figure
from tvbo.problems import PanelProblem, drifting_gp, unit_grid

FORGETTING_RATE = 0.03
LENGTHSCALE = 0.2
NOISE_VARIANCE = 0.01
LOG_TIMES = 100
LOG_PER_TIME = 3
FILES = ("tracking.png", "rounds.csv", "fit.json")
ACTION_SEEDS = 1000
"""Offset between the seeds of a function and of the random actions tried on it."""


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture and the results.")] = Path(
        "demo"
    ),
    rounds: Annotated[int, typer.Option(help="Rounds of each algorithm.", min=10)] = 200,
    functions: Annotated[int, typer.Option(help="Functions drawn.", min=1)] = 3,
    points: Annotated[int, typer.Option(help="Grid points per side.", min=5)] = 50,
    seed: Annotated[int, typer.Option(help="Seed of the first function and its noise.")] = 0,
) -> None:
    """Learn the drift rate of a function from a log, then track the optima of such functions.

    The functions are drawn from the model of Bogunovic et al. (2016) on a 50 x 50 grid.
    """
    import pandas as pd

    check_outputs({name: out / name for name in FILES}, makes_folders=True)
    out.mkdir(parents=True, exist_ok=True)
    problem = draw_problem(points, rounds, seed)
    console.print(
        f"A function on a {points} × {points} grid drifts with ε = {FORGETTING_RATE} per round. "
        f"First, ε is learned from {LOG_TIMES * LOG_PER_TIME} random observations:",
        highlight=False,
    )
    with working("fitting") as on_step:
        fit = fit_log(problem, seed, on_step)
    print_drift_fit(fit)
    console.print(
        f"Then four algorithms track the optimum for {rounds} rounds, on this function and "
        f"{functions - 1} more like it:",
        highlight=False,
    )
    races = [race(problem, fit, rounds, seed)]
    for i in range(1, functions):
        races.append(race(draw_problem(points, rounds, seed + i), fit, rounds, seed + i))
    regret = {name: torch.stack([r[name].regret for r in races]) for name in races[0]}
    print_regret(regret, {name: h.seconds.median().item() for name, h in races[0].items()})
    with saving(out / "tracking.png") as file:
        save_figure(plot_tracking(problem, races[0], regret), file)
    frames = [
        history.to_frame().assign(algorithm=name, function=i)
        for i, histories in enumerate(races)
        for name, history in histories.items()
    ]
    with saving(out / "rounds.csv") as file:
        pd.concat(frames).to_csv(file, index=False)
    with saving(out / "fit.json") as file:
        fit.to_json(file)


def draw_problem(points: int, rounds: int, seed: int) -> PanelProblem:
    """Return a drifting function with times for a log and for the rounds after it."""
    kernel = RBFKernel().double()
    kernel.lengthscale = LENGTHSCALE
    return drifting_gp(
        unit_grid(points),
        kernel,
        FORGETTING_RATE,
        horizon=LOG_TIMES + rounds,
        noise_variance=NOISE_VARIANCE,
        generator=torch.Generator().manual_seed(seed),
    )


def fit_log(problem: PanelProblem, seed: int, on_step: Callable[[str], None]) -> DriftFit:
    """Fit the drift rate to observations of random actions at the first times."""
    generator = torch.Generator().manual_seed(seed + ACTION_SEEDS)
    times = problem.times[:LOG_TIMES].repeat_interleave(LOG_PER_TIME)
    arms = torch.randint(len(problem.choices), (len(times),), generator=generator)
    train_X = torch.cat([problem.choices[arms], times.unsqueeze(-1)], dim=-1)
    train_Y = problem(train_X).unsqueeze(-1)
    return fit_drift(train_X, train_Y, time_unit="round", on_step=on_step)


def race(problem: PanelProblem, fit: DriftFit, rounds: int, seed: int) -> dict[str, History]:
    """Run the four algorithms, with the fitted hyperparameters, on the rounds after the log."""
    times = problem.times[LOG_TIMES:].tolist()
    shared: dict[str, Any] = {
        "choices": problem.choices,
        "covar_module": fit.covar_module,
        "mean_module": fit.mean_module,
        "noise_variance": fit.noise_variance,
        "beta": LogBeta(c1=0.8, c2=4.0),
    }
    optimizers: dict[str, Optimizer] = {
        "TV-GP-UCB": recipes.tv_gp_ucb(forgetting_rate=fit.forgetting_rate, **shared),
        "GP-UCB": recipes.gp_ucb(**shared),
        "R-GP-UCB": recipes.r_gp_ucb(
            every=fit.block_length * fit.round_length, start=times[0], **shared
        ),
        "random": recipes.random_search(
            choices=problem.choices, generator=torch.Generator().manual_seed(seed + ACTION_SEEDS)
        ),
    }
    return {
        name: run(problem, optimizer, horizon=rounds, times=times, label=name)
        for name, optimizer in optimizers.items()
    }


def print_regret(regret: dict[str, Tensor], seconds: dict[str, float]) -> None:
    """Print the regret of each algorithm, ``functions x rounds``, and the seconds per round."""
    count, rounds = next(iter(regret.values())).shape
    table = Table(
        title="Regret: the best value there was, minus the value of the action chosen",
        caption=f"mean over {count} functions ± standard error; one function may differ",
    )
    for column in ("algorithm", "all rounds", "last third", "seconds per round"):
        table.add_column(column, justify="left" if column == "algorithm" else "right")
    for name, rows in regret.items():
        parts = (rows.mean(dim=1), rows[:, -(rounds // 3) :].mean(dim=1))
        cells = (_with_error(part) for part in parts)
        table.add_row(name, *cells, f"{seconds[name]:.4f}")
    console.print(table)


def _with_error(samples: Tensor) -> str:
    """Format the mean over functions, with its standard error if there are several."""
    mean, n = samples.mean().item(), len(samples)
    if n == 1:
        return f"{mean:.3f}"
    return f"{mean:.3f} ± {samples.std().item() / math.sqrt(n):.3f}"
