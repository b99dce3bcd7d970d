"""Utilization of 16 workers by run_async, and trials a second of the default beside random search.

python benchmarks/async_throughput.py --json docs/results/async_throughput.json
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import torch
from gpytorch.kernels import RBFKernel
from report import parser, show

from tvbo import recipes, run_async
from tvbo.evaluation import dask_executor
from tvbo.optimizers import Hallucinate, Optimizer, Trial
from tvbo.test_functions import unit_grid

WORKERS = 16
TRIALS = 960

DEFAULT_WORKERS = 4
DEFAULT_SECONDS = 0.1
DEFAULT_TRIALS = 200


@dataclass(frozen=True)
class Setting:
    """Optimizer, seconds of an evaluation, and number of open trials.

    With more open trials than workers, some are asked in advance.
    """

    name: str
    make: Callable[[], Optimizer]
    seconds: float = 0.05
    max_pending: int = WORKERS

    @property
    def affordable(self) -> float:
        """Seconds of an ask and a tell above which asking is slower than evaluating."""
        return self.seconds / WORKERS


def random_search() -> Optimizer:
    """Return random search, which asks in negligible time."""
    return recipes.random_search(choices=unit_grid(20))


def tv_gp_ucb(points: int) -> Optimizer:
    """Return TV-GP-UCB on ``points**2`` choices, on which the cost of an ask depends."""
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.2
    return recipes.tv_gp_ucb(
        choices=unit_grid(points),
        covar_module=kernel,
        forgetting_rate=0.03,
        noise_variance=0.01,
        pending=Hallucinate(),
    )


SETTINGS = (
    Setting("random search", random_search),
    Setting("TV-GP-UCB, 400 choices", lambda: tv_gp_ucb(20)),
    Setting("TV-GP-UCB, 400 choices, 2 asked ahead", lambda: tv_gp_ucb(20), 0.05, WORKERS + 2),
    Setting("TV-GP-UCB, 2,500 choices", lambda: tv_gp_ucb(50)),
    Setting("TV-GP-UCB, 400 choices", lambda: tv_gp_ucb(20), 0.2),
    Setting("TV-GP-UCB, 2,500 choices", lambda: tv_gp_ucb(50), 0.2),
)


def evaluate(trial: Trial, seconds: float) -> float:
    """Wait, as for an instrument or another process."""
    time.sleep(seconds)
    return torch.sin(6 * trial.X).sum().item()


def seconds_alone(executor: Executor, wait: Callable[[Trial], float]) -> float:
    """Return the seconds of all evaluations submitted at once, without an optimizer."""
    X = torch.zeros(1, 2, dtype=torch.float64)
    trials = [Trial(i, X, 0.0) for i in range(1, TRIALS + 1)]
    started = time.perf_counter()
    list(executor.map(wait, trials))
    return time.perf_counter() - started


def note_seconds_of_tell(optimizer: Optimizer) -> list[float]:
    """Return a list that records the seconds of each tell from now on."""
    tell, seconds = optimizer.tell, []

    def timed(trial: Trial, Y: float, Yvar: float | None = None) -> None:
        started = time.perf_counter()
        tell(trial, Y, Yvar)
        seconds.append(time.perf_counter() - started)

    optimizer.tell = timed
    return seconds


def measure(setting: Setting) -> dict:
    """Time a run, after a short one to warm up, and its evaluations without an optimizer."""
    optimizer = setting.make()
    wait = partial(evaluate, seconds=setting.seconds)
    with ThreadPoolExecutor(WORKERS) as executor:
        given = {"max_pending": setting.max_pending, "progress": False}
        run_async(wait, optimizer, executor, num_trials=2 * WORKERS, **given)
        alone = seconds_alone(executor, wait)
        tell_seconds = note_seconds_of_tell(optimizer)
        started = time.perf_counter()
        history = run_async(wait, optimizer, executor, num_trials=TRIALS, **given)
        elapsed = time.perf_counter() - started
    ask, tell = history.ask_seconds, torch.tensor(tell_seconds, dtype=torch.float64)
    # On an idle machine that wakes every sleeper in time.
    ideal = TRIALS * setting.seconds / WORKERS
    return {
        "optimizer": setting.name,
        "trials": TRIALS,
        "workers": WORKERS,
        "pending": setting.max_pending,
        "evaluation_seconds": setting.seconds,
        "elapsed_seconds": elapsed,
        "executor_seconds": alone,
        "ideal_seconds": ideal,
        # Of what the executor does with all of them submitted at once.
        "capacity": alone / elapsed,
        "ideal": ideal / elapsed,
        "executor_ideal": ideal / alone,
        "slots_filled": history.slots_filled,
        "ask_seconds": ask.median().item(),
        "ask_seconds_p95": ask.quantile(0.95).item(),
        "tell_seconds": tell.median().item(),
        # On average, since an ask may do the work of several tells before it.
        "ask_and_tell_seconds": (ask.mean() + tell.mean()).item(),
        "ask_and_tell_seconds_affordable": setting.affordable,
    }


@contextmanager
def dask_cluster() -> Iterator[Executor]:
    """Return the executor of a cluster of processes on this machine."""
    from distributed import LocalCluster

    with (
        LocalCluster(DEFAULT_WORKERS, threads_per_worker=1, dashboard_address=":0") as cluster,
        dask_executor(cluster.scheduler_address) as executor,
    ):
        yield executor


EXECUTORS = {
    "threads": partial(ThreadPoolExecutor, DEFAULT_WORKERS),
    "processes": partial(ProcessPoolExecutor, DEFAULT_WORKERS, mp_context=get_context("spawn")),
    "Dask": dask_cluster,
}


def measure_default(name: str) -> list[dict]:
    """Time the default, with nothing given, and random search on the same workers."""
    bounds = [(0.0, 1.0), (0.0, 1.0)]
    made = {
        "random search": recipes.random_search(bounds=bounds),
        "TV-GP-UCB, nothing given": recipes.tv_gp_ucb(bounds=bounds),
    }
    wait = partial(evaluate, seconds=DEFAULT_SECONDS)
    results = []
    with EXECUTORS[name]() as executor:
        for optimizer_name, optimizer in made.items():
            given = {"max_pending": DEFAULT_WORKERS, "progress": False}
            run_async(wait, optimizer, executor, num_trials=5 * DEFAULT_WORKERS, **given)
            started, cpu_started = time.perf_counter(), time.process_time()
            history = run_async(wait, optimizer, executor, num_trials=DEFAULT_TRIALS, **given)
            elapsed = time.perf_counter() - started
            results.append(
                {
                    "executor": name,
                    "optimizer": optimizer_name,
                    "trials": DEFAULT_TRIALS,
                    "workers": DEFAULT_WORKERS,
                    "evaluation_seconds": DEFAULT_SECONDS,
                    "trials_per_second": DEFAULT_TRIALS / elapsed,
                    "cpu_seconds_per_trial": (time.process_time() - cpu_started) / DEFAULT_TRIALS,
                    "ask_seconds": history.ask_seconds.mean().item(),
                }
            )
    for each in results:
        each["of_random_search"] = each["trials_per_second"] / results[0]["trials_per_second"]
    return results


def show_given(results: list[dict]) -> None:
    """Print the table of the settings."""
    rows = [
        (
            r["optimizer"],
            f"{1e3 * r['evaluation_seconds']:.0f}",
            str(r["pending"]),
            f"{1e3 * r['ask_seconds']:.2f}",
            f"{1e3 * r['ask_seconds_p95']:.2f}",
            f"{1e3 * r['ask_and_tell_seconds']:.2f}",
            f"{1e3 * r['ask_and_tell_seconds_affordable']:.1f}",
            f"{r['capacity']:.1%}",
            f"{r['ideal']:.1%}",
            f"{r['executor_ideal']:.1%}",
        )
        for r in results
    ]
    columns = (
        "optimizer",
        "evaluation, ms",
        "open",
        "ask, ms",
        "95 %",
        "ask + tell, mean",
        "affordable",
        "of executor alone",
        "of ideal",
        "executor alone, of ideal",
    )
    title = (
        f"{TRIALS} evaluations on {WORKERS} workers; asking is faster than evaluating where ask + "
        "tell take less than is affordable"
    )
    show(title, columns, rows, None, None)


def show_default(results: list[dict]) -> None:
    """Print the table of the default."""
    columns = ("workers", "optimizer", "trials a second", "of random search", "CPU ms", "ask, ms")
    rows = [
        (
            f"{r['workers']} {r['executor']}",
            r["optimizer"],
            f"{r['trials_per_second']:.1f}",
            f"{r['of_random_search']:.2f}",
            f"{1e3 * r['cpu_seconds_per_trial']:.1f}",
            f"{1e3 * r['ask_seconds']:.1f}",
        )
        for r in results
    ]
    title = f"{DEFAULT_TRIALS} evaluations of {DEFAULT_SECONDS} s on {DEFAULT_WORKERS} workers"
    show(title, columns, rows, None, None)


def main() -> None:
    """Run the benchmark, print its tables, save JSON."""
    options = parser(__doc__)
    options.add_argument("--only-default", action="store_true", help="leave out the 16 workers")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    default = [each for name in EXECUTORS for each in measure_default(name)]
    show_default(default)
    given = [] if chosen.only_default else [measure(setting) for setting in SETTINGS]
    show_given(given)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps({"given": given, "default": default}, indent=2) + "\n")


if __name__ == "__main__":
    main()
