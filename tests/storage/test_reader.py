"""Files that are no journals, and journals that were damaged."""

import contextlib
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
import torch

from tvbo.optimizers import Optimizer
from tvbo.storage import (
    DamagedJournalWarning,
    JournalError,
    JournalReader,
    database,
    reader,
    trials_of,
)


def test_no_file(tmp_path):
    with pytest.raises(JournalError):
        Optimizer.open(tmp_path / "nothing.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"t,y\n1,2\n" * 100], ids=["empty", "text"])
def test_no_journal(run, content):
    run.write_bytes(content)
    with pytest.raises(JournalError):
        Optimizer.open(run)
    assert [path.name for path in run.parent.iterdir()] == ["run.db"]


def test_a_database_of_another_program(run):
    with sqlite3.connect(run) as connection:
        connection.execute("CREATE TABLE meta (name, value)")
    connection.close()
    with pytest.raises(JournalError):
        Optimizer.open(run)


@pytest.mark.parametrize(
    ("version", "words"), [(0, "not migrated: open it with the tvbo that"), (4, "a newer tvbo")]
)
@pytest.mark.parametrize("read_only", [True, False])
def test_tables_of_another_version(recorded, version, words, read_only):
    run = recorded(4)
    with sqlite3.connect(run) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    with pytest.raises(JournalError):
        Optimizer.open(run, read_only=read_only)


VERSION_1 = Path(__file__).with_name("version_1.db")
"""Thirteen events of a random search, recorded before states were stored as plain data."""


@pytest.fixture
def old(tmp_path):
    return Path(shutil.copy(VERSION_1, tmp_path / "old.db"))


def test_trials_of_an_older_journal_are_read(old, make_random, play):
    whole = make_random()
    asked = play(whole, 13)
    with JournalReader(old) as journal:
        assert (journal.version, journal.damage, journal.num_good) == (1, None, 13)
        trials = trials_of(journal)
    assert trials.action_0.tolist() == [X for _, _, [[X]], _ in asked]
    counts = {"told": whole.trial_log.num_told, "open": len(whole.open_trials)}
    assert {state: (trials.state == state).sum() for state in counts} == counts


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("with_like", [True, False])
def test_an_older_journal_names_its_writer(old, make_random, read_only, with_like):
    like = make_random() if with_like else None
    with pytest.raises(
        JournalError,
    ):
        Optimizer.open(old, like=like, read_only=read_only)


@pytest.fixture
def closed(recorded):
    """A journal in one file, without a snapshot, and its content."""

    def close(steps):
        run = recorded(steps)
        with sqlite3.connect(run) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        return run, run.read_bytes()

    return close


def check_the_beginning(run, make, play):
    """Whatever was read is how the run began; gives the number of records."""
    with JournalReader(run) as journal:
        assert journal.damage is not None
        good = journal.num_good
        assert len(trials_of(journal)) <= good
    with pytest.raises(JournalError):
        Optimizer.open(run)
    with pytest.warns(DamagedJournalWarning, match=f"first {good} records"):
        optimizer = Optimizer.open(run, read_only=True)
    whole = make()
    play(whole, good)
    assert play(optimizer, 6) == play(whole, 6)
    return good


def test_a_truncated_file(closed, make_random, play):
    run, content = closed(300)
    found = []
    for share in (0.95, 0.8, 0.6):
        run.write_bytes(content[: int(share * len(content))])
        found.append(check_the_beginning(run, make_random, play))
    assert 0 < found[2] < found[1] <= found[0] < 300


def test_a_file_without_its_start(closed):
    run, content = closed(30)
    run.write_bytes(content[:4096])
    with pytest.raises(JournalError):
        Optimizer.open(run, read_only=True)


def test_a_flipped_byte(closed, make_random, play):
    run, content = closed(200)
    place = content.rindex(b"a crash")
    changed = content[:place] + b"A" + content[place + 1 :]
    run.write_bytes(changed)
    assert 0 < check_the_beginning(run, make_random, play) < 200


def test_any_flipped_byte_is_found_or_does_no_harm(closed, make_random, play, generator):
    run, content = closed(60)
    whole = make_random()
    play(whole, 60)
    next_choices = play(whole, 3)
    refused = 0
    for place in torch.randint(len(content), (40,), generator=generator).tolist():
        run.write_bytes(content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :])
        try:
            optimizer = Optimizer.open(run)
        except JournalError:
            refused += 1
            continue
        assert play(optimizer, 3) == next_choices
        optimizer._event_sink._end("that is dead")
        run.with_name("run.db-wal").unlink(missing_ok=True)
        run.with_name("run.db-shm").unlink(missing_ok=True)
    assert refused > 10


