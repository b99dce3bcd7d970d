"""New journals, and files that are in their way."""

import sqlite3

import pytest

from tvbo.journal import JournalError, create


def test_a_file_that_exists_is_refused(run, make_random):
    run.write_text("mine")
    with pytest.raises(JournalError, match="Expected a new file to record in. Got .*run.db"):
        make_random().record(run)
    assert run.read_text() == "mine"


def test_a_folder_that_does_not_exist_is_refused(tmp_path, make_random):
    with pytest.raises(JournalError, match="Expected a file that can be made"):
        make_random().record(tmp_path / "nowhere" / "run.db")


@pytest.mark.parametrize("error", [KeyboardInterrupt, sqlite3.OperationalError])
def test_a_journal_appears_whole_or_not_at_all(run, make_random, monkeypatch, error, play):
    def breaks(*_):
        raise error

    optimizer = make_random()
    with monkeypatch.context() as patch:
        patch.setattr(create, "write_session", breaks)
        with pytest.raises((KeyboardInterrupt, JournalError)):
            optimizer.record(run)
    assert list(run.parent.iterdir()) == []
    optimizer.record(run)
    play(optimizer, 4)
    assert sorted(path.name for path in run.parent.glob("*.new*")) == []


def test_a_file_that_appears_meanwhile_is_left_alone(run, make_random, monkeypatch):
    def somebody_else_writes(*_):
        run.write_text("mine")

    monkeypatch.setattr(create, "write_session", somebody_else_writes)
    with pytest.raises(JournalError, match="Expected a new file to record in. Got .*run.db, whi"):
        make_random().record(run)
    assert run.read_text() == "mine"
    assert [path.name for path in run.parent.iterdir()] == ["run.db"]


def test_what_a_journal_that_is_gone_left_is_refused(run, make_random):
    """SQLite would merge it into the new one."""
    run.with_name("run.db-wal").write_bytes(b"left")
    with pytest.raises(JournalError, match="Got .*run.db-wal beside it, left over"):
        make_random().record(run)
    assert not run.exists()
