"""A journaled run that was left and opened again, beside one that never stopped."""

import sqlite3

import pytest
import torch

from tvbo.optimizers import Optimizer
from tvbo.retention import Admission, Rejection
from tvbo.storage import DamagedJournalWarning, JournalError
from tvbo.storage.reader import JournalReader


def state(optimizer):
    trials = [(trial.id, trial.t, trial.X.tolist()) for trial in optimizer.open_trials]
    return trials, optimizer.generator.get_state().tolist()


@pytest.mark.slow
def test_continues_bit_for_bit_by_replay(make, steps, run, play, leave):
    whole, first = make(), make()
    first.record(run)
    assert play(whole, steps) == play(first, steps)
    leave(first)
    second = Optimizer.open(run)
    assert state(second) == state(whole)
    assert play(whole, 8) == play(second, 8)
    assert state(second) == state(whole)


@pytest.mark.slow_cases("learned", "incremental")
def test_continues_bit_for_bit_from_a_snapshot(make, steps, run, play):
    whole, first = make(), make()
    first.record(run)
    assert play(whole, steps) == play(first, steps)
    first.close()
    second = Optimizer.open(run)
    assert state(second) == state(whole)
    assert play(whole, 8) == play(second, 8)


def test_opened_again_and_again(make_streaming, run, play, leave):
    whole, again = make_streaming(), make_streaming()
    again.record(run)
    for i in range(6):
        assert play(whole, 5) == play(again, 5)
        again.close() if i % 2 else leave(again)
        again = Optimizer.open(run)
    assert state(again) == state(whole)
    with JournalReader(run) as journal:
        assert [after for after, _ in journal.sessions] == list(range(0, 31, 5))


def test_recording_may_begin_later(make_streaming, run, play, leave):
    whole, first = make_streaming(), make_streaming()
    play(whole, 11)
    play(first, 11)
    first.record(run)
    assert play(whole, 9) == play(first, 9)
    leave(first)
    second = Optimizer.open(run)
    assert state(second) == state(whole)
    assert play(whole, 9) == play(second, 9)


def test_attached_trials_and_known_noise_and_deadlines(make_streaming, run, leave):
    whole, first = make_streaming(), make_streaming()
    first.record(run)
    for optimizer in (whole, first):
        for row in (3, 7):
            attached = optimizer.attach(optimizer.search_space.choices[row], t=0.5 + row)
            optimizer.tell(attached, 0.1 * row, Yvar=0.3)
        optimizer.ask(t=8.0)
        optimizer.ask(t=9.0)
        optimizer.ask(t=20.0)
        assert len(optimizer.expire_overdue(20.0, max_delay=5.0)) == 2
    leave(first)
    second = Optimizer.open(run)
    assert torch.equal(second.observations.Yvar, whole.observations.Yvar)
    assert second.trial_log.num_expired == 2
    assert [lost.reason for lost in second.trial_log.newest] == [
        lost.reason for lost in whole.trial_log.newest
    ]
    assert state(second) == state(whole)
    assert torch.equal(second.ask(t=21.0).X, whole.ask(t=21.0).X)


def test_read_only_leaves_the_file_alone(recorded, play):
    run = recorded(20)
    before = run.read_bytes()
    optimizer = Optimizer.open(run, read_only=True)
    play(optimizer, 10)
    with JournalReader(run) as journal:
        assert journal.num_good == 20
    assert run.read_bytes() == before


def test_read_only_can_be_recorded_elsewhere(recorded, make_random, play, tmp_path):
    run = recorded(20)
    optimizer = Optimizer.open(run, read_only=True)
    optimizer.record(tmp_path / "other.db")
    whole = make_random()
    play(whole, 20)
    assert play(optimizer, 8) == play(whole, 8)


def test_a_second_journal_is_refused(run, tmp_path, make_random):
    optimizer = make_random()
    optimizer.record(run)
    with pytest.raises(JournalError):
        optimizer.record(tmp_path / "other.db")
    assert not (tmp_path / "other.db").exists()


def test_a_lambda_is_refused(run, make_streaming):
    with pytest.raises(JournalError, match=".*lambda"):
        make_streaming(beta=lambda t: 2.0).record(run)
    assert not run.exists()


def test_like_another_of_the_same_making(recorded, make_streaming):
    run = recorded(12, make_streaming)
    assert Optimizer.open(run, like=make_streaming()).model_size == 5


@pytest.mark.slow_cases("learned", "incremental")
def test_with_like_it_goes_on_bit_for_bit(make, steps, run, play):
    """From the stored state: no call is made again."""
    whole, first = make(), make()
    first.record(run)
    play(whole, steps)
    play(first, steps)
    first.close()
    second = Optimizer.open(run, like=make())
    assert state(second) == state(whole)
    assert play(whole, 8) == play(second, 8)
    assert state(second) == state(whole)


def test_a_refused_opening_leaves_like_as_it_was(recorded, make_streaming, play):
    run = recorded(12, make_streaming)
    like = make_streaming(forgetting_rate=0.2)
    with pytest.raises(JournalError):
        Optimizer.open(run, like=like)
    assert play(like, 12) == play(make_streaming(forgetting_rate=0.2), 12)


def test_another_seed_is_named(recorded, make_streaming):
    run = recorded(12, make_streaming)
    like = make_streaming(generator=torch.Generator().manual_seed(5))
    with pytest.raises(JournalError):
        Optimizer.open(run, like=like)


@pytest.mark.slow_cases("replayed")
@pytest.mark.parametrize("close", [True, False], ids=["snapshot", "replayed"])
def test_a_policy_of_the_users_comes_from_like(run, make_streaming, play, leave, close):
    def made():
        return make_streaming(retention=OneInThree())

    whole, first = made(), made()
    first.record(run)
    play(whole, 20)
    play(first, 20)
    first.close() if close else leave(first)
    second = Optimizer.open(run, like=made())
    assert second.retention.told == whole.retention.told > 0
    assert play(whole, 9) == play(second, 9)


class OneInThree(Admission):
    """Refuses every third outcome; counts what it is told."""

    def __init__(self):
        self.told = 0

    def admit(self, prediction, num_held):
        return Rejection("the third", skip=False) if prediction.trial_id % 3 == 0 else None

    def observe_outcome(self, prediction, Y):
        self.told += 1


def test_of_a_damaged_journal_the_beginning(recorded, make_random, play):
    run = recorded(30)
    with sqlite3.connect(run) as connection:
        connection.execute("UPDATE events SET reason = 'changed' WHERE seq = 18")
    connection.close()
    with pytest.raises(JournalError):
        Optimizer.open(run)
    with pytest.warns(DamagedJournalWarning, match="first 17 records are good"):
        optimizer = Optimizer.open(run, read_only=True)
    whole = make_random()
    play(whole, 17)
    assert state(optimizer) == state(whole)


def test_a_folder_that_cannot_share_the_file_is_said(recorded, make_random, play):
    """As on a disk of the network; what was recorded is not touched."""
    run = recorded(12, close=True)
    before = run.read_bytes()
    beside = run.with_name("run.db-shm")
    beside.mkdir()
    with pytest.raises(JournalError):
        Optimizer.open(run)
    beside.rmdir()
    assert run.read_bytes() == before
    whole = make_random()
    play(whole, 12)
    assert play(Optimizer.open(run), 6) == play(whole, 6)


def test_each_setting_is_compared(recorded, make_streaming, make_random, changed_settings):
    run = recorded(4, make_streaming)
    for make in (make_random, *changed_settings.values()):
        with pytest.raises(JournalError):
            Optimizer.open(run, like=make())
    Optimizer.open(run, like=make_streaming())
