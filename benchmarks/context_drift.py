"""Context and drift together: TV-CGP-UCB against optimizers without one or both.

Functions are drawn from the joint model: actions on a 15 x 15 grid of the unit square, 12 contexts
on [0, 1], product of two SE kernels (length-scales 0.2 and 0.3), ε = 0.03 per step, σ² = 0.01, 300
steps, the context of each step uniform at random. Every loop knows kernel, ε where it has a place
for it, and σ²; β is 0.8 log(4 t). The seed draws function, contexts, noise and ties, the same for
all loops.

    python benchmarks/context_drift.py --seeds 50 --json docs/results/context_drift.json
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from shared import COMPARED, compared, in_workers, parser, show, squared_exponential
from torch import Tensor

from experiments.algorithms.separate import SeparateContexts
from experiments.problems.contextual_panel import ContextualPanelProblem
from tvbo import recipes, run
from tvbo.kernels import ContextActionKernel
from tvbo.optimizers import Optimizer
from tvbo.spaces.row_index import action_context_rows
from tvbo.test_functions.drifting_gp import covariance_root, drifting_values, unit_grid

RATE = 0.03
NOISE = 0.01
HORIZON = 300
CHOICES = unit_grid(15)
CONTEXTS = torch.linspace(0, 1, 12, dtype=torch.float64).unsqueeze(-1)


ACTION, CONTEXT = squared_exponential(0.2), squared_exponential(0.3)


@cache
def root() -> Tensor:
    """Return the Cholesky factor of the covariance of all pairs, once per process."""
    kernel = ContextActionKernel(ACTION, CONTEXT, action_features=[0, 1], context_features=[2])
    return covariance_root(action_context_rows(CHOICES, CONTEXTS), kernel)


def averaged() -> tuple[Kernel, float]:
    """Return kernel and noise variance of the best model without context.

    Two random contexts have correlation κ on average: the share κ of the variance depends on the
    action alone, and the share 1 - κ acts as noise.
    """
    with torch.no_grad():
        shared = CONTEXT(CONTEXTS).to_dense().mean().item()
    kernel = ScaleKernel(ACTION).double()
    kernel.outputscale = shared
    return kernel, NOISE + 1 - shared


def algorithms() -> dict[str, Callable[[torch.Generator], Optimizer]]:
    """Return, by name, functions from a generator to an optimizer."""
    both = {
        "choices": CHOICES,
        "contexts": CONTEXTS,
        "action_kernel": ACTION,
        "context_kernel": CONTEXT,
        "noise_variance": NOISE,
    }
    alone = {"choices": CHOICES, "covar_module": ACTION, "noise_variance": NOISE}
    kernel, noise = averaged()
    tuned = {"choices": CHOICES, "covar_module": kernel, "noise_variance": noise}

    def separate(rate: float, generator: torch.Generator) -> Optimizer:
        make = partial(recipes.tv_gp_ucb, **alone, forgetting_rate=rate)
        return SeparateContexts(CHOICES, CONTEXTS, lambda g: make(generator=g), generator)

    return {
        "TV-CGP-UCB": lambda g: recipes.tv_cgp_ucb(**both, forgetting_rate=RATE, generator=g),
        "CGP-UCB": lambda g: recipes.cgp_ucb(**both, generator=g),
        "TV-GP-UCB (no context)": lambda g: recipes.tv_gp_ucb(
            **alone, forgetting_rate=RATE, generator=g
        ),
        "merged": lambda g: recipes.gp_ucb(**alone, generator=g),
        "separate": lambda g: separate(0.0, g),
        "TV-GP-UCB, told the spread over contexts": lambda g: recipes.tv_gp_ucb(
            **tuned, forgetting_rate=RATE, generator=g
        ),
        "merged, told the spread over contexts": lambda g: recipes.gp_ucb(**tuned, generator=g),
        "separate, with drift": lambda g: separate(RATE, g),
        "random": lambda g: recipes.random_search(choices=CHOICES, generator=g),
    }


def one_seed(seed: int) -> dict[str, float]:
    """Return the mean regret of all optimizers on one drawn function."""
    draw = torch.Generator().manual_seed(seed)
    values = drifting_values(root(), RATE, torch.arange(HORIZON), draw)
    values = values.unflatten(1, (len(CHOICES), len(CONTEXTS)))
    contexts = CONTEXTS[torch.randint(len(CONTEXTS), (HORIZON,), generator=draw)]
    regret = {}
    for name, make in algorithms().items():
        noise = torch.Generator().manual_seed(10_000 + seed)
        problem = ContextualPanelProblem(
            values, CONTEXTS, choices=CHOICES, noise_variance=NOISE, generator=noise
        )
        optimizer = make(torch.Generator().manual_seed(seed))
        history = run(problem, optimizer, horizon=HORIZON, contexts=contexts, progress=False)
        regret[name] = history.regret.mean().item()
    return regret


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__, seeds=50, workers=2).parse_args()
    runs = in_workers(one_seed, range(chosen.seeds), chosen.workers)
    regret = {name: [run[name] for run in runs] for name in runs[0]}
    title = f"{HORIZON} steps, {chosen.seeds} seeds; regret in prior s.d."
    show(title, COMPARED, compared(regret), chosen.json)


if __name__ == "__main__":
    main()