def test_a_damaged_start(closed):
    run, content = closed(30)
    place = content.index(b"tvbo.optimizers.random_search")
    run.write_bytes(content[:place] + b"T" + content[place + 1 :])
    with (
        pytest.warns(DamagedJournalWarning),
        pytest.raises(JournalError),
    ):
        Optimizer.open(run, read_only=True)
    with JournalReader(run) as journal:
        assert len(trials_of(journal)) > 10


def test_a_damaged_snapshot(recorded, make_random, play):
    run = recorded(20, close=True)
    with sqlite3.connect(run) as connection:
        connection.execute("UPDATE snapshot SET state = state || X'00'")
    connection.close()
    with pytest.raises(JournalError):
        Optimizer.open(run)
    with pytest.warns(DamagedJournalWarning, match="Its first 20 records"):
        optimizer = Optimizer.open(run, read_only=True)
    whole = make_random()
    play(whole, 20)
    assert play(optimizer, 6) == play(whole, 6)


def test_records_may_not_change_places(recorded):
    run = recorded(12)
    with sqlite3.connect(run) as connection:
        connection.execute("UPDATE events SET seq = 100 WHERE seq = 5")
        connection.execute("UPDATE events SET seq = 5 WHERE seq = 6")
        connection.execute("UPDATE events SET seq = 6 WHERE seq = 100")
    connection.close()
    with JournalReader(run) as journal:
        assert (journal.num_good, journal.damage) == (4, "record 5 has another checksum")


def test_a_page_of_zeros(closed, make_random):
    """Wherever it is: nothing is read of it, and what is read is how the run began."""
    run, content = closed(60)
    with JournalReader(run) as journal:
        whole = list(journal.records())
    lengths = []
    for place in range(0, len(content), 4096):
        run.write_bytes(content[:place] + bytes(4096) + content[place + 4096 :])
        for given in ({}, {"like": make_random()}):
            with pytest.raises(JournalError):
                Optimizer.open(run, **given)
        with contextlib.suppress(JournalError), JournalReader(run) as journal:
            assert journal.damage is not None
            lengths.append(journal.num_good)
            assert list(journal.records()) == whole[: journal.num_good]
    assert min(lengths) < max(lengths) == 60


@pytest.mark.parametrize("read_only", [True, False])
def test_a_log_that_cannot_be_opened(closed, read_only):
    run, content = closed(12)
    for end in ("-wal", "-shm"):
        run.with_name(f"run.db{end}").unlink(missing_ok=True)
    run.with_name("run.db-wal").mkdir()
    with pytest.raises(JournalError):
        Optimizer.open(run, read_only=read_only)
    assert run.read_bytes() == content


def test_in_a_folder_that_cannot_be_written(closed, make_random, play, monkeypatch):
    """As from a CD: no file can be made beside the journal, and none is needed."""
    run, content = closed(12)
    for end in ("-wal", "-shm"):
        run.with_name(f"run.db{end}").unlink(missing_ok=True)
    # SQLite is kept from making it, whatever the rights of who runs the tests.
    run.with_name("run.db-wal").symlink_to("nowhere/at_all")
    monkeypatch.setattr(os, "access", lambda *_: False)
    whole = make_random()
    play(whole, 12)
    assert play(Optimizer.open(run, read_only=True), 6) == play(whole, 6)
    assert run.read_bytes() == content


class BadSector:
    """A connection to a file on a disk that cannot be read everywhere."""

    def __init__(self, connection):
        self._connection = connection

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def execute(self, statement, *values):
        if "quick_check" in statement:
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(statement, *values)


def test_a_disk_that_cannot_be_read_everywhere(recorded, make_random, play, monkeypatch):
    """What can be read of the journal is."""
    run = recorded(12)
    connect = database.connect_to_read

    def connect_to_bad_sector(path, **given):
        return BadSector(connect(path, **given))

    for module in (database, reader):
        monkeypatch.setattr(module, "connect_to_read", connect_to_bad_sector)
    with pytest.raises(JournalError):
        Optimizer.open(run)
    with pytest.warns(DamagedJournalWarning, match="disk I/O error"):
        optimizer = Optimizer.open(run, read_only=True)
    whole = make_random()
    play(whole, 12)
    assert play(optimizer, 6) == play(whole, 6)


def test_the_trials_of_a_run_that_learned(recorded, make_learning):
    """What was learned is no trial."""
    run = recorded(13, make_learning)
    with JournalReader(run) as journal:
        records = [record for _, record in journal.records()]
        trials = trials_of(journal)
    assert any(record.kind == "refit" for record in records)
    assert trials.trial.tolist() == [
        record.trial_id for record in records if record.kind in ("ask", "attach")
    ]
