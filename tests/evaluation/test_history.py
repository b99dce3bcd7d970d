"""What a history records, and of which optimizer."""

import pytest
import torch

from tvbo import recipes
from tvbo.evaluation import History
from tvbo.evaluation.history import Round
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
    return made


def test_columns(history, tmp_path):
    assert history.counts == {"open": 1, "told": 1, "failed": 1, "expired": 1, "skipped": 1}
    assert history.to_frame().evaluation_seconds.tolist() == [2, 1, 4, 0, 0]
    assert history.X.tolist() == [[0.5], [1.0], [1.5], [2.0], [2.5]]
    assert history.reward[0] == 7
    assert history.reward[1:].isnan().all()
    frame = history.to_frame()
    assert frame["status"].tolist() == ["told", "failed", "expired", "skipped", "open"]
    assert frame["reason"].tolist() == ["", "broken", "late", "", ""]
    empty = History().to_frame()
    assert len(empty) == 0
    assert {"trial", "t", "reward", "value"} <= set(empty)


def test_a_trial_evaluated_again_counts_once(history):
    first = history.round_of(5).trial
    history.end(first, "open", 3.0)
    history.begin(Round(first))
    history.end(first, "told", 4.0, reward=1.0)
    assert (history.counts["told"], history.counts["open"]) == (2, 0)
    assert history.round_of(5).evaluation_seconds == 4
    assert history.round_of(5).ask_seconds == pytest.approx(0.4)


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
    "endings", [(), ("told", "open"), ("expired", "failed", "told", "open", "told")]
)
def test_its_own_history_is_taken_and_so_is_a_part_of_it(endings):
    optimizer = optimizer_with(*endings)
    for n in range(len(endings) + 1):
        history_of(optimizer, *endings[:n]).check(optimizer)


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (("told", "told"), ()),
        (("told", "failed"), ("told", "told")),
        (("expired",), ("failed",)),
        (("told",), ("open", "told")),
    ],
)
def test_a_history_of_another_optimizer_is_refused(there, here):
    optimizer = optimizer_with(*here)
    with pytest.raises(ValueError, match="history of the same optimizer"):
        history_of(optimizer, *there).check(optimizer)


def test_a_history_of_other_open_trials_is_refused():
    optimizer, history = optimizer_with("open"), History()
    history.begin(Round(Trial(1, torch.tensor([[9.0]]), t=1.0)))
    with pytest.raises(ValueError, match="history of the same optimizer"):
        history.check(optimizer)
