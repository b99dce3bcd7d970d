"""Regret due to an irrelevant context: merged, product and separate over 2 to 20 contexts.

One function of the action is drawn: 15 actions on [0, 1], RBF kernel of length-scale 0.2, variance
1, σ² = 0.01, no drift. It is the same in all contexts of a list evenly on [0, 1]; the context of
each of 100 rounds is drawn at random. The loops are given the kernels, the context's with
length-scale 0.3, and σ². The seed draws function, contexts and noise, the same for all loops.

    python benchmarks/context_useless.py --seeds 10 --json docs/results/context_useless.json
"""

from __future__ import annotations

import torch
from gpytorch.kernels import RBFKernel
from report import parser, show
from rich.progress import track
from torch import Tensor

from tvbo import recipes, run
from tvbo.optimizers import Optimizer
from tvbo.test_functions import ContextualPanelProblem, drifting_gp

ACTIONS = torch.linspace(0, 1, 15, dtype=torch.float64).unsqueeze(-1)
COUNTS = (2, 6, 20)
NOISE = 0.01
HORIZON = 100


def smooth(lengthscale: float) -> RBFKernel:
    """Return an RBF kernel."""
    kernel = RBFKernel().double()
    kernel.lengthscale = lengthscale
    return kernel


def algorithms(contexts: Tensor) -> dict[str, Optimizer]:
    """Return a new optimizer of each name over a list of contexts, ``m x 1``."""
    space = {"choices": ACTIONS, "contexts": contexts, "noise_variance": NOISE}
    of_action = smooth(0.2)
    return {
        "merged": recipes.merged(**space, covar_module=of_action),
        "product": recipes.cgp_ucb(**space, action_kernel=of_action, context_kernel=smooth(0.3)),
        "separate": recipes.separate(**space, covar_module=of_action),
    }


def one_draw(count: int, seed: int) -> dict[str, float]:
    """Return the mean regret of each optimizer on one function."""
    contexts = torch.linspace(0, 1, count, dtype=torch.float64).unsqueeze(-1)
    draw = torch.Generator().manual_seed(seed)
    function = drifting_gp(ACTIONS, smooth(0.2), 0.0, horizon=1, generator=draw).values
    values = function.unsqueeze(-1).expand(HORIZON, len(ACTIONS), count).contiguous()
    sent = contexts[torch.randint(count, (HORIZON,), generator=draw)]
    regret = {}
    for name, optimizer in algorithms(contexts).items():
        noise = torch.Generator().manual_seed(seed)
        problem = ContextualPanelProblem(
            values, contexts, choices=ACTIONS, noise_variance=NOISE, generator=noise
        )
        history = run(problem, optimizer, horizon=HORIZON, contexts=sent, progress=False)
        regret[name] = history.regret.mean().item()
    return regret


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=10)
    chosen = options.parse_args()
    n = chosen.seeds
    todo = [(count, seed) for count in COUNTS for seed in range(n)]
    draws: dict[int, list] = {count: [] for count in COUNTS}
    for count, seed in track(todo, description="draws"):
        draws[count].append(one_draw(count, seed))
    results = []
    for count, found in draws.items():
        merged = torch.tensor([draw["merged"] for draw in found]).double()
        for name in found[0]:
            values = torch.tensor([draw[name] for draw in found]).double()
            behind = values - merged
            results.append(
                {
                    "contexts": count,
                    "algorithm": name,
                    "seeds": n,
                    "mean_regret": values.mean().item(),
                    "standard_error": (values.std() / n**0.5).item(),
                    "behind_merged": behind.mean().item(),
                    "behind_standard_error": (behind.std() / n**0.5).item(),
                }
            )
    table = [
        (
            f"{r['contexts']}",
            r["algorithm"],
            f"{r['mean_regret']:.3f} ± {r['standard_error']:.3f}",
            ""
            if r["algorithm"] == "merged"
            else f"{r['behind_merged']:.3f} ± {r['behind_standard_error']:.3f}",
        )
        for r in results
    ]
    columns = ("contexts", "algorithm", "mean regret, prior s.d.", "behind merged, paired")
    show(f"{HORIZON} rounds, {n} draws", columns, table, results, chosen.json)


if __name__ == "__main__":
    main()
