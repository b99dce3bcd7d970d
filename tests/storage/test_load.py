"""A journaled run that was left and opened again, beside one that never stopped."""

import json
import sqlite3

import pytest
import torch

from tvbo.optimizers import GPOptimizer, Optimizer
from tvbo.optimizers.random_search import RandomSearch
from tvbo.retention import Admission, Rejection
from tvbo.storage import DamagedJournalWarning, JournalError, environment, load, reader, replay
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


@pytest.mark.slow_cases("learned")
def test_continues_bit_for_bit_from_a_snapshot(make, steps, run, play, monkeypatch):
    whole, first = make(), make()
    first.record(run)
    assert play(whole, steps) == play(first, steps)
    first.close()
    replayed = []
    replay = load.replay

    def counted(optimizer, records, difference, num_records, progress):
        replayed.append(num_records)
        replay(optimizer, records, difference, num_records, progress)

    monkeypatch.setattr(load, "replay", counted)
    second = Optimizer.open(run)
    assert replayed == [0]
    assert state(second) == state(whole)
    assert play(whole, 8) == play(second, 8)


def test_snapshots_are_written_meanwhile_and_shorten_the_replay(
    run, make_streaming, play, leave, monkeypatch
):
    monkeypatch.setattr("tvbo.storage.writer.EVERY", 8)
    whole, first = make_streaming(), make_streaming()
    first.record(run)
    play(whole, 30)
    play(first, 30)
    leave(first)
    with JournalReader(run) as journal:
        assert journal.num_good == 30
        assert journal.snapshot().seq == 24
    second = Optimizer.open(run)
    assert play(whole, 12) == play(second, 12)


def test_a_snapshot_of_another_environment_is_passed_over_by_name(
    run, make_streaming, play, caplog
):
    whole, first = make_streaming(), make_streaming()
    first.record(run)
    play(whole, 20)
    play(first, 20)
    first.close()
    with sqlite3.connect(run) as connection:
        connection.execute("UPDATE snapshot SET environment = ?", (json.dumps({"python": "2"}),))
    connection.close()
    second = Optimizer.open(run)
    assert "python was 2" in caplog.text
    assert play(whole, 12) == play(second, 12)


def test_code_that_stands_in_no_file_is_never_taken_as_unchanged():
    now = environment.current_environment(["builtins"])
    assert environment.is_same(now, dict(now))
    nowhere = now | {"source of a notebook": environment.NO_SOURCE}
    assert not environment.is_same(nowhere, dict(nowhere))


def test_opened_again_and_again(make_streaming, run, play, leave):
    whole, again = make_streaming(), make_streaming()
    again.record(run)
    for i in range(6):
        assert play(whole, 5) == play(again, 5)
        again.close() if i % 2 else leave(again)
        again = Optimizer.open(run)
    assert state(again) == state(whole)
    with JournalReader(run) as journal:
        assert [session.after for session in journal.sessions] == list(range(0, 31, 5))


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
    assert [lost.reason for lost in second.trial_log.lost] == [
        lost.reason for lost in whole.trial_log.lost
    ]
    assert state(second) == state(whole)
    assert torch.equal(second.ask(t=21.0).X, whole.ask(t=21.0).X)


def test_looking_at_a_run_changes_nothing_of_it(make_square, outcome, generator):
    """Not even in which portions a model takes in its observations, to the last bit."""
    looked_at, left_alone = make_square(), make_square()
    actions = torch.rand(16, 2, dtype=torch.float64, generator=generator)
    for t, X in enumerate(actions):
        for optimizer in (looked_at, left_alone):
            trial = optimizer.attach(X, float(t))
            optimizer.tell(trial, outcome(trial))
        if t % 3 == 0:
            looked_at.recommend()
        if t % 5 == 4:
            for optimizer in (looked_at, left_alone):
                optimizer.ask(float(t))
            looked_at.model.posterior(looked_at.layout.rows(actions, float(t)))
    rows = looked_at.layout.rows(actions, 16.0)
    assert torch.equal(looked_at.ask(16.0).X, left_alone.ask(16.0).X)
    assert state(looked_at) == state(left_alone)
    one, two = (optimizer.model.posterior(rows).mean for optimizer in (looked_at, left_alone))
    assert torch.equal(one, two)


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


def test_by_the_class_that_it_is_of(recorded):
    run = recorded(4)
    with pytest.raises(JournalError, match=".*RandomS"):
        GPOptimizer.open(run)
    assert type(RandomSearch.open(run)) is RandomSearch


@pytest.mark.parametrize("words", ["{", "7", None, "[" * 100_000], ids=["{", "7", "none", "deep"])
def test_a_damaged_environment_of_a_snapshot(recorded, words):
    run = recorded(12, close=True)
    with sqlite3.connect(run) as connection:
        connection.execute("UPDATE snapshot SET environment = ?", (words,))
    connection.close()
    with pytest.raises(JournalError):
        Optimizer.open(run)
    with pytest.warns(DamagedJournalWarning):
        assert len(Optimizer.open(run, read_only=True).trial_log) > 0


def test_a_damaged_environment_of_a_session(recorded):
    run = recorded(12)
    with sqlite3.connect(run) as connection:
        connection.execute("UPDATE sessions SET environment = '{'")
    connection.close()
    with pytest.raises(JournalError):
        Optimizer.open(run)
    with pytest.warns(DamagedJournalWarning):
        assert len(Optimizer.open(run, read_only=True).trial_log) > 0


