"""Trials that fail or expire: what is remembered of them, and what is refused afterwards."""

import math
from collections import deque
from contextlib import contextmanager

import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import RBFKernel

from tvbo import recipes
from tvbo.optimizers import TrialError
from tvbo.optimizers.pending import ConstantLiar
from tvbo.optimizers.trial_log import RECENT, LostTrial, TrialLog
from tvbo.retention import EntropyThreshold
from tvbo.trial import Trial

CHOICES = torch.arange(5.0, dtype=torch.float64).unsqueeze(-1)
CONTEXTS = torch.tensor([[0.0], [1.0]], dtype=torch.float64)


def make(recipe=recipes.gp_ucb, **options):
    kernel = RBFKernel().double()
    return recipe(choices=CHOICES, covar_module=kernel, noise_variance=0.1, **options)


@pytest.fixture
def optimizer():
    return make()


def test_each_end_is_counted(optimizer):
    trials = [optimizer.ask() for _ in range(6)]
    optimizer.tell(trials[3], 1.0)
    optimizer.fail(trials[0], "the worker died")
    optimizer.expire(trials[5].id)
    optimizer.fail(trials[2].id, "NaN")
    assert optimizer.open_trials == (trials[1], trials[4])
    closed = optimizer.trial_log
    assert (closed.num_told, closed.num_failed, closed.num_expired) == (1, 2, 1)
    assert len(closed) == 4
    assert [(each.trial.id, each.ending, each.reason) for each in closed.lost] == [
        (1, "failed", "the worker died"),
        (6, "expired", "past its deadline"),
        (3, "failed", "NaN"),
    ]
    assert optimizer.model_size == 1


def test_a_lost_trial_is_no_observation_and_counts_as_pending():
    one, two = (make(pending=ConstantLiar(-3.0)) for _ in range(2))
    for each in (one, two):
        each.attach([2.0], t=0.0)
    one.fail(1, "x")
    for each in (one, two):
        each.ask(1.0)
    rows = torch.cat([CHOICES, torch.full((5, 1), 2.0, dtype=torch.float64)], -1)
    means = [each.model.posterior(rows).mean.flatten() for each in (one, two)]
    assert torch.equal(*means)
    assert means[0].argmin() == 2
    assert one.model_size == 0


@pytest.mark.parametrize("end", ["tell", "fail", "expire"])
@pytest.mark.parametrize("by_id", [True, False])
class TestRefused:
    def call(self, optimizer, end, trial):
        if end == "tell":
            optimizer.tell(trial, 1.0)
        elif end == "fail":
            optimizer.fail(trial, "again")
        else:
            optimizer.expire(trial)

    def test_told(self, optimizer, end, by_id):
        trial = optimizer.ask()
        optimizer.tell(trial, 1.0)
        with pytest.raises(TrialError, match="Got trial 1, told already"):
            self.call(optimizer, end, trial.id if by_id else trial)
        assert len(optimizer.trial_log) == 1

    def test_failed(self, optimizer, end, by_id):
        trial = optimizer.ask()
        optimizer.fail(trial, "out of memory")
        with pytest.raises(TrialError, match=r"Got trial 1, which failed \(out of memory\)"):
            self.call(optimizer, end, trial.id if by_id else trial)
        assert len(optimizer.trial_log) == 1

    def test_expired(self, optimizer, end, by_id):
        trial = optimizer.ask()
        optimizer.expire(trial, "after three days")
        with pytest.raises(
            TrialError, match=r"trial 1, which expired \(after three days\); attach"
        ):
            self.call(optimizer, end, trial.id if by_id else trial)
        # As the message says.
        optimizer.tell(optimizer.attach(trial.X, trial.t), 2.0)
        assert optimizer.observations.Y.tolist() == [[2.0]]

    def test_skipped(self, end, by_id):
        optimizer = make(retention=EntropyThreshold(1.3))
        trial = optimizer.ask()
        assert trial.skipped
        with pytest.raises(TrialError, match="Got trial 1, .*skipped"):
            self.call(optimizer, end, trial.id if by_id else trial)
        assert len(optimizer.trial_log) == 0

    def test_unknown(self, optimizer, end, by_id):
        optimizer.ask()
        other = make()
        other.ask()
        unknown = 2 if by_id else other.ask()
        with pytest.raises(TrialError, match=r"one of \[1\]. Got unknown trial 2"):
            self.call(optimizer, end, unknown)


