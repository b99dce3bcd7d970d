"""Optuna's studies with a sampler of ours (``pip install botorch-tvbo[optuna]``)."""

import math
import os
import signal
import subprocess
import sys
from datetime import datetime, timedelta
from itertools import combinations
from pathlib import Path

import pytest

from tvbo import recipes
from tvbo.integrations.adapter import HostTrial, optimizer_of

pytest.importorskip("optuna")

import optuna
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial

import tvbo.integrations.optuna as door
from tvbo.integrations.optuna import NEAR, TimeVaryingSampler

optuna.logging.set_verbosity(optuna.logging.ERROR)
SPACE = {"x": FloatDistribution(0.0, 1.0), "y": FloatDistribution(-2.0, 3.0)}


def loss(x, y, t):
    """A bowl whose bottom goes round, with a wave that stands for noise."""
    wave = 0.05 * math.sin(40 * x + 9 * y + t)
    return (x - 0.5 - 0.3 * math.sin(t / 9)) ** 2 + ((y - 0.5) / 4) ** 2 + wave


def objective(trial):
    x, y = (trial.suggest_float(name, each.low, each.high) for name, each in SPACE.items())
    return loss(x, y, trial.number)


def make_study(num_trials=0, directions=("minimize",), **options):
    study = optuna.create_study(
        directions=directions, sampler=TimeVaryingSampler(seed=0, **options)
    )
    study.optimize(objective, num_trials)
    return study


def as_ours(study):
    """The optimizer that has the completed trials, built by hand."""
    optimizer = recipes.tv_gp_ucb(
        bounds={name: (each.low, each.high) for name, each in SPACE.items()},
        minimize=True,
        generator=0,
    )
    for trial in study.trials:
        optimizer.tell(optimizer.attach(trial.params, trial.number), trial.value)
    return optimizer


def test_it_chooses_and_recommends_as_the_recipe_with_the_trials_of_the_study():
    study = make_study(16)
    ours, (parameters, mean, deviation) = as_ours(study), study.sampler.recommend(study, t=20.0)
    expected = ours.recommend(t=20.0)
    assert parameters == pytest.approx(expected.parameters, abs=1e-4)
    assert (mean, deviation) == pytest.approx(
        (expected.mean, expected.standard_deviation), rel=1e-4
    )
    asked = ours.ask(16.0)
    trial = study.ask(SPACE)
    assert trial.params == pytest.approx(asked.parameters, abs=1e-4)
    # The model expects the outcome of the trial that runs.
    again = study.ask(SPACE)
    assert again.params == pytest.approx(ours.ask(17.0).parameters, abs=1e-4)


def test_every_kind_of_parameter():
    def mixed(trial):
        x = trial.suggest_float("x", -1.0, 1.0)
        tenth = trial.suggest_float("tenth", 0.0, 0.9, step=0.1)
        odd = trial.suggest_int("odd", 1, 9, step=2)
        rate = trial.suggest_float("rate", 1e-4, 1.0, log=True)
        width = trial.suggest_int("width", 1, 100, log=True)
        kind = trial.suggest_categorical("kind", ["a", True, None])
        assert trial.suggest_float("fixed", 2.0, 2.0) == 2.0
        return x**2 + tenth + odd + math.log(rate) ** 2 / width + (kind is None)

    study = optuna.create_study(sampler=TimeVaryingSampler(seed=0))
    study.optimize(mixed, 4)
    for trial in study.trials:
        assert trial.params["odd"] in (1, 3, 5, 7, 9)
        assert trial.params["width"] == int(trial.params["width"])
        for name, each in trial.distributions.items():
            assert each._contains(each.to_internal_repr(trial.params[name]))
    parameters, *_ = study.sampler.recommend(study)
    assert parameters.keys() == trial.params.keys() - {"fixed"}


def test_pending_failed_and_pruned_trials_count(caplog):
    study = make_study(14)
    asked = [study.ask(SPACE) for _ in range(3)]
    assert all(
        max(abs(one.params[name] - two.params[name]) for name in SPACE) > NEAR
        for one, two in combinations(asked, 2)
    )
    study.tell(asked[0], state=TrialState.FAIL)
    study.tell(asked[1], state=TrialState.PRUNED)
    trials = list(study.sampler._trials(study, SPACE).values())
    optimizer = optimizer_of(trials, bounds={"x": (0.0, 1.0), "y": (-2.0, 3.0)})
    assert len(optimizer.open_trials) == 1
    assert {each.reason for each in optimizer.trial_log.newest} == {"fail", "pruned"}


def test_outcomes_that_are_no_numbers_have_failed_and_nothing_is_logged_again(caplog):
    caplog.set_level("INFO", logger="tvbo.optimizers")
    trials = [HostTrial({"x": 0.1}, t, Y=y) for t, y in enumerate([1.0, math.inf, math.nan])]
    optimizer = optimizer_of(trials, bounds={"x": (0.0, 1.0)})
    assert optimizer.trial_log.num_failed == 2
    assert not caplog.records
    optimizer.ask(5.0)
    assert caplog.records


