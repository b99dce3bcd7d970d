"""What stands in for outcomes that have not come."""

import math

import pytest
import torch

from tvbo.optimizers.pending import ConstantLiar, Hallucinate, IgnorePending, Pending

ROWS = torch.tensor([[0.1, 0.2, 1.0], [0.3, 0.4, 2.0]], dtype=torch.float64)
MEANS = torch.tensor([[0.7], [-0.2]], dtype=torch.float64)


def not_to_be_asked():
    raise AssertionError("asked for the means")


def test_ignored_trials_have_no_stand_in():
    assert not IgnorePending().enabled
    assert IgnorePending().outcomes(ROWS, not_to_be_asked).shape == (0, 1)


def test_hallucinated_outcomes_are_the_means():
    assert Hallucinate().enabled
    assert torch.equal(Hallucinate().outcomes(ROWS, lambda: MEANS), MEANS)


def test_the_minimum_stands_in_whatever_the_means_are():
    policy = ConstantLiar(-2.5)
    assert policy.enabled
    got = policy.outcomes(ROWS, not_to_be_asked)
    assert got.dtype == torch.float64
    assert got.tolist() == [[-2.5], [-2.5]]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_minimum_that_is_not_finite(bad):
    with pytest.raises(ValueError, match=f"least value .*, a finite number. Got {bad}"):
        ConstantLiar(bad)


def test_a_policy_of_ones_own():
    """One method is all it takes."""

    class Optimist(Pending):
        def outcomes(self, rows, expected):
            return expected() + 1.0

    assert Optimist().enabled
    assert torch.equal(Optimist().outcomes(ROWS, lambda: MEANS), MEANS + 1)
