"""``tvbo demo``: learn from a log how fast an optimum moves, then follow it, in a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer
from torch import Generator, Tensor

from tvbo import recipes
from tvbo.acquisition import LogBeta
from tvbo.cli.app import check_outputs, print_rows, save_files, say, working
from tvbo.evaluation import History, run
from tvbo.logs import DriftFit, fit_drift
from tvbo.optimizers import Optimizer
from tvbo.plotting import save_figure
from tvbo.plotting.tracking import plot_tracking
from tvbo.retention import SlidingWindow
from tvbo.test_functions import MovingPeak
from tvbo.test_functions.drifting_gp import unit_grid

NOISE_VARIANCE = 0.01
LOG_TIMES = 80
LOG_PER_TIME = 2
FILES = ("tracking.png", "rounds.csv", "fit.json")
ACTION_SEEDS = 1000
"""Offset between the seeds of the noise and of the random actions of a replicate."""
WINDOW = 0.5
"""Length of the sliding window in half-lives: the best of seven from 0.25 to 2, on other seeds."""
SCREEN_DPI = 100
"""Pixels per inch of the picture, which is then small enough for a web page."""
SHOWN = ("tvbo, drift rate learned", "ordinary Bayesian optimization", "random")
"""Algorithms of the maps; the sliding window is in the table and below the maps."""


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture and the results.")] = Path(
        "demo"
    ),
    rounds: Annotated[int, typer.Option(help="Rounds of each algorithm.", min=10)] = 200,
    replicates: Annotated[int, typer.Option(help="Replicates, each with its log.", min=1)] = 3,
    points: Annotated[int, typer.Option(help="Grid points per side.", min=5)] = 25,
    seed: Annotated[int, typer.Option(help="Seed of the first replicate, which is shown.")] = 0,
) -> None:
    """Learn from a log how fast an optimum moves, then follow it.

    The optimum goes round a circle once in 100 rounds; the actions are the points of a grid.
    """
    out.mkdir(parents=True, exist_ok=True)
    check_outputs({name: out / name for name in FILES})
    say(
        "The optimum of a function of two variables goes round a circle once in 100 rounds. Its "
        f"drift rate ε is learned from a log of {LOG_TIMES * LOG_PER_TIME} random actions, then "
        f"four algorithms choose {rounds} actions each."
    )
    choices = unit_grid(points)
    fits: list[DriftFit] = []
    races: dict[str, list[History]] = {}
    with working("running") as on_step:
        for i in range(replicates):
            place = f"replicate {i + 1} of {replicates}"
            noise = Generator().manual_seed(seed + i)
            problem = MovingPeak(noise_variance=NOISE_VARIANCE, generator=noise)
            generator = Generator().manual_seed(seed + i + ACTION_SEEDS)
            on_step(f"{place}, learning ε")
            fits.append(fit_log(problem, choices, generator))
            times = range(LOG_TIMES + 1, LOG_TIMES + rounds + 1)
            for name, optimizer in make_optimizers(choices, fits[i], generator).items():
                on_step(f"{place}, {name}")
                history = run(problem, optimizer, horizon=rounds, times=times, progress=False)
                races.setdefault(name, []).append(history)
    table = pd.concat(
        history.to_frame().assign(algorithm=name, replicate=i)
        for name, race in races.items()
        for i, history in enumerate(race)
    )
    print_results(fits, table)
    regret = {name: torch.stack([each.regret for each in race]) for name, race in races.items()}
    figure = plot_tracking(problem, {name: races[name][0] for name in SHOWN}, regret)
    figure.suptitle(
        "The optimum (star, with its path) goes round a circle: who follows it?", weight="bold"
    )
    picture, rows, saved = (out / name for name in FILES)
    save_files(
        (picture, lambda file: save_figure(figure, file, dpi=SCREEN_DPI)),
        (rows, lambda file: table.to_csv(file, index=False)),
        (saved, fits[0].to_json),
    )


def fit_log(problem: MovingPeak, choices: Tensor, generator: Generator) -> DriftFit:
    """Fit the drift rate to observations of random actions at the first times."""
    times = torch.arange(1, LOG_TIMES + 1, dtype=torch.float64).repeat_interleave(LOG_PER_TIME)
    arms = torch.randint(len(choices), (len(times),), generator=generator)
    train_X = torch.cat([choices[arms], times.unsqueeze(-1)], dim=-1)
    return fit_drift(train_X, problem(train_X).unsqueeze(-1), time_unit="round")


def make_optimizers(choices: Tensor, fit: DriftFit, generator: Generator) -> dict[str, Optimizer]:
    """Return the four algorithms, with the fitted hyperparameters."""
    shared: dict[str, Any] = {
        "choices": choices,
        "covar_module": fit.covar_module,
        "mean_module": fit.mean_module,
        "noise_variance": fit.noise_variance,
        "beta": LogBeta(c1=0.8, c2=4.0),
    }
    learned, ordinary, random = SHOWN
    return {
        learned: recipes.tv_gp_ucb(forgetting_rate=fit.forgetting_rate, **shared),
        ordinary: recipes.gp_ucb(**shared),
        "sliding window": recipes.gp_ucb(retention=SlidingWindow(WINDOW * fit.half_life), **shared),
        random: recipes.random_search(choices=choices, generator=generator),
    }


def print_results(fits: list[DriftFit], table: pd.DataFrame) -> None:
    """Print the drift rates, and the regret and seconds of each algorithm."""
    low, high = fits[0].forgetting_rate_interval
    rates = ", ".join(f"{fit.forgetting_rate:.3f}" for fit in fits)
    say(f"ε learned: {rates} per round; 95% interval of the first {low:.3f} to {high:.3f}.")
    middle = (table.t.min() + table.t.max()) / 2
    print_rows(
        "Regret: the best value there was, which is 1, minus that of the action",
        [
            {
                "algorithm": name,
                "all rounds": _mean_regret(rows),
                "second half": _mean_regret(rows[rows.t > middle]),
                "s per round": f"{rows.seconds.median():.4f}",
            }
            for name, rows in table.groupby("algorithm", sort=False)
        ],
        f"Mean ± standard error of {len(fits)} replicates. The window is {WINDOW:g} of the fitted "
        "half-life long.",
    )


def _mean_regret(rows: pd.DataFrame) -> str:
    """Return the mean regret, with its standard error if there are several replicates."""
    regret = rows.groupby("replicate").regret.mean()
    return f"{regret.mean():.3f}" + (f" ± {regret.sem():.3f}" if len(regret) > 1 else "")
