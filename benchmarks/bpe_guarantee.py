"""How often BPE-Delay keeps the true maximizer with the widths of Theorem 6.1.

Functions of the kernel's RKHS, drawn as in the paper's experiments (the interpolation of a draw at
random points of [-5, 5]²), on a grid; Gaussian noise of standard deviation 0.02, λ² its variance;
Poisson delays. The width uses the true norm and σ. A run keeps the maximizer if it is among the
surviving actions at the end of the last round, after the outcomes that arrived by then.

Two other widths, which no theorem covers: the authors' multiplier 6, and the recipe's default.

    python benchmarks/bpe_guarantee.py --runs 200 --json docs/results/bpe_guarantee.json
"""

from __future__ import annotations

import statistics

import torch
from rich.progress import track
from scipy.stats import binomtest
from shared import parser, show, squared_exponential, with_error

from experiments.problems.rkhs import RKHSFunction
from experiments.vakili.setting import poisson_delay
from tvbo import recipes, run
from tvbo.optimizers.bpe import FiniteSetWidth, SubExponentialDelay
from tvbo.optimizers.bpe.confidence import FixedWidth, PriorDrawWidth, WidthRule
from tvbo.test_functions.drifting_gp import unit_grid

DELTA = 0.1
NOISE_SD = 0.02
WIDTHS = ("Theorem 6.1", "multiplier 6", "default")


def rule(name: str, problem: RKHSFunction) -> WidthRule:
    """Return the width rule of a name for a function."""
    rules = {
        "Theorem 6.1": FiniteSetWidth(problem.norm, NOISE_SD),
        "multiplier 6": FixedWidth(6.0),
        "default": PriorDrawWidth(),
    }
    return rules[name]


def one_run(name: str, seed: int, side: int, horizon: int, rate: float) -> dict:
    """Return whether the maximizer survives, and how many other actions do."""
    problem = RKHSFunction.draw(
        10 * unit_grid(side, dim=2) - 5,
        squared_exponential(1.0),
        noise_variance=NOISE_SD**2,
        generator=torch.Generator().manual_seed(seed),
    )
    optimizer = recipes.bpe_delay(
        choices=problem.choices,
        covar_module=squared_exponential(1.0),
        noise_variance=NOISE_SD**2,
        horizon=horizon,
        delta=DELTA,
        delay=SubExponentialDelay.poisson(rate),
        width=rule(name, problem),
        generator=torch.Generator().manual_seed(seed),
    )
    delay = poisson_delay(rate, torch.Generator().manual_seed(10_000 + seed))
    history = run(problem, optimizer, horizon=horizon, delay=delay, progress=False)
    left = optimizer.survivors
    best = problem.choices[problem.values.argmax()]
    return {
        "seed": seed,
        "norm": problem.norm,
        "kept": bool((left == best).all(dim=-1).any()),
        "left": len(left),
        "rounds": optimizer.to_frame()["size_after"].tolist(),
        "average_regret": history.regret.mean().item(),
    }


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__, runs=200, side=25, horizon=500, rate=25, first_seed=0).parse_args()
    torch.set_num_threads(1)
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.runs)
    records = []
    for name in WIDTHS:
        setting = chosen.side, chosen.horizon, float(chosen.rate)
        found = [one_run(name, seed, *setting) for seed in track(seeds, name)]
        kept = sum(one["kept"] for one in found)
        interval = binomtest(kept, len(found)).proportion_ci()
        left = [one["left"] for one in found]
        records.append(
            {
                "width": name,
                "kept": f"{kept} of {len(found)}",
                "interval": f"{interval.low:.3f} to {interval.high:.3f}",
                "left": f"{statistics.median(left):g}, {max(left):g}",
                "regret": with_error([one["average_regret"] for one in found], ".3f"),
                "runs": found,
            }
        )
    columns = {
        "width": "{width}",
        "maximizer kept": "{kept}",
        "that share, 95 % interval": "{interval}",
        f"actions left of {chosen.side**2}: median, most": "{left}",
        "average regret": "{regret}",
    }
    title = (
        f"BPE-Delay, T = {chosen.horizon}, Poisson({chosen.rate}) delays: at least "
        f"{1 - DELTA:.0%} of runs are to keep the maximizer"
    )
    show(title, columns, records, chosen.json)


if __name__ == "__main__":
    main()
