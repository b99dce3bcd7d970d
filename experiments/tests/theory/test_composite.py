import math

import pytest
import torch

from experiments.theory.composite import (
    additive_covariance,
    additive_information_gain,
    cgp_ucb_regret_bound,
    product_covariance,
    product_information_gain,
)
from experiments.theory.greedy import greedy_information_gain
from experiments.theory.information import mutual_information
from experiments.theory.regret_bounds import tv_gp_ucb_regret_bound

pytestmark = pytest.mark.usefixtures("double_by_default")

BOUND = {"horizon": 200, "beta": 20.0, "information_gain": 60.0, "noise_variance": 0.04}


def low_rank(count, rank, generator):
    """A covariance of this rank with ones on the diagonal."""
    root = torch.randn(count, rank, generator=generator)
    root = root / root.norm(dim=-1, keepdim=True)
    return root @ root.mT


def test_covariances_of_pairs_are_a_double_loop(generator):
    actions, contexts = low_rank(3, 2, generator), low_rank(4, 3, generator)
    product, additive = (
        product_covariance(actions, contexts),
        additive_covariance(actions, contexts),
    )
    assert product.shape == additive.shape == (12, 12)
    for i in range(3):
        for j in range(4):
            for k in range(3):
                for m in range(4):
                    entry = product[4 * i + j, 4 * k + m]
                    assert entry == actions[i, k] * contexts[j, m]
                    entry = additive[4 * i + j, 4 * k + m]
                    assert entry == actions[i, k] + contexts[j, m]


def test_theorem_2_is_printed():
    assert product_information_gain(horizon=50, rank=3, factor_gain=7.0) == pytest.approx(
        3 * 7 + 3 * math.log(50), rel=1e-14
    )
    assert product_information_gain(horizon=1, rank=3, factor_gain=7.0) == 21.0


def test_theorem_3_is_printed():
    bound = additive_information_gain(horizon=50, action_gain=7.0, context_gain=2.0)
    assert bound == pytest.approx(9 + 2 * math.log(50), rel=1e-14)


@pytest.mark.parametrize("noise_variance", [1e-3, 0.1, 10.0])
def test_theorems_hold_for_any_sequence_without_their_logarithms(noise_variance, generator):
    """What the proof says, choice by choice: no maximum hides a slip."""
    rank, seen_close = 2, 0.0
    for length in (1, 2, 5, 20):
        for _ in range(25):
            actions, contexts = low_rank(6, 4, generator), low_rank(5, rank, generator)
            a = torch.randint(6, (length,), generator=generator)
            c = torch.randint(5, (length,), generator=generator)
            of_actions = mutual_information(actions[a][:, a], noise_variance)
            of_contexts = mutual_information(contexts[c][:, c], noise_variance)
            pairs = 5 * a + c
            product = product_covariance(actions, contexts)[pairs][:, pairs]
            additive = additive_covariance(actions, contexts)[pairs][:, pairs]
            gain = mutual_information(product, noise_variance)
            assert gain <= rank * of_actions + 1e-9
            seen_close = max(seen_close, (gain / (rank * of_actions)).item())
            assert mutual_information(additive, noise_variance) <= of_actions + of_contexts + 1e-9
            both = mutual_information(product + additive, noise_variance)
            assert both <= (rank + 1) * of_actions + of_contexts + 1e-9
    assert seen_close > 0.5


def test_theorem_2_without_its_logarithm_is_attained():
    """Unrelated arms, contexts that do not matter: the pairs tell what the arms tell."""
    arms, trials, noise = 10, 100, 1.0
    of_arms = greedy_information_gain(torch.eye(arms), trials, noise).information[-1]
    pairs = product_covariance(torch.eye(arms), torch.ones(10, 10))
    of_pairs = greedy_information_gain(pairs, trials, noise).information[-1]
    assert of_pairs == pytest.approx(of_arms.item(), rel=1e-12)
    assert of_arms == pytest.approx(arms / 2 * math.log(1 + trials / arms), rel=1e-12)


def test_theorem_2_is_false_for_sets_of_distinct_points():
    """The same arms and contexts, all pairs once: 11.99 nats where 8.07 are allowed."""
    arms, contexts, noise = 10, 10, 1.0
    horizon = arms * contexts
    everything = product_covariance(torch.eye(arms), torch.ones(contexts, contexts))
    gain = mutual_information(everything, noise).item()
    assert gain == pytest.approx(5 * math.log(11), rel=1e-12)
    # At most ``arms`` distinct arms can be tried, each once; rank 1.
    of_set = mutual_information(torch.eye(arms), noise).item()
    printed = product_information_gain(horizon=horizon, rank=1, factor_gain=of_set)
    assert printed == pytest.approx(5 * math.log(2) + math.log(100), rel=1e-12)
    assert gain > printed + 3.9
    # What the proof gives: one logarithm for each eigenvalue, halved.
    assert gain <= of_set + arms / 2 * math.log(horizon)
    # Points that may come again: true.
    repeated = greedy_information_gain(torch.eye(arms), horizon, noise).information[-1].item()
    assert gain <= repeated + 1e-9


def test_theorem_3_is_false_for_sets_of_distinct_points():
    arms, contexts, noise = 20, 20, 1.0
    horizon = arms * contexts
    constant = torch.ones(contexts, contexts)
    gain = mutual_information(additive_covariance(torch.eye(arms), constant), noise).item()
    assert gain == pytest.approx((19 * math.log(21) + math.log(421)) / 2, rel=1e-12)
    printed = additive_information_gain(
        horizon=horizon,
        action_gain=mutual_information(torch.eye(arms), noise).item(),
        context_gain=mutual_information(constant, noise).item(),
    )
    assert printed == pytest.approx(10 * math.log(2) + math.log(21) / 2 + 2 * math.log(400))
    assert gain > printed + 11
    repeated = [
        greedy_information_gain(covar, horizon, noise).information[-1].item()
        for covar in (torch.eye(arms), constant)
    ]
    assert gain <= sum(repeated) + 1e-9


def test_theorem_2_needs_contexts_of_unit_variance():
    actions, contexts = torch.eye(3), torch.full((1, 1), 100.0)
    gain = greedy_information_gain(product_covariance(actions, contexts), 3, 1.0).information[-1]
    of_actions = greedy_information_gain(actions, 3, 1.0).information[-1].item()
    assert gain > product_information_gain(horizon=3, rank=1, factor_gain=of_actions)


def test_regret_bound_is_theorem_1():
    # C1 = 8 / log 26; 8 * 200 * 20 * 60 / log 26 = 589,301.6, whose root is 767.66.
    assert cgp_ucb_regret_bound(**BOUND) == pytest.approx(767.66 + 2, abs=0.01)
    assert cgp_ucb_regret_bound(**BOUND) == pytest.approx(
        tv_gp_ucb_regret_bound(**BOUND), rel=1e-14
    )
