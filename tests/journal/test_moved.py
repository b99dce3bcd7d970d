"""A journal from before classes moved to other modules."""

import gzip
from pathlib import Path

import pytest

from tvbo.journal.objects import MOVED, update_names
from tvbo.optimizers import Optimizer

BEFORE_MOVES = Path(__file__).with_name("before_moves.db.gz")
"""Fourteen steps of a random search, with the modules of an early 0.2.0."""


@pytest.mark.parametrize("trusted", [True, False])
def test_a_journal_of_moved_classes_is_continued(trusted, make_random, run, play):
    whole = make_random()
    play(whole, 14)
    run.write_bytes(gzip.decompress(BEFORE_MOVES.read_bytes()))
    with Optimizer.open(run, like=None if trusted else make_random()) as opened:
        assert opened.open_trials[0].asks_the_same(whole.open_trials[0])
        assert play(opened, 6) == play(whole, 6)


def test_every_moved_module_is_gone_and_its_successor_there():
    for old, new in MOVED.items():
        with pytest.raises(ModuleNotFoundError):
            __import__(old)
        __import__(new)


def test_only_names_in_moved_modules_change():
    names = ["tvbo.optimizers.trial.Trial", "tvbo.optimizers.trial_log.TrialLog"]
    nodes = [{"object": names[0]}, {"class": names[1]}, {"list": []}]
    update_names(nodes)
    assert nodes == [{"object": "tvbo.trial.Trial"}, {"class": names[1]}, {"list": []}]
