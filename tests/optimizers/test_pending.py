"""What stands in for outcomes that have not come."""

import math

import pytest
import torch

from tvbo.optimizers.pending import ConstantLiar, Hallucinate, Pending

ROWS = torch.tensor([[0.1, 0.2, 1.0], [0.3, 0.4, 2.0]], dtype=torch.float64)
MEANS = torch.tensor([[0.7], [-0.2]], dtype=torch.float64)


def test_hallucinated_outcomes_are_the_means():
    assert Hallucinate().enabled
    assert torch.equal(Hallucinate().outcomes(ROWS, MEANS), MEANS)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_minimum_that_is_not_finite(bad):
    with pytest.raises(ValueError):
        ConstantLiar(bad)


def test_a_policy_of_ones_own():
    """One method is all it takes."""

    class Optimist(Pending):
        def outcomes(self, rows, expected):
            return expected + 1.0

    assert Optimist().enabled
    assert torch.equal(Optimist().outcomes(ROWS, MEANS), MEANS + 1)
