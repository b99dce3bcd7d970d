"""The reproductions that the command line knows, each with its data and its picture."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from tvbo.plotting import plot_average_regret, plot_regret_against, plot_regret_panels
from tvbo.plotting.bedi import plot_compression
from tvbo.plotting.krause import plot_tasks
from tvbo.plotting.vakili import plot_cumulative_regret
from tvbo.problems.digits import mnist
from tvbo.problems.intel_lab import intel_lab, intel_lab_days
from tvbo.problems.mhc import mhc
from tvbo.problems.traffic import traffic
from tvbo.reproduce import (
    Reproduction,
    bedi_table2,
    bedi_table3,
    bedi_table4,
    bogunovic_fig2a,
    bogunovic_fig2b,
    bogunovic_fig2c,
    bogunovic_fig2d,
    bogunovic_fig3a,
    bogunovic_fig3cf,
    krause_fig2,
    krause_fig3,
    vakili_fig2,
    vakili_fig3,
    vakili_fig4,
    vakili_fig5,
)
from tvbo.reproduce.krause_fig2_claims import worst_gap

PRIOR = "prior s.d."
"""Unit of the reward of drawn functions."""


@dataclass(frozen=True)
class Experiment:
    """A reproduction by name.

    Args:
        what: What it shows, and the data it needs.
        run: Runs it, from the number of trials, the seed, and the executor that does the trials, or
            None to do them here.
        plot: Draws it.
        trials: Number of trials where none is asked for: the paper's, if it gives one.
        run_on: Runs it on data of the user's choice, from its folder, too; None where there is no
            choice.
    """

    what: str
    run: Callable[[int, int, Executor | None], Reproduction]
    plot: Callable[[Reproduction], Figure]
    trials: int
    run_on: Callable[[Path, int, int, Executor | None], Reproduction] | None = None


def plot_temperatures(result: Reproduction) -> Figure:
    """Average regret of every algorithm."""
    ax = plot_average_regret(result.regret, unit="°C", time_label="round (10 minutes each)")
    return ax.figure


def plot_traffic(result: Reproduction) -> Figure:
    """Average regret of every algorithm, a panel for each test day."""
    fitted = {"TV-GP-UCB": f"TV-GP-UCB, fitted ε = {result.settings['forgetting_rate']:.2f}"}
    panels = {
        f"day {day}": {fitted.get(name, name): rows[:, i] for name, rows in result.regret.items()}
        for i, day in enumerate(result.settings["test_days"])
    }
    return plot_regret_panels(panels, unit="mph", time_label="round (5 minutes each)")


def plot_molecules(result: Reproduction) -> Figure:
    """Average regret over the molecules, and the largest gap of any of them."""
    names = [name.removeprefix("HLA-") for name in result.settings["molecules"]]
    panels: dict[str, dict[str, Tensor]] = {}
    for name, rows in result.regret.items():
        algorithm, _, once = name.partition(", ")
        panels.setdefault(once or "peptides may be tried again", {})[algorithm] = rows
    gaps = {
        title: {name: worst_gap(rows) for name, rows in panel.items()}
        for title, panel in panels.items()
    }
    return plot_tasks(panels, gaps, names, unit="log10 of affinity")


def plot_sensors(result: Reproduction) -> Figure:
    """Average regret of every algorithm: of the warmest reading of a step, and of their average."""
    measures = ("maximum of the readings", "average of the readings")
    panels = {
        measure: {name: rows[:, i] for name, rows in result.regret.items()}
        for i, measure in enumerate(measures)
    }
    return plot_regret_panels(
        panels, unit="°C", time_label="step (5 minutes each)", panel_height=4.5
    )


def plot_matched_case(result: Reproduction) -> Figure:
    """Average regret of every algorithm, a panel for each true ε."""
    panels: dict[str, dict[str, Tensor]] = {}
    for name, rows in result.regret.items():
        algorithm, rate = name.split(", ")
        panels.setdefault(rate, {})[algorithm] = rows
    return plot_regret_panels(panels, unit=PRIOR)


def plot_wrong_rate(result: Reproduction) -> Figure:
    """Average regret against the assumed ε."""
    ax = _plot_against(result, "assumed_rates", "ε assumed by TV-GP-UCB, per round")
    # Linear around 0, which a logarithm could not show.
    ax.set_xscale("symlog", linthresh=1e-3, linscale=0.5)
    ax.set_xticks(
        [0, 0.001, 0.003, 0.01, 0.03, 0.1], ["0", "0.001", "0.003", "0.01", "0.03", "0.1"]
    )
    ax.set_xlim(-2e-4, 0.12)
    ax.axvline(result.settings["true_rate"], color="black", linestyle=":", linewidth=1)
    ax.annotate("true ε", (result.settings["true_rate"], 0), (4, 4), textcoords="offset points")
    return ax.figure


def plot_wrong_length(result: Reproduction) -> Figure:
    """Average regret against the block length."""
    ax = _plot_against(result, "block_lengths", "block length N of R-GP-UCB, rounds")
    matched = result.settings["matched_block_length"]
    ax.axvline(matched, color="black", linestyle=":", linewidth=1)
    ax.annotate("N by the rule", (matched, 0), (4, 4), textcoords="offset points")
    return ax.figure


def plot_tables(result: Reproduction) -> Figure:
    """Regret, clock time and model order; the models that were timed only are left out."""

    def panels(curves: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        shown: dict[str, dict[str, Tensor]] = {}
        for name, rows in curves.items():
            acquisition, model = name.rsplit(", ", 1)
            if acquisition in ("UCB", "EI", "MPI") and model in ("dense", "compressed", "BKB"):
                shown.setdefault(acquisition, {})[model] = rows
        return shown

    return plot_compression(
        panels(result.regret),
        panels(result.curves["seconds"]),
        panels(result.curves["model_order"]),
        bound=min(result.settings["cell_bound"], result.settings["information_bound"]),
        unit="accuracy" if result.name == "bedi-table4" else "",
    )


def plot_delays(result: Reproduction) -> Figure:
    """Cumulative regret of every algorithm at every λ, a panel for each function."""
    lengthscales = result.settings["lengthscales"]
    panels: dict[str, dict[str, Tensor]] = {}
    for name, rows in result.regret.items():
        function, run = name.split(", ", 1)
        title = f"{function}, l = {lengthscales[function]}"
        panels.setdefault(title, {})[run] = rows
    return plot_cumulative_regret(panels)


def _plot_against(result: Reproduction, setting: str, label: str) -> Axes:
    regret = torch.stack([rows.mean(dim=1) for rows in result.regret.values()])
    return plot_regret_against(torch.tensor(result.settings[setting]), regret, label, unit=PRIOR)


EXPERIMENTS = {
    "bogunovic-fig2a": Experiment(
        what="Drawn functions, squared exponential kernel: TV-GP-UCB, R-GP-UCB, GP-UCB",
        run=lambda trials, seed, executor: bogunovic_fig2a(
            trials=trials, seed=seed, executor=executor
        ),
        plot=plot_matched_case,
        trials=200,
    ),
    "bogunovic-fig2b": Experiment(
        what="The same with the Matérn kernel",
        run=lambda trials, seed, executor: bogunovic_fig2b(
            trials=trials, seed=seed, executor=executor
        ),
        plot=plot_matched_case,
        trials=200,
    ),
    "bogunovic-fig2c": Experiment(
        what="TV-GP-UCB with a wrong ε",
        run=lambda trials, seed, executor: bogunovic_fig2c(
            trials=trials, seed=seed, executor=executor
        ),
        plot=plot_wrong_rate,
        trials=200,
    ),
    "bogunovic-fig2d": Experiment(
        what="R-GP-UCB over its block length N",
        run=lambda trials, seed, executor: bogunovic_fig2d(
            trials=trials, seed=seed, executor=executor
        ),
        plot=plot_wrong_length,
        trials=200,
    ),
    "bogunovic-fig3a": Experiment(
        what="Temperatures of 46 sensors: TV-GP-UCB, R-GP-UCB, GP-UCB, RExp3, random "
        "(needs TVBO_DATA)",
        run=lambda trials, seed, executor: bogunovic_fig3a(
            intel_lab(), trials=trials, seed=seed, executor=executor
        ),
        plot=plot_temperatures,
        trials=20,
    ),
    "bogunovic-fig3cf": Experiment(
        what="Speeds of 50 road sensors, 6 mornings: TV-GP-UCB, GP-UCB (needs TVBO_DATA)",
        run=lambda trials, seed, executor: bogunovic_fig3cf(
            traffic(), trials=trials, seed=seed, executor=executor
        ),
        plot=plot_traffic,
        trials=20,
    ),
    "krause-fig2": Experiment(
        what="Peptides for 7 HLA-A molecules: CGP-UCB, merged, separate (needs TVBO_DATA)",
        run=lambda trials, seed, executor: krause_fig2(
            mhc(), trials=trials, seed=seed, executor=executor
        ),
        plot=plot_molecules,
        trials=10,
    ),
    "krause-fig3": Experiment(
        what="Five of 46 sensors every 5 minutes: CGP-UCB, merged, separate, and with drift "
        "(needs TVBO_DATA)",
        run=lambda trials, seed, executor: krause_fig3(
            intel_lab_days(), trials=trials, seed=seed, executor=executor
        ),
        plot=plot_sensors,
        trials=3,
    ),
    "bedi-table2": Experiment(
        what="Compressed GP bandits on the example function: UCB, EI, MPI; dense, compressed, BKB",
        run=lambda trials, seed, executor: bedi_table2(trials=trials, seed=seed, executor=executor),
        plot=plot_tables,
        trials=20,
    ),
    "bedi-table3": Experiment(
        what="The same on the Rosenbrock function",
        run=lambda trials, seed, executor: bedi_table3(trials=trials, seed=seed, executor=executor),
        plot=plot_tables,
        trials=20,
    ),
    "bedi-table4": Experiment(
        what="The same on 4 hyperparameters of a logistic regression (digits; --data: MNIST)",
        run=lambda trials, seed, executor: bedi_table4(trials=trials, seed=seed, executor=executor),
        plot=plot_tables,
        trials=5,
        run_on=lambda folder, trials, seed, executor: bedi_table4(
            mnist(folder), trials=trials, seed=seed, executor=executor
        ),
    ),
    "vakili-fig2": Experiment(
        what="Outcomes late by 50 rounds: BPE-Delay, BPE, GP-UCB-SDF, GP-TS-SDF, GP-BUCB, GP-UCB",
        run=lambda trials, seed, executor: vakili_fig2(trials=trials, seed=seed, executor=executor),
        plot=plot_delays,
        trials=10,
    ),
    "vakili-fig3": Experiment(
        what="BPE-Delay where outcomes are late by 0, 25, 50 rounds",
        run=lambda trials, seed, executor: vakili_fig3(trials=trials, seed=seed, executor=executor),
        plot=plot_delays,
        trials=10,
    ),
    "vakili-fig4": Experiment(
        what="GP-UCB-SDF where outcomes are late by 0, 25, 50 rounds",
        run=lambda trials, seed, executor: vakili_fig4(trials=trials, seed=seed, executor=executor),
        plot=plot_delays,
        trials=10,
    ),
    "vakili-fig5": Experiment(
        what="BPE and BPE-Delay where outcomes are late by 50 rounds",
        run=lambda trials, seed, executor: vakili_fig5(trials=trials, seed=seed, executor=executor),
        plot=plot_delays,
        trials=10,
    ),
}
