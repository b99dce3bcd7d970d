"""``tvbo reproduce``: figures and tables of the papers, done again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tvbo.commands.report import console, print_reproduction, saved
from tvbo.plotting import new_figure, plot_average_regret, save_figure
from tvbo.problems.intel_lab import intel_lab
from tvbo.reproduce import Reproduction, bogunovic_fig3a
from tvbo.tables import TableError


@dataclass(frozen=True)
class Experiment:
    """A reproduction by name.

    Args:
        what: What it shows, and the data it needs.
        run: Runs it, from the number of trials and the seed.
        unit: Unit of the regret, for the picture.
        time_label: What a round is, for the picture.
    """

    what: str
    run: Callable[[int, int], Reproduction]
    unit: str
    time_label: str


EXPERIMENTS = {
    "bogunovic-fig3a": Experiment(
        what="Temperatures of 46 sensors: TV-GP-UCB, R-GP-UCB, GP-UCB, RExp3, random "
        "(needs TVBO_DATA)",
        run=lambda trials, seed: bogunovic_fig3a(intel_lab(), trials=trials, seed=seed),
        unit="°C",
        time_label="round (10 minutes each)",
    )
}


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Name of the figure or table.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the names.")] = False,
    trials: Annotated[int, typer.Option(help="Number of paired trials.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the first trial.")] = 0,
    json: Annotated[Path | None, typer.Option(help="Save results and claims as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Save the figure, FILE.png.")] = None,
) -> None:
    """Do a figure or table of a paper again, and say which of its claims held."""
    if show_list:
        table = Table("name", "what it shows")
        for known, experiment in EXPERIMENTS.items():
            table.add_row(known, experiment.what)
        console.print(table)
        return
    if name not in EXPERIMENTS:
        raise TableError(
            f"Expected the name of a reproduction: {', '.join(EXPERIMENTS)}. Got {name}."
        )
    run_experiment(EXPERIMENTS[name], trials, seed, json, plot)


def run_experiment(
    experiment: Experiment, trials: int, seed: int, json: Path | None, plot: Path | None
) -> None:
    """Run, print, and save what was asked for."""
    result = experiment.run(trials, seed)
    print_reproduction(result)
    if json is not None:
        result.to_json(json)
        saved(json)
    if plot is not None:
        ax = new_figure().subplots()
        plot_average_regret(
            result.regret, ax, unit=experiment.unit, time_label=experiment.time_label
        )
        ax.figure.suptitle(result.title, fontsize=10)
        save_figure(ax.figure, plot)
        saved(plot)
