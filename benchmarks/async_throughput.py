"""Utilization of 16 workers by run_async, and trials a second of the default beside random search.

python benchmarks/async_throughput.py --json docs/results/async_throughput.json
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import torch
from shared import parser, seconds, show, squared_exponential

from tvbo import recipes, run_async
from tvbo.evaluation import dask_executor
from tvbo.optimizers import Hallucinate, Optimizer, Trial
from tvbo.test_functions.drifting_gp import unit_grid

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


def random_search() -> Optimizer:
    """Return random search, which asks in negligible time."""
    return recipes.random_search(choices=unit_grid(20))


def tv_gp_ucb(points: int) -> Optimizer:
    """Return TV-GP-UCB on ``points**2`` choices, on which the cost of an ask depends."""
    return recipes.tv_gp_ucb(
        choices=unit_grid(points),
        covar_module=squared_exponential(0.2),
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


def note_seconds_of_tell(optimizer: Optimizer) -> list[float]:
    """Return a list that records the seconds of each tell from now on."""
    tell, taken = optimizer.tell, []

    def timed(*arguments: object) -> None:
        taken.append(seconds(lambda: tell(*arguments)))

    optimizer.tell = timed
    return taken


def measure(setting: Setting) -> dict:
    """Time a run, after a short one to warm up, and its evaluations without an optimizer."""
    optimizer = setting.make()
    wait = partial(evaluate, seconds=setting.seconds)
    with ThreadPoolExecutor(WORKERS) as executor:
        given = {"max_pending": setting.max_pending, "progress": False}
        run_async(wait, optimizer, executor, num_trials=2 * WORKERS, **given)
        waiting = Trial(1, torch.zeros(1, 2, dtype=torch.float64), 0.0)
        alone = seconds(lambda: list(executor.map(wait, [waiting] * TRIALS)))
        tell_seconds = note_seconds_of_tell(optimizer)
        started = time.perf_counter()
        history = run_async(wait, optimizer, executor, num_trials=TRIALS, **given)
        elapsed = time.perf_counter() - started
    ask = torch.tensor([r.ask_seconds for r in history.rounds], dtype=torch.float64)
    tell = torch.tensor(tell_seconds, dtype=torch.float64)
    # On an idle machine that wakes every sleeper in time.
    ideal = TRIALS * setting.seconds / WORKERS
    return {
        "optimizer": setting.name,
        "pending": setting.max_pending,
        "evaluation_seconds": setting.seconds,
        # Of what the executor does with all of them submitted at once.
        "capacity": alone / elapsed,
        "ideal": ideal / elapsed,
        "executor_ideal": ideal / alone,
        "ask_ms": 1e3 * ask.median().item(),
        "ask_ms_p95": 1e3 * ask.quantile(0.95).item(),
        # On average, since an ask may do the work of several tells before it.
        "ask_and_tell_ms": 1e3 * (ask.mean() + tell.mean()).item(),
        "affordable_ms": 1e3 * setting.seconds / WORKERS,
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
    records = []
    with EXECUTORS[name]() as executor:
        for optimizer_name, optimizer in made.items():
            given = {"max_pending": DEFAULT_WORKERS, "progress": False}
            run_async(wait, optimizer, executor, num_trials=5 * DEFAULT_WORKERS, **given)
            started, cpu_started = time.perf_counter(), time.process_time()
            history = run_async(wait, optimizer, executor, num_trials=DEFAULT_TRIALS, **given)
            elapsed = time.perf_counter() - started
            records.append(
                {
                    "workers": f"{DEFAULT_WORKERS} {name}",
                    "optimizer": optimizer_name,
                    "trials_per_second": DEFAULT_TRIALS / elapsed,
                    "cpu_ms": 1e3 * (time.process_time() - cpu_started) / DEFAULT_TRIALS,
                    "ask_ms": 1e3 * history.to_frame().ask_seconds.mean(),
                }
            )
    for each in records:
        each["of_random_search"] = each["trials_per_second"] / records[0]["trials_per_second"]
    return records


def main() -> None:
    """Run the benchmark, print its tables, save JSON."""
    options = parser(__doc__)
    options.add_argument("--only-default", action="store_true", help="leave out the 16 workers")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    default = [each for name in EXECUTORS for each in measure_default(name)]
    columns = {
        "workers": "{workers}",
        "optimizer": "{optimizer}",
        "trials a second": "{trials_per_second:.1f}",
        "of random search": "{of_random_search:.2f}",
        "CPU ms": "{cpu_ms:.1f}",
        "ask, ms": "{ask_ms:.1f}",
    }
    title = f"{DEFAULT_TRIALS} evaluations of {DEFAULT_SECONDS} s on {DEFAULT_WORKERS} workers"
    show(title, columns, default, None)
    given = [] if chosen.only_default else [measure(setting) for setting in SETTINGS]
    columns = {
        "optimizer": "{optimizer}",
        "evaluation, s": "{evaluation_seconds}",
        "open": "{pending}",
        "ask, ms": "{ask_ms:.2f}",
        "95 %": "{ask_ms_p95:.2f}",
        "ask + tell, mean": "{ask_and_tell_ms:.2f}",
        "affordable": "{affordable_ms:.1f}",
        "of executor alone": "{capacity:.1%}",
        "of ideal": "{ideal:.1%}",
        "executor alone, of ideal": "{executor_ideal:.1%}",
    }
    title = (
        f"{TRIALS} evaluations on {WORKERS} workers; asking is faster than evaluating where ask + "
        "tell take less than is affordable"
    )
    show(title, columns, given, chosen.json, {"given": given, "default": default})


if __name__ == "__main__":
    main()
