"""Registry of the figures and tables, each with its data and its plot."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments.bedi.tables import bedi_table2, bedi_table3, bedi_table4
from experiments.bogunovic.fig2ab import bogunovic_fig2a, bogunovic_fig2b
from experiments.bogunovic.fig2cd import bogunovic_fig2c, bogunovic_fig2d
from experiments.bogunovic.fig3a import bogunovic_fig3a
from experiments.bogunovic.fig3cf import bogunovic_fig3cf
from experiments.claims import Reproduction
from experiments.data.digits import mnist
from experiments.data.intel_lab import intel_lab, intel_lab_days
from experiments.data.mhc import mhc
from experiments.data.traffic import traffic
from experiments.krause.fig2 import krause_fig2
from experiments.krause.fig3 import krause_fig3
from experiments.panels import panel_data, panels, plot_panels
from experiments.plots.bedi import plot_tables
from experiments.plots.bogunovic import (
    plot_matched_case,
    plot_temperatures,
    plot_traffic,
    plot_wrong_length,
    plot_wrong_rate,
)
from experiments.plots.krause import plot_molecules, plot_sensors
from experiments.plots.vakili import plot_delays
from experiments.vakili.figures import vakili_fig2, vakili_fig3, vakili_fig4, vakili_fig5


@dataclass(frozen=True)
class Experiment:
    """A figure or table by name.

    Args:
        what: Description of what it shows and which data it needs.
        figure: Function that reproduces it, of its data if it needs some and of the keywords
            ``trials``, ``seed`` and ``executor``; an executor of None runs serially.
        plot: Function that plots it.
        trials: Default number of replicates, that of the paper if it gives one.
        data: Function that reads its data from the folder ``TVBO_DATA``; None if it needs none.
        read: Function that reads other data from a folder; None if there is no choice.
    """

    what: str
    figure: Callable[..., Reproduction]
    plot: Callable[[Reproduction], Figure]
    trials: int
    data: Callable[[], Any] | None = None
    read: Callable[[Path], Any] | None = None

    def run(
        self, trials: int, seed: int, executor: Executor | None, folder: Path | None = None
    ) -> Reproduction:
        """Reproduce the figure.

        Args:
            trials: Number of replicates.
            seed: The first seed.
            executor: Executor that runs the replicates; None runs them serially.
            folder: Folder of other data, where :attr:`read` is given; None for the default data.
        """
        if folder is not None:
            data = [self.read(folder)]
        else:
            data = [] if self.data is None else [self.data()]
        return self.figure(*data, trials=trials, seed=seed, executor=executor)


EXPERIMENTS = {
    "bogunovic-fig2a": Experiment(
        what="Drawn functions, squared exponential kernel: TV-GP-UCB, R-GP-UCB, GP-UCB",
        figure=bogunovic_fig2a,
        plot=plot_matched_case,
        trials=200,
    ),
    "bogunovic-fig2b": Experiment(
        what="The same with the Matérn kernel",
        figure=bogunovic_fig2b,
        plot=plot_matched_case,
        trials=200,
    ),
    "bogunovic-fig2c": Experiment(
        what="TV-GP-UCB with a wrong ε",
        figure=bogunovic_fig2c,
        plot=plot_wrong_rate,
        trials=200,
    ),
    "bogunovic-fig2d": Experiment(
        what="R-GP-UCB over its block length N",
        figure=bogunovic_fig2d,
        plot=plot_wrong_length,
        trials=200,
    ),
    "bogunovic-fig3a": Experiment(
        what="Temperatures of 46 sensors: TV-GP-UCB, R-GP-UCB, GP-UCB, RExp3, random "
        "(needs TVBO_DATA)",
        figure=bogunovic_fig3a,
        plot=plot_temperatures,
        trials=20,
        data=intel_lab,
    ),
    "bogunovic-fig3cf": Experiment(
        what="Speeds of 50 road sensors, 6 mornings: TV-GP-UCB, GP-UCB (needs TVBO_DATA)",
        figure=bogunovic_fig3cf,
        plot=plot_traffic,
        trials=20,
        data=traffic,
    ),
    "panels": Experiment(
        what="Three recorded panels: the model fitted to each, against its best arm of training "
        "(needs TVBO_DATA)",
        figure=panels,
        plot=plot_panels,
        trials=20,
        data=panel_data,
    ),
    "krause-fig2": Experiment(
        what="Peptides for 7 HLA-A molecules: CGP-UCB, merged, separate (needs TVBO_DATA)",
        figure=krause_fig2,
        plot=plot_molecules,
        trials=10,
        data=mhc,
    ),
    "krause-fig3": Experiment(
        what="Five of 46 sensors every 5 minutes: CGP-UCB, merged, separate, and with drift "
        "(needs TVBO_DATA)",
        figure=krause_fig3,
        plot=plot_sensors,
        trials=3,
        data=intel_lab_days,
    ),
    "bedi-table2": Experiment(
        what="Compressed GP bandits on the example function: UCB, EI, MPI; dense, compressed, BKB",
        figure=bedi_table2,
        plot=plot_tables,
        trials=20,
    ),
    "bedi-table3": Experiment(
        what="The same on the Rosenbrock function",
        figure=bedi_table3,
        plot=plot_tables,
        trials=20,
    ),
    "bedi-table4": Experiment(
        what="The same on 4 hyperparameters of a logistic regression (digits; --data: MNIST)",
        figure=bedi_table4,
        plot=plot_tables,
        trials=5,
        read=mnist,
    ),
    "vakili-fig2": Experiment(
        what="Outcomes late by 50 rounds: BPE-Delay, BPE, GP-UCB-SDF, GP-TS-SDF, GP-BUCB, GP-UCB",
        figure=vakili_fig2,
        plot=plot_delays,
        trials=10,
    ),
    "vakili-fig3": Experiment(
        what="BPE-Delay where outcomes are late by 0, 25, 50 rounds",
        figure=vakili_fig3,
        plot=plot_delays,
        trials=10,
    ),
    "vakili-fig4": Experiment(
        what="GP-UCB-SDF where outcomes are late by 0, 25, 50 rounds",
        figure=vakili_fig4,
        plot=plot_delays,
        trials=10,
    ),
    "vakili-fig5": Experiment(
        what="BPE and BPE-Delay where outcomes are late by 50 rounds",
        figure=vakili_fig5,
        plot=plot_delays,
        trials=10,
    ),
}
