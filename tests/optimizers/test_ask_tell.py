"""Ask, attach, tell, fail, expire: what is remembered, what is refused, and what that changes."""

import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import RBFKernel

from tvbo import recipes
from tvbo.optimizers import ConstantLiar, RandomSearch, Trial, TrialError
from tvbo.retention import EntropyThreshold
from tvbo.trial import TrialLog

CHOICES = torch.arange(5.0, dtype=torch.float64).unsqueeze(-1)
CONTEXTS = torch.tensor([[0.0], [1.0]], dtype=torch.float64)


def learner(recipe=recipes.gp_ucb, **options):
    kernel = RBFKernel().double()
    return recipe(choices=CHOICES, covar_module=kernel, noise_variance=0.1, **options)


def random(**options):
    return recipes.random_search(bounds=[(0.0, 1.0), (0.0, 2.0)], **options)


MAKERS = pytest.mark.parametrize("make", [learner, random])
ENDINGS = {
    "tell": lambda optimizer, trial: optimizer.tell(trial, 1.0),
    "fail": lambda optimizer, trial: optimizer.fail(trial, "again"),
    "expire": lambda optimizer, trial: optimizer.expire(trial),
}
END = pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)


@MAKERS
def test_rounds_are_counted_where_no_time_is_given(make):
    optimizer, again = make(), make()
    trials = [optimizer.ask() for _ in range(3)]
    assert [(trial.id, trial.t) for trial in trials] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert optimizer.open_trials == tuple(trials)
    assert trials[0].X.dtype == torch.float64
    assert torch.equal(again.ask().X, trials[0].X)


def test_outcomes_in_any_order_by_trial_or_id():
    optimizer = learner()
    first, second = optimizer.ask(), optimizer.ask()
    optimizer.tell(second.id, 2.0)
    optimizer.tell(first, torch.tensor([[1.0]]))
    assert optimizer.open_trials == ()
    assert optimizer.observations.Y.flatten().tolist() == [2.0, 1.0]
    # Each with the time at which it was sampled.
    assert optimizer.observations.X[:, -1].tolist() == [2.0, 1.0]


@MAKERS
def test_each_end_is_counted(make):
    optimizer = make()
    trials = [optimizer.ask() for _ in range(6)]
    optimizer.tell(trials[3], 1.0)
    optimizer.fail(trials[0], "the worker died")
    optimizer.expire(trials[5].id)
    optimizer.fail(trials[2].id, "NaN")
    assert optimizer.open_trials == (trials[1], trials[4])
    log = optimizer.trial_log
    assert (log.num_told, log.num_failed, log.num_expired) == (1, 2, 1)
    assert [(each.trial.id, each.ending, each.reason) for each in log.newest] == [
        (1, "failed", "the worker died"),
        (6, "expired", "past its deadline"),
        (3, "failed", "NaN"),
    ]


@END
@pytest.mark.parametrize("before", [*ENDINGS.values()], ids=[*ENDINGS])
@MAKERS
def test_a_trial_ends_once(make, before, end):
    optimizer = make()
    trial = optimizer.ask()
    before(optimizer, trial)
    for given in (trial, trial.id, pickle.loads(pickle.dumps(trial))):
        with pytest.raises(TrialError):
            end(optimizer, given)
    log = optimizer.trial_log
    assert log.num_told + log.num_failed + log.num_expired == 1
    optimizer.tell(optimizer.attach(trial.X, trial.t), 2.0)


@END
def test_no_trial_of_this_optimizer(end):
    optimizer, other = learner(), learner()
    trial = optimizer.ask()
    foreign = other.ask(t=7.0)
    for unknown in (7, 0, True, "abc", [1], foreign, other.ask(t=8.0)):
        with pytest.raises(TrialError):
            end(optimizer, unknown)
    assert optimizer.open_trials == (trial,)


