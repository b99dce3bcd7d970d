"""A write-ahead log that was damaged, beside one that a dead process left."""

import shutil
import struct

import pytest

from tvbo.optimizers import Optimizer
from tvbo.storage import DamagedJournalWarning, JournalError, JournalReader
from tvbo.storage.wal import FRAME, HEADER, damage_of_wal

STEPS = 20


@pytest.fixture
def left(run, make_random, play, tmp_path):
    """A journal whose events all stand in its log, as a killed process leaves it."""
    optimizer = make_random()
    optimizer.record(run)
    play(optimizer, STEPS)
    dead = tmp_path / "dead.db"
    for end in ("", "-wal"):
        shutil.copy(f"{run}{end}", f"{dead}{end}")
    return dead, tmp_path / "dead.db-wal"


def marks(log):
    """Places of the pages of a log, and whether each ends a transaction."""
    data = log.read_bytes()
    [size] = struct.unpack_from(">I", data, 8)
    places = range(HEADER, len(data), FRAME + size)
    return [(place, struct.unpack_from(">I", data, place + 4) != (0,)) for place in places]


def flip(log, place):
    data = bytearray(log.read_bytes())
    data[place] ^= 1
    log.write_bytes(data)


def test_a_log_that_a_dead_process_left_is_whole(left, make_random, play):
    path, _ = left
    assert damage_of_wal(path) is None
    whole = make_random()
    play(whole, STEPS)
    assert play(Optimizer.open(path), 6) == play(whole, 6)


@pytest.mark.parametrize("part", ["page", "salt", "mark"])
def test_a_flipped_byte_in_the_middle(left, part):
    path, log = left
    pages = marks(log)
    place, _ = pages[len(pages) // 2]
    flip(log, place + {"page": FRAME + 99, "salt": 9, "mark": 7}[part])
    with JournalReader(path) as journal:
        assert 0 < journal.num_good < STEPS
        assert "transactions are lost" in journal.damage
    before = log.read_bytes()
    with pytest.raises(JournalError):
        Optimizer.open(path)
    assert log.read_bytes() == before
    with pytest.warns(DamagedJournalWarning, match="write-ahead log cannot be read"):
        Optimizer.open(path, read_only=True)


def test_a_torn_last_transaction_is_a_crash(left):
    path, log = left
    last = [place for place, ends in marks(log) if ends][-1]
    flip(log, last + FRAME + 5)
    assert damage_of_wal(path) is None
    assert (
        Optimizer.open(path).trial_log.num_told
        + Optimizer.open(path, read_only=True).trial_log.num_told
        > 0
    )


def test_without_its_log_a_journal_is_still_one(left, make_random):
    path, log = left
    log.unlink()
    optimizer = Optimizer.open(path, like=make_random())
    assert len(optimizer.open_trials) == 0


def test_the_log_is_merged_from_time_to_time(run, make_random, play, tmp_path):
    optimizer = make_random()
    optimizer.record(run)
    play(optimizer, 120)
    shutil.copy(run, tmp_path / "alone.db")
    with JournalReader(tmp_path / "alone.db") as journal:
        assert journal.num_good >= 60
        assert journal.damage is None
