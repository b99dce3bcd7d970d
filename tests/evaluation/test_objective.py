"""`run` on a function of a trial, with and without an executor."""

import math
import pickle
import re
import signal
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures import ThreadPoolExecutor as Threads
from multiprocessing import get_all_start_methods, get_context

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import RBFKernel

from tvbo import History, recipes, run, run_async
from tvbo.evaluation import ConstantDelay
from tvbo.evaluation.objective import ProblemFunction
from tvbo.optimizers import RandomSearch
from tvbo.spaces import FiniteSpace
from tvbo.test_functions import ContextualPanelProblem, MovingPeak, drifting_gp, unit_grid

CHOICES = torch.arange(10, dtype=torch.float64).unsqueeze(-1)
KERNEL = RBFKernel()


def square(trial):
    return trial.X.square().sum()


def make_problem(noise_variance=0.1):
    return drifting_gp(
        unit_grid(4),
        KERNEL,
        0.1,
        horizon=20,
        noise_variance=noise_variance,
        generator=torch.Generator().manual_seed(8),
    )


def make_optimizer():
    return recipes.tv_gp_ucb(
        choices=unit_grid(4), covar_module=KERNEL, forgetting_rate=0.1, noise_variance=0.1
    )


def random_search():
    return recipes.random_search(choices=CHOICES)


@pytest.mark.parametrize("delay", [None, ConstantDelay(2.0), lambda trial: 1.5 * (trial.id % 3)])
def test_a_function_is_run_like_the_problem(delay):
    ordinary = run(make_problem(), make_optimizer(), horizon=15, delay=delay, progress=False)
    problem, optimizer = make_problem(), make_optimizer()

    def measure(trial):
        return problem(problem.layout.rows(trial.X, trial.t))

    history = run(measure, optimizer, horizon=15, delay=delay, progress=False)
    assert torch.equal(history.X, ordinary.X)
    assert torch.equal(history.t, ordinary.t)
    assert torch.equal(history.reward.nan_to_num(9.0), ordinary.reward.nan_to_num(9.0))
    assert torch.equal(history.model_size, ordinary.model_size)
    assert history.counts == ordinary.counts


def test_a_function_has_no_regret(tmp_path):
    history = run(square, random_search(), horizon=4, progress=False)
    for name in ("regret", "average_regret"):
        with pytest.raises(ValueError, match="Expected a run on a DriftingProblem.* on a function"):
            getattr(history, name)
    assert all(math.isnan(r.value) and math.isnan(r.optimal_value) for r in history.rounds)
    frame = history.to_frame()
    assert not {"value", "optimal_value", "regret", "average_regret"} & set(frame)
    assert frame["reward"].tolist() == history.X.square().sum(dim=-1).tolist()
    assert frame["status"].tolist() == ["told"] * 4
    history.to_csv(tmp_path / "rounds.csv")
    assert (tmp_path / "rounds.csv").read_text().startswith("trial,t,action_0,reward,status,reason")


def test_the_variance_of_the_noise_is_told_and_recorded():
    optimizer = recipes.gp_ucb(choices=CHOICES, covar_module=KERNEL, noise_variance=0.1)
    history = run(lambda trial: (1.0, 0.5 / trial.id), optimizer, horizon=3, progress=False)
    variances = [0.5, 0.25, 0.5 / 3]
    assert optimizer.observations.Yvar.squeeze(-1).tolist() == variances
    assert history.observations().Yvar.squeeze(-1).tolist() == variances
    assert history.to_frame()["variance"].tolist() == variances


def test_the_context_of_the_round_is_seen_by_the_function():
    contexts = torch.tensor([[0.0], [1.0], [0.0]], dtype=torch.float64)

    def measure(trial):
        return trial.context.item()

    for optimizer in (
        random_search(),
        recipes.random_search(choices=CHOICES, contexts=[[0.0], [1.0]]),
    ):
        history = run(measure, optimizer, horizon=3, contexts=contexts, progress=False)
        assert history.reward.tolist() == [0.0, 1.0, 0.0]
        assert torch.equal(history.contexts, contexts)
        told = [r.trial.context for r in history.rounds]
        assert all((context is None) == (optimizer.contexts is None) for context in told)
    with pytest.raises(ValueError, match=r"contexts of shape 4 x 1. Got contexts.shape=\(3, 1\)"):
        run(measure, random_search(), horizon=4, contexts=contexts, progress=False)


