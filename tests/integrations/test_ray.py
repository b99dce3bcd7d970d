"""Ray Tune's population-based bandits with an explore step of ours (``botorch-tvbo[ray]``)."""

import json
import math
import pickle
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("ray.tune")

import ray
from ray import tune

from tvbo.integrations.ray import TimeVaryingPB2


class Member:
    """What a scheduler reads of a trial of Ray."""

    def __init__(self, number, **config):
        self.trial_id, self.experiment_tag = str(number), ""
        self.config, self.evaluated_params = config, {}
        kept = SimpleNamespace(num_to_keep=None)
        self.run_metadata = SimpleNamespace(
            checkpoint_manager=SimpleNamespace(checkpoint_config=kept)
        )


def make_scheduler(bounds=None, **options):
    bounds = bounds or {"rate": [0.0, 1.0]}
    return TimeVaryingPB2("t", "score", "max", 1.0, bounds, **options)


def best_rate(t):
    return 0.5 + 0.4 * math.sin(t / 6)


def play(scheduler, members, rounds, sign=1.0):
    """Let a population train by a rate whose best value moves.

    Returns the last two members that were replaced and cloned, and how far off each new rate was.
    """
    scores, off = dict.fromkeys(members, 0.0), []
    for t in range(1, rounds + 1):
        for each in members:
            scores[each] += 1 - 3 * (each.config["rate"] - best_rate(t - 1)) ** 2
            result = {"t": t, "score": sign * scores[each]}
            scheduler._save_trial_state(SimpleNamespace(), t, result, each)
        worst, *_, best = sorted(members, key=scores.get)
        worst.config, _ = scheduler._get_new_config(worst, best)
        scores[worst] = scores[best]
        off.append(abs(worst.config["rate"] - best_rate(t)))
    return worst, best, off


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_explore_step_follows_what_is_best(sign):
    mode = "max" if sign > 0 else "min"
    scheduler = TimeVaryingPB2("t", "score", mode, 1.0, {"rate": [0.0, 1.0]})
    assert scheduler.drift() is None
    members = [Member(i, rate=rate) for i, rate in enumerate([0.05, 0.3, 0.6, 0.95])]
    worst, best, off = play(scheduler, members, 26, sign)
    assert sum(off[-12:]) / 12 < 0.2
    assert "half-life" in str(scheduler.drift())
    again = pickle.loads(pickle.dumps(scheduler))
    assert again._get_new_config(worst, best) == scheduler._get_new_config(worst, best)


def test_intervals_that_are_not_over_are_pending_and_errors_have_failed():
    scheduler = make_scheduler()
    members = [Member(i, rate=rate) for i, rate in enumerate([0.05, 0.3, 0.6, 0.95])]
    play(scheduler, members, 8)
    first, second, clone, other = members
    rates = []
    for each in (first, second):
        each.config, _ = scheduler._get_new_config(each, clone)
        rates.append(each.config["rate"])
    assert abs(rates[0] - rates[1]) > 0.01
    scheduler.on_trial_error(None, other)
    scheduler.on_trial_complete(None, second, {})
    scheduler._get_new_config(first, clone)
    optimizer = scheduler._optimizer
    assert [each.reason for each in optimizer.trial_log.newest] == ["error"]
    assert len(optimizer.open_trials) == 2  # that of the clone, and the new one
    scheduler._save_trial_state(SimpleNamespace(), 9, {"t": 9, "score": math.nan}, clone)
    assert scheduler._get_new_config(first, clone) == (clone.config, {})


def test_every_kind_of_hyperparameter():
    bounds = {
        "rate": tune.loguniform(1e-4, 1.0),
        "share": [0, 1],
        "depth": [1, 64],
        "inner": {
            "width": tune.randint(1, 5),
            "tens": tune.qrandint(10, 100, 10),
            "tenths": tune.quniform(0.0, 0.9, 0.1),
            "size": tune.lograndint(1, 1000),
            "rule": tune.choice(["a", "b"]),
        },
    }
    scheduler = make_scheduler(bounds, custom_explore_fn=lambda config: {**config, "seen": True})
    members = [Member(i, share=0.5, depth=8, inner={"width": 1}) for i in range(4)]
    for each in members:
        scheduler.on_trial_add(SimpleNamespace(search_alg=None), each)
        assert each.config["inner"]["width"] == 1
        assert 1e-4 <= each.evaluated_params["rate"] <= 1.0
    for t in range(1, 5):
        for each in members:
            result = {"t": t, "score": t * each.config["share"]}
            scheduler._save_trial_state(SimpleNamespace(), t, result, each)
        config, _ = scheduler._get_new_config(members[0], members[1])
        assert config["seen"]
        inner = config["inner"]
        assert isinstance(config["depth"], int)
        assert inner["width"] in range(1, 5)
        assert inner["tens"] in range(10, 101, 10)
        assert inner["tenths"] == pytest.approx(round(10 * inner["tenths"]) / 10)
        assert inner["tenths"] <= 0.9 + 1e-9
        assert inner["size"] in range(1, 1000)
        assert inner["rule"] in ("a", "b")
        members[0].config = config


@pytest.mark.parametrize("bounds", [{"x": [1.0]}, {"x": tune.randn()}, {"x": (2.0, 1.0)}, {}])
def test_bounds_that_are_refused(bounds):
    with pytest.raises(ValueError, match="Got"):
        TimeVaryingPB2("t", "score", "max", 1.0, bounds)


def train(config):
    """Train by a rate whose best value moves; go on from a checkpoint."""
    t, score = 0, 0.0
    if (checkpoint := tune.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            t, score = json.loads((Path(folder) / "state.json").read_text())
    while t < 6:
        score += 1 - 3 * (config["rate"] - best_rate(t)) ** 2
        t += 1
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "state.json").write_text(json.dumps([t, score]))
            checkpoint = tune.Checkpoint.from_directory(folder)
            tune.report({"t": t, "score": score}, checkpoint=checkpoint)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_inside_ray(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        scheduler = make_scheduler(synch=True)
        found = tune.Tuner(
            train,
            tune_config=tune.TuneConfig(scheduler=scheduler, num_samples=4, reuse_actors=True),
            run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
            param_space={"rate": tune.uniform(0.0, 1.0)},
        ).fit()
    finally:
        ray.shutdown()
    assert not found.errors
    assert [each.metrics["t"] for each in found] == [6] * 4
    assert scheduler._num_perturbations > 2
    assert len(list(tmp_path.rglob("pbt_policy_*.txt"))) > 0
