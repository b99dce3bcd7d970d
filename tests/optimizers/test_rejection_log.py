"""Trials that are not worth their evaluation, or not worth keeping; and the record of them."""

import math
import pickle

import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from reference import rbf

from tvbo import recipes
from tvbo.optimizers import RejectedTrial, RejectionLog, Trial, TrialError
from tvbo.optimizers import rejection_log as rejection_log_module
from tvbo.retention import Admission, EntropyThreshold, Prediction, Rejection

NOISE = 0.1
BUDGET = 0.2
CHOICES = torch.tensor([[0.0], [0.4], [1.0]], dtype=torch.float64)


def loop(mode="skip", budget=BUDGET, retention=None, **options):
    given = {"choices": CHOICES, "covar_module": rbf(0.5), "noise_variance": NOISE, **options}
    return recipes.gp_ucb(retention=retention or EntropyThreshold(budget, mode), **given)


def outcome(trial):
    return math.sin(4 * trial.X.item()) + 0.2 * math.sin(7.0 * trial.id)


def until_rejected(optimizer, rounds=60):
    """The first rejected trial; those before it are told."""
    for _ in range(rounds):
        trial = optimizer.ask()
        if not trial.informative:
            return trial
        optimizer.tell(trial, outcome(trial))
    raise AssertionError("nothing was rejected")


def variance_of(optimizer, trial):
    """From the observations held, with a dense inverse."""
    X = optimizer.observations.X[:, 0]
    K = (-((X.unsqueeze(-1) - X) ** 2) / (2 * 0.5**2)).exp()
    k = (-((X - trial.X.item()) ** 2) / (2 * 0.5**2)).exp()
    covar = K + NOISE * torch.eye(len(X), dtype=torch.float64)
    return (1 - k @ torch.linalg.inv(covar) @ k).item()


def test_a_skipped_trial_says_so():
    optimizer = loop()
    trial = until_rejected(optimizer)
    assert trial.skipped is True
    assert trial.informative is False
    gain = 0.5 * math.log(1 + variance_of(optimizer, trial) / NOISE)
    assert trial.information_gain == pytest.approx(gain, abs=1e-11)
    assert trial.information_gain <= BUDGET


def test_informative_trials_say_what_they_promise():
    optimizer = loop()
    for _ in range(4):
        trial = optimizer.ask()
        gain = 0.5 * math.log(1 + variance_of(optimizer, trial) / NOISE)
        assert trial.information_gain == pytest.approx(gain, abs=1e-11)
        assert trial.information_gain > BUDGET
        assert (trial.informative, trial.skipped) == (True, False)
        optimizer.tell(trial, outcome(trial))


def test_without_a_threshold_no_gain_is_computed():
    optimizer = recipes.gp_ucb(choices=CHOICES, covar_module=rbf(0.5), noise_variance=NOISE)
    trial = optimizer.ask()
    assert (trial.informative, trial.information_gain, trial.skipped) == (True, None, False)
    assert len(optimizer.rejection_log) == 0


def test_a_skipped_trial_is_not_open_and_changes_no_model():
    optimizer = loop()
    trial = until_rejected(optimizer)
    assert optimizer.open_trials == ()
    held, size = optimizer.observations, optimizer.model_size
    rows = torch.cat([CHOICES, torch.full((3, 1), trial.t)], dim=-1).unsqueeze(1)
    before = optimizer.model.posterior(rows)
    second = optimizer.ask()
    assert second.skipped
    after = optimizer.model.posterior(rows + torch.tensor([0.0, 1.0]))
    assert optimizer.observations is held
    assert optimizer.model_size == size
    assert torch.equal(before.mean, after.mean)
    assert torch.equal(before.variance, after.variance)


def test_rounds_go_on_over_skipped_trials():
    optimizer = loop()
    trial = until_rejected(optimizer)
    following = optimizer.ask()
    assert (following.id, following.t) == (trial.id + 1, trial.t + 1)


def test_a_skipped_trial_cannot_be_told():
    optimizer = loop()
    trial = until_rejected(optimizer)
    for given in (trial, pickle.loads(pickle.dumps(trial))):
        with pytest.raises(
            TrialError, match=f"Got trial {trial.id}, skipped: .* Attach its action"
        ):
            optimizer.tell(given, 0.5)
    size = optimizer.model_size
    with pytest.raises(TrialError, match=f"Got trial {trial.id}, told already or skipped"):
        optimizer.tell(trial.id, 0.5)
    assert optimizer.model_size == size
    with pytest.raises(TrialError, match="unknown trial 99"):
        optimizer.tell(99, 0.5)


def test_a_skipped_action_may_be_attached():
    optimizer = loop()
    trial = until_rejected(optimizer)
    size = optimizer.model_size
    attached = optimizer.attach(trial.X, trial.t)
    assert attached.informative
    assert attached.information_gain is None
    optimizer.tell(attached, 0.3)
    assert optimizer.model_size == size + 1
    assert len(optimizer.rejection_log) == 1


def test_a_discarded_trial_is_open_and_told_but_not_kept():
    optimizer = loop("discard")
    trial = until_rejected(optimizer)
    assert (trial.informative, trial.skipped) == (False, False)
    assert optimizer.open_trials == (trial,)
    held = optimizer.observations
    optimizer.tell(trial.id, 1e6)
    assert optimizer.open_trials == ()
    assert optimizer.observations is held
    assert optimizer.recommend().mean < 10
    with pytest.raises(TrialError, match="told already"):
        optimizer.tell(trial, 1e6)


