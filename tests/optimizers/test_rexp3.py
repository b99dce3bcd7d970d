import math

import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError

from tvbo import recipes
from tvbo.optimizers import rexp3_block_length

ARMS = torch.arange(4.0).unsqueeze(-1)


def make(block=1000, exploration=0.2, seed=0):
    return recipes.rexp3(
        choices=ARMS,
        block=block,
        reward_bounds=(-1.0, 3.0),
        exploration=exploration,
        generator=torch.Generator().manual_seed(seed),
    )


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


@pytest.mark.parametrize("seed", range(5))
def test_learns_the_best_arm_of_a_static_problem(seed):
    """Its probability is 0.925, the largest there can be, in each of 40 runs."""
    optimizer = make(exploration=0.1, seed=seed)
    for _ in range(600):
        trial = optimizer.ask()
        optimizer.tell(trial, 3.0 if trial.X.item() == 2 else -1.0)
    assert optimizer.probabilities.argmax() == 2
    assert optimizer.probabilities[2] > 0.8


def test_starts_afresh_every_block():
    optimizer = make(block=5)
    for _ in range(5):
        optimizer.tell(optimizer.ask(), 3.0)
    assert optimizer.probabilities.std() > 0
    optimizer.ask()
    torch.testing.assert_close(optimizer.probabilities, torch.full((4,), 0.25, dtype=torch.float64))


def test_an_outcome_of_an_earlier_block_is_not_learned_from():
    optimizer = make(block=2)
    late = optimizer.ask()
    optimizer.ask()
    optimizer.ask()
    optimizer.tell(late, 3.0)
    torch.testing.assert_close(optimizer.probabilities, torch.full((4,), 0.25, dtype=torch.float64))


def test_a_reward_out_of_bounds_is_refused_and_the_trial_stays_open():
    optimizer = make()
    trial = optimizer.ask()
    with pytest.raises(InputDataError, match=r"within reward_bounds \(-1.0, 3.0\). Got 3.5"):
        optimizer.tell(trial, 3.5)
    assert optimizer.open_trials == (trial,)
    optimizer.tell(trial, 3.0)


def test_an_arm_that_was_not_drawn_is_refused():
    with pytest.raises(UnsupportedError, match="only from its own draws"):
        make().attach([1.0], t=1.0)


def test_default_exploration_is_the_papers():
    optimizer = recipes.rexp3(choices=ARMS, block=50, reward_bounds=(0.0, 1.0))
    expected = math.sqrt(4 * math.log(4) / ((math.e - 1) * 50))
    assert optimizer.exploration == pytest.approx(expected)


def test_block_length_is_theorem_2():
    expected = math.ceil((46 * math.log(46)) ** (1 / 3) * (288 / 10) ** (2 / 3))
    assert rexp3_block_length(46, 288, 10.0) == expected
    assert rexp3_block_length(46, 20, 1e-6) == 20


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"block": 0}, "block >= 1"),
        ({"exploration": 0.0}, r"exploration in \(0, 1\]"),
    ],
)
def test_bad_parameters(kwargs, message):
    with pytest.raises(ValueError, match=message):
        make(**kwargs)
    with pytest.raises(ValueError, match="finite reward_bounds"):
        recipes.rexp3(choices=ARMS, block=5, reward_bounds=(1.0, 1.0))
    with pytest.raises(ValueError, match="num_arms >= 2"):
        rexp3_block_length(1, 10, 1.0)