@pytest.mark.parametrize("num_pending", [1, 3])
def test_a_run_on_threads(num_pending):
    problem = make_problem(noise_variance=0.0)
    with Threads(3) as executor:
        history = run(
            problem,
            make_optimizer(),
            horizon=12,
            executor=executor,
            max_pending=num_pending,
            progress=False,
        )
    assert history.counts == {"told": 12, "open": 0}
    assert (history.regret >= 0).all()
    if num_pending == 1:
        ordinary = run(problem, make_optimizer(), horizon=12, progress=False)
        assert torch.equal(history.X, ordinary.X)
        assert torch.equal(history.regret, ordinary.regret)


def test_an_asynchronous_run_on_a_problem_is_scored():
    generator = torch.Generator().manual_seed(2)
    values = torch.rand(12, 10, 2, dtype=torch.float64, generator=generator)
    listed = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    problem = ContextualPanelProblem(values, listed, choices=CHOICES)
    now, contexts = iter(range(1, 13)), iter(listed.repeat(6, 1))
    with Threads(2) as executor:
        history = run_async(
            problem,
            random_search(),
            executor,
            num_trials=12,
            max_pending=2,
            times=lambda: float(next(now)),
            contexts=lambda: next(contexts),
            progress=False,
        )
    best = torch.stack([values[i, :, i % 2].max() for i in range(12)])
    torch.testing.assert_close(history.regret, best - history.reward)
    assert torch.equal(history.contexts, listed.repeat(6, 1))


# What goes wrong.


def failing(trial):
    if trial.id == 3:
        raise ArithmeticError("the reactor is cold")
    return 1.0


def test_an_error_in_this_thread_is_raised_and_the_run_can_go_on():
    optimizer, history = random_search(), History()
    with pytest.raises(ArithmeticError, match="the reactor is cold"):
        run(failing, optimizer, horizon=5, history=history, progress=False)
    assert [r.status for r in history.rounds] == ["told", "told", "open"]
    assert [trial.id for trial in optimizer.open_trials] == [3]
    again = run(failing, optimizer, horizon=2, times=[4.0, 5.0], history=history, progress=False)
    assert again is history
    assert [r.status for r in history.rounds] == ["told", "told", "open", "told", "told"]


def test_an_error_in_a_worker_fails_the_trial():
    optimizer = random_search()
    with Threads(1) as executor:
        history = run(failing, optimizer, horizon=5, executor=executor, progress=False)
    assert history.counts == {"told": 4, "failed": 1, "open": 0}
    assert history.round_of(3).reason == "ArithmeticError: the reactor is cold"


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (math.nan, "Expected a finite outcome. Got nan"),
        ((1.0, -1.0), "Expected a variance of the noise, 0 or above. Got -1.0"),
        (1e300, r"1e\+300"),
    ],
)
def test_what_cannot_be_told_is_raised(outcome, message):
    optimizer = random_search()
    with pytest.raises(InputDataError, match=message):
        run(lambda trial: outcome, optimizer, horizon=5, progress=False)
    assert [trial.id for trial in optimizer.open_trials] == [1]


def test_ctrl_c_stops_an_evaluation_at_once_and_no_ask():
    steps = []

    class Noting(RandomSearch):
        def _choose(self, round_number, t, context):
            if round_number == 3:
                signal.raise_signal(signal.SIGINT)
                steps.append("asked")
            return super()._choose(round_number, t, context)

    def measure(trial):
        if trial.id == 5:
            signal.raise_signal(signal.SIGINT)
            steps.append("evaluated")
        return 1.0

    optimizer, history = Noting(FiniteSpace(CHOICES)), History()
    with pytest.raises(KeyboardInterrupt):
        run(measure, optimizer, horizon=9, history=history, progress=False)
    assert steps == ["asked"]
    assert [r.status for r in history.rounds] == ["told", "told", "open"]
    with pytest.raises(KeyboardInterrupt):
        run(measure, optimizer, horizon=9, times=range(4, 13), history=history, progress=False)
    assert steps == ["asked"]
    assert [trial.id for trial in optimizer.open_trials] == [3, 5]


