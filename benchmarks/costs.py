"""What a round and a likelihood cost: seconds of one thread, medians.

python benchmarks/costs.py --json docs/results/costs.json
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from gpytorch.kernels import RBFKernel
from report import parser, show

from tvbo import recipes
from tvbo.kernels import CovarianceMatrixKernel
from tvbo.likelihood import DenseLikelihood, DriftLog, Panel, PanelLikelihood, panel_rows
from tvbo.problems import unit_grid

ROUNDS = (200, 400, 800, 1200)
DENSE = (300, 1000, 2000, 3000)
PANELS = ((46, 432), (46, 2000))
REPEATS = 3


def median_seconds(work: Callable[[], object]) -> float:
    """Median time of the work, after one run to warm up."""
    work()
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return sorted(times)[REPEATS // 2]


def one_round(n: int) -> dict:
    """An ask of TV-GP-UCB over 2,500 choices that rests on n observations."""
    generator = torch.Generator().manual_seed(0)
    choices = unit_grid(50)
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.2
    optimizer = recipes.tv_gp_ucb(
        choices=choices, covar_module=kernel, forgetting_rate=0.03, noise_variance=0.01
    )
    for t in range(1, n + 1):
        place = int(torch.randint(len(choices), (1,), generator=generator))
        reward = torch.randn(1, generator=generator)
        optimizer.tell(optimizer.attach(choices[place], t), reward)
    seconds = median_seconds(lambda: optimizer.ask(t=n + 1))
    return {"what": f"ask, 2,500 choices, n = {n}", "seconds": seconds}


def likelihood_seconds(likelihood: DenseLikelihood | PanelLikelihood) -> float:
    """One value with its gradient."""

    def evaluate() -> None:
        rate = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
        noise = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
        likelihood(rate, noise)[0].backward()

    return median_seconds(evaluate)


def dense(n: int) -> dict:
    """The likelihood of a log of n observations at 2-D actions."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, 3, dtype=torch.float64, generator=generator)
    X[:, 2] = torch.arange(n)
    Y = torch.randn(n, 1, dtype=torch.float64, generator=generator)
    log = DriftLog.from_rows(X, Y, None, -1)
    seconds = likelihood_seconds(DenseLikelihood(log, RBFKernel(ard_num_dims=2).double(), None))
    return {"what": f"likelihood, log of {n}", "seconds": seconds}


def panel(arms: int, steps: int) -> dict:
    """The likelihood of a panel with a given covariance."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(steps, arms, dtype=torch.float64, generator=generator)
    X, Y = panel_rows(values, torch.arange(steps, dtype=torch.float64))
    kernel = CovarianceMatrixKernel(torch.eye(arms, dtype=torch.float64))
    log = Panel.from_log(DriftLog.from_rows(X, Y, None, -1))
    seconds = likelihood_seconds(PanelLikelihood(log, kernel, None))
    return {"what": f"likelihood, panel of {arms} × {steps}", "seconds": seconds}


def main() -> None:
    """Measure, print a table, save JSON."""
    chosen = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    results = [
        *(one_round(n) for n in ROUNDS),
        *(dense(n) for n in DENSE),
        *(panel(*size) for size in PANELS),
    ]
    rows = [(r["what"], f"{r['seconds']:.3f}") for r in results]
    show("Seconds of one thread", ("what", "seconds"), rows, results, chosen.json)


if __name__ == "__main__":
    main()
