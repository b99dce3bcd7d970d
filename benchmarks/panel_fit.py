"""Seconds of whole fits of panels, all forms compared, against one dense likelihood.

OMP_NUM_THREADS=1 python benchmarks/panel_fit.py --json docs/results/panel_fit.json

The panels have as many arms and times as the training stretches of METR-LA and of four weeks of
hours of 22 arms, and are drawn from two exponential decays. The dense likelihood is evaluated once,
without gradient, on the first rows of a panel, and extrapolated as the cube of the number of rows,
which leaves out its memory: 455 GB for METR-LA.
"""

from __future__ import annotations

import time

import torch
from evidence import draw
from shared import parser, show

from tvbo.kernels import CovarianceMatrixKernel
from tvbo.logs import empirical_covariance, fit_panel
from tvbo.logs.dataset import DriftLog, panel_rows
from tvbo.logs.likelihood import LogLikelihood

SIZES = ((22, 672), (207, 1152))
"""Arms and times of the panels."""

DENSE_ROWS = 4000


def dense_seconds(values: torch.Tensor, rows: int) -> float:
    """Return the CPU seconds of one dense likelihood of the first rows."""
    train_X, train_Y = panel_rows(values, torch.arange(len(values), dtype=torch.float64))
    log = DriftLog.from_rows(train_X[:rows], train_Y[:rows], None, -1)
    likelihood = LogLikelihood(log, CovarianceMatrixKernel(empirical_covariance(values)), None)
    started = time.process_time()
    with torch.no_grad():
        likelihood(torch.tensor(0.05).double(), torch.tensor(0.1).double())
    return time.process_time() - started


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    records = []
    for arms, times in SIZES:
        values = draw("two-scales", 0, arms, times)
        started = time.process_time()
        fit = fit_panel(values, torch.arange(times, dtype=torch.float64))
        whole = time.process_time() - started
        dense = dense_seconds(values, DENSE_ROWS) * (arms * times / DENSE_ROWS) ** 3
        records.append({"arms": arms, "times": times, "fit": whole, "form": fit.form})
        records[-1] |= {"dense": dense, "ratio": dense / whole}
    columns = {
        "arms x times": "{arms} x {times:,}",
        "whole fit": "{fit:.1f}",
        "picked": "{form}",
        f"one dense likelihood, from {DENSE_ROWS:,} rows": "{dense:,.0f}",
        "share": "1/{ratio:,.0f}",
    }
    show("CPU seconds", columns, records, chosen.json)


if __name__ == "__main__":
    main()