@END
def test_a_skipped_trial_is_not_open(end):
    optimizer = learner(retention=EntropyThreshold(1.3))
    trial = optimizer.ask()
    assert trial.skipped
    for given in (trial, trial.id):
        with pytest.raises(TrialError):
            end(optimizer, given)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, [0.0, 1.0], 1e80, "x"])
@MAKERS
def test_a_bad_outcome_leaves_the_trial_open(make, bad):
    optimizer = make()
    trial = optimizer.ask()
    error = BotorchTensorDimensionError if isinstance(bad, list) else InputDataError
    with pytest.raises(error):
        optimizer.tell(trial, bad)
    with pytest.raises(error):
        optimizer.tell(trial, 1.0, Yvar=1e120 if bad == 1e80 else bad)
    with pytest.raises(InputDataError):
        optimizer.tell(trial, 1.0, Yvar=-1.0)
    assert optimizer.open_trials == (trial,)
    assert optimizer.model_size == optimizer.trial_log.num_told == 0
    optimizer.tell(trial, 1.0)


def test_noise_variance_with_every_outcome_or_with_none():
    optimizer = learner()
    optimizer.tell(optimizer.ask(), 1.0, Yvar=0.1)
    trial = optimizer.ask()
    with pytest.raises(InputDataError):
        optimizer.tell(trial, 1.0)
    assert optimizer.open_trials == (trial,)


def test_time_does_not_run_backwards_in_ask():
    optimizer = learner()
    optimizer.ask(t=5.0)
    for bad in (4.0, math.nan, math.inf):
        with pytest.raises(InputDataError):
            optimizer.ask(t=bad)
    assert optimizer.ask(t=5.0).id == 2
    optimizer.tell(optimizer.attach([3.0], t=99.0), 1.0)
    with pytest.raises(InputDataError):
        optimizer.ask()
    assert optimizer.ask(t=99.0).t == 99.0


def test_attach_opens_a_trial_of_the_callers_choice_at_an_earlier_time():
    optimizer = learner()
    optimizer.ask(t=10.0)
    optimizer.tell(optimizer.attach(torch.tensor([3.0]), t=2.0), 0.7)
    assert optimizer.observations.X.tolist() == [[3.0, 2.0]]


@pytest.mark.parametrize(
    ("make", "X", "error"),
    [
        (random, [0.5, 3.0], InputDataError),
        (learner, [0.5], InputDataError),
        (random, [0.5], BotorchTensorDimensionError),
        (random, [0.5, math.nan], InputDataError),
        (random, torch.zeros(2, 2), BotorchTensorDimensionError),
    ],
)
def test_attach_refuses_what_is_outside(make, X, error):
    optimizer = make()
    with pytest.raises(error):
        optimizer.attach(X, t=1.0)
    with pytest.raises(BotorchTensorDimensionError):
        optimizer.ask(context=torch.zeros(1))
    assert optimizer.open_trials == ()


def test_a_lost_trial_is_no_observation_and_pending_no_more():
    lost, never = (learner(pending=ConstantLiar(-3.0)) for _ in range(2))
    lost.attach([2.0], t=0.0)
    lost.fail(1, "x")
    for each in (lost, never):
        each.ask(1.0)
    rows = torch.cat([CHOICES, torch.full((5, 1), 2.0, dtype=torch.float64)], -1)
    means = [each.model.posterior(rows).mean.flatten() for each in (lost, never)]
    assert torch.equal(*means)
    assert lost.model_size == 0
    # What is learned of it is where others would fail.
    probabilities = [lost.recommend(choices=[[x]]).probability_of_success for x in (0.0, 2.0)]
    assert probabilities[1] < probabilities[0]
    assert never.recommend().probability_of_success is None


