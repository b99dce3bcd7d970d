"""Intervals of ε from logs with outliers, and which rows are named.

PYTHONPATH=. python benchmarks/outliers.py --first 100 --logs 200 --json docs/results/outliers.json

Each log has 300 rows, one a unit of time, of a function drawn with ε = 0.05, a variance of 1 and an
RBF kernel of lengthscale 0.3 over one action, with a noise variance of 0.05. One row in a hundred
is moved up or down by 10, 100 or 1,000 standard deviations of the noise. An interval covers if it
holds 0.05. The clean logs are the same ones without outliers; they are fitted with the search and
without.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import RBFKernel
from report import parser, show
from torch import Tensor

from tvbo.logs import DriftFit, fit_drift
from tvbo.test_functions import drifting_gp_log

ROWS = 300
RATE = 0.05
NOISE = 0.05
SHARE = 0.01
SIZES = (10.0, 100.0, 1000.0)


def draw(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return rows, outcomes, and the places and signs of the outliers."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(ROWS, 2, dtype=torch.float64, generator=generator)
    X[:, 1] = torch.arange(ROWS)
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.3
    Y = drifting_gp_log(X, kernel, RATE, NOISE, generator=generator)
    places = torch.randperm(ROWS, generator=generator)[: round(SHARE * ROWS)]
    signs = 2.0 * torch.randint(2, (len(places), 1), generator=generator) - 1
    return X, Y, places, signs


def covers(fit: DriftFit) -> bool:
    """Return whether the interval holds the true rate."""
    low, high = fit.forgetting_rate_interval
    return low <= RATE <= high


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    options = parser(__doc__)
    options.add_argument("--logs", type=int, default=100)
    options.add_argument("--first", type=int, default=0, help="first seed")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    figures = []
    for size in (0.0, *SIZES):
        covered = named = wrong = alike = planted = 0
        for seed in range(chosen.first, chosen.first + chosen.logs):
            X, Y, places, signs = draw(seed)
            if size:
                Y[places] += signs * size * NOISE**0.5
            fit = fit_drift(X, Y)
            rows = {row for row, _ in fit.outliers}
            covered += covers(fit)
            if size:
                planted += len(places)
                named += len(rows & set(places.tolist()))
                wrong += len(rows - set(places.tolist()))
            else:
                wrong += len(rows)
                alike += fit.to_dict() == fit_drift(X, Y, outliers=False).to_dict()
        figures.append(
            {
                "first_seed": chosen.first,
                "logs": chosen.logs,
                "outliers": f"{size:g} σ" if size else "none",
                "covered": covered / chosen.logs,
                "planted_named": named / planted if planted else None,
                "clean_named": wrong / (ROWS * chosen.logs - planted),
                "same_as_without_search": None if size else alike / chosen.logs,
            }
        )
        # Printed as it goes, since a run takes half an hour.
        print(figures[-1], flush=True)
    rows = [
        (
            f["outliers"],
            f"{f['covered']:.0%}",
            *(
                "" if f[key] is None else f"{f[key]:.2%}"
                for key in ("planted_named", "clean_named", "same_as_without_search")
            ),
        )
        for f in figures
    ]
    columns = ("outliers", "interval covers", "planted named", "clean named", "fit as without")
    show(f"{chosen.logs} logs of {ROWS} rows, ε = {RATE}", columns, rows, figures, chosen.json)


if __name__ == "__main__":
    main()
