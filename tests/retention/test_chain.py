"""Several policies at once."""

import pytest
import torch

from tvbo.retention import (
    Admission,
    EntropyThreshold,
    KeepAll,
    Prediction,
    Rejection,
    Reset,
    Retention,
    SizeLimit,
)
from tvbo.retention.base import Chain
from tvbo.spaces.observations import Observations

PREDICTION = Prediction(t=1.0, mean=0.0, variance=0.1, noise_variance=1.0)


class Newest(Retention):
    """Keeps so many of what it is shown, and notes what that was."""

    def __init__(self, number):
        self.number = number
        self.shown = []

    def keep(self, observations, model, t):
        self.shown.append(observations.X[:, -1].tolist())
        return torch.arange(len(observations)) >= len(observations) - self.number


class Even(Retention):
    def keep(self, observations, model, t):
        return observations.X[:, -1] % 2 == 0


class Rejects(Admission):
    """Gives one answer to all outcomes, and records what it is asked and told."""

    def __init__(self, answer=None):
        self.answer = answer
        self.asked = []
        self.observed = []

    def admit(self, prediction, num_held):
        self.asked.append((prediction, num_held))
        return self.answer

    def observe_outcome(self, prediction, Y):
        self.observed.append((prediction, Y))


def at_times(*times):
    t = torch.tensor(times, dtype=torch.float64).unsqueeze(-1)
    return Observations(torch.cat([torch.zeros_like(t), t], dim=-1), torch.zeros_like(t))


def kept(policy, observations, t=10.0):
    return observations.X[policy.keep(observations, None, t), -1].tolist()


def test_each_sees_what_those_before_it_kept():
    last = Newest(2)
    assert kept(Chain(Even(), last), at_times(1, 2, 3, 4, 6, 7)) == [4, 6]
    assert last.shown == [[2, 4, 6]]


def test_keep_changes_nothing():
    observations = at_times(1, 2, 3, 4)
    policy = Even() & Newest(1)
    assert kept(policy, observations) == kept(policy, observations) == [4]
    assert observations.X[:, -1].tolist() == [1, 2, 3, 4]


def test_window_with_entropy():
    policy = Reset(50) & EntropyThreshold(0.1)
    assert policy.policies == (Reset(50), EntropyThreshold(0.1))
    assert policy.needs_prediction
    assert policy.admit(PREDICTION, 0) is not None
    assert kept(policy, at_times(49, 50, 51), t=52) == [51]


def test_a_rejection_that_skips_the_evaluation_comes_first():
    skip, discard = Rejection("spared", skip=True), Rejection("not kept", skip=False)
    assert (Rejects(discard) & Rejects(skip)).admit(PREDICTION, 3) is skip
    assert (Rejects(skip) & Rejects(discard)).admit(PREDICTION, 3) is skip


def test_otherwise_the_first_rejection_is_returned():
    first, second = Rejection("first", skip=False), Rejection("second", skip=False)
    assert (Rejects() & Rejects(first) & Rejects(second)).admit(PREDICTION, 3) is first
    assert (Rejects() & Rejects()).admit(PREDICTION, 3) is None


def test_all_are_asked_and_told_whatever_the_others_say():
    policies = [
        Rejects(Rejection("no", skip=True)),
        Rejects(),
        Rejects(Rejection("no", skip=False)),
    ]
    chain = Chain(*policies)
    chain.admit(PREDICTION, 7)
    chain.observe_outcome(PREDICTION, 2.5)
    for policy in policies:
        assert policy.asked == [(PREDICTION, 7)]
        assert policy.observed == [(PREDICTION, 2.5)]


def test_floor_may_reach_the_limit():
    assert len(Chain(SizeLimit(5), EntropyThreshold(0.1, floor=5)).policies) == 2


@pytest.mark.parametrize(
    "policies",
    [
        (SizeLimit(5), EntropyThreshold(0.1, floor=6)),
        (EntropyThreshold(0.1, floor=6), KeepAll(), SizeLimit(5)),
        (SizeLimit(5) & KeepAll(), EntropyThreshold(0.1), EntropyThreshold(0.2, floor=6)),
        (SizeLimit(9), EntropyThreshold(0.1, floor=6), SizeLimit(5)),
    ],
)
def test_floor_above_limit(policies):
    with pytest.raises(ValueError, match="floor=6"):
        Chain(*policies)


@pytest.mark.parametrize("wrong", [None, 0.1, "skip", EntropyThreshold, [KeepAll()]])
def test_no_policy_at_all(wrong):
    with pytest.raises(TypeError):
        Chain(KeepAll(), wrong)
