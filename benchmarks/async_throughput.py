"""How busy run_async keeps 16 workers whose evaluations take 50 ms each.

python benchmarks/async_throughput.py --json docs/results/async_throughput.json
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import torch
from gpytorch.kernels import RBFKernel
from report import parser, show

from tvbo import recipes
from tvbo.feedback.asynchronous import run_async
from tvbo.optimizers import Optimizer, Trial
from tvbo.problems import unit_grid

PENDING = 16
SECONDS = 0.05
TRIALS = 960
POINTS = (20, 50)


def optimizers() -> dict[str, Optimizer]:
    """Random search, and TV-GP-UCB on two sizes of grid: what asking costs grows with them."""
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.2
    made = {"random search": recipes.random_search(choices=unit_grid(POINTS[0]))}
    for points in POINTS:
        made[f"TV-GP-UCB, {points**2:,} choices"] = recipes.tv_gp_ucb(
            choices=unit_grid(points),
            covar_module=kernel,
            forgetting_rate=0.03,
            noise_variance=0.01,
        )
    return made


def evaluate(trial: Trial) -> float:
    """Waits, as for an instrument or another process."""
    time.sleep(SECONDS)
    return torch.sin(6 * trial.X).sum().item()


def measure(name: str, optimizer: Optimizer) -> dict:
    """One run, after a short one to warm up, and the same evaluations with nobody asking."""
    with ThreadPoolExecutor(PENDING) as executor:
        given = {"max_pending": PENDING, "progress": False}
        run_async(evaluate, optimizer, executor, num_trials=2 * PENDING, **given)
        trials = [Trial(i, torch.zeros(1, 2, dtype=torch.float64), 0.0) for i in range(TRIALS)]
        started = time.perf_counter()
        list(executor.map(evaluate, trials))
        alone = time.perf_counter() - started
        started = time.perf_counter()
        history = run_async(evaluate, optimizer, executor, num_trials=TRIALS, **given)
        elapsed = time.perf_counter() - started
    return {
        "optimizer": name,
        "trials": TRIALS,
        "pending": PENDING,
        "evaluation_seconds": SECONDS,
        "elapsed_seconds": elapsed,
        "executor_seconds": alone,
        # Of what the executor does with all of them submitted at once.
        "capacity": alone / elapsed,
        # Of what it could do on an idle machine, that wakes every sleeper in time.
        "ideal": TRIALS * SECONDS / (PENDING * elapsed),
        "slots_filled": history.capacity,
        "ask_seconds": history.ask_seconds.median().item(),
        "ask_seconds_p95": history.ask_seconds.quantile(0.95).item(),
        # Asking above this cannot keep up, whatever the loop does.
        "ask_seconds_affordable": SECONDS / PENDING,
    }


def main() -> None:
    """Measure, print a table, save JSON."""
    chosen = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    results = [measure(name, optimizer) for name, optimizer in optimizers().items()]
    rows = [
        (
            r["optimizer"],
            f"{1e3 * r['ask_seconds']:.2f}",
            f"{1e3 * r['ask_seconds_p95']:.2f}",
            f"{1e3 * r['ask_seconds_affordable']:.2f}",
            f"{r['capacity']:.1%}",
            f"{r['ideal']:.1%}",
            f"{r['slots_filled']:.1%}",
        )
        for r in results
    ]
    columns = ("optimizer", "ask, ms", "95 %", "affordable", "capacity", "of ideal", "slots filled")
    title = f"{PENDING} evaluations of {1e3 * SECONDS:.0f} ms at a time, {TRIALS} trials"
    show(title, columns, rows, results, chosen.json)


if __name__ == "__main__":
    main()