@pytest.mark.parametrize("end", ["tell", "fail", "expire"])
def test_a_trial_of_another_optimizer(optimizer, end):
    optimizer.ask(t=1.0)
    foreign = make().ask(t=7.0)
    with pytest.raises(TrialError, match="Got a trial 1 that differs"):
        TestRefused.call(None, optimizer, end, foreign)
    assert len(optimizer.open_trials) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_outcome_that_is_no_number_leaves_the_trial_open(optimizer, bad):
    trial = optimizer.ask()
    with pytest.raises(InputDataError, match="Expected finite Y"):
        optimizer.tell(trial, bad)
    assert optimizer.open_trials == (trial,)
    assert len(optimizer.trial_log) == 0
    optimizer.fail(trial, f"outcome {bad}")
    assert optimizer.trial_log.num_failed == 1


def test_expire_overdue_is_by_event_time(optimizer):
    """Later than max_delay, not as late; what was attached in the past is judged by its own t."""
    trials = [optimizer.ask(t) for t in (1.0, 2.0, 4.0)]
    old = optimizer.attach([3.0], t=-5.0)
    assert optimizer.expire_overdue(4.0, max_delay=3.0) == (old,)
    assert optimizer.expire_overdue(5.0, max_delay=3.0) == (trials[0],)
    assert optimizer.expire_overdue(5.0, max_delay=math.inf) == ()
    assert optimizer.expire_overdue(5.0, max_delay=0.0) == (trials[1], trials[2])
    assert optimizer.open_trials == ()
    reasons = [each.reason for each in optimizer.trial_log.lost]
    assert reasons[1] == "no outcome by t=5, more than 3 after t=1"
    assert optimizer.trial_log.num_expired == 4


@pytest.mark.parametrize("bad", [-1.0, math.nan])
def test_a_deadline_that_is_none(optimizer, bad):
    trial = optimizer.ask(1.0)
    with pytest.raises(ValueError, match="Expected max_delay >= 0, in units of time. Got"):
        optimizer.expire_overdue(100.0, bad)
    assert optimizer.open_trials == (trial,)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_present_that_is_none(optimizer, bad):
    optimizer.ask(1.0)
    with pytest.raises(InputDataError, match="Expected a finite time"):
        optimizer.expire_overdue(bad, 1.0)
    assert len(optimizer.open_trials) == 1


def test_a_table_of_what_was_lost(tmp_path):
    optimizer = make(recipes.cgp_ucb, contexts=CONTEXTS)
    first = optimizer.ask(1.0, CONTEXTS[1])
    second = optimizer.ask(2.5, CONTEXTS[0])
    optimizer.fail(second, 'a "crash", of sorts\nin two lines')
    optimizer.expire(first)
    frame = optimizer.trial_log.to_frame()
    assert list(frame.columns) == ["trial", "t", "action_0", "context_0", "ending", "reason"]
    assert frame["trial"].tolist() == [2, 1]
    assert frame["t"].tolist() == [2.5, 1.0]
    assert frame["context_0"].tolist() == [0.0, 1.0]
    assert frame["action_0"].tolist() == [second.X.item(), first.X.item()]
    optimizer.trial_log.to_csv(tmp_path / "lost.csv")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "lost.csv"), frame)


def test_an_empty_table(optimizer, tmp_path):
    frame = optimizer.trial_log.to_frame()
    assert list(frame.columns) == ["trial", "t", "ending", "reason"]
    assert len(frame) == 0


def test_memory_of_lost_trials_has_an_end():
    closed = TrialLog()
    X = torch.zeros(1, 1)
    for i in range(1, RECENT + 5):
        closed.lose(LostTrial(Trial(i, X, float(i)), "failed" if i % 2 else "expired", "x"))
    assert len(closed.lost) == RECENT
    assert len(closed) == RECENT + 4
    assert closed.find(4) is None
    assert closed.find(5).ending == "failed"
    assert closed.find(RECENT + 4).trial.id == RECENT + 4