def test_noise_is_not_drawn_twice_from_copies_of_one_generator():
    with pytest.raises(TypeError, match="Got noise_variance=0.1"):
        pickle.dumps(ProblemFunction(make_problem()))
    if "fork" not in get_all_start_methods():
        pytest.skip("processes are not forked here")
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as executor:
        with pytest.raises(TypeError, match="can be sent to other processes.*draws the same noise"):
            run(make_problem(), make_optimizer(), horizon=2, executor=executor, progress=False)
        problem = make_problem(noise_variance=0.0)
        history = run(problem, make_optimizer(), horizon=2, executor=executor, progress=False)
    again = run(problem, make_optimizer(), horizon=2, progress=False)
    assert torch.equal(history.regret, again.regret)


def test_bad_arguments():
    with pytest.raises(TypeError, match="DriftingProblem or a function of a trial. Got 3"):
        run(3, random_search(), horizon=2)
    with pytest.raises(ValueError, match="Expected an executor for 2 evaluations at a time"):
        run(square, random_search(), horizon=2, max_pending=2)
    with Threads(1) as executor, pytest.raises(ValueError, match="or an executor. Got both"):
        run(square, random_search(), horizon=2, executor=executor, delay=ConstantDelay(1.0))
    with pytest.raises(TypeError, match=r"Expected an executor .*get_executor.* Got list"):
        run(square, random_search(), horizon=2, executor=[])
    earlier = run(square, random_search(), horizon=2, progress=False)
    with pytest.raises(ValueError, match="Got one with 2 trials told; here 0"):
        run(square, random_search(), horizon=2, history=earlier)


def two_outcomes(trial):
    x = trial.parameters["x"]
    return {"gain": x, "load": 2 * x}


@pytest.mark.parametrize("variance", [False, True])
def test_several_outcomes_by_name(variance):
    def function(trial):
        Y = two_outcomes(trial)
        return (Y, {"gain": 0.01, "load": 0.02}) if variance else Y

    optimizer = recipes.tv_gp_ucb(
        bounds={"x": (0.0, 1.0)}, objectives=["gain"], constraints={"load": (None, 1.0)}
    )
    history = run(function, optimizer, horizon=6, progress=False)
    frame = history.to_frame()
    assert frame.reward.tolist() == history.X.flatten().tolist()
    assert frame.load.tolist() == [2 * x for x in frame.reward]
    assert optimizer.trial_log.num_told == 6
    if variance:
        assert frame.variance.tolist() == [0.01] * 6


def test_an_outcome_that_is_missing_fails_the_trial():
    optimizer = recipes.tv_gp_ucb(
        bounds={"x": (0.0, 1.0)}, objectives=["gain"], constraints={"load": (None, 1.0)}
    )
    with Threads(1) as pool:
        history = run_async(
            lambda trial: {"gain": 1.0},
            optimizer,
            pool,
            num_trials=2,
            max_pending=1,
            progress=False,
        )
    assert history.rounds[0].status == "failed"
    assert "no load" in history.rounds[0].reason


def test_regret_of_a_problem_with_a_constraint_counts_from_feasible_actions():
    class Limited(MovingPeak):
        """What is beyond one half is not allowed, and counts as nothing."""

        def scored_value(self, X):
            return 0.0 if X[0, 0] > 0.5 else super().scored_value(X)

        def optimal_value(self, t, context=None):
            return 1.0

    problem = Limited()
    optimizer = recipes.random_search(bounds=[(0.0, 1.0)] * 2)
    history = run(problem, optimizer, horizon=12, progress=False)
    beyond = history.X[:, 0] > 0.5
    assert 0 < beyond.sum() < 12
    assert (history.regret[beyond] == 1.0).all()
    assert (history.regret[~beyond] < 1.0).all()


def test_the_bar_says_what_came_and_what_was_expected(monkeypatch):
    shown = []
    monkeypatch.setattr("tvbo.terminal.TrialProgress.is_shown", True)
    monkeypatch.setattr("tvbo.terminal.TrialProgress.show", lambda *given: shown.append(given[-1]))
    optimizer = recipes.tv_gp_ucb(
        bounds=[(0.0, 1.0)], covar_module=RBFKernel(), forgetting_rate=0.1, noise_variance=0.01
    )
    run(lambda trial: trial.X.item(), optimizer, horizon=3, progress=False)
    assert re.fullmatch(r"told 0\.\d+, expected 0\.\d+ ± \d\.\d+, ε 0\.1", shown[2])
