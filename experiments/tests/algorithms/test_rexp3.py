import math

import pytest
import torch

from experiments.algorithms.rexp3 import RExp3, rexp3_block_length

ARMS = torch.arange(4.0, dtype=torch.float64).unsqueeze(-1)


def make(block=1000, exploration=0.2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return RExp3(ARMS, block, (-1.0, 3.0), exploration, generator)


def test_weights_follow_the_rule():
    optimizer = make()
    weights = [1.0] * 4
    for _ in range(20):
        p = [0.8 * w / sum(weights) + 0.2 / 4 for w in weights]
        torch.testing.assert_close(optimizer.probabilities.tolist(), p)
        trial = optimizer.ask()
        arm = int(trial.X.item())
        reward = 0.5 * arm
        optimizer.tell(trial, reward)
        weights[arm] *= math.exp(0.2 * ((reward + 1) / 4) / p[arm] / 4)


def test_learns_the_best_arm_of_a_static_problem():
    """Its probability is 0.925, the largest there can be, in each of 40 runs."""
    optimizer = make(exploration=0.1)
    for _ in range(600):
        trial = optimizer.ask()
        optimizer.tell(trial, 3.0 if trial.X.item() == 2 else -1.0)
    assert optimizer.probabilities.argmax() == 2
    assert optimizer.probabilities[2] > 0.8


def test_a_block_forgets_the_one_before():
    optimizer = make(block=2)
    late = optimizer.ask()
    optimizer.tell(optimizer.ask(), 3.0)
    assert optimizer.probabilities.std() > 0
    optimizer.ask()
    optimizer.tell(late, 3.0)
    torch.testing.assert_close(optimizer.probabilities, torch.full((4,), 0.25, dtype=torch.float64))


def test_a_reward_out_of_bounds_is_refused():
    optimizer = make()
    with pytest.raises(ValueError):
        optimizer.tell(optimizer.ask(), 3.5)


def test_default_exploration_and_block_length_are_the_papers():
    optimizer = RExp3(ARMS, block=50, reward_bounds=(0.0, 1.0))
    expected = math.sqrt(4 * math.log(4) / ((math.e - 1) * 50))
    assert optimizer.exploration == pytest.approx(expected)
    length = math.ceil((46 * math.log(46)) ** (1 / 3) * (288 / 10) ** (2 / 3))
    assert rexp3_block_length(46, 288, 10.0) == length
    assert rexp3_block_length(46, 20, 1e-6) == 20