def test_a_trial_lost_too_long_ago_is_not_said_to_be_told(optimizer):
    optimizer.trial_log.lost = deque(maxlen=1)
    first, second = optimizer.ask(), optimizer.ask()
    optimizer.fail(first, "x")
    optimizer.fail(second, "y")
    with pytest.raises(TrialError) as caught:
        optimizer.tell(first.id, 1.0)
    assert "failed" in str(caught.value) or "lost" in str(caught.value)


@pytest.mark.parametrize("bad", [None, 3, ValueError("x")])
def test_a_reason_is_text(optimizer, bad):
    trial = optimizer.ask()
    with pytest.raises(TypeError, match="Expected a reason in words"):
        optimizer.fail(trial, bad)
    assert optimizer.open_trials == (trial,)


class Notes:
    """A recorder that writes down events, and may fail before they take effect."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.events = []
        self.before = []
        self.spoilt = None
        self.refuse = False

    def check(self):
        if self.spoilt:
            raise RuntimeError(self.spoilt)

    def reconcile(self, X):
        return X

    @contextmanager
    def transaction(self, *events):
        self.check()
        if self.refuse:
            raise OSError("disk full")
        self.before.append({trial.id for trial in self.optimizer.open_trials})
        kept = len(self.events)
        self.events.extend(events)
        try:
            yield
        except BaseException:
            del self.events[kept:]
            raise

    def invalidate(self, why):
        self.spoilt = why

    def close(self):
        pass


def test_every_change_is_written_before_it_takes_effect(optimizer):
    notes = optimizer._event_sink = Notes(optimizer)
    trial = optimizer.ask(1.0)
    attached = optimizer.attach([2.0], 0.5)
    optimizer.tell(trial, 0.5, 0.2)
    optimizer.fail(attached, "x")
    other = optimizer.ask(2.0)
    optimizer.expire_overdue(9.0, 1.0)
    assert [event.kind for event in notes.events] == [
        *("ask", "attach", "tell", "fail", "ask", "expire")
    ]
    assert notes.before == [set(), {1}, {1, 2}, {2}, set(), {3}]
    assert [event.trial.id for event in notes.events] == [1, 2, 1, 2, 3, other.id]
    assert (notes.events[2].Y, notes.events[2].Yvar) == ((0.5,), (0.2,))
    assert notes.events[3].reason == "x"


@pytest.mark.parametrize("change", ["tell", "fail", "expire"])
def test_what_could_not_be_written_did_not_happen(optimizer, change):
    notes = optimizer._event_sink = Notes(optimizer)
    trial = optimizer.ask(1.0)
    notes.refuse = True
    with pytest.raises(OSError, match="disk full"):
        optimizer.tell(trial, 1.0) if change == "tell" else getattr(optimizer, change)(trial, "x")
    assert optimizer.open_trials == (trial,)
    assert len(optimizer.trial_log) == 0
    assert optimizer.model_size == 0
    notes.refuse = False
    optimizer.tell(trial, 1.0)
    assert optimizer.model_size == 1


def test_what_did_not_take_effect_was_not_written(optimizer):
    """The noise of one outcome told, of the next not."""
    notes = optimizer._event_sink = Notes(optimizer)
    optimizer.tell(optimizer.ask(), 1.0, Yvar=0.1)
    trial = optimizer.ask()
    with pytest.raises(InputDataError, match="with every observation or with none"):
        optimizer.tell(trial, 1.0)
    assert [event.kind for event in notes.events] == ["ask", "tell", "ask"]
    assert notes.spoilt is None
    assert optimizer.open_trials == (trial,)


def test_an_ask_that_breaks_half_way_spoils_the_record(optimizer):
    notes = optimizer._event_sink = Notes(optimizer)
    optimizer.ask()
    notes.refuse = True
    with pytest.raises(OSError, match="disk full"):
        optimizer.ask()
    assert "disk full" in notes.spoilt
    notes.refuse = False
    with pytest.raises(RuntimeError, match="disk full"):
        optimizer.ask()


def test_a_refused_ask_spoils_nothing(optimizer):
    notes = optimizer._event_sink = Notes(optimizer)
    optimizer.ask(5.0)
    with pytest.raises(InputDataError, match="Expected t >= 5"):
        optimizer.ask(4.0)
    with pytest.raises(InputDataError, match="among the 5 choices"):
        optimizer.attach([0.5], 1.0)
    assert notes.spoilt is None
    assert optimizer.ask(6.0).id == 2
