"""How often BPE-Delay keeps the true maximizer with the widths of Theorem 6.1.

Functions of the kernel's RKHS, drawn as in the paper's experiments (the interpolation of a draw at
random points of [-5, 5]²), on a grid; Gaussian noise of standard deviation 0.02, λ² its variance;
Poisson delays. The width uses the true norm and σ. A run keeps the maximizer if it is among the
surviving actions at the end of the last round, after the outcomes that arrived by then.

Two other widths, which no theorem covers: the authors' multiplier 6, and the recipe's default.

    python benchmarks/bpe_guarantee.py --runs 200 --json docs/results/bpe_guarantee.json
"""

from __future__ import annotations

import torch
from gpytorch.kernels import RBFKernel
from report import parser, show
from rich.progress import track
from scipy.stats import binomtest

from tvbo import recipes, run
from tvbo.evaluation import PoissonDelay
from tvbo.test_functions import unit_grid
from tvbo.test_functions.rkhs import RKHSFunction
from tvbo.theory import (
    FiniteSetWidth,
    FixedWidth,
    PriorDrawWidth,
    SubExponentialDelay,
    WidthRule,
)

DELTA = 0.1
NOISE_SD = 0.02
WIDTHS = ("Theorem 6.1", "multiplier 6", "default")


def kernel() -> RBFKernel:
    """Return the kernel of the function and of the optimizer."""
    rbf = RBFKernel().double()
    rbf.lengthscale = 1.0
    return rbf


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
        kernel(),
        noise_variance=NOISE_SD**2,
        generator=torch.Generator().manual_seed(seed),
    )
    optimizer = recipes.bpe_delay(
        choices=problem.choices,
        covar_module=kernel(),
        noise_variance=NOISE_SD**2,
        horizon=horizon,
        delta=DELTA,
        delay=SubExponentialDelay.poisson(rate),
        width=rule(name, problem),
        generator=torch.Generator().manual_seed(seed),
    )
    delay = PoissonDelay(rate, generator=torch.Generator().manual_seed(10_000 + seed))
    history = run(problem, optimizer, horizon=horizon, delay=delay, progress=False)
    left = optimizer.preview().survivors
    best = problem.choices[problem.values.argmax()]
    return {
        "seed": seed,
        "norm": problem.norm,
        "kept": bool((left == best).all(dim=-1).any()),
        "left": len(left),
        "rounds": [record.size_after for record in optimizer.rounds],
        "average_regret": history.regret.mean().item(),
    }


def rows_of(name: str, found: list[dict], actions: int) -> tuple[list[tuple[str, ...]], dict]:
    """Return rows of the table and figures over the runs of a width."""
    kept = sum(one["kept"] for one in found)
    interval = binomtest(kept, len(found)).proportion_ci()
    left = torch.tensor([float(one["left"]) for one in found])
    regret = torch.tensor([one["average_regret"] for one in found])
    rows = [
        ("maximizer kept", f"{kept} of {len(found)}"),
        ("that share, 95 % interval", f"{interval.low:.3f} to {interval.high:.3f}"),
        (f"actions left of {actions}: median, most", f"{left.median():g}, {left.max():g}"),
        ("average regret", f"{regret.mean():.3f} ± {regret.std() / len(found) ** 0.5:.3f}"),
    ]
    figures = {"kept": kept, "interval": [interval.low, interval.high], "runs": found}
    return [(name, *row) for row in rows], figures


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    options = parser(__doc__)
    options.add_argument("--runs", type=int, default=200, help="functions")
    options.add_argument("--side", type=int, default=25, help="of the grid of actions")
    options.add_argument("--horizon", type=int, default=500)
    options.add_argument("--rate", type=float, default=25.0, help="mean delay")
    options.add_argument("--first-seed", type=int, default=0)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    table: list[tuple[str, ...]] = []
    figures: dict = {"delta": DELTA, "required": 1 - DELTA}
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.runs)
    for name in WIDTHS:
        found = [
            one_run(name, seed, chosen.side, chosen.horizon, chosen.rate)
            for seed in track(seeds, name)
        ]
        rows, figures[name] = rows_of(name, found, chosen.side**2)
        table += rows
    title = (
        f"BPE-Delay, T = {chosen.horizon}, {chosen.side**2} actions, Poisson({chosen.rate:g}) "
        f"delays: at least {1 - DELTA:.0%} of runs are to keep the maximizer"
    )
    show(title, ("width", "measure", "value"), table, figures, chosen.json)


if __name__ == "__main__":
    main()
