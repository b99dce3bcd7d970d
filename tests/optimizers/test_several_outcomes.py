"""Constraints and several objectives: models, choices, records and refusals."""

import math
import pickle

import pandas as pd
import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from torch import Generator

from tvbo import recipes
from tvbo.acquisition import Goals, LogEI, ThompsonSampling
from tvbo.optimizers import GPOptimizer, Optimizer, OutcomeModel
from tvbo.retention import EntropyThreshold, EventReset
from tvbo.storage import StorageError, read_run

GRID = torch.linspace(0, 1, 21, dtype=torch.float64).unsqueeze(-1)
LIMIT = {"load": (None, 0.5)}


def kernel():
    made = ScaleKernel(RBFKernel()).double()
    made.base_kernel.lengthscale = 0.3
    return made


def make(recipe=recipes.tv_gp_ucb, **options):
    """An optimizer with given hyperparameters, whose posteriors are known in closed form."""
    given = {"choices": GRID, "covar_module": kernel(), "noise_variance": 1e-4}
    given |= {"forgetting_rate": 0.02, "generator": Generator().manual_seed(0)}
    return recipe(**(given | {"constraints": LIMIT} | options))


def measured(X):
    """The objective grows with the action, and so does the load, whose limit is at 0.5."""
    x = X.item()
    return {"outcome": x, "load": x}


def play(optimizer, rounds, tell=measured):
    trials = []
    for t in range(1, rounds + 1):
        trials.append(optimizer.ask(float(t)))
        optimizer.tell(trials[-1], tell(trials[-1].X))
    return trials


def test_each_outcome_has_the_posterior_of_a_loop_of_its_own():
    optimizer = make()
    trials = play(optimizer, 12)
    alone = make(constraints=None)
    for trial in trials:
        alone.tell(alone.attach(trial.X, trial.t), measured(trial.X)["load"])
    for x in (0.0, 0.45, 1.0):
        at = {"t": 13.0, "choices": [[x]]}
        mean, deviation = optimizer.recommend(**at).others["load"]
        expected = alone.recommend(**at)
        assert mean == pytest.approx(expected.mean, abs=1e-9)
        assert deviation == pytest.approx(expected.standard_deviation, abs=1e-9)


def test_the_action_is_the_best_of_those_that_are_feasible_enough():
    optimizer = make(beta=1.0)
    play(optimizer, 8)
    trial = optimizer.ask(9.0)
    rows = torch.cat([GRID, torch.full_like(GRID, 9.0)], dim=-1).unsqueeze(-2)
    moments = []
    for each in optimizer.outcome_models:
        posterior = each.newest.in_user_units().posterior(rows)
        moments.append((posterior.mean.flatten(), posterior.variance.flatten().sqrt()))
    (mean, deviation), (load, spread) = moments
    feasible = torch.distributions.Normal(load, spread).cdf(torch.tensor(0.5).double())
    upper = torch.where(feasible >= 0.95, mean + deviation, -torch.inf)
    assert trial.X.item() == GRID[upper.argmax()].item()
    assert trial.feasibility == pytest.approx(feasible[upper.argmax()].item(), abs=1e-6)


def test_what_is_recommended_satisfies_the_constraint():
    optimizer = make(forgetting_rate=0.001)
    trials = play(optimizer, 15)
    best = optimizer.recommend()
    assert best.X.item() == pytest.approx(0.45, abs=0.051)
    assert best.feasibility >= 0.94
    mean, deviation = best.others["load"]
    assert mean == pytest.approx(best.X.item(), abs=0.03)
    assert 0 < deviation < 0.1
    assert sum(trial.X.item() > 0.5 for trial in trials[5:]) <= 1
    assert set(best.to_row()) >= {"load_mean", "load_standard_deviation", "feasibility"}


def test_where_nothing_is_feasible_the_most_probable_action_is_recommended():
    optimizer = make(constraints={"load": (None, -0.3)})
    play(optimizer, 15)
    best = optimizer.recommend()
    assert best.X.item() < 0.15
    assert best.feasibility < 0.05