def test_constraints():
    def constrained(trial):
        x = trial.suggest_float("x", 0.0, 1.0)
        trial.set_constraint("far", 0.6 - x)
        return x

    study = optuna.create_study(sampler=TimeVaryingSampler(seed=0))
    study.optimize(constrained, 16)
    parameters, *_ = study.sampler.recommend(study)
    assert parameters["x"] == pytest.approx(0.6, abs=0.15)
    study.sampler = TimeVaryingSampler(constraints_func=lambda trial: [trial.params["x"]])
    trial = study.ask(SPACE)
    study.tell(trial, 1.0)
    with pytest.raises(ValueError, match="far"):
        study.ask(SPACE)


@pytest.mark.slow
def test_several_objectives():
    study = make_study(directions=("minimize", "maximize"))

    def two(trial):
        x = trial.suggest_float("x", 0.0, 1.0)
        return (x - 0.2) ** 2, -((x - 0.6) ** 2)

    study.optimize(two, 14)
    assert all(-0.1 < trial.params["x"] < 0.8 for trial in study.trials[-4:])


def test_contexts_are_user_attributes():
    study = make_study(context_bounds={"load": (0.0, 1.0), "rule": ["a", "b"]})
    for n in range(3):
        trial = study.ask()
        trial.set_user_attr("load", n / 3)
        trial.set_user_attr("rule", "b")
        study.tell(trial, objective(trial))
    trials = study.sampler._trials(study, SPACE)
    assert trials[2].context == {"load": 2 / 3, "rule": "b"}
    parameters, *_ = study.sampler.recommend(study, context={"load": 0.1, "rule": "a"})
    assert parameters.keys() == SPACE.keys()
    with pytest.raises(ValueError, match="load"):
        study.ask(SPACE)


def test_time_by_a_clock():
    begun = datetime(2026, 1, 1)
    trials = [
        create_trial(params={"x": x, "y": 0.0}, distributions=SPACE, value=x) for x in (0.1, 0.9)
    ]
    for hours, trial in enumerate(trials):
        trial.datetime_start = begun + timedelta(hours=hours)
    study = make_study(clock="1h")
    study.add_trials(trials)
    first, second = (each.t for each in study.sampler._trials(study, SPACE).values())
    assert second - first == 1.0
    study.sampler = TimeVaryingSampler(clock=lambda trial: 7.0 * trial.number)
    assert [each.t for each in study.sampler._trials(study, SPACE).values()] == [0.0, 7.0]
    with pytest.raises(ValueError, match="fortnight"):
        TimeVaryingSampler(clock="fortnight")


def test_parameters_that_not_all_trials_have_are_random(caplog):
    def conditional(trial):
        x = trial.suggest_float("x", 0.0, 1.0)
        return x if trial.number % 2 else x + trial.suggest_float("depth", 0.0, 1.0)

    study = optuna.create_study(sampler=TimeVaryingSampler(seed=0))
    study.optimize(conditional, 5)
    assert [each.message.split()[0] for each in caplog.records] == ["depth"]
    assert "depth" not in study.sampler.infer_relative_search_space(study, study.trials[0])


def test_what_another_process_chooses_meanwhile_is_not_chosen(monkeypatch):
    """By the same trials, all would choose the same."""
    study = make_study(4)
    one, *others = (study.ask() for _ in range(3))
    ask, started = door.ask, []

    def slow(*args, **options):
        found = ask(*args, **options)
        # All have chosen before the first one announces it.
        if others:
            started.append(others.pop())
            started[-1].relative_params  # noqa: B018
        return found

    monkeypatch.setattr(door, "ask", slow)
    chosen = [trial.relative_params for trial in (one, *started)]
    assert all(
        max(abs(first[name] - second[name]) for name in SPACE) > NEAR
        for first, second in combinations(chosen, 2)
    )


WORKER = """
import sys, time, optuna
sys.path.insert(0, {folder!r})
from test_optuna import TimeVaryingSampler, objective
def slow(trial):
    value = objective(trial)
    print(trial.number, flush=True)
    time.sleep(0.2)
    return value
study = optuna.load_study(study_name="shared", storage=sys.argv[1], sampler=TimeVaryingSampler())
study.optimize(slow, n_trials=int(sys.argv[2]))
"""


@pytest.mark.slow
def test_four_processes_of_which_one_is_killed(tmp_path):
    url = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(study_name="shared", storage=url)
    script = WORKER.format(folder=str(Path(__file__).parent))

    def start(num_trials, stdout=subprocess.DEVNULL):
        arguments = [sys.executable, "-c", script, url, str(num_trials)]
        return subprocess.Popen(arguments, stdout=stdout)

    workers = [start(6, subprocess.PIPE), *(start(6) for _ in range(3))]
    with workers[0].stdout as told:
        for _ in range(4):
            told.readline()
    os.kill(workers[0].pid, signal.SIGKILL)
    assert [worker.wait(120) for worker in workers[1:]] == [0, 0, 0]
    assert start(4).wait(120) == 0
    assert workers[0].wait() == -signal.SIGKILL
    trials = study.trials
    assert [trial.number for trial in trials] == list(range(len(trials)))
    ended = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert len(ended) in (3 + 3 * 6 + 4, 4 + 3 * 6 + 4)
    assert {trial.state for trial in trials} <= {TrialState.COMPLETE, TrialState.RUNNING}
    assert all(trial.value == loss(**trial.params, t=trial.number) for trial in ended)
    now = datetime.now()
    for one, two in combinations([trial for trial in trials if trial.params], 2):
        if two.datetime_start < (one.datetime_complete or now):
            apart = max(abs(one.params[name] - two.params[name]) for name in SPACE)
            assert apart > 1e-3, (one, two)
