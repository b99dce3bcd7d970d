"""`run` in this thread: problems and functions, contexts, delays, skipped trials, errors."""

import math
import signal

import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import RBFKernel

from experiments.problems.contextual_panel import ContextualPanelProblem
from tvbo import History, recipes, run
from tvbo.evaluation import RandomDelay
from tvbo.test_functions import MovingPeak, PanelProblem, drifting_gp
from tvbo.test_functions.drifting_gp import unit_grid

CHOICES = torch.arange(10, dtype=torch.float64).unsqueeze(-1)
T, N, M = 12, 5, 3
LISTED = torch.tensor([[0.1, 5.0], [0.3, 5.0], [0.3, 6.0]], dtype=torch.float64)
VALUES = torch.rand(T, N, M, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
DRAWN = LISTED[torch.randint(M, (T,), generator=torch.Generator().manual_seed(1))]


def quiet(objective, optimizer, horizon, **options):
    return run(objective, optimizer, horizon=horizon, progress=False, **options)


def make_problem():
    generator = torch.Generator().manual_seed(8)
    return drifting_gp(
        unit_grid(4), RBFKernel(), 0.1, horizon=20, noise_variance=0.1, generator=generator
    )


def make_optimizer(problem):
    return recipes.tv_gp_ucb(
        choices=problem.choices, covar_module=RBFKernel(), forgetting_rate=0.1, noise_variance=0.1
    )


def random_search():
    return recipes.random_search(choices=CHOICES)


def as_function(problem):
    return lambda trial: problem(problem.layout.rows(trial.X, trial.t))


def square(trial):
    return trial.X.square().sum()


# What is recorded.


def test_regret_is_the_best_value_minus_that_of_the_action():
    problem = PanelProblem(torch.tensor([[1.0, 3.0], [5.0, 2.0], [4.0, 4.0]]))
    history = quiet(problem, recipes.random_search(choices=problem.choices), 3)
    for i, expected in enumerate([(2.0, 0.0), (0.0, 3.0), (0.0, 0.0)]):
        assert history.regret[i].item() == expected[int(history.X[i].item())]
    mean = history.regret.cumsum(0) / torch.tensor([1.0, 2, 3])
    torch.testing.assert_close(history.average_regret, mean)


def test_frame_and_csv(tmp_path):
    problem = ContextualPanelProblem(VALUES, LISTED, noise_variance=0.01)
    history = quiet(problem, contextual(problem), 6, contexts=DRAWN[:6])
    frame = history.to_frame()
    inputs = ["trial", "t", "action_0", "context_0", "context_1", "reward"]
    values = ["value", "optimal_value", "regret", "average_regret", "status", "reason"]
    more = ["evaluated", "informative", "model_size", "ask_seconds", "seconds"]
    assert list(frame.columns) == [*inputs, *values, *more, "evaluation_seconds"]
    assert frame["model_size"].tolist() == list(range(6))
    assert frame[["context_0", "context_1"]].to_numpy().tolist() == DRAWN[:6].tolist()
    assert (frame[["seconds", "evaluation_seconds"]] > 0).all(axis=None)
    history.to_csv(tmp_path / "rounds.csv")
    written = pd.read_csv(tmp_path / "rounds.csv", dtype={"reason": str}).fillna({"reason": ""})
    pd.testing.assert_frame_equal(written, frame)


def test_a_function_is_run_like_the_problem_but_has_no_regret():
    delay = RandomDelay(lambda generator: 4 * torch.rand((), generator=generator))
    problem = make_problem()
    ordinary = quiet(problem, make_optimizer(problem), 15, delay=delay)
    problem = make_problem()
    history = quiet(as_function(problem), make_optimizer(problem), 15, delay=delay)
    for name in ("X", "t"):
        assert torch.equal(getattr(history, name), getattr(ordinary, name))
    torch.testing.assert_close(history.reward, ordinary.reward, equal_nan=True, rtol=0, atol=0)
    for name in ("regret", "average_regret"):
        with pytest.raises(ValueError, match="DriftingProblem"):
            getattr(history, name)
    assert not {"value", "optimal_value", "regret", "average_regret"} & set(history.to_frame())


def test_the_variance_of_the_noise_is_told_and_recorded():
    optimizer = recipes.gp_ucb(choices=CHOICES, covar_module=RBFKernel(), noise_variance=0.1)
    history = quiet(lambda trial: (1.0, 0.5 / trial.id), optimizer, 3)
    variances = [0.5, 0.25, 0.5 / 3]
    assert optimizer.observations.Yvar.squeeze(-1).tolist() == variances
    assert history.observations().Yvar.squeeze(-1).tolist() == variances
    assert history.to_frame()["variance"].tolist() == variances


@pytest.mark.parametrize("variance", [False, True])
def test_several_outcomes_by_name(variance):
    def function(trial):
        x = trial.parameters["x"]
        Y = {"gain": x, "load": 2 * x}
        return (Y, {"gain": 0.01, "load": 0.02}) if variance else Y

    optimizer = recipes.tv_gp_ucb(
        bounds={"x": (0.0, 1.0)}, objectives=["gain"], constraints={"load": (None, 1.0)}
    )
    frame = quiet(function, optimizer, 4).to_frame()
    assert frame.load.tolist() == [2 * x for x in frame.reward]
    assert "variance" not in frame or frame.variance.tolist() == [0.01] * 4


def test_regret_of_a_problem_with_a_constraint_counts_from_feasible_actions():
    class Limited(MovingPeak):
        """What is beyond one half is not allowed, and counts as nothing."""

        def scored_value(self, X):
            return 0.0 if X[0, 0] > 0.5 else super().scored_value(X)

        def optimal_value(self, t, context=None):
            return 1.0

    history = quiet(Limited(), recipes.random_search(bounds=[(0.0, 1.0)] * 2), 12)
    beyond = history.X[:, 0] > 0.5
    assert 0 < beyond.sum() < 12
    assert (history.regret[beyond] == 1.0).all()
    assert (history.regret[~beyond] < 1.0).all()


def test_noise_is_no_function_of_the_actions():
    """Without generators given, problem and optimizer must not share random numbers."""
    problem = MovingPeak(noise_variance=1.0)
    history = quiet(problem, recipes.random_search(bounds=problem.bounds), 400)
    noise = history.reward - torch.tensor([r.value for r in history.rounds])
    # Box and Muller's rule, by which torch makes normal numbers of uniform ones.
    u = history.X
    normal = (-2 * (1 - u[:, 0]).log()).sqrt() * (2 * torch.pi * u[:, 1]).cos()
    pairs = torch.stack([noise[::2], normal[:200].to(noise)])
    assert abs(torch.corrcoef(pairs)[0, 1]) < 0.3


def test_a_bar_is_shown_on_request(capsys):
    quiet(square, random_search(), 3)
    assert capsys.readouterr() == ("", "")
    run(square, random_search(), horizon=3, label="a label")
    out, err = capsys.readouterr()
    assert out == ""
    assert "a label" in err


# Outcomes that come late.


def known_at_asks(delay, times=None, horizon=None):
    """Return what had been told before each ask."""
    optimizer, told, known = random_search(), set(), []
    optimizer.add_listener(
        on_ask=lambda trial: known.append(sorted(told)), on_tell=lambda trial, _: told.add(trial.id)
    )
    quiet(square, optimizer, horizon or len(times), times=times, delay=delay)
    return known


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0, 1.5, 2.0, 2.999, 3.0])
def test_an_ask_knows_what_arrived_before_it(tau):
    """Vakili et al. (2023), whole τ: the choice of round t + 1 rests on s with s + τ <= t."""
    for t, ids in enumerate(known_at_asks(tau, horizon=8)):
        assert ids == [s for s in range(1, t + 1) if s + math.floor(tau) <= t]


