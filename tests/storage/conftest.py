import contextlib
import math
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo import recipes
from tvbo.evaluation.backtesting.rivals import DriftUCB, LastBest
from tvbo.optimizers import Optimizer, RefitEvery
from tvbo.spaces import FiniteSpace
from tvbo.storage.database import EVENT_COLUMNS
from tvbo.storage.event import chained, digest_of
from tvbo.storage.reader import start_checksum

ARMS = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1)
INTERVAL = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
TASKS = torch.eye(3, dtype=torch.float64)


def kernel() -> RBFKernel:
    made = RBFKernel().double()
    made.lengthscale = 0.2
    return made


def tv_gp_ucb(**changes) -> Optimizer:
    given = {"choices": ARMS, "covar_module": kernel(), "forgetting_rate": 0.03}
    return recipes.tv_gp_ucb(**given | {"noise_variance": 0.01} | changes)


MAKERS = {
    "streaming": tv_gp_ucb,
    "incremental": lambda: recipes.gp_ucb(
        bounds=INTERVAL, covar_module=kernel(), noise_variance=0.01
    ),
    "learned": lambda: recipes.gp_ucb(bounds=INTERVAL, noise_variance=0.01, refit=RefitEvery(3)),
    "compressed": lambda: recipes.compressed_gp(
        choices=ARMS, covar_module=kernel(), noise_variance=0.01, budget=0.05
    ),
    "random": lambda: recipes.random_search(bounds=INTERVAL),
    "contexts": lambda: recipes.cgp_ucb(
        choices=ARMS,
        contexts=TASKS,
        action_kernel=kernel(),
        context_kernel=kernel(),
        noise_variance=0.01,
    ),
    "sw_ucb": lambda: DriftUCB(FiniteSpace(ARMS), (-9.0, 9.0), 30.0),
    "d_ucb": lambda: DriftUCB(FiniteSpace(ARMS), (-9.0, 9.0), discount=0.95),
    "last_best": lambda: LastBest(FiniteSpace(ARMS)),
}


def play(optimizer: Optimizer, steps: int) -> list[tuple]:
    """Ask and tell, three trials open at a time; what comes next rests on the optimizer alone.

    The newest open trial but one is told first, every seventh one fails, every ninth expires.
    """
    asked = []
    for _ in range(steps):
        waiting = optimizer.open_trials
        if len(waiting) < 3:
            number = optimizer._num_asked
            context = None if optimizer.contexts is None else TASKS[number % 3]
            trial = optimizer.ask(context=context)
            asked.append((trial.id, trial.t, trial.X.tolist(), trial.skipped))
            continue
        trial = waiting[1]
        if trial.id % 7 == 0:
            optimizer.fail(trial, "a crash")
        elif trial.id % 9 == 0:
            optimizer.expire(trial)
        else:
            optimizer.tell(trial, outcome(trial))
    return asked


def outcome(trial) -> float:
    return torch.sin(5 * trial.X.sum()).item() + 0.1 * math.cos(7 * trial.id)


def rewrite(path, statement, *values) -> None:
    """Change a journal, and make its checksums right again as far as they can be."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute(statement, values)
        [state] = connection.execute("SELECT state FROM start").fetchone()
        meta = dict(connection.execute("SELECT name, value FROM meta"))
        checksum = "none"
        rows = connection.execute(
            f"SELECT seq, {EVENT_COLUMNS} FROM events ORDER BY seq"
        ).fetchall()
        with contextlib.suppress(TypeError):
            opened = [row for seq, *row in rows if isinstance(seq, int) and seq <= 0]
            checksum = start_checksum(state, meta, opened)
        connection.execute("UPDATE meta SET value = ? WHERE name = 'checksum'", (checksum,))
        for seq, *row in rows:
            if seq <= 0:
                continue
            checksum = chained(checksum, seq, row)
            connection.execute("UPDATE events SET checksum = ? WHERE seq = ?", (checksum, seq))
        if "SET chain" not in statement:
            connection.execute(
                "UPDATE snapshot SET chain = "
                "(SELECT checksum FROM events WHERE events.seq = snapshot.seq)"
            )
        [data] = connection.execute("SELECT state FROM snapshot").fetchone() or [None]
        if isinstance(data, bytes):
            connection.execute("UPDATE snapshot SET digest = ?", (digest_of(data),))
    except sqlite3.IntegrityError:
        pytest.skip("SQLite itself refuses this value in this column")
    finally:
        connection.close()


@pytest.fixture
def forge() -> Callable[..., None]:
    return rewrite


@pytest.fixture(params=MAKERS)
def make(request) -> Callable[[], Optimizer]:
    """Makes an optimizer, the same each time; of every kind in turn."""
    return MAKERS[request.param]


@pytest.fixture
def steps(request) -> int:
    """Steps before a run is left; fewer where each is dear."""
    kind = request.node.callspec.params["make"]
    return 16 if kind in ("incremental", "learned") else 26


@pytest.fixture
def make_streaming() -> Callable[..., Optimizer]:
    return tv_gp_ucb


@pytest.fixture
def make_learning() -> Callable[[], Optimizer]:
    return MAKERS["learned"]


@pytest.fixture
def make_random() -> Callable[[], Optimizer]:
    return MAKERS["random"]


@pytest.fixture(name="play")
def _play():
    return play


@pytest.fixture(name="outcome")
def _outcome():
    return outcome


@pytest.fixture
def run(tmp_path) -> Path:
    """The name of a journal that does not exist yet."""
    return tmp_path / "run.db"


@pytest.fixture
def leave():
    """End a journal as a dead process would: nothing is stored that was not stored already."""

    def leave_it(optimizer: Optimizer) -> None:
        optimizer._event_sink._end("that is dead")

    return leave_it


@pytest.fixture
def recorded(run, make_random, leave):
    """A journal of 30 steps of random search, which holds no snapshot; gives its name."""

    def record(steps: int = 30, make=make_random, close=False) -> Path:
        optimizer = make()
        optimizer.record(run)
        play(optimizer, steps)
        if close:
            optimizer.close()
        else:
            leave(optimizer)
        return run

    return record


@pytest.fixture
def changed_settings():
    """Recipes with one setting changed each, by what differs."""
    return {
        "search_space.choices": partial(tv_gp_ucb, choices=2 * ARMS),
        "posterior_state.fitter.noise_variance": partial(tv_gp_ucb, noise_variance=0.02),
        "posterior_state.fitter.forgetting_rate": partial(tv_gp_ucb, forgetting_rate=0.1),
        "acquisition.beta": partial(tv_gp_ucb, beta=2.0),
        "covar_module": partial(tv_gp_ucb, covar_module=RBFKernel().double()),
    }
