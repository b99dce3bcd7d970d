"""`run` on a problem, and the history that it writes."""

import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pandas as pd
import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo import recipes, run, run_async
from tvbo.evaluation import EvaluationError
from tvbo.optimizers import RandomSearch
from tvbo.spaces import FiniteSpace
from tvbo.test_functions import ExampleFunction, MovingPeak, PanelProblem, drifting_gp, unit_grid


@pytest.fixture
def problem():
    return drifting_gp(unit_grid(4), RBFKernel(), 0.1, horizon=20, noise_variance=0.1)


def make_optimizer(problem):
    return recipes.tv_gp_ucb(
        choices=problem.choices, covar_module=RBFKernel(), forgetting_rate=0.1, noise_variance=0.1
    )


def test_regret_is_the_best_value_minus_that_of_the_action():
    problem = PanelProblem(torch.tensor([[1.0, 3.0], [5.0, 2.0], [4.0, 4.0]]))
    history = run(
        problem, recipes.random_search(choices=problem.choices), horizon=3, progress=False
    )
    for i, expected in enumerate([(2.0, 0.0), (0.0, 3.0), (0.0, 0.0)]):
        assert history.regret[i].item() == expected[int(history.X[i].item())]
    torch.testing.assert_close(
        history.average_regret, history.regret.cumsum(0) / torch.tensor([1.0, 2, 3])
    )


def test_frame_and_csv(problem, tmp_path):
    history = run(problem, make_optimizer(problem), horizon=6, progress=False)
    frame = history.to_frame()
    assert list(frame.columns) == [
        "trial",
        "t",
        "action_0",
        "action_1",
        "reward",
        "value",
        "optimal_value",
        "regret",
        "average_regret",
        "status",
        "reason",
        "evaluated",
        "informative",
        "model_size",
        "ask_seconds",
        "seconds",
        "evaluation_seconds",
    ]
    assert frame["model_size"].tolist() == list(range(6))
    assert (frame["seconds"] > 0).all()
    assert (frame["evaluation_seconds"] > 0).all()
    assert frame["evaluated"].all()
    assert frame["informative"].all()
    assert (frame["regret"] >= 0).all()
    assert frame["reward"].notna().all()
    history.to_csv(tmp_path / "rounds.csv")
    written = pd.read_csv(tmp_path / "rounds.csv", dtype={"reason": str}).fillna({"reason": ""})
    pd.testing.assert_frame_equal(written, frame)


def test_delay_zero_is_no_delay(problem):
    def chosen(delay):
        problem.generator.manual_seed(3)
        return run(problem, make_optimizer(problem), horizon=10, delay=delay, progress=False).X

    assert torch.equal(chosen(None), chosen(lambda trial: 0.0))


def test_late_outcomes_are_told_when_they_arrive(problem):
    optimizer = make_optimizer(problem)
    history = run(problem, optimizer, horizon=10, delay=lambda trial: 3.0, progress=False)
    # The outcome of round t arrives at t + 3, just after that round's ask.
    assert history.model_size.tolist() == [0, 0, 0, 0, 1, 2, 3, 4, 5, 6]
    assert [trial.id for trial in optimizer.open_trials] == [8, 9, 10]
    rewards = [r.reward for r in history.rounds]
    assert all(math.isnan(reward) for reward in rewards[7:])
    assert not any(math.isnan(reward) for reward in rewards[:7])


class Listener(RandomSearch):
    """Notes at each ask which trials had been told."""

    def __init__(self, search_space):
        super().__init__(search_space)
        self.told, self.known = set(), []

    def _choose(self, round_number, t, context):
        self.known.append(sorted(self.told))
        return super()._choose(round_number, t, context)

    def _learn(self, trial, observation):
        self.told.add(trial.id)


def known_at_asks(delay, times=None, horizon=None):
    problem = ExampleFunction()
    listener = Listener(FiniteSpace(problem.choices))
    horizon = len(times) if horizon is None else horizon
    run(problem, listener, horizon=horizon, times=times, delay=delay, progress=False)
    return listener.known


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0, 1.5, 2.0, 2.999, 3.0])
def test_an_ask_knows_what_arrived_before_it(tau):
    """Vakili et al. (2023), whole τ: the choice of round t + 1 rests on s with s + τ <= t."""
    known = known_at_asks(lambda trial: tau, horizon=8)
    for t, ids in enumerate(known):
        assert ids == [s for s in range(1, t + 1) if s + math.floor(tau) <= t]


