"""Several policies at once."""

import pytest
import torch

from tvbo.observations import Observations
from tvbo.retention import (
    Chain,
    EntropyThreshold,
    KeepAll,
    Prediction,
    Refusal,
    Reset,
    Retention,
    SizeLimit,
    SlidingWindow,
)

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


class Refuses(Retention):
    """Refuses, and counts what it is asked and told."""

    needs_prediction = True

    def __init__(self, refusal=None):
        self.refusal = refusal
        self.judged = []
        self.learned = []

    def judge(self, prediction, num_held):
        self.judged.append((prediction, num_held))
        return self.refusal

    def learn(self, prediction, Y):
        self.learned.append((prediction, Y))


def at_times(*times):
    t = torch.tensor(times, dtype=torch.float64).unsqueeze(-1)
    return Observations(torch.cat([torch.zeros_like(t), t], dim=-1), torch.zeros_like(t))


def kept(policy, observations, t=10.0):
    return observations.X[policy.keep(observations, None, t), -1].tolist()


def test_each_sees_what_those_before_it_kept():
    last = Newest(2)
    assert kept(Chain(Even(), last), at_times(1, 2, 3, 4, 6, 7)) == [4, 6]
    assert last.shown == [[2, 4, 6]]


def test_order_matters():
    observations = at_times(1, 2, 3, 4, 6, 7)
    assert kept(Even() & Newest(2), observations) == [4, 6]
    assert kept(Newest(2) & Even(), observations) == [6]


def test_what_is_kept_is_in_no_order_of_time():
    assert kept(Even() & SlidingWindow(5) & Newest(2), at_times(8, 3, 6, 2, 9, 10)) == [6, 10]


def test_nothing_held_and_nothing_left():
    assert kept(Even() & Newest(2), at_times()) == []
    assert kept(SlidingWindow(1) & Newest(2) & Even(), at_times(1, 2)) == []


def test_keep_changes_nothing():
    observations = at_times(1, 2, 3, 4)
    policy = Even() & Newest(1)
    assert kept(policy, observations) == kept(policy, observations) == [4]
    assert observations.X[:, -1].tolist() == [1, 2, 3, 4]


def test_chains_are_unrolled():
    one, two, three, four = (Newest(i) for i in range(4))
    for chain in (
        one & two & three & four,
        one & (two & (three & four)),
        (one & two) & (three & four),
        Chain(one, Chain(two, three), four),
    ):
        assert list(map(id, chain.policies)) == [id(one), id(two), id(three), id(four)]


def test_window_with_entropy():
    policy = Reset(50) & EntropyThreshold(0.1)
    assert policy.policies == (Reset(50), EntropyThreshold(0.1))
    assert policy.needs_prediction
    assert policy.judge(PREDICTION, 0) is not None
    assert kept(policy, at_times(49, 50, 51), t=52) == [51]


def test_prediction_is_asked_for_if_one_needs_it():
    assert not (KeepAll() & Reset(5)).needs_prediction
    assert (KeepAll() & Refuses()).needs_prediction
    assert (Refuses() & KeepAll()).needs_prediction


def test_a_refusal_that_spares_the_evaluation_comes_first():
    skip, discard = Refusal("spared", skip=True), Refusal("not kept", skip=False)
    assert (Refuses(discard) & Refuses(skip)).judge(PREDICTION, 3) is skip
    assert (Refuses(skip) & Refuses(discard)).judge(PREDICTION, 3) is skip


def test_otherwise_the_first_refusal_stands():
    first, second = Refusal("first", skip=False), Refusal("second", skip=False)
    assert (Refuses() & Refuses(first) & Refuses(second)).judge(PREDICTION, 3) is first
    assert (Refuses() & Refuses()).judge(PREDICTION, 3) is None


def test_all_are_asked_and_told_whatever_the_others_say():
    policies = [Refuses(Refusal("no", skip=True)), Refuses(), Refuses(Refusal("no", skip=False))]
    chain = Chain(*policies)
    chain.judge(PREDICTION, 7)
    chain.learn(PREDICTION, 2.5)
    for policy in policies:
        assert policy.judged == [(PREDICTION, 7)]
        assert policy.learned == [(PREDICTION, 2.5)]


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
    with pytest.raises(ValueError, match="Expected a floor of at most limit=5.*Got floor=6"):
        Chain(*policies)


def test_floor_above_limit_joined_in_two_steps():
    with pytest.raises(ValueError, match="Expected a floor of at most limit=5.*Got floor=6"):
        SizeLimit(5) & KeepAll() & EntropyThreshold(0.1, floor=6)


def test_no_policies():
    with pytest.raises(ValueError, match="Expected one retention policy or more. Got none"):
        Chain()


@pytest.mark.parametrize("wrong", [None, 0.1, "skip", EntropyThreshold, [KeepAll()]])
def test_no_policy_at_all(wrong):
    with pytest.raises(TypeError, match="Expected retention policies. Got"):
        Chain(KeepAll(), wrong)


def test_no_policy_behind_the_ampersand():
    with pytest.raises(TypeError, match="Expected retention policies. Got 0.1 of float"):
        KeepAll() & 0.1


def test_read_as_it_is_written():
    assert repr(Reset(50) & SlidingWindow(3)) == (
        "Reset(every=50, start=1.0) & SlidingWindow(length=3)"
    )
