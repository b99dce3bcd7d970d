"""How often the 95 % band of `tv_gp_ucb` on a box holds the outcome, with everything learned.

Functions are drawn from the drifting Gaussian process with RBF kernel and known ε; nothing is given
to the loop. Before each outcome, the band is that of the loop's own prediction at its ask, noise
included; the outcomes after the first fit count.

    PYTHONPATH=. python benchmarks/box_calibration.py --json docs/results/box_calibration.json
"""

from __future__ import annotations

from shared import in_workers, mean_error, parser, show
from torch import Generator

from experiments.problems.moving_functions import DriftingFeatures
from tvbo import recipes
from tvbo.models import EnsembleGP

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
        if isinstance(model, EnsembleGP) and len(model.weights) > 1:
            predicted = model.posterior(row, observation_noise=True)
            error = (outcome - predicted.mean.item()) / predicted.variance.sqrt().item()
            held.append(abs(error) <= BAND)
        optimizer.tell(trial, outcome)
    return held


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__, seeds=20, workers=2).parse_args()
    jobs = [(rate, seed) for rate in RATES for seed in range(chosen.seeds)]
    runs = in_workers(one, jobs, chosen.workers)
    records = []
    for rate in (*RATES, "all"):
        mine = [run for job, run in zip(jobs, runs, strict=True) if rate in (job[0], "all")]
        mean, error = mean_error([sum(run) / len(run) for run in mine])
        outcomes = sum(map(len, mine))
        records.append({"rate": rate, "outcomes": outcomes, "coverage": mean, "error": error})
    columns = {
        "ε of the function": "{rate}",
        "outcomes": "{outcomes}",
        "in the 95 % band": "{coverage:.1%} ± {error:.1%}",
    }
    show(f"{chosen.seeds} functions for each ε", columns, records, chosen.json)


if __name__ == "__main__":
    main()