def test_a_lower_limit_and_one_on_the_objective_itself():
    limits = {"outcome": (0.2, None)}
    optimizer = make(constraints=limits, minimize=True, forgetting_rate=0.001)
    play(optimizer, 20, lambda X: X.item())
    best = optimizer.recommend()
    assert 0.2 < best.X.item() < 0.35
    assert best.mean == pytest.approx(best.X.item(), abs=0.03)


def test_outcomes_come_by_name_or_in_order():
    one, two = make(), make()
    for t in (1.0, 2.0, 3.0):
        a, b = one.ask(t), two.ask(t)
        assert torch.equal(a.X, b.X)
        one.tell(a, {"load": 0.2 * t, "outcome": 0.1}, {"load": 0.01, "outcome": 0.02})
        two.tell(b, [0.1, 0.2 * t], [0.02, 0.01])
    assert torch.equal(one.ask().X, two.ask().X)


@pytest.mark.parametrize(
    ("Y", "error"),
    [
        ({"outcome": 1.0}, InputDataError),
        ({"outcome": 1.0, "laod": 2.0}, InputDataError),
        (1.0, BotorchTensorDimensionError),
        ({"outcome": 1.0, "load": math.nan}, InputDataError),
        ({"outcome": 1.0, "load": 1e80}, InputDataError),
        ({"outcome": 1.0, "load": "much"}, InputDataError),
    ],
)
def test_a_bad_outcome_changes_nothing(Y, error):
    optimizer = make()
    trial = optimizer.ask(1.0)
    with pytest.raises(error):
        optimizer.tell(trial, Y)
    assert optimizer.open_trials == (trial,)
    assert [len(each.observations) for each in optimizer.outcome_models] == [0, 0]
    optimizer.tell(trial, {"outcome": 0.1, "load": 0.2})


@pytest.mark.parametrize(
    "options",
    [
        {"constraints": {"load": 3.0}},
        {"constraints": {"load": (None, None)}},
        {"constraints": {"load": (2.0, 1.0)}},
        {"min_feasibility": 1.0},
        {"objectives": "load"},
        {"objectives": ["a", "a"]},
        {"objectives": ["a", "b"], "minimize": True},
        {"objectives": ["a", "b"], "minimize": ["c"]},
        {"minimize": 1},
        {"constraints": {"t": (None, 1.0)}},
        {"constraints": {"a": (0, 1), "a_variance": (0, 1)}},
        {"objectives": {"a": math.nan, "b": 0.0}},
        {"objectives": {"a": "x", "b": 0.0}},
        {"objectives": {"a": 1.0}},
        {"objectives": ["a", "b"], "beta": 2.0},
        {"objectives": ["a", "b"], "acquisition": LogEI()},
        {"objectives": ["a", "b"], "recipe": recipes.gp_ts, "constraints": None},
    ],
)
def test_goals_that_are_none(options):
    with pytest.raises(ValueError):  # Each names what it is about.
        make(**options)


def test_retention_learns_from_each_outcome():
    """The load jumps, which only its own observations show."""
    rule = EventReset()
    optimizer = make(retention=rule, forgetting_rate=0.0)
    for t in range(1, 31):
        trial = optimizer.ask(float(t))
        jump = 0.0 if t <= 15 else -2.0
        optimizer.tell(trial, {"outcome": 0.1, "load": 0.2 + jump})
    assert optimizer.outcome_models[1].retention.since > 15
    assert optimizer.retention.since == -math.inf
    assert len(optimizer.outcome_models[1].observations) < 20
    assert len(optimizer.observations) == 30


