import math

import pandas as pd
import pytest
import torch

from tvbo.feedback.async_history import AsyncHistory
from tvbo.optimizers import Trial


@pytest.fixture
def history():
    made = AsyncHistory()
    trials = [Trial(i, torch.tensor([[0.5 * i]]), t=10.0 + i) for i in range(1, 6)]
    for i, trial in enumerate(trials):
        made.begin(trial, 0.1 * i)
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
    assert history.reward[0] == 7
    assert history.reward[1:].isnan().all()


def test_capacity_is_the_share_of_slot_time(history):
    assert history.capacity == 0.5
    assert math.isnan(AsyncHistory().capacity)


def test_a_trial_evaluated_again_counts_once_and_both_times_are_busy(history):
    first = history.rounds[5].trial
    history.end(first, "open", 3.0)
    history.begin(first, 0.0)
    history.end(first, "told", 4.0, reward=1.0)
    assert history.counts["told"] == 2
    assert history.counts["open"] == 0
    assert history.rounds[5].evaluation_seconds == 4
    assert history.rounds[5].ask_seconds == pytest.approx(0.4)
    assert history.capacity == 1.0


def test_another_optimizers_history_is_refused(history):
    another = Trial(5, torch.tensor([[9.0]]), t=15.0)
    with pytest.raises(ValueError, match="history of the same optimizer. Got one in which trial 5"):
        history.begin(another, 0.0)
    told = history.rounds[1].trial
    with pytest.raises(ValueError, match=r"trial 1 is .*, told; here"):
        history.begin(told, 0.0)
    assert history.counts["open"] == 1


def test_frame_and_csv(history, tmp_path):
    frame = history.to_frame()
    columns = ["status", "reward", "reason", "ask_seconds", "evaluation_seconds"]
    assert list(frame) == ["trial", "t", "action_0", *columns]
    assert frame["status"].tolist() == ["told", "failed", "expired", "skipped", "open"]
    assert frame["action_0"].tolist() == [0.5, 1.0, 1.5, 2.0, 2.5]
    history.to_csv(tmp_path / "x.csv")
    read = pd.read_csv(tmp_path / "x.csv", keep_default_na=False, na_values={"reward": [""]})
    pd.testing.assert_frame_equal(read, frame, check_dtype=False)


def test_empty_frame_has_its_columns():
    assert list(AsyncHistory().to_frame())[:3] == ["trial", "t", "status"]
