"""`run` and the history it writes."""

import math

import pandas as pd
import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo import recipes, run
from tvbo.optimizers import RandomSearch
from tvbo.problems import ExampleFunction, MovingPeak, PanelProblem, drifting_gp, unit_grid
from tvbo.search_space import FiniteSpace


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
        "evaluated",
        "informative",
        "model_size",
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
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "rounds.csv"), frame)


class Counted(PanelProblem):
    """Notes the rows that are evaluated, and those that are only scored."""

    def __init__(self, values):
        super().__init__(values, noise_variance=0.05)
        self.evaluated = []

    def __call__(self, X):
        self.evaluated.append(X.squeeze(0).tolist())
        return super().__call__(X)


def compressed(problem, mode, horizon=25, **options):
    """Two constant arms, each worth a few looks."""
    optimizer = recipes.compressed_gp(
        choices=problem.choices,
        covar_module=RBFKernel().double(),
        noise_variance=0.05,
        budget=0.15,
        mode=mode,
    )
    return optimizer, run(problem, optimizer, horizon=horizon, progress=False, **options)


@pytest.fixture
def two_arms():
    return Counted(torch.tensor([[0.3, 1.0]]).expand(25, 2))


def test_skipped_trials_are_scored_but_not_evaluated(two_arms):
    optimizer, history = compressed(two_arms, "skip")
    evaluated = history.evaluated
    assert 0 < evaluated.sum() < 25
    assert evaluated.tolist() == [not r.trial.skipped for r in history.rounds]
    asked = torch.cat([history.X, history.t.unsqueeze(-1)], dim=-1)
    assert two_arms.evaluated == asked[evaluated].tolist()
    assert torch.equal(history.reward.isnan(), ~evaluated)
    # One of the two arms is 0.7 worse, whether it was tried or not.
    expected = torch.where(history.X[:, 0] == two_arms.choices[1, 0], 0.0, 0.7)
    torch.testing.assert_close(history.regret, expected.double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        history.average_regret[-1], history.regret.mean(), rtol=0, atol=1e-12
    )
    assert optimizer.open_trials == ()
    assert optimizer.model_size == evaluated.sum() == len(history.observations())
    assert optimizer.rejection_log.num_skipped == (~evaluated).sum()


def test_no_noise_is_drawn_for_what_is_skipped(two_arms):
    """A world that is left alone does not change: so runs with and without skips compare."""
    _, history = compressed(two_arms, "skip")
    fresh = Counted(torch.tensor([[0.3, 1.0]]).expand(25, 2))
    rows = torch.cat([history.X, history.t.unsqueeze(-1)], dim=-1)[history.evaluated]
    noisy = torch.cat([fresh(row.unsqueeze(0)) for row in rows])
    assert torch.equal(noisy, history.reward[history.evaluated])


def test_a_skipped_trial_has_no_delay(two_arms):
    delayed = []

    def delay(trial):
        delayed.append(trial.id)
        return 2.0

    _, history = compressed(two_arms, "skip", delay=delay)
    assert delayed == [r.trial.id for r in history.rounds if not r.trial.skipped]
    assert len(delayed) < 25


def test_discarded_trials_are_evaluated_and_told(two_arms):
    optimizer, history = compressed(two_arms, "discard")
    assert len(two_arms.evaluated) == 25
    assert history.evaluated.all()
    assert history.reward.isfinite().all()
    kept = [r.trial.informative for r in history.rounds]
    assert 0 < optimizer.model_size == sum(kept) < 25
    assert optimizer.rejection_log.num_discarded == 25 - sum(kept)
    assert optimizer.open_trials == ()
    frame = history.to_frame()
    assert frame["informative"].tolist() == kept
    assert frame["evaluated"].tolist() == [True] * 25
    # What was told is in the log, kept or not.
    assert len(history.observations()) == 25


def test_frame_of_skipped_trials(two_arms, tmp_path):
    _, history = compressed(two_arms, "skip")
    frame = history.to_frame()
    assert frame["evaluated"].tolist() == history.evaluated.tolist()
    assert frame["informative"].tolist() == frame["evaluated"].tolist()
    assert frame["reward"].isna().tolist() == (~frame["evaluated"]).tolist()
    assert frame["evaluation_seconds"].tolist() == history.evaluation_seconds.tolist()
    history.to_csv(tmp_path / "rounds.csv")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "rounds.csv"), frame)


def test_what_is_skipped_takes_no_evaluation_time(two_arms):
    _, history = compressed(two_arms, "skip")
    assert (history.evaluation_seconds[history.evaluated] > 0).all()
    assert (history.evaluation_seconds[~history.evaluated] == 0).all()


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


def test_progress_bar_is_shown_on_request(problem, capsys):
    run(problem, recipes.random_search(choices=problem.choices), horizon=3, label="a label")
    assert "a label" in capsys.readouterr().err
    run(problem, recipes.random_search(choices=problem.choices), horizon=3, progress=False)
    output = capsys.readouterr()
    assert output.out == output.err == ""