def test_feasibility_is_that_of_the_normal_distribution():
    optimizer = make(constraints={"load": (0.1, 0.5), "outcome": (0.0, None)})
    play(optimizer, 5)
    trial = optimizer.ask(6.0)
    row = torch.cat([trial.X, torch.tensor([[6.0]])], dim=-1)
    normal = []
    for each in optimizer.outcome_models:
        posterior = each.newest.in_user_units().posterior(row)
        normal.append(torch.distributions.Normal(posterior.mean, posterior.variance.sqrt()))
    between = normal[1].cdf(torch.tensor(0.5)) - normal[1].cdf(torch.tensor(0.1))
    expected = between * (1 - normal[0].cdf(torch.tensor(0.0)))
    assert trial.feasibility == pytest.approx(expected.item(), abs=1e-6)


def test_negatives_under_minimize_are_the_same_problem():
    larger = make(objectives=["gain"])
    smaller = make(objectives=["loss"], minimize=["loss"])
    for t in range(1, 9):
        a, b = larger.ask(float(t)), smaller.ask(float(t))
        assert torch.equal(a.X, b.X)
        x = a.X.item()
        larger.tell(a, {"gain": x, "load": x})
        smaller.tell(b, {"loss": -x, "load": x})
    assert smaller.recommend().mean == pytest.approx(-larger.recommend().mean, rel=1e-12)


def test_thompson_sampling_draws_among_the_feasible():
    optimizer = make(acquisition=ThompsonSampling())
    trials = play(optimizer, 15)
    assert all(trial.X.item() <= 0.55 for trial in trials[6:])


def test_the_constraints_are_added_to_an_acquisition_of_botorch():
    for kind in (qLogNoisyExpectedImprovement, LogExpectedImprovement):
        optimizer = make(acquisition=kind)
        trials = play(optimizer, 10)
        assert all(trial.X.item() <= 0.6 for trial in trials[6:]), kind


def test_two_objectives_and_their_front():
    options = {"constraints": None, "objectives": {"rise": 0.0, "fall": 0.0}}
    optimizer = make(**options)
    play(optimizer, 8, lambda X: {"rise": X.item(), "fall": 1 - X.item() ** 2})
    front = optimizer.front()
    # No action is better than another in both: the ends, and eight between.
    actions = [each.X.item() for each in front]
    assert len(actions) == 10
    assert actions == sorted(actions, reverse=True)
    assert len(optimizer.front(num_points=3)) == 3
    assert all(
        each.others["fall"][0] == pytest.approx(1 - each.X.item() ** 2, abs=0.2) for each in front
    )
    with pytest.raises(ValueError):
        optimizer.recommend()
    with pytest.raises(UnsupportedError):
        play(make(**options, acquisition=LogExpectedImprovement), 1, None)


@pytest.mark.slow
def test_the_front_of_a_box_is_no_worse_than_its_observed_actions():
    optimizer = make(
        choices=None, bounds=[(0.0, 1.0)], constraints=None, objectives={"near": 0.0, "far": 0.0}
    )
    near, far = (
        (lambda x: math.exp(-((x - 0.3) ** 2) * 8)),
        (lambda x: math.exp(-((x - 0.6) ** 2) * 8)),
    )
    play(optimizer, 8, lambda X: {"near": near(X.item()), "far": far(X.item())})
    actions = torch.tensor([each.X.item() for each in optimizer.front()])
    # The front is the interval between the peaks.
    assert ((actions > 0.27) & (actions < 0.63)).all()
    assert len(actions) == 10
    assert actions.max() - actions.min() > 0.27


def test_late_lost_and_refused_outcomes():
    optimizer = make(retention=EntropyThreshold(budget=0.05), forgetting_rate=0.0)
    trials = [optimizer.ask(float(t)) for t in range(1, 7)]
    optimizer.fail(trials[0], "a crash")
    for trial in trials[:0:-1]:
        if not trial.skipped:
            optimizer.tell(trial, measured(trial.X))
    assert optimizer.open_trials == ()
    assert optimizer.trial_log.num_failed == 1


