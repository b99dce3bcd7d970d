import math

import pytest

from tvbo.optimizers.bpe import SubExponentialDelay
from tvbo.optimizers.bpe.bpe_delay import ExplorationRound, exploration_rounds


def test_rounds_of_the_papers_runs():
    """By hand: q = ⌈√1000⌉ = 32, ⌈√32000⌉ = 179, ⌈√179000⌉ = 424, ⌈√424000⌉ = 652."""
    upper_bound = SubExponentialDelay(mean=50, xi=9, b=1).upper_bound(1000, 0.01)
    assert exploration_rounds(1000, upper_bound) == (
        ExplorationRound(1, 32, 108),
        ExplorationRound(2, 179, 255),
        ExplorationRound(3, 424, 500),
        ExplorationRound(4, 652, 137),
    )


def test_rounds_without_delay():
    assert [(r.q, r.length) for r in exploration_rounds(1000, 0.0)] == [
        (32, 32),
        (179, 179),
        (424, 424),
        (652, 365),
    ]


def test_rounds_of_small_horizons():
    assert [r.length for r in exploration_rounds(1, 0.0)] == [1]
    assert [r.length for r in exploration_rounds(2, 0.0)] == [2]
    assert [r.length for r in exploration_rounds(10, 0.0)] == [4, 6]
    assert [r.length for r in exploration_rounds(10, 100.0)] == [10]


@pytest.mark.parametrize("horizon", [1, 2, 3, 17, 100, 1000, 12_345])
@pytest.mark.parametrize("upper_bound", [0.0, 0.5, 25.2, 300.0])
def test_rounds_fill_the_horizon(horizon, upper_bound):
    rounds = exploration_rounds(horizon, upper_bound)
    assert sum(r.length for r in rounds) == horizon
    q = 1
    for r in rounds:
        # The smallest whole number whose square is at least T q.
        assert (r.q - 1) ** 2 < horizon * q <= r.q**2
        q = r.q
    assert all(r.length == r.q + math.ceil(upper_bound) for r in rounds[:-1])
