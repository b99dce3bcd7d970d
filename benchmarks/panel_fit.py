"""Seconds of a whole fit of a panel with two time scales, against one dense likelihood.

OMP_NUM_THREADS=1 python benchmarks/panel_fit.py --json docs/results/panel_fit.json

The panel has as many arms and times as the training stretch of METR-LA, and is drawn from two
exponential decays. The dense likelihood is evaluated once, without gradient, on the first rows of
the panel, and extrapolated as the cube of the number of rows, which leaves out the memory of 455 GB
that it would need.
"""

from __future__ import annotations

import time

import torch
from evidence import draw
from shared import parser, show

from tvbo.kernels import CovarianceMatrixKernel
from tvbo.logs import empirical_covariance, fit_panel
from tvbo.logs.dataset import DriftLog
from tvbo.logs.likelihood import LogLikelihood
from tvbo.logs.panel import panel_rows

ARMS, TIMES = 207, 1152
DENSE_ROWS = (2000, 4000, 8000)


def dense_seconds(values: torch.Tensor, rows: int) -> float:
    """Return the seconds of one dense likelihood of the first rows."""
    train_X, train_Y = panel_rows(values, torch.arange(len(values), dtype=torch.float64))
    log = DriftLog.from_rows(train_X[:rows], train_Y[:rows], None, -1)
    likelihood = LogLikelihood(log, CovarianceMatrixKernel(empirical_covariance(values)), None)
    started = time.perf_counter()
    with torch.no_grad():
        likelihood(torch.tensor(0.05).double(), torch.tensor(0.1).double())
    return time.perf_counter() - started


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    values = draw("two-scales", 0, ARMS, TIMES)
    started = time.perf_counter()
    fit = fit_panel(values, torch.arange(TIMES, dtype=torch.float64), temporal_kernel="two-scales")
    whole = time.perf_counter() - started
    records = []
    for rows in DENSE_ROWS:
        dense = dense_seconds(values, rows)
        extrapolated = dense * (ARMS * TIMES / rows) ** 3
        records.append(
            {"fit": whole, "rows": rows, "dense": dense, "extrapolated": extrapolated}
            | {"ratio": extrapolated / whole}
        )
    print(fit)
    columns = {
        "dense rows": "{rows:,}",
        "seconds": "{dense:.2f}",
        "extrapolated": "{extrapolated:,.0f}",
        "whole fit": "{fit:.1f}",
        "share": "1/{ratio:,.0f}",
    }
    title = f"{ARMS} arms x {TIMES} times = {ARMS * TIMES:,} rows"
    show(title, columns, records, chosen.json)


if __name__ == "__main__":
    main()
