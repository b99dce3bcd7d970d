"""States that cannot be stored: the events are what counts."""

import pytest

from tvbo.journal import JournalError, JournalReader
from tvbo.optimizers import Optimizer


class Sulky:
    """Cannot be pickled, by an error of its own, once it is told so."""

    refuses = False

    def __getstate__(self):
        if Sulky.refuses:
            raise ValueError("pointers cannot be pickled")
        return {}


def test_any_error_of_a_state_is_no_error_of_the_run(run, make_random, play, monkeypatch):
    monkeypatch.setattr("tvbo.journal.snapshot.EVERY", 8)
    monkeypatch.setattr(Sulky, "refuses", True)
    optimizer = make_random()
    optimizer.note = Sulky()
    with pytest.raises(JournalError, match="Got ValueError: pointers cannot"):
        optimizer.record(run)
    del optimizer.note
    optimizer.record(run)
    optimizer.note = Sulky()
    play(optimizer, 20)
    with JournalReader(run) as journal:
        assert journal.num_good == 20


def test_a_state_that_cannot_be_stored_does_not_stop_the_run(run, make_random, play):
    whole, optimizer = make_random(), make_random()
    optimizer.record(run)
    optimizer.note = lambda: None
    play(whole, 12)
    play(optimizer, 12)
    optimizer.close()
    assert play(Optimizer.open(run), 9) == play(whole, 9)
