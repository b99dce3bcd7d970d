import math

import pandas as pd
import pytest
import torch

from tvbo import recipes
from tvbo.evaluation import History, Round
from tvbo.optimizers import Trial


@pytest.fixture
def history():
    made = History()
    trials = [Trial(i, torch.tensor([[0.5 * i]]), t=10.0 + i) for i in range(1, 6)]
    for i, trial in enumerate(trials):
        made.begin(Round(trial, ask_seconds=0.1 * i))
    made.end(trials[0], "told", 2.0, reward=7.0)
    made.end(trials[1], "failed", 1.0, reason="broken")
    made.end(trials[2], "expired", 4.0, reason="late")
    made.end(trials[3], "skipped")
    made.slot_seconds = 14.0
    return made


def test_columns(history):
    assert len(history) == 5
    assert history.counts == {"open": 1, "told": 1, "failed": 1, "expired": 1, "skipped": 1}
    torch.testing.assert_close(history.ask_seconds, torch.arange(5, dtype=torch.float64) / 10)
    assert history.evaluation_seconds.tolist() == [2, 1, 4, 0, 0]
    assert history.X.tolist() == [[0.5], [1.0], [1.5], [2.0], [2.5]]
    assert history.reward[0] == 7
    assert history.reward[1:].isnan().all()


def test_slots_filled_is_the_share_of_slot_time(history):
    assert history.slots_filled == 0.5
    assert math.isnan(History().slots_filled)


def test_a_trial_evaluated_again_counts_once_and_both_times_are_busy(history):
    first = history.round_of(5).trial
    history.end(first, "open", 3.0)
    history.begin(Round(first))
    history.end(first, "told", 4.0, reward=1.0)
    assert history.counts["told"] == 2
    assert history.counts["open"] == 0
    assert history.round_of(5).evaluation_seconds == 4
    assert history.round_of(5).ask_seconds == pytest.approx(0.4)
    assert history.slots_filled == 1.0


def test_another_optimizers_history_is_refused(history):
    another = Trial(5, torch.tensor([[9.0]]), t=15.0)
    with pytest.raises(ValueError, match="history of the same optimizer. Got one in which trial 5"):
        history.begin(Round(another))
    told = history.round_of(1).trial
    with pytest.raises(ValueError, match=r"trial 1 is .*, told; here"):
        history.begin(Round(told))
    assert history.counts["open"] == 1


def optimizer_with(*endings):
    """Trials 1, 2, ... that were told, failed or expired, or are open."""
    made = recipes.random_search(choices=torch.tensor([[1.0]]))
    for ending in endings:
        trial = made.ask()
        if ending == "told":
            made.tell(trial, 0.0)
        elif ending == "failed":
            made.fail(trial, "broken")
        elif ending == "expired":
            made.expire(trial)
    return made


def history_of(optimizer, *endings):
    """What a run with these endings would have noted."""
    made = History()
    twin = recipes.random_search(choices=optimizer.search_space.choices)
    for ending in endings:
        trial = twin.ask()
        made.begin(Round(trial))
        made.end(trial, ending)
    return made


@pytest.mark.parametrize(
    "endings", [(), ("told",), ("told", "open"), ("expired", "failed", "told", "open", "told")]
)
def test_its_own_history_is_taken_and_so_is_a_part_of_it(endings):
    optimizer = optimizer_with(*endings)
    for n in range(len(endings) + 1):
        history_of(optimizer, *endings[:n]).check(optimizer)


@pytest.mark.parametrize(
    ("there", "here", "message"),
    [
        (("told", "told"), (), "Got one with 2 trials told; here 0"),
        (("told", "failed"), ("told", "told"), "Got one with 1 trials failed; here 0"),
        (("expired",), ("failed",), "Got one with 1 trials expired; here 0"),
        (("told",), ("open", "told"), r"trial 1 is .*, told; here it is"),
    ],
)
def test_a_history_of_other_endings_is_refused(there, here, message):
    optimizer = optimizer_with(*here)
    history = history_of(optimizer, *there)
    with pytest.raises(ValueError, match=message):
        history.check(optimizer)


def test_a_history_of_other_open_trials_is_refused():
    optimizer, history = optimizer_with("open"), History()
    history.begin(Round(Trial(1, torch.tensor([[9.0]]), t=1.0)))
    with pytest.raises(ValueError, match="history of the same optimizer. Got one in which trial 1"):
        history.check(optimizer)


def test_frame_and_csv(history, tmp_path):
    frame = history.to_frame()
    columns = ["reward", "status", "reason", "evaluated", "informative", "model_size"]
    seconds = ["ask_seconds", "seconds", "evaluation_seconds"]
    assert list(frame) == ["trial", "t", "action_0", *columns, *seconds]
    assert frame["status"].tolist() == ["told", "failed", "expired", "skipped", "open"]
    assert frame["action_0"].tolist() == [0.5, 1.0, 1.5, 2.0, 2.5]
    history.to_csv(tmp_path / "x.csv")
    read = pd.read_csv(tmp_path / "x.csv", keep_default_na=False, na_values={"reward": [""]})
    pd.testing.assert_frame_equal(read, frame, check_dtype=False)


def test_empty_frame_has_its_columns():
    frame = History().to_frame()
    assert len(frame) == 0
    assert list(frame)[:4] == ["trial", "t", "reward", "value"]
