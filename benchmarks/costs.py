"""Seconds of a round and of a likelihood: medians, one thread.

python benchmarks/costs.py --json docs/results/costs.json
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from gpytorch.kernels import RBFKernel
from shared import parser, show, squared_exponential

from tvbo import recipes
from tvbo.acquisition import UCB, LogBeta
from tvbo.fit.model_fitter import ModelFitter
from tvbo.kernels import CovarianceMatrixKernel
from tvbo.logs.dataset import DriftLog, panel_rows
from tvbo.logs.likelihood import BlockLikelihood, LogLikelihood
from tvbo.optimizers import GPOptimizer, OutcomeModel
from tvbo.spaces import FiniteSpace, InputLayout
from tvbo.test_functions.drifting_gp import unit_grid

ROUNDS = (200, 400, 800, 1200)
DENSE = (300, 1000, 2000, 3000)
PANELS = ((46, 432), (46, 2000))
REPEATS = 3


def median_seconds(
    work: Callable[[], object], before: Callable[[], object] = lambda: None
) -> float:
    """Return the median time of a function after one warm-up run; ``before`` is not timed."""
    before()
    work()
    times = []
    for _ in range(REPEATS):
        before()
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return sorted(times)[REPEATS // 2]


class Refactored(OutcomeModel):
    """A model whose factor is computed from all observations in each round."""

    def condition(self, *args: Any, **options: Any) -> None:
        """Forget the factor."""
        self.restart()
        super().condition(*args, **options)


def optimizers() -> dict[str, GPOptimizer]:
    """Return TV-GP-UCB over 2,500 choices with the streaming model and with a dense one."""
    choices = unit_grid(50)
    given = {
        "covar_module": squared_exponential(0.2),
        "forgetting_rate": 0.03,
        "noise_variance": 0.01,
    }
    search_space = FiniteSpace(choices)
    fitter = ModelFitter(InputLayout(search_space.dim), search_space.bounds, **given)
    return {
        "streaming": recipes.tv_gp_ucb(choices=choices, **given),
        "dense": GPOptimizer(search_space, [Refactored(fitter)], UCB(LogBeta())),
    }


def one_round(n: int) -> list[dict]:
    """Time an ask after n observations at random choices."""
    results = []
    for model, optimizer in optimizers().items():
        generator = torch.Generator().manual_seed(0)
        choices = optimizer.search_space.choices
        for t in range(1, n + 1):
            place = int(torch.randint(len(choices), (1,), generator=generator))
            optimizer.tell(optimizer.attach(choices[place], t), torch.randn(1, generator=generator))
        times = iter(range(n + 1, n + REPEATS + 2))

        def ask(optimizer=optimizer, times=times) -> None:
            optimizer.tell(optimizer.ask(next(times)), 0.0)

        results.append(
            {"what": f"round, 2,500 choices, n = {n}, {model}", "seconds": median_seconds(ask)}
        )
    return results


def likelihood_seconds(likelihood: LogLikelihood | BlockLikelihood) -> float:
    """Return the seconds of a value with its gradient."""

    def evaluate() -> None:
        rate = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
        noise = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
        likelihood(rate, noise)[0].backward()

    return median_seconds(evaluate)


def dense(n: int) -> dict:
    """Time the likelihood of a log of n observations at 2-D actions."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, 3, dtype=torch.float64, generator=generator)
    X[:, 2] = torch.arange(n)
    Y = torch.randn(n, 1, dtype=torch.float64, generator=generator)
    log = DriftLog.from_rows(X, Y, None, -1)
    seconds = likelihood_seconds(LogLikelihood(log, RBFKernel(ard_num_dims=2).double(), None))
    return {"what": f"likelihood, log of {n}", "seconds": seconds}


def panel(arms: int, steps: int) -> dict:
    """Time the likelihood of a panel with a given covariance."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(steps, arms, dtype=torch.float64, generator=generator)
    X, Y = panel_rows(values, torch.arange(steps, dtype=torch.float64))
    kernel = CovarianceMatrixKernel(torch.eye(arms, dtype=torch.float64))
    log = DriftLog.from_rows(X, Y, None, -1)
    seconds = likelihood_seconds(BlockLikelihood(log, kernel, None))
    return {"what": f"likelihood, panel of {arms} × {steps}", "seconds": seconds}


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    results = [
        *(row for n in ROUNDS for row in one_round(n)),
        *(dense(n) for n in DENSE),
        *(panel(*size) for size in PANELS),
    ]
    show(
        "Seconds of one thread",
        {"what": "{what}", "seconds": "{seconds:.4f}"},
        results,
        chosen.json,
    )


if __name__ == "__main__":
    main()
