"""Trials that are not worth their evaluation, or not worth keeping; and the record of them."""

import math

import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from reference import rbf

from tvbo import recipes
from tvbo.retention import Admission, EntropyThreshold, Prediction, Rejection

NOISE = 0.1
BUDGET = 0.2
CHOICES = torch.tensor([[0.0], [0.4], [1.0]], dtype=torch.float64)


def loop(mode="skip", retention=None, **options):
    given = {"choices": CHOICES, "covar_module": rbf(0.5), "noise_variance": NOISE, **options}
    return recipes.gp_ucb(retention=retention or EntropyThreshold(BUDGET, mode), **given)


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


def gain_of(optimizer, trial):
    """From the observations held, with a dense inverse."""
    X = optimizer.observations.X[:, 0]
    K = (-((X.unsqueeze(-1) - X) ** 2) / (2 * 0.5**2)).exp()
    k = (-((X - trial.X.item()) ** 2) / (2 * 0.5**2)).exp()
    covar = K + NOISE * torch.eye(len(X), dtype=torch.float64)
    variance = (1 - k @ torch.linalg.inv(covar) @ k).item()
    return pytest.approx(0.5 * math.log(1 + variance / NOISE), abs=1e-11)


def test_trials_say_what_they_promise():
    optimizer = loop()
    for _ in range(4):
        trial = optimizer.ask()
        assert trial.information_gain == gain_of(optimizer, trial)
        assert trial.information_gain > BUDGET
        assert (trial.informative, trial.skipped) == (True, False)
        optimizer.tell(trial, outcome(trial))
    trial = until_rejected(optimizer)
    assert (trial.informative, trial.skipped) == (False, True)
    assert trial.information_gain == gain_of(optimizer, trial)
    assert trial.information_gain <= BUDGET
    plain = recipes.gp_ucb(choices=CHOICES, covar_module=rbf(0.5), noise_variance=NOISE).ask()
    assert (plain.informative, plain.information_gain, plain.skipped) == (True, None, False)


def test_a_skipped_trial_changes_no_model_and_rounds_go_on():
    optimizer = loop()
    trial = until_rejected(optimizer)
    assert optimizer.open_trials == ()
    size = optimizer.model_size
    rows = torch.cat([CHOICES, torch.full((3, 1), trial.t)], dim=-1).unsqueeze(1)
    before = optimizer.model.posterior(rows)
    second = optimizer.ask()
    assert second.skipped
    assert (second.id, second.t) == (trial.id + 1, trial.t + 1)
    after = optimizer.model.posterior(rows + torch.tensor([0.0, 1.0]))
    assert optimizer.model_size == size
    assert torch.equal(before.mean, after.mean)
    assert torch.equal(before.variance, after.variance)


def test_a_skipped_action_may_be_attached():
    optimizer = loop()
    trial = until_rejected(optimizer)
    size = optimizer.model_size
    attached = optimizer.attach(trial.X, trial.t)
    assert (attached.informative, attached.information_gain) == (True, None)
    optimizer.tell(attached, 0.3)
    assert optimizer.model_size == size + 1


def test_a_discarded_trial_is_open_and_told_but_not_kept():
    optimizer = loop("discard")
    trial = until_rejected(optimizer)
    assert (trial.informative, trial.skipped) == (False, False)
    assert optimizer.open_trials == (trial,)
    size = optimizer.model_size
    with pytest.raises(InputDataError):
        optimizer.tell(trial, math.nan)
    optimizer.tell(trial.id, 1e6)
    assert optimizer.open_trials == ()
    assert optimizer.model_size == size
    assert optimizer.recommend().mean < 10


class Notebook(Admission):
    """Records the outcomes it observes; admits all of them, or rejects them for a given reason."""

    def __init__(self, rejection=None):
        self.rejection = rejection
        self.observed = []

    def admit(self, prediction, num_held):
        return self.rejection

    def observe_outcome(self, prediction, Y):
        self.observed.append((prediction, Y))


@pytest.mark.parametrize("mode", ["skip", "discard"])
def test_other_policies_learn_from_what_is_asked_and_observed(mode):
    optimizer = loop(retention=EntropyThreshold(BUDGET, mode) & Notebook())
    optimizer.tell(optimizer.attach(CHOICES[0], 0.0), 0.1)
    told = []
    for _ in range(30):
        trial = optimizer.ask()
        if not trial.skipped:
            optimizer.tell(trial, outcome(trial))
            told.append(trial)
    learned = optimizer.retention.policies[1].observed
    assert [y for _, y in learned] == [outcome(trial) for trial in told]
    assert [p.t for p, _ in learned] == [trial.t for trial in told]
    assert [p.information_gain for p, _ in learned] == [t.information_gain for t in told]
    log = optimizer.trial_log
    refused = 31 - optimizer.model_size
    assert (log.num_skipped, log.num_discarded) == (
        (refused, 0) if mode == "skip" else (0, refused)
    )


def test_the_prediction_is_that_of_the_time_of_asking():
    """Told late, when the model knows more: the residual is still one of a forecast."""
    optimizer = loop(retention=Notebook())
    first = optimizer.ask()
    for _ in range(5):
        optimizer.tell(optimizer.ask(), 1.0)
    optimizer.tell(first, 0.7)
    prediction, Y = optimizer.retention.observed[-1]
    assert (prediction.t, Y) == (first.t, 0.7)
    assert prediction == Prediction(1.0, 0.0, 1.0, noise_variance=NOISE, trial_id=first.id)


@pytest.mark.parametrize("mode", ["skip", "discard"])
def test_the_record_of_rejections(mode, tmp_path):
    optimizer = recipes.cgp_ucb(
        choices=CHOICES,
        contexts=torch.tensor([[0.0, 1.0], [2.0, 1.0]]),
        covar_module=rbf(0.5),
        noise_variance=NOISE,
        retention=EntropyThreshold(5.0, mode),
    )
    trials = [optimizer.ask(t, context) for t, context in ((1.5, [0.0, 1.0]), (2.5, [2.0, 1.0]))]
    frame = optimizer.trial_log.to_frame()
    assert frame["trial"].tolist() == [1, 2]
    assert frame["context_0"].tolist() == [0.0, 2.0]
    assert frame["information_gain"].tolist() == [trial.information_gain for trial in trials]
    assert set(frame["ending"]) == {"skipped" if mode == "skip" else "discarded"}
    optimizer.trial_log.to_frame().to_csv(tmp_path / "log.csv", index=False)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "log.csv"), frame)


def test_a_policy_of_ones_own_may_reject():
    optimizer = loop(retention=Notebook(Rejection("a hunch", skip=False)))
    trial = optimizer.ask()
    assert (trial.informative, trial.skipped) == (False, False)
    optimizer.tell(trial, 1.0)
    assert optimizer.model_size == 0
    assert optimizer.retention.observed[0][1] == 1.0
    assert optimizer.trial_log.newest[0].reason == "a hunch"