def test_expire_overdue_is_by_event_time():
    """Later than max_delay, not as late; what was attached in the past is judged by its own t."""
    optimizer = learner()
    trials = [optimizer.ask(t) for t in (1.0, 2.0, 4.0)]
    old = optimizer.attach([3.0], t=-5.0)
    for t, max_delay, error in (
        (9.0, -1.0, ValueError),
        (9.0, math.nan, ValueError),
        (math.inf, 1.0, InputDataError),
    ):
        with pytest.raises(error):
            optimizer.expire_overdue(t, max_delay)
    assert optimizer.expire_overdue(4.0, max_delay=3.0) == (old,)
    assert optimizer.expire_overdue(5.0, max_delay=3.0) == (trials[0],)
    assert optimizer.expire_overdue(5.0, max_delay=math.inf) == ()
    assert optimizer.expire_overdue(5.0, max_delay=0.0) == (trials[1], trials[2])
    assert optimizer.trial_log.num_expired == 4


def test_the_log_as_a_table(tmp_path):
    optimizer = learner(recipes.cgp_ucb, contexts=CONTEXTS)
    assert optimizer.trial_log.to_frame().empty
    first = optimizer.ask(1.0, CONTEXTS[1])
    second = optimizer.ask(2.5, CONTEXTS[0])
    optimizer.fail(second, 'a "crash", of sorts\nin two lines')
    optimizer.expire(first)
    frame = optimizer.trial_log.to_frame()
    assert frame["trial"].tolist() == [2, 1]
    assert frame["t"].tolist() == [2.5, 1.0]
    assert frame["context_0"].tolist() == [0.0, 1.0]
    assert frame["action_0"].tolist() == [second.X.item(), first.X.item()]
    assert frame["ending"].tolist() == ["failed", "expired"]
    optimizer.trial_log.to_frame().to_csv(tmp_path / "lost.csv", index=False)
    read = pd.read_csv(tmp_path / "lost.csv").drop(columns="information_gain")
    pd.testing.assert_frame_equal(read, frame.drop(columns="information_gain"))


def test_memory_of_lost_trials_has_an_end():
    log = TrialLog()
    for i in range(1, 10_005):
        log.add(Trial(i, torch.zeros(1, 1), float(i)), "failed" if i % 2 else "expired", "x")
    assert len(log.newest) == 10_000
    assert (log.num_failed, log.num_expired) == (5_002, 5_002)
    assert log.newest[-1].trial.id == 10_004


@pytest.mark.parametrize("bad", [None, 5, b"bytes", ValueError("x")])
def test_a_reason_is_text(bad):
    optimizer = learner()
    trial = optimizer.ask()
    with pytest.raises(TypeError):
        optimizer.fail(trial, bad)
    assert optimizer.open_trials == (trial,)


class Patient(RandomSearch):
    """Has another thread call it, and copies of it, while it chooses."""

    calls = ()

    def _choose(self, *given):
        calls, self.calls = self.calls, ()
        with ThreadPoolExecutor(1) as pool:
            for call in calls:
                with pytest.raises(RuntimeError):
                    pool.submit(call, self).result()
            for copy in (deepcopy(self), pickle.loads(pickle.dumps(self))) if calls else ():
                assert pool.submit(copy.attach, [0.0, 0.0], 1.0).result().t == 1.0
        return super()._choose(*given)


def test_one_thread_at_a_time(tmp_path):
    patient = Patient(random().search_space)
    patient.calls = (
        Patient.ask,
        Patient.close,
        lambda self: self.attach([0.0, 0.0], t=1.0),
        lambda self: self.attach_frame(pd.DataFrame()),
        lambda self: self.tell(1, 0.5),
        lambda self: self.tell_frame(pd.DataFrame()),
        lambda self: self.fail(1, "a crash"),
        lambda self: self.expire(1),
        lambda self: self.expire_overdue(1.0, 1.0),
        lambda self: self.record(tmp_path / "run.db"),
    )
    patient.ask()
    with ThreadPoolExecutor(1) as pool:
        # Another may go on afterwards.
        assert pool.submit(patient.ask).result().id == 2