@pytest.mark.parametrize("mode", ["skip", "discard"])
def test_the_log_of_rejections_has_what_no_outcome_is_worth(mode):
    """The load is noisier, so that it is worth measuring where the objective is known."""
    rule = EntropyThreshold(budget=0.3, mode=mode)
    one, two = (make(constraints=None, noise_variance=each) for each in (0.5, 0.05))
    (first,), (second,) = one.outcome_models, two.outcome_models
    models = [
        OutcomeModel(first.fitter, rule, choices=first.choices),
        OutcomeModel(second.fitter, rule, False, second.choices),
    ]
    goals = Goals.of(constraints=LIMIT)
    optimizer = GPOptimizer(one.search_space, models, one.acquisition, goals=goals)
    trials = []
    for t in range(1, 31):
        trials.append(optimizer.ask(float(t)))
        if not trials[-1].skipped:
            optimizer.tell(trials[-1], measured(trials[-1].X))
    rejected = [trial.id for trial in trials if not trial.informative]
    assert 0 < len(rejected) < 25
    log = optimizer.trial_log
    assert [each.trial.id for each in log.newest] == rejected
    assert [each.trial.information_gain for each in log.newest] == [
        trials[i - 1].information_gain for i in rejected
    ]
    counts = (len(rejected), 0) if mode == "skip" else (0, len(rejected))
    assert (log.num_skipped, log.num_discarded) == counts
    assert sum(trial.skipped for trial in trials) == counts[0]


def test_a_record_has_all_outcomes(tmp_path):
    run = tmp_path / "run.db"
    optimizer = make(objectives=["gain"])
    optimizer.record(run)
    trials = play(optimizer, 5, lambda X: {"gain": X.item(), "load": X.item() / 3})
    optimizer.close()
    frame = read_run(run).to_frame()
    assert frame.load.tolist() == [trial.X.item() / 3 for trial in trials]
    assert {"gain", "gain_variance"} <= set(frame.columns)
    expected = optimizer.recommend().to_row()
    with Optimizer.open(run) as again:
        assert again.recommend().to_row() == pytest.approx(expected, rel=1e-9)
    other = make(objectives=["gain"], constraints={"load": (None, 0.6)})
    with pytest.raises(StorageError):
        Optimizer.open(run, like=other)
    pickled = pickle.loads(pickle.dumps(optimizer))
    assert pickled.recommend().to_row() == expected


def test_tables_have_a_column_for_each_outcome():
    log = pd.DataFrame({"action_0": GRID.flatten()[::4], "t": range(6), "outcome": range(6)})
    log["load"] = 0.1
    optimizer = make()
    assert optimizer.attach_frame(log) == 6
    trial, other = optimizer.ask(7.0), optimizer.ask(8.0)
    late = pd.DataFrame(
        {"trial": [trial.id, other.id], "outcome": [1.0, None], "load": [0.2, None]}
    )
    assert optimizer.tell_frame(late) == 1
    late.loc[0, "trial"] = other.id
    late.loc[0, "load"] = None
    with pytest.raises(InputDataError):
        optimizer.tell_frame(late)
    with pytest.raises(InputDataError):
        optimizer.tell_frame(late, outcome="load")
    assert len(optimizer.open_trials) == 1


def test_listeners_get_outcomes_by_name():
    told = []
    optimizer = make()
    optimizer.add_listener(on_tell=lambda trial, Y: told.append((trial.id, Y)))
    play(optimizer, 1)
    (pair,) = told
    assert pair[1] == measured(optimizer.observations.X[:1, :1])


def test_each_outcome_learns_hyperparameters_of_its_own():
    fits = []
    optimizer = recipes.tv_gp_ucb(bounds=[(0.0, 1.0)], constraints=LIMIT)
    optimizer.add_listener(on_fit=fits.append)
    play(optimizer, 14, lambda X: {"outcome": math.sin(9 * X.item()), "load": X.item() / 2})
    names = {key.split(": ")[0] for fit in fits for key in fit}
    assert names == {"outcome", "load"}
    one, two = (
        [each for each in part.dense.modules() if isinstance(each, MaternKernel)]
        for part in optimizer.outcome_models
    )
    # A line varies less than a wave.
    assert two[0].lengthscale > 2 * one[0].lengthscale