def test_each_whole_delay_is_another_one():
    runs = [known_at_asks(lambda trial, d=d: float(d), horizon=6) for d in range(6)]
    assert [len(known[-1]) for known in runs] == [5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize("tau", [0.0, 1.0, 2.0, 2.5, 4.0])
def test_delays_with_unequal_steps(tau):
    """Before an ask: what arrived earlier, or by the time of the ask before."""
    times = [1.0, 2.0, 2.0, 4.0, 4.5, 8.0, 8.0, 8.0, 9.0]
    known = known_at_asks(lambda trial: tau, times)
    for i, ids in enumerate(known):
        expected = [
            s + 1 for s in range(i) if times[s] + tau < times[i] or times[s] + tau <= times[i - 1]
        ]
        assert ids == expected


def test_times_that_differ_by_rounding_are_one():
    """In tenths as in whole numbers, though 0.1 + 0.2 is not 0.3 and 0.7 + 0.1 is below 0.8."""
    for tau in range(5):
        whole = known_at_asks(lambda trial, d=tau: float(d), horizon=20)
        tenths = [0.1 * i for i in range(1, 21)]
        assert known_at_asks(lambda trial, d=tau: 0.1 * d, tenths) == whole


def test_outcomes_of_the_last_time_are_told_at_the_end(problem):
    optimizer = make_optimizer(problem)
    run(problem, optimizer, horizon=6, delay=lambda trial: 2.0, progress=False)
    assert [trial.id for trial in optimizer.open_trials] == [5, 6]


def test_observations_are_those_that_arrived(problem):
    history = run(
        problem, make_optimizer(problem), horizon=6, delay=lambda trial: 2.0, progress=False
    )
    log = history.observations()
    assert len(log) == 4
    assert log.X[:, -1].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert torch.equal(log.Y.squeeze(-1), history.reward[:4])
    assert torch.equal(log.X[:, :2], history.X[:4])


def test_no_observations_yet(problem):
    history = run(
        problem, make_optimizer(problem), horizon=2, delay=lambda trial: 9.0, progress=False
    )
    assert len(history.observations()) == 0


def test_noise_is_no_function_of_the_actions():
    """Without generators given, problem and optimizer must not share random numbers."""
    problem = MovingPeak(noise_variance=1.0)
    history = run(
        problem, recipes.random_search(bounds=problem.bounds), horizon=400, progress=False
    )
    noise = history.reward - torch.tensor([r.value for r in history.rounds])
    # Box and Muller's rule, by which torch makes normal numbers of uniform ones.
    u = history.X
    normal = (-2 * (1 - u[:, 0]).log()).sqrt() * (2 * torch.pi * u[:, 1]).cos()
    pairs = torch.stack([noise[::2], normal[:200].to(noise)])
    assert abs(torch.corrcoef(pairs)[0, 1]) < 0.3


def test_times_may_be_given(problem):
    history = run(
        problem, make_optimizer(problem), horizon=3, times=[2.0, 2.0, 9.0], progress=False
    )
    assert history.t.tolist() == [2.0, 2.0, 9.0]


def test_bad_runs(problem):
    optimizer = make_optimizer(problem)
    with pytest.raises(ValueError, match="horizon >= 1 round. Got 0"):
        run(problem, optimizer, horizon=0)
    with pytest.raises(ValueError, match="Expected 3 times. Got 2"):
        run(problem, optimizer, horizon=3, times=[1.0, 2.0])
    with pytest.raises(ValueError, match="delay >= 0. Got -1.0"):
        run(problem, optimizer, horizon=3, delay=lambda trial: -1.0, progress=False)


def poor(trial):
    """Of five trials one raises, and one gives NaN."""
    if trial.id % 5 == 2:
        raise OSError("unplugged")
    return math.nan if trial.id % 5 == 4 else trial.X.sum()


@pytest.mark.parametrize("delay", [None, lambda trial: 2.0])
def test_an_evaluation_that_goes_wrong_may_fail_its_trial(problem, delay, capsys):
    optimizer = recipes.random_search(choices=problem.choices)
    with pytest.raises(OSError, match="unplugged"):
        run(poor, optimizer, horizon=5, progress=False)
    assert [trial.id for trial in optimizer.open_trials] == [2]
    optimizer = recipes.random_search(choices=problem.choices)
    history = run(poor, optimizer, horizon=10, delay=delay, on_error="fail")
    assert history.counts["failed"] == optimizer.trial_log.num_failed == 4 - (delay is not None)
    assert "OSError" in history.rounds[1].reason
    assert "nan" in history.rounds[3].reason
    assert f"{history.counts['failed']} failed" in capsys.readouterr().err


def test_an_evaluation_that_goes_wrong_elsewhere_may_end_the_run(problem):
    with ThreadPoolExecutor(1) as executor:
        for go in (partial(run, horizon=5), partial(run_async, num_trials=5, max_pending=1)):
            optimizer = recipes.random_search(choices=problem.choices)
            with pytest.raises(EvaluationError, match="OSError"):
                go(poor, optimizer, executor=executor, on_error="raise", progress=False)
            assert [trial.id for trial in optimizer.open_trials] == [2]
            with pytest.raises(ValueError, match="ignore"):
                go(poor, optimizer, executor=executor, on_error="ignore", progress=False)


def test_progress_bar_is_shown_on_request(problem, capsys):
    run(problem, recipes.random_search(choices=problem.choices), horizon=3, label="a label")
    assert "a label" in capsys.readouterr().err
    run(problem, recipes.random_search(choices=problem.choices), horizon=3, progress=False)
    output = capsys.readouterr()
    assert output.out == output.err == ""
