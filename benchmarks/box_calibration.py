"""How often the 95 % band of `tv_gp_ucb` on a box holds the outcome, with everything learned.

Functions are drawn from the drifting Gaussian process with RBF kernel and known ε; nothing is given
to the loop. Before each outcome, the band is that of the loop's own prediction at its ask, noise
included; the outcomes after the first fit count.

    python benchmarks/box_calibration.py --seeds 20 --json docs/results/box_calibration.json
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import torch
from report import parser, show
from rich.progress import track
from torch import Generator

from tvbo import recipes
from tvbo.models import AveragedGP
from tvbo.test_functions import DriftingFeatures

RATES = (0.01, 0.03, 0.1)
HORIZON, NOISE_VARIANCE = 80, 0.05
BAND = 1.959964


def one(job: tuple[float, int]) -> list[bool]:
    """Return whether the band held each outcome that was predicted after the first fit."""
    rate, seed = job
    problem = DriftingFeatures(
        HORIZON,
        forgetting_rate=rate,
        noise_variance=NOISE_VARIANCE,
        generator=Generator().manual_seed(seed),
    )
    optimizer = recipes.tv_gp_ucb(bounds=problem.bounds, generator=Generator().manual_seed(seed))
    held = []
    for t in range(1, HORIZON + 1):
        trial = optimizer.ask(t=float(t))
        row = problem.layout.rows(trial.X, float(t))
        outcome = problem(row).item()
        model = optimizer.model
        if isinstance(model, AveragedGP):
            predicted = model.posterior(row, observation_noise=True)
            error = (outcome - predicted.mean.item()) / predicted.variance.sqrt().item()
            held.append(abs(error) <= BAND)
        optimizer.tell(trial, outcome)
    return held


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=20)
    options.add_argument("--workers", type=int, default=2)
    chosen = options.parse_args()
    jobs = [(rate, seed) for rate in RATES for seed in range(chosen.seeds)]
    with ProcessPoolExecutor(
        chosen.workers, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        runs = list(track(pool.map(one, jobs), description="runs", total=len(jobs)))
    results = []
    for rate in (*RATES, None):
        mine = [run for job, run in zip(jobs, runs, strict=True) if rate in (job[0], None)]
        shares = torch.tensor([sum(run) / len(run) for run in mine], dtype=torch.float64)
        results.append(
            {
                "forgetting_rate": rate,
                "outcomes": sum(map(len, mine)),
                "coverage": shares.mean().item(),
                "standard_error": (shares.std() / len(shares) ** 0.5).item(),
            }
        )
    table = [
        (
            "all" if r["forgetting_rate"] is None else str(r["forgetting_rate"]),
            str(r["outcomes"]),
            f"{100 * r['coverage']:.1f} ± {100 * r['standard_error']:.1f} %",
        )
        for r in results
    ]
    columns = ("ε of the function", "outcomes", "in the 95 % band")
    show(f"{chosen.seeds} functions for each ε", columns, table, results, chosen.json)


if __name__ == "__main__":
    main()
