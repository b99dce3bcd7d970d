"""Our model inside Optuna, Xopt, Ax and Ray Tune: against our own loop, and what each has itself.

Five problems of `peers/` that move, with the same 15 first actions, the same noise and the same 65
actions of its own for each method of a seed. What a library has itself is TPE of Optuna, Xopt's
time-dependent generator, and Ax's default with time as a parameter that each call holds at the
present. For Ray, a population of four trains: what a member gains in a round is the value of the
problem at its hyperparameters, and in each round the worst goes on from the best, with
hyperparameters that `PB2` or ours chooses. Regret is the mean over rounds 16 to 80, for a
population also over its members.

    pip install 'botorch-tvbo[integrations]'
    export PYTHONPATH=.:benchmarks/peers OMP_NUM_THREADS=1
    python benchmarks/doors.py --seeds 10 --store docs/results/doors.jsonl

The store resumes, as that of `peers/run.py`; the table is of the seeds that both of a pair have.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from methods import INITIAL, METHODS, OURS, Method, Optuna
from play import HORIZON, Game, Job, play
from rich.progress import track
from run import missing
from shared import show, with_error
from store import append, load
from torch import Tensor

PROBLEMS = ["moving peaks", "rotating", "sudden jump", "seasonal", "drifting GP"]
MEMBERS = 4


class InOptuna(Optuna):
    """Our sampler in a study."""

    def __init__(self, bounds: Tensor, seed: int):
        from tvbo.integrations.optuna import TimeVaryingSampler

        super().__init__(bounds, seed, "TPESampler")
        self.study.sampler = TimeVaryingSampler(seed=seed, initial=0)


class InGest:
    """Our generator of gest-api, as Xopt calls it."""

    def __init__(self, bounds: Tensor, seed: int):
        from gest_api.vocs import VOCS

        from tvbo.integrations.gest import TimeVaryingGenerator

        variables = {f"x{i}": domain for i, domain in enumerate(bounds.T.tolist())}
        vocs = VOCS(variables=variables, objectives={"y": "MAXIMIZE"})
        self.generator = TimeVaryingGenerator(vocs, generator=seed, initial=0)
        self.names, self.asked, self.model_size = list(variables), {}, 0

    def ask(self, t: float) -> Tensor:
        """Return the action for the present time, ``1 x d``."""
        (self.asked,) = self.generator.suggest(1, t=t)
        return torch.tensor([[self.asked[name] for name in self.names]], dtype=torch.float64)

    def tell(self, X: Tensor, t: float, Y: float) -> None:
        """Add an outcome."""
        point, self.asked = self.asked or dict(zip(self.names, X[0].tolist(), strict=True)), {}
        self.generator.ingest([{**point, "time": t, "y": Y}])
        self.model_size += 1


class InAx:
    """Ax with our strategy or its own; time is a parameter.

    Args:
        bounds: Bounds of the actions, ``2 x d``.
        seed: The seed.
        is_ours: Whether the strategy is ours.
    """

    def __init__(self, bounds: Tensor, seed: int, is_ours: bool):
        from ax.api.client import Client
        from ax.api.configs import RangeParameterConfig

        from tvbo.integrations.ax import drifting_strategy

        logging.disable(logging.INFO)
        warnings.simplefilter("ignore")
        ranges = {f"x{i}": (low, high) for i, (low, high) in enumerate(bounds.T.tolist())}
        times = {"t": (0.0, float(HORIZON))}
        self.client = Client(random_seed=seed)
        self.client.configure_experiment(
            [RangeParameterConfig(name, each, "float") for name, each in (ranges | times).items()]
        )
        self.client.configure_optimization("y")
        if is_ours:
            self.client.set_generation_strategy(drifting_strategy(seed=seed, initial=0))
        self.names, self.number, self.model_size = list(ranges), None, 0

    def ask(self, t: float) -> Tensor:
        """Return the action for the present time, ``1 x d``."""
        ((self.number, chosen),) = self.client.get_next_trials(1, {"t": t}).items()
        return torch.tensor([[chosen[name] for name in self.names]], dtype=torch.float64)

    def tell(self, X: Tensor, t: float, Y: float) -> None:
        """Add an outcome."""
        if self.number is None:
            values = dict(zip(self.names, X[0].tolist(), strict=True))
            self.number = self.client.attach_trial({**values, "t": t})
        self.client.complete_trial(self.number, {"y": Y})
        self.number, self.model_size = None, self.model_size + 1


DOORS: dict[str, Callable[[Tensor, int], Method]] = {
    "Optuna, ours": InOptuna,
    "gest-api, ours": InGest,
    "Ax, ours": partial(InAx, is_ours=True),
    "Ax": partial(InAx, is_ours=False),
}
PAIRS = {"Optuna, ours": "tpe", "gest-api, ours": "xopt", "Ax, ours": "Ax", "Ray, ours": "Ray PB2"}
"""Our method in a library, and what the library has itself."""


class Member(SimpleNamespace):
    """What a scheduler of Ray reads of one of its trials."""

    def __str__(self) -> str:
        return self.trial_id


def population(job: Job) -> dict[str, Any]:
    """Return the record of a population that a scheduler of Ray trains."""
    from ray.tune.schedulers.pb2 import PB2

    from tvbo.integrations.ray import TimeVaryingPB2

    game = Game(job.problem, job.seed)
    np.random.seed(job.seed)  # noqa: NPY002  # PB2 draws from the global one.
    bounds = {f"x{i}": each for i, each in enumerate(game.problem.bounds.T.tolist())}
    make = PB2 if job.method == "Ray PB2" else partial(TimeVaryingPB2, seed=job.seed)
    scheduler = make("t", "score", "max", 1.0, bounds)
    members = [
        Member(trial_id=str(i), config=dict(zip(bounds, x.tolist(), strict=True)))
        for i, x in enumerate(game.start[:MEMBERS])
    ]
    scores = dict.fromkeys(range(MEMBERS), 0.0)
    regret, seconds = [], []
    for t in range(1, HORIZON + 1):
        rows = [torch.tensor([list(each.config.values())]).double() for each in members]
        rows = [row.clamp(*game.problem.bounds) for row in rows]
        regret.append(sum(game.regret(row, t) for row in rows) / MEMBERS)
        for i, (member, row) in enumerate(zip(members, rows, strict=True)):
            scores[i] += game.observe(row, t)
            result = {"t": t, "score": scores[i]}
            scheduler._save_trial_state(SimpleNamespace(), t, result, member)
        worst, best = min(scores, key=scores.get), max(scores, key=scores.get)
        began = time.process_time()
        members[worst].config, _ = scheduler._get_new_config(members[worst], members[best])
        seconds.append(time.process_time() - began)
        scores[worst] = scores[best]
    return {**vars(job), "error": None, "regret": regret, "seconds": seconds}


def table(records: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a row for each door and problem: regret, and how much more it is than that of others.

    The seeds are those that both of a pair have.
    """
    score = {
        (each["method"], each["problem"], each["seed"]): statistics.mean(each["regret"][INITIAL:])
        for each in records
    }

    def less(door: str, rival: str, problem: str) -> str:
        seeds = [s for m, p, s in score if (m, p) == (door, problem)]
        both = [s for s in seeds if (rival, problem, s) in score]
        if len(both) < 2:
            return "–"
        mine, theirs = (torch.tensor([score[m, problem, s] for s in both]) for m in (door, rival))
        ratio = (mine.mean() / theirs.mean()).item()
        return f"{with_error(mine - theirs)}, {ratio:.2f} times ({len(both)})"

    def cpu(method: str) -> str:
        taken = [s for each in records if each["method"] == method for s in each["seconds"][-20:]]
        return f"{statistics.median(taken):.2f}" if taken else "–"

    return [
        {
            "cpu": f"{cpu(door)}, {cpu(itself)}",
            "door": door,
            "problem": problem,
            "itself": less(door, itself, problem),
            "loop": less(door, OURS, problem),
        }
        for door, itself in PAIRS.items()
        for problem in PROBLEMS
    ]


def main() -> None:
    """Make the runs that the store lacks, and print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    methods = [OURS, *PAIRS, *PAIRS.values()]
    options.add_argument("--methods", nargs="*", choices=methods, default=methods)
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument("--store", type=Path, default=Path("docs/results/doors.jsonl"))
    given = options.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    METHODS.update(DOORS)
    jobs = [
        Job(problem, method, seed)
        for seed in range(given.seeds)
        for method in given.methods
        for problem in PROBLEMS
    ]
    for job in track(missing(jobs, given.store), "runs"):
        append((population if job.method.startswith("Ray") else play)(job), given.store)
    columns = {"door": "{door}", "problem": "{problem}", "less what it has itself": "{itself}"}
    columns |= {"less our loop": "{loop}", "CPU s a round, and by itself": "{cpu}"}
    show("regret, paired by seed", columns, table(load(given.store)), None)


if __name__ == "__main__":
    main()
