"""Coverage of the true drift rate by the 95 % interval of `fit_drift`.

Logs are drawn from the model: 300 observations, one per unit of time, at random 2-D actions; SE
kernel of length-scale 0.3, signal variance 1, noise variance 0.05. Everything is learned: rate,
noise, scale, two length-scales and the mean.

    python benchmarks/coverage.py --draws 200 --json docs/results/coverage.json
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial

import torch
from gpytorch.kernels import RBFKernel
from report import parser, show
from rich.progress import track

from tvbo.logs import fit_drift
from tvbo.test_functions import drifting_gp_log

RATES = (0.01, 0.05, 0.2)


def one_fit(seed: int, forgetting_rate: float, n: int = 300) -> dict:
    """Draw one log, fit it, and return the results."""
    generator = torch.Generator().manual_seed(seed)
    actions = torch.rand(n, 2, dtype=torch.float64, generator=generator)
    times = torch.arange(1, n + 1, dtype=torch.float64).unsqueeze(-1)
    train_X = torch.cat([actions, times], dim=-1)
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.3
    train_Y = drifting_gp_log(train_X, kernel, forgetting_rate, 0.05, generator=generator)
    fit = fit_drift(train_X, train_Y)
    low, high = fit.forgetting_rate_interval
    return {
        "seed": seed,
        "forgetting_rate": fit.forgetting_rate,
        "interval": [low, high],
        "covered": low <= forgetting_rate <= high,
        "drift_found": fit.lr_pvalue < 0.05,
        "messages": fit.messages,
    }


def measure(forgetting_rate: float, draws: int, workers: int) -> dict:
    """Return the coverage over seeds ``0 ... draws - 1``."""
    work = partial(one_fit, forgetting_rate=forgetting_rate)
    with ProcessPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        fits = list(
            track(pool.map(work, range(draws)), description=f"ε = {forgetting_rate}", total=draws)
        )
    covered = sum(fit["covered"] for fit in fits) / draws
    estimates = torch.tensor([fit["forgetting_rate"] for fit in fits], dtype=torch.float64)
    return {
        "forgetting_rate": forgetting_rate,
        "draws": draws,
        "coverage": covered,
        "coverage_standard_error": (covered * (1 - covered) / draws) ** 0.5,
        "median_estimate": estimates.median().item(),
        "drift_found": sum(fit["drift_found"] for fit in fits) / draws,
        "with_messages": sum(bool(fit["messages"]) for fit in fits),
    }


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    options = parser(__doc__)
    options.add_argument("--draws", type=int, default=200)
    options.add_argument("--workers", type=int, default=2)
    chosen = options.parse_args()
    results = [measure(rate, chosen.draws, chosen.workers) for rate in RATES]
    rows = [
        (
            f"{r['forgetting_rate']}",
            f"{r['draws']}",
            f"{r['coverage']:.1%}",
            f"{r['coverage_standard_error']:.1%}",
            f"{r['median_estimate']:.4f}",
            f"{r['drift_found']:.1%}",
        )
        for r in results
    ]
    columns = ("true ε", "draws", "coverage", "s.e.", "median of ε̂", "drift found (5 %)")
    show("95 % profile-likelihood intervals for ε", columns, rows, results, chosen.json)


if __name__ == "__main__":
    main()