@pytest.mark.parametrize("tau", [0.0, 1.0, 2.0, 2.5, 4.0])
def test_delays_with_unequal_steps(tau):
    """Before an ask: what arrived earlier, or by the time of the ask before."""
    times = [1.0, 2.0, 2.0, 4.0, 4.5, 8.0, 8.0, 8.0, 9.0]
    for i, ids in enumerate(known_at_asks(lambda trial: tau, times)):
        expected = [
            s + 1 for s in range(i) if times[s] + tau < times[i] or times[s] + tau <= times[i - 1]
        ]
        assert ids == expected


def test_times_that_differ_by_rounding_are_one():
    """In tenths as in whole numbers, though 0.1 + 0.2 is not 0.3 and 0.7 + 0.1 is below 0.8."""
    for tau in range(5):
        tenths = [0.1 * i for i in range(1, 21)]
        assert known_at_asks(0.1 * tau, tenths) == known_at_asks(float(tau), horizon=20)


def test_what_has_not_arrived_at_the_end_stays_open():
    problem = make_problem()
    optimizer = make_optimizer(problem)
    history = quiet(problem, optimizer, 10, delay=3.0)
    assert history.to_frame().model_size.tolist() == [0, 0, 0, 0, 1, 2, 3, 4, 5, 6]
    assert [trial.id for trial in optimizer.open_trials] == [8, 9, 10]
    assert history.reward.isnan().tolist() == [False] * 7 + [True] * 3
    log = history.observations()
    assert log.X[:, -1].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert torch.equal(log.Y.squeeze(-1), history.reward[:7])
    assert len(quiet(problem, make_optimizer(problem), 2, delay=9.0).observations()) == 0


