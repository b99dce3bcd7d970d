"""A run that is opened again makes the choice that it would have made."""

import pandas as pd
import pytest
import torch
from run_cases import BOX, CASES, asked, made, play

from tvbo import recipes
from tvbo.optimizers import Optimizer
from tvbo.retention import SlidingWindow

FAST = "learned", "mixed", "thompson of choices", "entropy discards", "streaming", "random", "hours"


def assert_same(one, two, optimizer) -> None:
    """Two trials are the same, to 1e-6 of the range of each parameter."""
    lower, upper = optimizer.search_space.bounds
    assert ((one.X - two.X).abs() <= 1e-6 * (upper - lower)).all()
    assert (one.id, one.t, one.skipped, one.informative, one.key) == (
        *(two.id, two.t, two.skipped, two.informative, two.key),
    )


def check(run, kind: str, steps: int) -> Optimizer:
    """Open a run at each of its asks, which two optimizers make in turn; return one of them."""
    optimizer = made(kind)
    optimizer.record(run)
    takers = [optimizer, Optimizer.open(run)]
    for step in range(steps):
        given = asked(optimizer, step)
        again = Optimizer.open(run, read_only=True).ask(**given)
        # Some trials each, and each takes in what the other has done.
        [trial] = play(takers[step // 3 % 2], 1, step)
        assert_same(again, trial, optimizer)
    # The one that has made the newest change, and one that starts from the rows.
    optimizer, other = takers[step // 3 % 2], Optimizer.open(run)
    given = {key: value for key, value in given.items() if key == "context"}
    if hasattr(optimizer, "recommend") and kind != "objectives":
        assert_close(other.recommend(**given), optimizer.recommend(**given))
    elif hasattr(optimizer, "front"):
        assert_close(other.front()[0], optimizer.front()[0])
    assert repr(other) == repr(optimizer)
    assert [each.id for each in other.open_trials] == [each.id for each in optimizer.open_trials]
    # What an outcome was expected to tell is predicted again, to rounding.
    frames = other.trial_log.to_frame(), optimizer.trial_log.to_frame()
    pd.testing.assert_frame_equal(*frames, rtol=1e-6)
    return optimizer


def assert_close(one, two) -> None:
    assert torch.allclose(one.X, two.X, rtol=1e-6, atol=1e-6)
    assert one.mean == pytest.approx(two.mean, rel=1e-6)


@pytest.mark.parametrize("kind", FAST)
def test_a_run_opened_again_chooses_alike(run, kind):
    optimizer, twin = check(run, kind, 9), made(kind)
    play(twin, 9)
    # As one that is not recorded does.
    assert_same(play(optimizer, 1, 9)[0], play(twin, 1, 9)[0], twin)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_runs_of_every_kind_opened_at_each_ask_choose_alike(run, kind):
    check(run, kind, 24)


@pytest.mark.slow
def test_a_long_run_opened_at_each_ask_chooses_alike(run):
    """Also where retention drops what the model of the newest ask finds least informative."""
    check(run, "learned", 200)


def test_observations_dropped_for_asks_that_failed(run):
    """An ask may come before one for which observations were dropped, if that one has failed."""
    optimizer = recipes.gp_ucb(bounds=BOX, retention=SlidingWindow(4), generator=1)
    optimizer.record(run)
    for t in range(1, 7):
        trial = optimizer.ask(t=float(t))
        optimizer.tell(trial, trial.X.sum().item())
    for t in (30.0, 20.0, 8.0):
        optimizer.fail(optimizer.ask(t=t), "no power")
    for t in (8.0, 9.0):
        again = Optimizer.open(run, read_only=True)
        chosen, trial = again.ask(t=t), optimizer.ask(t=t)
        assert_same(chosen, trial, optimizer)
        assert again.model_size == optimizer.model_size > 0
        optimizer.tell(trial, trial.X.sum().item())


def test_a_batch_and_keys(run):
    optimizer = made("learned")
    optimizer.record(run)
    trials = optimizer.ask(q=3)
    keyed = optimizer.ask(key="a")
    other = Optimizer.open(run)
    for each in (*trials, keyed):
        optimizer.tell(each, each.X.sum().item())
    with pytest.raises(ValueError, match="outcome already"):
        other.ask(key="a")
    for one, two in zip(optimizer.ask(q=2), Optimizer.open(run).open_trials, strict=True):
        assert_same(one, two, optimizer)