def test_a_lambda_is_refused(run, make_streaming):
    with pytest.raises(JournalError, match=".*lambda"):
        make_streaming(beta=lambda t: 2.0).record(run)
    assert not run.exists()


def test_like_another_of_the_same_making(recorded, make_streaming):
    run = recorded(12, make_streaming)
    assert Optimizer.open(run, like=make_streaming()).model_size == 5


@pytest.fixture
def pickled_start_is_gone(forge):
    """Overwrites the pickle in a journal: with ``like`` it is not even looked at."""
    return lambda run: forge(run, "UPDATE start SET optimizer = x'00'")


@pytest.mark.slow_cases("learned", "incremental")
def test_like_unpickles_nothing_and_goes_on_bit_for_bit(
    make, steps, run, play, monkeypatch, pickled_start_is_gone
):
    """From the stored state: no call is made again."""
    whole, first = make(), make()
    first.record(run)
    play(whole, steps)
    play(first, steps)
    first.close()
    pickled_start_is_gone(run)
    with monkeypatch.context() as patch:
        patch.setattr(replay, "_call", None)
        second = Optimizer.open(run, like=make())
    assert state(second) == state(whole)
    assert play(whole, 8) == play(second, 8)
    assert state(second) == state(whole)


@pytest.mark.slow_cases("learned", "incremental")
def test_like_of_a_run_that_was_told_before(make, run, play, leave, pickled_start_is_gone):
    """The state at the start is stored as plain data, too; all that came after is replayed."""
    whole, first = make(), make()
    play(whole, 9)
    play(first, 9)
    first.record(run)
    play(whole, 5)
    play(first, 5)
    leave(first)
    pickled_start_is_gone(run)
    like = make()
    play(like, 4)
    second = Optimizer.open(run, like=like)
    assert state(second) == state(whole)
    assert play(whole, 6) == play(second, 6)


def test_a_refused_opening_leaves_like_as_it_was(recorded, make_streaming, play, monkeypatch):
    run = recorded(12, make_streaming)
    like = make_streaming(forgetting_rate=0.2)
    with pytest.raises(JournalError):
        Optimizer.open(run, like=like)
    like, untouched = make_streaming(), make_streaming()
    with monkeypatch.context() as patch:
        patch.setattr(
            type(like.search_space), "maximize", lambda search_space, *_: search_space.choices[7:8]
        )
        with pytest.raises(JournalError):
            Optimizer.open(run, like=like)
    assert play(like, 12) == play(untouched, 12)


def test_another_seed_is_named(recorded, make_streaming):
    run = recorded(12, make_streaming)
    like = make_streaming(generator=torch.Generator().manual_seed(5))
    with pytest.raises(JournalError):
        Optimizer.open(run, like=like)


@pytest.mark.slow_cases("replayed")
@pytest.mark.parametrize("close", [True, False], ids=["snapshot", "replayed"])
def test_a_policy_of_the_users_comes_from_like(
    run, make_streaming, play, leave, close, pickled_start_is_gone
):
    def made():
        return make_streaming(retention=OneInThree())

    whole, first = made(), made()
    first.record(run)
    play(whole, 20)
    play(first, 20)
    first.close() if close else leave(first)
    pickled_start_is_gone(run)
    second = Optimizer.open(run, like=made())
    assert second.retention.told == whole.retention.told > 0
    assert play(whole, 9) == play(second, 9)


@pytest.mark.slow
def test_what_has_no_plain_form_is_replayed(run, make_streaming, play, monkeypatch):
    """Its object is that of ``like``; no state is stored, since it may change."""

    def made():
        return make_streaming(beta=Itself(2.0))

    whole, first = made(), made()
    first.record(run)
    play(whole, 20)
    play(first, 20)
    first.close()
    with JournalReader(run) as journal:
        assert journal.snapshot() is None
    second = Optimizer.open(run, like=made())
    assert play(whole, 9) == play(second, 9)
    second.close()
    played = made()
    play(played, 3)
    with pytest.raises(JournalError):
        Optimizer.open(run, like=played)


class OneInThree(Admission):
    """Refuses every third outcome; counts what it is told."""

    def __init__(self):
        self.told = 0

    def admit(self, prediction, num_held):
        return Rejection("the third", skip=False) if prediction.trial_id % 3 == 0 else None

    def observe_outcome(self, prediction, Y):
        self.told += 1


class Itself:
    """A β that says how it is pickled."""

    def __init__(self, value):
        self.value = value

    def __call__(self, t):
        return self.value

    def __getstate__(self):
        return {"value": self.value}


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


def test_a_long_replay_is_not_done_twice(recorded, make_streaming, play, leave, monkeypatch):
    run = recorded(20, make_streaming)
    monkeypatch.setattr("tvbo.storage.writer.EVERY", 8)
    leave(Optimizer.open(run))
    with JournalReader(run) as journal:
        assert journal.snapshot().seq == 20
    whole = make_streaming()
    play(whole, 20)
    with monkeypatch.context() as patch:
        patch.setattr(replay, "_call", None)
        again = Optimizer.open(run)
    assert play(again, 9) == play(whole, 9)


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


def test_an_interrupted_opening_lets_go(recorded, make_random, play, monkeypatch):
    run = recorded(12)

    def interrupted(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(reader, "damage_of_wal", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Optimizer.open(run)
    whole = make_random()
    play(whole, 12)
    assert play(Optimizer.open(run), 6) == play(whole, 6)
