"""Predictions of outcomes, and the base classes of retention policies."""

import math

import pytest
import torch

from tvbo import recipes
from tvbo.retention import KeepAll, Prediction, Retention
from tvbo.retention.base import Chain
from tvbo.spaces.observations import Observations


def prediction(variance=2.0, noise_variance=0.5, mean=1.0):
    return Prediction(t=3.0, mean=mean, variance=variance, noise_variance=noise_variance)


@pytest.mark.parametrize("variance", [1e-14, 3e-5, 0.7, 40.0, 1e12])
@pytest.mark.parametrize("noise_variance", [1e-9, 0.02, 5.0])
def test_gain_by_its_inverse(variance, noise_variance):
    """(2.12) solved for the variance: sigma^2 (e^{2 gain} - 1)."""
    gain = prediction(variance, noise_variance).information_gain
    assert noise_variance * math.expm1(2 * gain) == pytest.approx(variance, rel=1e-12, abs=0)


def test_gain_is_the_difference_of_two_entropies():
    gain = prediction(2.0, 0.5).information_gain
    entropies = [0.5 * math.log(2 * math.pi * math.e * variance) for variance in (2.5, 0.5)]
    assert gain == pytest.approx(entropies[0] - entropies[1], rel=1e-14)


def test_the_base_class_keeps_and_admits_all():
    policy = Retention()
    X = torch.rand(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert policy.keep(Observations(X, X[:, :1]), None, 9.0).tolist() == [True] * 4
    assert not policy.needs_prediction


def test_and_joins_in_order():
    one, two = Retention(), Retention()
    both = one & two
    assert isinstance(both, Chain)
    assert both.policies[0] is one
    assert both.policies[1] is two


class Answers(Retention):
    """Answers with a mask made of one that keeps all, which it notes."""

    def __init__(self, mask=lambda mask: mask):
        self.mask, self.asked = mask, []

    def keep(self, observations, model, t):
        self.asked.append(len(observations))
        return self.mask(observations.X[:, -1] <= t)


def loop(policy):
    return recipes.tv_gp_ucb(choices=torch.linspace(0, 1, 5).unsqueeze(-1), retention=policy)


@pytest.mark.parametrize("join", [lambda policy: policy, lambda policy: KeepAll() & policy])
def test_keep_is_not_called_without_observations(join):
    optimizer = loop(join(Answers()))
    trials = [optimizer.ask(), optimizer.ask()]
    optimizer.tell(trials[0], 1.0)
    optimizer.ask()
    optimizer.recommend()
    policy = getattr(optimizer.retention, "policies", [optimizer.retention])[-1]
    assert policy.asked
    assert 0 not in policy.asked


@pytest.mark.parametrize("join", [lambda policy: policy, lambda policy: KeepAll() & policy])
@pytest.mark.parametrize(
    ("mask", "error", "what"),
    [
        (lambda mask: mask[1:], ValueError, "(1,)"),
        (lambda mask: mask.unsqueeze(-1), ValueError, "(2, 1)"),
        (lambda mask: mask.double(), TypeError, "float64"),
        (lambda mask: mask.tolist(), TypeError, "list"),
        (lambda mask: None, TypeError, "NoneType"),
    ],
)
def test_a_wrong_mask_is_named(join, mask, error, what):
    optimizer = loop(join(Answers(mask)))
    for t in (1.0, 2.0):
        optimizer.tell(optimizer.attach(torch.tensor([[t / 2]]), t), t)
    for call in (optimizer.ask, optimizer.recommend):
        with pytest.raises(error) as refused:
            call(t=3.0)
        assert what in str(refused.value)
        assert "Answers" in str(refused.value)
    assert len(optimizer.observations) == 2
    assert optimizer.num_trials == 2