# Contexts.


def contextual(problem, **declared):
    return recipes.tv_cgp_ucb(
        choices=problem.choices,
        action_kernel=RBFKernel(),
        context_kernel=RBFKernel(),
        forgetting_rate=0.1,
        noise_variance=0.1,
        **(declared or {"contexts": LISTED}),
    )


@pytest.fixture
def panel():
    return ContextualPanelProblem(VALUES, LISTED, noise_variance=0.01)


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_regret_and_log_are_those_of_each_context(panel, declared, dtype):
    optimizer = contextual(panel) if declared else make_optimizer(panel)
    given = DRAWN.to(dtype)
    history = quiet(panel, optimizer, T, contexts=given)
    # As declared, where they were: a fit of the log then finds the same contexts.
    seen = DRAWN if declared else given.double()
    assert torch.equal(torch.stack([r.context for r in history.rounds]), seen)
    log = history.observations()
    assert torch.equal(log.X, torch.cat([history.X, seen, history.t[:, None]], dim=-1))
    if declared:
        assert torch.equal(log.X, optimizer.observations.X)
    else:
        assert all(r.trial.context is None for r in history.rounds)
    places = [int((context == LISTED).all(-1).nonzero()) for context in DRAWN]
    best = torch.stack([VALUES[t, :, j].max() for t, j in enumerate(places)])
    if dtype == torch.float64:
        chosen = torch.stack([VALUES[t, int(history.X[t].item()), j] for t, j in enumerate(places)])
        torch.testing.assert_close(history.regret, best - chosen)


def test_outcomes_that_come_late_enter_with_their_contexts(panel):
    optimizer = contextual(panel)
    history = quiet(
        panel, optimizer, T, contexts=DRAWN, delay=lambda trial: 4.0 if trial.id % 2 else 1.0
    )
    # The optimizer has them in the order of arrival, the log by round.
    mine = optimizer.observations.X[optimizer.observations.X[:, -1].argsort()]
    assert torch.equal(mine, history.observations().X)


def test_several_actions_at_one_time(panel):
    times, contexts = [t for t in range(1, 4) for _ in range(4)], DRAWN[:3].repeat_interleave(4, 0)
    history = quiet(panel, contextual(panel), 12, times=times, contexts=contexts)
    assert history.t.tolist() == times
    again = contextual(panel)
    for r in history.rounds:
        trial = again.ask(t=r.trial.t, context=r.context)
        assert torch.equal(trial.X, r.trial.X)
        again.tell(trial, r.reward)