def test_a_discarded_outcome_is_still_checked():
    optimizer = loop("discard")
    trial = until_rejected(optimizer)
    with pytest.raises(InputDataError, match="Expected finite Y. Got nan"):
        optimizer.tell(trial, float("nan"))
    assert optimizer.open_trials == (trial,)
    optimizer.tell(trial, 0.5)


class Notebook(Admission):
    """Records the outcomes it is told; admits all of them, or rejects them for a given reason."""

    def __init__(self, rejection=None):
        self.rejection = rejection
        self.observed = []

    def admit(self, prediction, num_held):
        return self.rejection

    def observe_outcome(self, prediction, Y):
        self.observed.append((prediction, Y))


def test_other_policies_learn_from_what_is_discarded():
    optimizer = loop(retention=EntropyThreshold(BUDGET, "discard") & Notebook())
    trials = []
    for _ in range(30):
        trials.append(optimizer.ask())
        optimizer.tell(trials[-1], outcome(trials[-1]))
    learned = optimizer.retention.policies[1].observed
    assert [y for _, y in learned] == [outcome(trial) for trial in trials]
    assert [p.t for p, _ in learned] == [trial.t for trial in trials]
    assert [p.information_gain for p, _ in learned] == [t.information_gain for t in trials]
    assert 0 < optimizer.rejection_log.num_discarded == 30 - optimizer.model_size


def test_nothing_is_learned_of_what_is_skipped_or_attached():
    optimizer = loop(retention=EntropyThreshold(BUDGET) & Notebook())
    optimizer.tell(optimizer.attach(CHOICES[0], 0.0), 0.1)
    told = 0
    for _ in range(30):
        trial = optimizer.ask()
        if not trial.skipped:
            optimizer.tell(trial, outcome(trial))
            told += 1
    assert len(optimizer.retention.policies[1].observed) == told == optimizer.model_size - 1


def test_the_prediction_is_that_of_the_time_of_asking():
    """Told late, when the model knows more: the residual is still one of a forecast."""
    optimizer = loop(retention=Notebook())
    first = optimizer.ask()
    for _ in range(5):
        trial = optimizer.ask()
        optimizer.tell(trial, 1.0)
    optimizer.tell(first, 0.7)
    prediction, Y = optimizer.retention.observed[-1]
    assert (prediction.t, Y) == (first.t, 0.7)
    expected = Prediction(t=1.0, mean=0.0, variance=1.0, noise_variance=NOISE, trial_id=first.id)
    assert prediction == expected


def test_the_record():
    optimizer = loop()
    trial = until_rejected(optimizer)
    log = optimizer.rejection_log
    assert (len(log), log.num_skipped, log.num_discarded) == (1, 1, 0)
    assert log.recent[0].trial is trial
    gain = f"{trial.information_gain:.3g}"
    assert log.recent[0].reason == (f"predicted gain of {gain} nats is within the budget of 0.2")


def test_the_record_of_discards():
    optimizer = loop("discard")
    trial = until_rejected(optimizer)
    log = optimizer.rejection_log
    assert (len(log), log.num_skipped, log.num_discarded) == (1, 0, 1)
    assert log.recent[0].trial is trial


def test_the_record_as_a_table(tmp_path):
    optimizer = recipes.cgp_ucb(
        choices=CHOICES,
        contexts=torch.tensor([[0.0, 1.0], [2.0, 1.0]]),
        covar_module=rbf(0.5),
        noise_variance=NOISE,
        retention=EntropyThreshold(5.0),
    )
    trials = [optimizer.ask(t, context) for t, context in ((1.5, [0.0, 1.0]), (2.5, [2.0, 1.0]))]
    frame = optimizer.rejection_log.to_frame()
    assert list(frame.columns) == [
        "trial",
        "t",
        "action_0",
        "context_0",
        "context_1",
        "information_gain",
        "skipped",
        "reason",
    ]
    assert frame["trial"].tolist() == [1, 2]
    assert frame["t"].tolist() == [1.5, 2.5]
    assert frame["action_0"].tolist() == [trial.X.item() for trial in trials]
    assert frame["context_0"].tolist() == [0.0, 2.0]
    assert frame["information_gain"].tolist() == [trial.information_gain for trial in trials]
    assert frame["skipped"].tolist() == [True, True]
    optimizer.rejection_log.to_csv(tmp_path / "rejections.csv")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "rejections.csv"), frame)


def test_an_empty_record_can_be_read_back(tmp_path):
    optimizer = loop()
    optimizer.ask()
    optimizer.rejection_log.to_csv(tmp_path / "rejections.csv")
    assert len(pd.read_csv(tmp_path / "rejections.csv")) == 0


def test_a_record_without_end_forgets_the_oldest(monkeypatch):
    monkeypatch.setattr(rejection_log_module, "RECENT", 3)
    log = RejectionLog()
    for i in range(1, 6):
        trial = Trial(i, CHOICES[:1], float(i), informative=False, information_gain=0.1)
        log.add(trial, Rejection(f"no. {i}", skip=i % 2 == 0))
    assert [rejected.trial.id for rejected in log.recent] == [3, 4, 5]
    assert log.recent[-1] == RejectedTrial(trial, "no. 5")
    assert (len(log), log.num_skipped, log.num_discarded) == (5, 2, 3)


def test_a_policy_of_ones_own_may_reject():
    optimizer = loop(retention=Notebook(Rejection("a hunch", skip=False)))
    trial = optimizer.ask()
    assert (trial.informative, trial.skipped) == (False, False)
    optimizer.tell(trial, 1.0)
    assert optimizer.model_size == 0
    assert optimizer.retention.observed[0][1] == 1.0
    assert optimizer.rejection_log.recent[0].reason == "a hunch"
