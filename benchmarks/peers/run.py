"""Dynamic Bayesian optimization methods side by side, on the same initial points and noise.

    export PYTHONPATH=. OMP_NUM_THREADS=1
    python benchmarks/peers/run.py --seeds 10 --store docs/results/peers.jsonl
    python benchmarks/peers/run.py --evaluations 0 1 10 --seeds 5

Every run that ends, also in an exception, is one line of the store; a second start makes only the
runs that the store lacks. `table.py` prints the store. `pip install 'botorch-tvbo[peers]'` brings
the peers.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch
from methods import METHODS
from play import Job, make_problems, play
from rich.progress import Progress
from store import append, load

STORE = Path("docs/results/peers.jsonl")


def missing(jobs: Sequence[Job], path: Path) -> list[Job]:
    """Return the runs that the store lacks."""
    done = {
        (record["problem"], record["method"], record["seed"], record["evaluation"])
        for record in load(path)
    }
    return [job for job in jobs if tuple(vars(job).values()) not in done]


def start() -> None:
    """Prepare a worker."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that the store lacks."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    problems = list(make_problems(0))
    options.add_argument("--problems", nargs="+", choices=problems, default=problems)
    options.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    options.add_argument("--first-seed", type=int, default=0)
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument(
        "--evaluations",
        type=float,
        nargs="+",
        help="seconds of an evaluation, each a run against the clock; none is a run of 80 rounds",
    )
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--store", type=Path, default=STORE)
    chosen = options.parse_args(arguments)
    jobs = [
        Job(problem, method, seed, evaluation)
        for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds)
        for evaluation in chosen.evaluations or [None]
        for problem in chosen.problems
        for method in chosen.methods
    ]
    jobs = missing(jobs, chosen.store)
    with ProcessPoolExecutor(chosen.workers, initializer=start) as pool, Progress() as progress:
        task = progress.add_task("runs", total=len(jobs))
        for future in as_completed([pool.submit(play, job) for job in jobs]):
            record = future.result()
            append(record, chosen.store)
            progress.advance(task)
            if record["error"]:
                progress.print(f"{record['problem']}, {record['method']}: {record['error']}")


if __name__ == "__main__":
    main()
