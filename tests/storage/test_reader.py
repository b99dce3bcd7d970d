"""Files that are no journals, and journals that were damaged."""

import contextlib
import sqlite3

import pytest
import torch

from tvbo.optimizers import Optimizer
from tvbo.storage import (
    DamagedJournalWarning,
    JournalError,
    JournalReader,
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


@pytest.mark.parametrize("version", [0, 3])
@pytest.mark.parametrize("read_only", [True, False])
def test_tables_of_another_version(recorded, version, read_only):
    run = recorded(4)
    with sqlite3.connect(run) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    with pytest.raises(JournalError):
        Optimizer.open(run, read_only=read_only)


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
    place = content.index(b"tvbo.optimizers.random")
    run.write_bytes(content[:place] + b"T" + content[place + 1 :])
    with (
        pytest.warns(DamagedJournalWarning),
        pytest.raises(JournalError),
    ):
        Optimizer.open(run, read_only=True)
    with JournalReader(run) as journal:
        assert len(trials_of(journal)) > 10


def test_a_page_of_zeros(closed, make_random):
    """Wherever it is: nothing is read of it, and what is read is how the run began."""
    run, content = closed(60)
    with JournalReader(run) as journal:
        whole = list(journal.events())
    lengths = []
    for place in range(0, len(content), 4096):
        run.write_bytes(content[:place] + bytes(4096) + content[place + 4096 :])
        for given in ({}, {"like": make_random()}):
            with pytest.raises(JournalError):
                Optimizer.open(run, **given)
        with contextlib.suppress(JournalError), JournalReader(run) as journal:
            assert journal.damage is not None
            lengths.append(journal.num_good)
            assert list(journal.events()) == whole[: journal.num_good]
    assert min(lengths) < max(lengths) == 60


def test_the_trials_of_a_run_that_learned(recorded, make_learning):
    """What was learned is no trial."""
    run = recorded(13, make_learning)
    with JournalReader(run) as journal:
        records = [record for _, record in journal.events()]
        trials = trials_of(journal)
    assert any(record.kind == "refit" for record in records)
    assert trials.trial.tolist() == [
        record.trial_id for record in records if record.kind in ("ask", "attach")
    ]
