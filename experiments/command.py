"""``python -m experiments``: reproduce figures and tables of the papers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from experiments.data.recorded import VARIABLE
from experiments.registry import EXPERIMENTS, Experiment
from experiments.report import print_reproduction
from experiments.spread import worker_processes
from tvbo.cli.app import check_outputs, console, run_app, saving
from tvbo.evaluation import dask_executor
from tvbo.logs.reading import TableError
from tvbo.plotting import save_figure

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="Name of the figure or table.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the names.")] = False,
    trials: Annotated[
        int | None,
        typer.Option(help="Number of paired trials; default: the figure's own, see --list.", min=1),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="First seed: of the trials, or of what they share.")
    ] = 0,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of data to use instead of the usual; bedi-table4: MNIST."),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(help="Processes of this machine that share the trials; 1: this one.", min=1),
    ] = 1,
    dask: Annotated[
        str | None,
        typer.Option(help="Scheduler of a Dask cluster that shares them, such as tcp://HOST:8786."),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Save results and claims as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Save the figure, FILE.png.")] = None,
) -> None:
    """Reproduce a figure or table of a paper, and print which of its claims are confirmed.

    Results do not depend on the executor, except for clock times (bedi-*).
    """
    if show_list:
        table = Table("name", "what it shows", "trials")
        for known, experiment in EXPERIMENTS.items():
            table.add_row(known, experiment.what, str(experiment.trials))
        console.print(table)
        return
    if name not in EXPERIMENTS:
        raise TableError(
            f"Expected the name of a reproduction: {', '.join(EXPERIMENTS)}; --list says what they "
            f"show. Got {name or 'none'}."
        )
    experiment = EXPERIMENTS[name]
    if data is not None and experiment.read is None:
        raise TableError(f"Expected {name} without --data, which it has no use for. Got {data}.")
    check_outputs({"--json": json, "--plot": plot}, _data_files(data), "--plot")
    with _executor(workers, dask) as executor:
        _run(experiment, trials, seed, json, plot, data, executor)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    run_app(app, "experiments", arguments)


def _data_files(*folders: Path | None) -> list[Path]:
    """Return the files that a reproduction may read: recorded data, and those of given folders."""
    named = [os.environ.get(VARIABLE), *folders]
    return [
        file
        for folder in named
        if folder
        for pattern in ("*", "*/*")
        for file in Path(folder).glob(pattern)
        if file.is_file()
    ]


@contextmanager
def _executor(workers: int, dask: str | None) -> Iterator[Executor | None]:
    """Yield the executor that runs the replicates; None runs them serially."""
    if dask is not None and workers != 1:
        raise TableError(f"Expected --workers or --dask, not both. Got {workers} and {dask}.")
    try:
        if dask is not None:
            with dask_executor(dask) as executor:
                yield executor
        elif workers != 1:
            with worker_processes(workers) as executor:
                yield executor
        else:
            yield None
    except ModuleNotFoundError as error:
        raise TableError(str(error)) from error
    except BrokenExecutor as error:
        raise TableError(
            f"Expected workers that live to the end of their work. Got: {error} Is there enough "
            "memory for so many?"
        ) from error


def _run(
    experiment: Experiment,
    trials: int | None,
    seed: int,
    json: Path | None,
    plot: Path | None,
    data: Path | None,
    executor: Executor | None,
) -> None:
    """Run an experiment, print its results and save them; None is its default number of trials."""
    trials = experiment.trials if trials is None else trials
    result = experiment.run(trials, seed, executor, data)
    print_reproduction(result)
    if json is not None:
        with saving(json) as file:
            result.to_json(file)
    if plot is not None:
        figure = experiment.plot(result)
        figure.suptitle(result.title, fontsize=10)
        with saving(plot) as file:
            save_figure(figure, file)
