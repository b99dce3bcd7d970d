"""Coverage of the true drift rate by the 95 % interval of `fit_drift`.

Logs are drawn from the model: 300 observations, one per unit of time, at random 2-D actions; SE
kernel of length-scale 0.3, signal variance 1, noise variance 0.05. Everything is learned: rate,
noise, scale, two length-scales and the mean.

    python benchmarks/coverage.py --draws 200 --json docs/results/coverage.json
"""

from __future__ import annotations

import statistics

import torch
from shared import in_workers, mean_error, parser, show, squared_exponential

from tvbo.logs import fit_drift
from tvbo.test_functions.drifting_gp import drifting_gp_log

RATES = (0.01, 0.05, 0.2)


def one_fit(job: tuple[float, int], n: int = 300) -> dict:
    """Draw one log, fit it, and return the results."""
    forgetting_rate, seed = job
    generator = torch.Generator().manual_seed(seed)
    actions = torch.rand(n, 2, dtype=torch.float64, generator=generator)
    times = torch.arange(1, n + 1, dtype=torch.float64).unsqueeze(-1)
    train_X = torch.cat([actions, times], dim=-1)
    kernel = squared_exponential(0.3)
    train_Y = drifting_gp_log(train_X, kernel, forgetting_rate, 0.05, generator=generator)
    fit = fit_drift(train_X, train_Y)
    low, high = fit.forgetting_rate_interval
    return {
        "forgetting_rate": fit.forgetting_rate,
        "covered": low <= forgetting_rate <= high,
        "drift_found": fit.lr_pvalue < 0.05,
        "with_messages": bool(fit.messages),
    }


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__, draws=200, workers=2).parse_args()
    jobs = [(rate, seed) for rate in RATES for seed in range(chosen.draws)]
    found = dict(zip(jobs, in_workers(one_fit, jobs, chosen.workers), strict=True))
    records = []
    for rate in RATES:
        fits = [found[rate, seed] for seed in range(chosen.draws)]
        means = {key: mean_error([fit[key] for fit in fits])[0] for key in fits[0]}
        covered = means["covered"]
        records.append(
            {
                **means,
                "true_rate": rate,
                "draws": chosen.draws,
                "error": (covered * (1 - covered) / chosen.draws) ** 0.5,
                "median": statistics.median(fit["forgetting_rate"] for fit in fits),
            }
        )
    columns = {
        "true ε": "{true_rate}",
        "draws": "{draws}",
        "coverage": "{covered:.1%}",
        "s.e.": "{error:.1%}",
        "median of ε̂": "{median:.4f}",
        "drift found (5 %)": "{drift_found:.1%}",
        "with messages": "{with_messages:.1%}",
    }
    show("95 % profile-likelihood intervals for ε", columns, records, chosen.json)


if __name__ == "__main__":
    main()
