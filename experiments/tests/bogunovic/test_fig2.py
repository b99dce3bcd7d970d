"""The synthetic figures in a short form; the full one is `make validate`."""

import pytest
import torch

from experiments.bogunovic.fig2ab import matched_case
from experiments.bogunovic.fig2cd import (
    bogunovic_fig2c,
    bogunovic_fig2d,
)
from experiments.bogunovic.synthetic import SIDE_BY_SIDE, Player, Synthetic

TRIALS = 12
SMALL = Synthetic.squared_exponential(points=12, horizon=120)


@pytest.fixture(scope="module")
def matched():
    return matched_case(SMALL, "bogunovic-fig2a", "short", TRIALS, 0, progress=False)


@pytest.fixture(scope="module")
def wrong_rate():
    return bogunovic_fig2c(TRIALS, progress=False, setting=SMALL)


@pytest.fixture(scope="module")
def wrong_length():
    return bogunovic_fig2d(TRIALS, progress=False, setting=SMALL)


@pytest.mark.slow
def test_forgetting_beats_starting_afresh_where_the_drift_is_fast(matched):
    """Differences of 0.45 and 0.31, each seven standard errors of the twelve trials."""
    mean = {name: row["mean_regret"] for name, row in matched.results.items()}
    assert mean["TV-GP-UCB, ε = 0.03"] < mean["R-GP-UCB, ε = 0.03"]
    assert mean["TV-GP-UCB, ε = 0.001"] < mean["TV-GP-UCB, ε = 0.03"]


def test_claims_of_the_matched_case(matched):
    words = [claim.claim for claim in matched.claims]
    assert sum("minus TV-GP-UCB, average regret" in claim for claim in words) == 3
    # N = 68, 38 and 29: a second block fits the 120 rounds at the two larger rates only.
    assert sum("oscillates" in claim for claim in words) == 2
    assert matched.settings["block_lengths"] == {"0.001": 68, "0.01": 38, "0.03": 29}


def test_pairs_meet_the_same_function():
    players = {"one": (0.1, Player(0.1)), "same": (0.1, Player(0.1)), "other": (0.2, Player(0.1))}
    small = Synthetic.squared_exponential(points=5, horizon=10)
    regret = small.regret(players, trials=2, seed=0, label="", progress=False)
    assert torch.equal(regret["one"], regret["same"])
    assert not torch.equal(regret["one"], regret["other"])


def test_trials_beyond_one_tensor_are_new_ones():
    small = Synthetic.matern(points=3, horizon=4)
    trials = SIDE_BY_SIDE + 2
    [regret] = small.regret({"a": (0.1, Player(0.1))}, trials, 0, "", progress=False).values()
    [later] = small.regret({"a": (0.1, Player(0.1))}, 2, SIDE_BY_SIDE, "", progress=False).values()
    assert regret.shape == (trials, 4)
    assert torch.equal(regret[-2:], later)


@pytest.mark.slow
def test_a_wrong_rate(wrong_rate):
    assert next(iter(wrong_rate.results)) == "0"
    assert len(wrong_rate.claims) == 5
    for claim in wrong_rate.claims:
        assert claim.standard_error > 0


@pytest.mark.slow
def test_too_short_blocks_are_bad(wrong_length):
    """By eight standard errors of the twelve trials; the claim asks for two."""
    claim = wrong_length.claims[0]
    assert "too small" in claim.claim
    assert claim.held


@pytest.mark.slow
def test_blocks_longer_than_the_run_are_gp_ucb(wrong_length):
    assert torch.equal(wrong_length.regret["N = 150"], wrong_length.regret["N = 200"])
