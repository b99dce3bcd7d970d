"""``kill -9`` at moments that nobody chose."""

import os
import random
import signal
import time

import torch

from tvbo.optimizers import Optimizer
from tvbo.storage import JournalReader, trials_of

KILLS = 8
LONGEST = 0.05
"""Seconds that a process lives, at most, after its first word."""


def play_for_ever(run, make, play, words):
    """Continue or begin; say what was acknowledged, as soon as it was."""
    if run.exists():
        optimizer = Optimizer.open(run)
    else:
        optimizer = make()
        optimizer.record(run)
    os.write(words, b"0\n")
    while True:
        play(optimizer, 1)
        with_outcome = optimizer.trial_log.num_told
        os.write(words, f"{with_outcome}\n".encode())


def killed_at_random(run, make, play) -> tuple[int, float]:
    """Play in a process that is killed; gives how many tells it has acknowledged, and when."""
    listens, speaks = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            # The threads of the parent are not in a forked process, which would wait for them.
            torch.set_num_threads(1)
            os.close(listens)
            play_for_ever(run, make, play, speaks)
        finally:
            os._exit(1)
    os.close(speaks)
    with os.fdopen(listens, "rb") as pipe:
        # Some words first, or a busy machine would never let it come to anything.
        said = b"".join(pipe.readline() for _ in range(random.randint(3, 10)))
        moment = random.uniform(0, LONGEST)
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        said += pipe.read()
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    # The last line may have been cut off.
    return max(int(line) for line in said.split(b"\n")[:-1]), moment


def test_every_acknowledged_tell_survives(run, make_streaming, play, monkeypatch):
    monkeypatch.setattr("tvbo.storage.writer.EVERY", 20)
    # What is imported at first use is imported before the processes are made.
    play(make_streaming(), 4)
    moments = []
    for _ in range(KILLS):
        told, moment = killed_at_random(run, make_streaming, play)
        moments.append(moment)
        killed = f"killed {moments} s after some words of each process"
        with JournalReader(run) as journal:
            assert journal.damage is None, killed
            assert (trials_of(journal).state == "told").sum() >= told, killed
    optimizer = Optimizer.open(run)
    with JournalReader(run) as journal:
        steps = journal.num_good
        actions = trials_of(journal).action_0.tolist()
    whole = make_streaming()
    asked = play(whole, steps)
    assert steps > 20
    assert actions == [X for _, _, [[X]], _ in asked], killed
    assert play(optimizer, 12) == play(whole, 12), killed
