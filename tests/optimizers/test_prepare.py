"""Choosing ahead: an ask that was prepared opens the trial that it would have opened anyway."""

import math
from copy import deepcopy
from datetime import timedelta

import pandas as pd
import pytest
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel
from sqlalchemy import create_engine, text

from tvbo import recipes
from tvbo.retention import EventReset, SlidingWindow

BOX = {"x": (0.0, 1.0), "kind": ["a", "b"]}
CHOICES = torch.linspace(0, 1, 11, dtype=torch.float64).unsqueeze(-1)
GIVEN = {"covar_module": ScaleKernel(MaternKernel(2.5)).double(), "noise_variance": 0.01}

CASES = {
    "learned": lambda: recipes.tv_gp_ucb(bounds=BOX, generator=3),
    "starting": lambda: recipes.tv_gp_ucb(bounds=BOX, initial=30, generator=3),
    "contexts": lambda: recipes.tv_cgp_ucb(bounds=BOX, context_bounds=[(0.0, 1.0)], generator=3),
    "draws": lambda: recipes.gp_ts(choices=CHOICES, forgetting_rate=0.05, **GIVEN, generator=3),
    "window": lambda: recipes.gp_ucb(bounds=BOX, retention=SlidingWindow(6), generator=3),
    "events": lambda: recipes.gp_ucb(choices=CHOICES, retention=EventReset(0.1), **GIVEN),
    "few": lambda: recipes.compressed_gp(choices=CHOICES, budget=0.1, **GIVEN, generator=3),
    "phases": lambda: recipes.bpe_delay(choices=CHOICES, horizon=40, **GIVEN, generator=3),
    "random": lambda: recipes.random_search(bounds=BOX, generator=3),
}


def play(optimizer, prepares, rounds=14):
    """Return the trials of a loop, some told late, one failed, one is asked twice."""
    asked, waiting = [], []
    for n in range(rounds):
        given = {} if optimizer.contexts is None else {"context": [n % 5 / 5]}
        if prepares:
            choose = optimizer.prepare(**given)
            if n % 4 == 1 and waiting:  # What is chosen is of no use then.
                optimizer.tell(waiting[0], -0.5)
            choose()
        elif n % 4 == 1 and waiting:
            optimizer.tell(waiting[0], -0.5)
        waiting = waiting[1:] if n % 4 == 1 else waiting
        trial = optimizer.ask(**given, key=str(n))
        assert optimizer.ask(**given, key=str(n)).asks_the_same(trial)
        asked.append(trial)
        if trial.skipped:
            continue
        if n == 9:
            optimizer.fail(trial, "of no use")
            continue
        waiting.append(trial)
        if n % 3:
            done = waiting.pop(0)
            optimizer.tell(done, math.sin(7 * n) + float(done.X.sum()))
    return asked


def dropped(path):
    with create_engine(f"sqlite:///{path}").connect() as connection:
        return connection.execute(text("SELECT id, dropped FROM trials")).all()


@pytest.mark.parametrize("case", CASES)
def test_a_prepared_ask_is_the_ask_it_would_have_been(case, tmp_path):
    plain, ahead = CASES[case](), CASES[case]()
    plain.record(tmp_path / "plain.db")
    ahead.record(tmp_path / "ahead.db")
    for one, two in zip(play(plain, False), play(ahead, True), strict=True):
        assert one.asks_the_same(two)
        assert (one.skipped, one.informative) == (two.skipped, two.informative)
    assert dropped(tmp_path / "plain.db") == dropped(tmp_path / "ahead.db")


def test_an_action_may_be_asked_for_some_time_after_the_one_it_was_chosen_for():
    optimizer = recipes.tv_gp_ucb(bounds=BOX, time_unit="1h", generator=3)
    start = pd.Timestamp("2026-01-01")
    for n in range(12):
        now = start + pd.Timedelta(hours=n)
        optimizer.prepare(now, valid_for=timedelta(minutes=1))()
        chosen = deepcopy(optimizer).ask(now)
        trial = optimizer.ask(now + pd.Timedelta(seconds=30))
        assert torch.equal(trial.X, chosen.X)
        assert trial.time == now + pd.Timedelta(seconds=30)
        optimizer.tell(trial, float(n % 5))


def test_an_ask_for_another_time_or_context_chooses_again():
    plain, ahead = CASES["contexts"](), CASES["contexts"]()
    for n in range(12):
        ahead.prepare(t=n, context=[0.3])()
        t, context = (n, [0.7]) if n % 2 else (n + 0.5, [0.3])
        one, two = plain.ask(t, context), ahead.ask(t, context)
        assert one.asks_the_same(two)
        plain.tell(one, float(n % 5))
        ahead.tell(two, float(n % 5))
