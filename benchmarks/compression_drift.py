"""Entropy threshold against keeping all observations under drift: regret, model size.

Functions drawn from the Markov model on a 15 x 15 grid of the unit square, SE kernel of
length-scale 0.2 and variance 1, ε = 0.01 per round, σ² = 0.01, 2,000 rounds; TV-GP-UCB is given
the kernel, ε and σ². The seed determines function and noise, the same for all policies, except that
the noise differs after a skipped round.

Why the budget is near one nat: an action is known to variance p once its outcome is in, and to 1 -
(1 - ε)^Δ (1 - p) Δ rounds later. If every outcome is admitted, the variance before the next one
converges to about 0.016, a gain of 0.48 nats: a smaller budget rejects no repeat, however often the
action is tried. The budgets of the paper, about 1e-4, are for static functions. A budget of 0.75 is
a variance of 0.035, reached after some 3 rounds; the column "refused for" gives that number for
each budget.

Rejection slows the growth of the model; only with a stale cut-off does it end. A cut-off at weight
0.03 is an age of 349 rounds; in each round in which an observation reaches it, the posterior is
built again from those that stay. The cost of this posterior does not depend on the number kept, so
a smaller model saves memory and evaluations, not time.

Budget and cut-off were chosen on seeds 0 to 2, by the lowest regret at no more than 500
observations, among budgets from 0.5 to 1.5 (0.5, 1.1 and 1.5 on seed 0 alone) and cut-offs at 0.01,
0.03 and 0.1, with the size of window and limit that get as much memory; measured on seeds from 100
on.

    python benchmarks/compression_drift.py --seeds 16 --json docs/results/compression_drift.json
"""

from __future__ import annotations

import math
from functools import cache

import torch
from shared import in_workers, mean_error, parser, show, squared_exponential
from torch import Tensor

from tvbo import recipes, run
from tvbo.retention import (
    EntropyThreshold,
    KeepAll,
    Retention,
    SizeLimit,
    SlidingWindow,
    StaleCutoff,
)
from tvbo.test_functions import PanelProblem
from tvbo.test_functions.drifting_gp import covariance_root, drifting_values, unit_grid

RATE = 0.01
NOISE = 0.01
HORIZON = 2000
CHOICES = unit_grid(15)
KEEP_ALL = "keep all"
BUDGETS = (0.75, 1.25)
BUDGET = 0.75
TOL = 0.03
SIZE = 250
"""Largest number of observations held at the end, on the seeds used for the choice."""


def policies() -> dict[str, tuple[Retention, float | None]]:
    """Return the retention policies by name, with the budget in nats where there is one."""
    stale = StaleCutoff(RATE, TOL)
    discard = {b: EntropyThreshold(b, "discard") for b in BUDGETS}
    skip = EntropyThreshold(BUDGET, "skip")
    return {
        KEEP_ALL: (KeepAll(), None),
        **{f"discard {b:g}": (policy, b) for b, policy in discard.items()},
        f"discard {BUDGET:g} & stale {TOL:g}": (discard[BUDGET] & stale, BUDGET),
        f"skip {BUDGET:g} & stale {TOL:g}": (skip & stale, BUDGET),
        f"window {SIZE}": (SlidingWindow(SIZE), None),
        f"size limit {SIZE}": (SizeLimit(SIZE), None),
    }


def refused_for(budget: float) -> float:
    """Return the number of rounds for which an action alone is rejected after its outcome."""
    threshold = NOISE * math.expm1(2 * budget)
    after = threshold * NOISE / (threshold + NOISE)
    return math.log((1 - threshold) / (1 - after)) / math.log1p(-RATE)


@cache
def root() -> Tensor:
    """Return the Cholesky factor of the covariance of the grid, once per process."""
    return covariance_root(CHOICES, squared_exponential(0.2))


def one_seed(seed: int) -> dict[str, dict[str, float]]:
    """Run all policies on one drawn function."""
    values = drifting_values(
        root(), RATE, torch.arange(HORIZON), torch.Generator().manual_seed(seed)
    )
    measured = {}
    for name, (retention, _) in policies().items():
        noise = torch.Generator().manual_seed(10_000 + seed)
        problem = PanelProblem(values, choices=CHOICES, noise_variance=NOISE, generator=noise)
        optimizer = recipes.tv_gp_ucb(
            choices=CHOICES,
            covar_module=squared_exponential(0.2),
            forgetting_rate=RATE,
            noise_variance=NOISE,
            retention=retention,
            generator=torch.Generator().manual_seed(seed),
        )
        history = run(problem, optimizer, horizon=HORIZON, progress=False)
        frame = history.to_frame()
        measured[name] = {
            "regret": history.regret.mean().item(),
            "size_at_end": optimizer.model_size,
            "size_last_half": frame.model_size[HORIZON // 2 :].mean(),
            "evaluations_saved": 1 - frame.evaluated.mean(),
            "seconds": history.seconds.sum().item(),
        }
    return measured


def summary(name: str, budget: float | None, runs: list[dict]) -> dict:
    """Return the figures of one policy over all seeds."""
    columns = {
        key: torch.tensor([each[name][key] for each in runs]).double() for key in runs[0][name]
    }
    regret = columns["regret"]
    reference = torch.tensor([each[KEEP_ALL]["regret"] for each in runs]).double()
    ratio = regret.mean() / reference.mean()
    # By the delta method for pairs.
    error = (regret - ratio * reference).std() / (len(runs) ** 0.5 * reference.mean())
    return {
        "policy": name,
        "budget": budget,
        "refused_for": None if budget is None else refused_for(budget),
        **{key: values.mean().item() for key, values in columns.items()},
        "regret_standard_error": mean_error(regret)[1],
        "ratio": ratio.item(),
        "ratio_standard_error": error.item(),
        "largest_size_at_end": columns["size_at_end"].max().item(),
        "regret_by_seed": regret.tolist(),
    }


def main() -> None:
    """Run the benchmark, print a table, save JSON.

    The column of the ratio is that of mean regrets, with the standard error of pairs.
    """
    chosen = parser(__doc__, seeds=16, first_seed=100, workers=2).parse_args()
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    runs = in_workers(one_seed, seeds, chosen.workers)
    results = [summary(name, budget, runs) for name, (_, budget) in policies().items()]
    columns = {
        "retention": "{policy}",
        "refused for": lambda r: "" if r["budget"] is None else f"{r['refused_for']:.0f}",
        "mean regret": "{regret:.3f} ± {regret_standard_error:.3f}",
        f"of {KEEP_ALL}": "{ratio:.3f} ± {ratio_standard_error:.3f}",
        "size at end (largest)": "{size_at_end:.0f} ({largest_size_at_end:.0f})",
        "last half": "{size_last_half:.0f}",
        "saved": "{evaluations_saved:.1%}",
        "seconds": "{seconds:.1f}",
    }
    show(f"ε = {RATE}, {HORIZON} rounds, {len(seeds)} seeds", columns, results, chosen.json)


if __name__ == "__main__":
    main()