def test_a_table_of_contexts_is_read_by_name():
    optimizer = recipes.tv_cgp_ucb(
        bounds={"x": (0.0, 1.0)}, context_bounds={"a": (0.0, 1.0), "b": (0.0, 1.0)}
    )
    table = pd.DataFrame({"b": [0.9, 0.8], "a": [0.1, 0.2]})
    history = quiet(lambda trial: 0.0, optimizer, 2, contexts=table)
    contexts = torch.stack([each.trial.context for each in history.rounds])
    assert contexts.tolist() == [[0.1, 0.9], [0.2, 0.8]]


def test_a_history_is_continued_at_the_next_times():
    optimizer = recipes.random_search(bounds={"x": (0.0, 1.0)})
    history = quiet(lambda trial: 0.0, optimizer, 3)
    quiet(lambda trial: 0.0, optimizer, 2, history=history)
    assert history.t.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("contexts", [None, DRAWN[1:], DRAWN[:, :1], DRAWN[:, 0]])
def test_contexts_that_are_missing_or_of_another_shape(panel, contexts):
    optimizer = contextual(panel)
    with pytest.raises(ValueError, match="12 x 2"):
        quiet(panel, optimizer, T, contexts=contexts)
    assert optimizer.open_trials == ()


@pytest.mark.parametrize("make", [contextual, make_optimizer])
def test_a_context_that_is_not_finite_is_refused_before_the_first_ask(panel, make):
    optimizer, contexts = make(panel), DRAWN.clone()
    contexts[7, 1] = math.nan
    with pytest.raises(InputDataError, match="nan"):
        quiet(panel, optimizer, T, contexts=contexts)
    assert optimizer.open_trials == ()


def test_contexts_for_a_problem_without():
    problem = PanelProblem(VALUES[:, :, 0])
    with pytest.raises(ValueError, match="12 x 0"):
        quiet(problem, make_optimizer(problem), T, contexts=DRAWN)
    with pytest.raises(BotorchTensorDimensionError):
        quiet(problem, contextual(problem), T)


# Trials that are skipped, or whose outcomes are discarded.


class Counted(PanelProblem):
    """Two constant arms; notes the rows that are evaluated."""

    def __init__(self):
        super().__init__(torch.tensor([[0.3, 1.0]]).expand(25, 2), noise_variance=0.05)
        self.evaluated = []

    def __call__(self, X):
        self.evaluated.append(X.squeeze(0).tolist())
        return super().__call__(X)


def compressed(problem, mode, **options):
    optimizer = recipes.compressed_gp(
        choices=problem.choices,
        covar_module=RBFKernel().double(),
        noise_variance=0.05,
        budget=0.15,
        mode=mode,
    )
    return optimizer, quiet(problem, optimizer, 25, **options)


def test_skipped_trials_are_scored_but_not_evaluated():
    problem, delayed = Counted(), []
    optimizer, history = compressed(
        problem, "skip", delay=lambda trial: delayed.append(trial.id) or 0.0
    )
    frame = history.to_frame()
    evaluated = torch.tensor(frame.evaluated.tolist())
    assert 0 < evaluated.sum() < 25
    rows = torch.cat([history.X, history.t.unsqueeze(-1)], dim=-1)[evaluated]
    assert problem.evaluated == rows.tolist()
    assert delayed == [r.trial.id for r in history.rounds if not r.trial.skipped]
    assert torch.equal(history.reward.isnan(), ~evaluated)
    assert (frame.evaluation_seconds > 0).tolist() == evaluated.tolist()
    # One of the two arms is 0.7 worse, whether it was tried or not.
    expected = torch.where(history.X[:, 0] == problem.choices[1, 0], 0.0, 0.7)
    torch.testing.assert_close(history.regret, expected.double(), rtol=0, atol=1e-6)
    assert optimizer.open_trials == ()
    assert optimizer.model_size == evaluated.sum() == len(history.observations())
    assert frame["informative"].tolist() == frame["evaluated"].tolist() == evaluated.tolist()
    # No noise is drawn for what is skipped: so runs with and without skips compare.
    fresh = Counted()
    noisy = torch.cat([fresh(row.unsqueeze(0)) for row in rows])
    assert torch.equal(noisy, history.reward[evaluated])


