"""Methods side by side: runs are made once, failures stay visible, and the table counts both."""

import json
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tvbo.test_functions import MovingPeak

FOLDER = Path(__file__).parents[2] / "benchmarks" / "peers"
MODULES = ["botorch_loop", "methods", "store", "play", "run", "table"]


class Corner:
    """Ask for the lower corner, fail in one round."""

    def __init__(self, bounds, seed, fails_at=None):
        self.bounds, self.fails_at, self.model_size = bounds, fails_at, 0

    def ask(self, t):
        if t == self.fails_at:
            raise RuntimeError("no Cholesky factor")
        return self.bounds[:1]

    def tell(self, X, t, Y):
        self.model_size += 1


@pytest.fixture
def peers(monkeypatch):
    """The modules of the benchmark, with one problem and methods that cost nothing."""
    monkeypatch.syspath_prepend(FOLDER)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = SimpleNamespace(**{name: import_module(name) for name in MODULES})
    methods = {
        "ours": Corner,
        "random": found.methods.RandomSearch,
        "wdbo": lambda bounds, seed: Corner(bounds, seed, 20.0 if seed == 1 else None),
    }
    for module in (found.play, found.run):
        monkeypatch.setattr(module, "make_problems", lambda seed: {"peak": MovingPeak()})
        monkeypatch.setattr(module, "METHODS", methods)
    yield found
    for name in MODULES:
        sys.modules.pop(name, None)


def start(peers, path, *options):
    peers.run.main(["--seeds", "2", "--workers", "1", "--store", str(path), *options])
    return path.read_text().splitlines()


def test_a_second_start_makes_only_the_runs_that_are_missing(peers, tmp_path):
    path = tmp_path / "runs.jsonl"
    lines = start(peers, path, "--methods", "ours", "wdbo")
    assert len(lines) == 4
    path.write_text("\n".join([*lines[:3], lines[3][:40]]))
    again = start(peers, path)
    assert again[:3] == lines[:3]
    runs = [(r["problem"], r["method"], r["seed"]) for r in map(json.loads, again)]
    assert sorted(runs) == [("peak", m, s) for m in ("ours", "random", "wdbo") for s in (0, 1)]


def test_a_failure_is_recorded_and_counted(peers, tmp_path):
    lines = start(peers, tmp_path / "runs.jsonl")
    (failed,) = [r for r in map(json.loads, lines) if r["error"] is not None]
    assert (failed["method"], failed["seed"], failed["rounds"]) == ("wdbo", 1, 19)
    assert failed["error"] == "round 20: RuntimeError: no Cholesky factor"

    runs = peers.table.table(peers.store.load(tmp_path / "runs.jsonl"))
    text = peers.table.report(runs)
    # It ties with ours where it does not fail, and is last where it does.
    assert "| W-DBO | 2.75 ± 0.25 |" in text
    assert [line.split(" | ")[-1] for line in text.splitlines() if "of 2" in line] == [
        "0 of 2 |",
        "1 of 2 |",
        "0 of 2 |",
    ]
    assert "* W-DBO, 1 times: RuntimeError: no Cholesky factor" in text
    peers.table.plot(runs, tmp_path / "runs.png")
    assert (tmp_path / "runs.png").stat().st_size > 1_000


def test_the_score_is_the_mean_regret_after_the_initial_rounds(peers):
    record = peers.play.play(peers.play.Job("peak", "ours", 0))
    times = torch.arange(16.0, 81.0, dtype=torch.float64).unsqueeze(-1)
    rows = torch.cat([torch.zeros(65, 2, dtype=torch.float64), times], dim=-1)
    expected = 1 - MovingPeak().evaluate_true(rows).mean().item()
    assert peers.table.score(record) == pytest.approx(expected, abs=1e-4)
    assert record["model_size"] == 80


def test_methods_of_a_seed_share_initial_points_and_noise(peers):
    seen = {}
    for name in ("ours", "random"):
        game, told = peers.play.Game("peak", 3), []
        method = SimpleNamespace(ask=None, tell=lambda X, t, Y, told=told: told.append(Y))
        other = peers.run.METHODS[name](game.problem.bounds, 3)
        for n in range(20):
            X, _ = game.ask(other, n, n + 1.0)
            game.tell(method, X, n + 1.0)
            told[-1] = (told[-1] - game._value(X, n + 1.0), X)
        seen[name] = told
    noise, actions = ([[each[i] for each in told] for told in seen.values()] for i in (0, 1))
    assert noise[0] == pytest.approx(noise[1], abs=1e-12)
    assert torch.tensor(noise[0]).std() > 0.1
    assert all(torch.equal(*pair) for pair in list(zip(*actions, strict=True))[:15])
    assert not torch.equal(actions[0][15], actions[1][15])


def test_against_the_clock_cpu_seconds_are_lost(peers, monkeypatch):
    """With 1 s an evaluation and 80 s, a method that thinks for 4 s has a fifth of the rounds."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(peers.play, "time", SimpleNamespace(process_time=lambda: clock.now))

    class Slow(Corner):
        def ask(self, t):
            clock.now += 4.0
            return super().ask(t)

    monkeypatch.setitem(peers.play.METHODS, "slow", Slow)
    slow, fast = (peers.play.play(peers.play.Job("peak", m, 0, 1.0)) for m in ("slow", "ours"))
    assert (fast["rounds"], slow["rounds"]) == (80, 15 + 13)
    assert fast["model_size"] == 80
    assert slow["seconds"][-1] == 4.0

    # The corner stands from t = 15 on if the method answers at once, else from t = 19.
    times = 15 + 65 * (torch.arange(650, dtype=torch.float64) + 0.5) / 650
    game = peers.play.Game("peak", 0)
    rows = torch.cat([torch.zeros(650, 2, dtype=torch.float64), times.unsqueeze(-1)], dim=-1)
    for record, begins in ((fast, 15.0), (slow, 19.0)):
        rows[:, :2] = torch.where((times < begins).unsqueeze(-1), game.start[14], 0.0)
        expected = 1 - MovingPeak().evaluate_true(rows).mean().item()
        assert record["regret"] == pytest.approx([expected], abs=1e-4)


def test_ours_asks_its_model_after_the_initial_points(peers):
    from tvbo import recipes
    from tvbo.acquisition.ucb import EdgeCorrectedUCB

    game = peers.play.Game("peak", 0)
    method = peers.methods.Recipe(recipes.tv_gp_ucb, game.problem.bounds, 0)
    for n in range(15):
        game.tell(method, game.start[n : n + 1], n + 1.0)
    assert method.model_size == 15
    assert method.optimizer.model is None
    X = method.ask(16.0)
    model = method.optimizer.model
    assert method.optimizer.outcome_models[0].last_model.train_targets.shape == (15,)
    # The best of the recipe's UCB, up to the resolution of a grid.
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 41, dtype=torch.float64)] * 2)
    rows = torch.cat([torch.cat([X, grid]), torch.full((1682, 1), 16.0).double()], dim=-1)
    beta = method.optimizer.acquisition.beta(16)
    acq_function = EdgeCorrectedUCB(model, beta, method.optimizer.search_space)
    values = acq_function(rows.unsqueeze(-2))
    assert values[0] >= values[1:].max() - 1e-3
