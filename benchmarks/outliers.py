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
from shared import in_workers, mean_error, parser, show, squared_exponential
from torch import Tensor

from tvbo.logs import fit_drift
from tvbo.test_functions.drifting_gp import drifting_gp_log

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
    kernel = squared_exponential(0.3)
    Y = drifting_gp_log(X, kernel, RATE, NOISE, generator=generator)
    places = torch.randperm(ROWS, generator=generator)[: round(SHARE * ROWS)]
    signs = 2.0 * torch.randint(2, (len(places), 1), generator=generator) - 1
    return X, Y, places, signs


def one_log(job: tuple[float, int]) -> dict:
    """Return whether the interval covers, and how many rows were named, planted and others."""
    size, seed = job
    X, Y, places, signs = draw(seed)
    planted = set(places.tolist()) if size else set()
    if size:
        Y[places] += signs * size * NOISE**0.5
    fit = fit_drift(X, Y)
    rows = {row for row, _ in fit.outliers}
    low, high = fit.forgetting_rate_interval
    return {
        "covered": low <= RATE <= high,
        "planted_named": len(rows & planted) / max(1, len(planted)),
        "clean_named": len(rows - planted) / (ROWS - len(planted)),
        "same": not size and fit.to_dict() == fit_drift(X, Y, outliers=False).to_dict(),
    }


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__, logs=100, first=0, workers=2).parse_args()
    seeds = range(chosen.first, chosen.first + chosen.logs)
    jobs = [(size, seed) for size in (0.0, *SIZES) for seed in seeds]
    found = dict(zip(jobs, in_workers(one_log, jobs, chosen.workers), strict=True))
    records = []
    for size in (0.0, *SIZES):
        logs = [found[size, seed] for seed in seeds]
        means = {key: mean_error([each[key] for each in logs])[0] for key in logs[0]}
        records.append({"outliers": f"{size:g} σ" if size else "none", **means})
    columns = {
        "outliers": "{outliers}",
        "interval covers": "{covered:.0%}",
        "planted named": lambda r: "" if r["outliers"] == "none" else f"{r['planted_named']:.2%}",
        "clean named": "{clean_named:.2%}",
        "fit as without": lambda r: f"{r['same']:.2%}" if r["outliers"] == "none" else "",
    }
    title = f"{chosen.logs} logs of {ROWS} rows, ε = {RATE}"
    show(title, columns, records, chosen.json)


if __name__ == "__main__":
    main()