def test_discarded_trials_are_evaluated_and_told():
    problem = Counted()
    optimizer, history = compressed(problem, "discard")
    assert len(problem.evaluated) == 25
    assert history.to_frame().evaluated.all()
    assert history.reward.isfinite().all()
    kept = [r.trial.informative for r in history.rounds]
    assert history.to_frame()["informative"].tolist() == kept
    assert 0 < optimizer.model_size == sum(kept) < 25
    # What was told is in the log, kept or not.
    assert len(history.observations()) == 25


# What goes wrong.


def poor(trial):
    """Of five trials one raises, and one gives NaN."""
    if trial.id % 5 == 2:
        raise OSError("unplugged")
    return math.nan if trial.id % 5 == 4 else trial.X.sum()


def test_an_error_is_raised_and_the_run_can_go_on():
    optimizer, history = random_search(), History()
    with pytest.raises(OSError, match="unplugged"):
        quiet(poor, optimizer, 5, history=history)
    assert [r.status for r in history.rounds] == ["told", "open"]
    assert [trial.id for trial in optimizer.open_trials] == [2]
    again = quiet(poor, optimizer, 1, times=[4.0], history=history)
    assert again is history
    assert [r.status for r in history.rounds] == ["told", "open", "told"]


@pytest.mark.parametrize("delay", [0.0, 2.0])
def test_an_evaluation_that_goes_wrong_may_fail_its_trial(delay, capsys):
    optimizer = random_search()
    history = run(poor, optimizer, horizon=10, delay=delay, on_error="fail")
    assert history.counts["failed"] == optimizer.trial_log.num_failed == 4 - (delay > 0)
    assert "OSError: unplugged" in history.rounds[1].reason
    assert "nan" in history.rounds[3].reason
    assert f"{history.counts['failed']} failed" in capsys.readouterr().err


@pytest.mark.parametrize("outcome", [math.nan, (1.0, -1.0), 1e300])
def test_what_cannot_be_told_is_raised(outcome):
    optimizer = random_search()
    with pytest.raises(InputDataError):
        quiet(lambda trial: outcome, optimizer, 5)
    assert [trial.id for trial in optimizer.open_trials] == [1]


def test_ctrl_c_stops_an_evaluation_at_once_and_no_ask():
    steps, optimizer, history = [], random_search(), History()

    def interrupt(trial):
        if trial.id == 3:
            signal.raise_signal(signal.SIGINT)
            steps.append("asked")

    def measure(trial):
        if trial.id == 5:
            signal.raise_signal(signal.SIGINT)
            steps.append("evaluated")
        return 1.0

    optimizer.add_listener(on_ask=interrupt)
    with pytest.raises(KeyboardInterrupt):
        quiet(measure, optimizer, 9, history=history)
    assert steps == ["asked"]
    assert [r.status for r in history.rounds] == ["told", "told", "open"]
    with pytest.raises(KeyboardInterrupt):
        quiet(measure, optimizer, 9, times=range(4, 13), history=history)
    assert steps == ["asked"]
    assert [trial.id for trial in optimizer.open_trials] == [3, 5]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"horizon": 0}, ValueError),
        ({"times": [1.0, 2.0]}, ValueError),
        ({"delay": -1.0}, ValueError),
        ({"delay": lambda trial: math.nan}, ValueError),
        ({"max_pending": 2}, ValueError),
        ({"on_error": "ignore"}, ValueError),
        ({"executor": []}, TypeError),
        ({"objective": 3}, TypeError),
    ],
)
def test_arguments_that_are_refused(options, error):
    with pytest.raises(error):
        run(**{"objective": square, "optimizer": random_search(), "horizon": 3} | options)
