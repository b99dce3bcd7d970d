"""Outcomes put right later: the same as if they had been right from the start."""

import pytest
import torch
from gpytorch.means import ConstantMean

pytestmark = pytest.mark.usefixtures("double_by_default")

RATES = [0.0, 0.03, 0.5, 1.0]
TIMES = [0, 0, 1, 1.5, 4, 4, 7, 3, 8, 8.25, 2, 9, 9, 12]


def one_by_one(model, X, Y, Yvar=None):
    for i in range(len(X)):
        part = slice(i, i + 1)
        model.observe(X[part], Y[part], None if Yvar is None else Yvar[part])


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("mean", [0.0, 0.7])
def test_revised_outcomes_are_as_if_told_so(small, rate, mean):
    """Against a dense model with the revised outcomes; late events and repeats among them."""
    constant = ConstantMean()
    constant.constant.data.fill_(mean)
    X, Y = small.data(TIMES)
    X[5] = X[4]
    model = small.streaming(rate, mean_module=constant)
    one_by_one(model, X, Y)
    before = model.posterior(small.rows(12)).variance
    Y = Y.clone()
    for numbers, change in [([3, 0], [2.0, -1.0]), ([13], [0.5]), ([5, 7, 4], [1.0, -3.0, 0.1])]:
        model.revise(torch.tensor(numbers), torch.tensor(change))
        Y[numbers, 0] += torch.tensor(change)
    other = small.dense(X, Y - mean, rate)
    for t in (12.0, 15.5):
        got, expected = model.posterior(small.rows(t)), other.posterior(small.rows(t))
        torch.testing.assert_close(got.mean, expected.mean + mean, rtol=0, atol=1e-9)
        torch.testing.assert_close(got.variance, expected.variance, rtol=0, atol=1e-9)
    assert torch.equal(before, model.posterior(small.rows(12)).variance)


@pytest.mark.parametrize("rate", RATES)
def test_surprise_is_the_outcome_less_what_the_others_foretell(small, rate):
    """Against the posterior mean at each row of a dense model of the rest."""
    X, Y = small.data(TIMES)
    generator = torch.Generator().manual_seed(3)
    Yvar = 0.01 + torch.rand(len(X), 1, generator=generator)
    model = small.streaming(rate)
    one_by_one(model, X, Y, Yvar)
    for numbers in ([6], [12, 1, 5], [0], list(range(14))):
        rest = [i for i in range(14) if i not in numbers]
        expected = Y[numbers, 0]
        if rest:
            other = small.dense(X[rest], Y[rest], rate, Yvar[rest])
            expected = expected - other.posterior(X[numbers].unsqueeze(-2)).mean.flatten().detach()
        torch.testing.assert_close(
            model.leave_out_residual(torch.tensor(numbers)), expected, rtol=0, atol=1e-9
        )


def test_holds_is_false_of_what_was_never_observed(small):
    """Negative numbers and those to come are not held."""
    X, Y = small.data(TIMES)
    model = small.streaming(0.1)
    model.observe(X, Y)
    assert model.holds(torch.tensor([-1, 0, 13])).tolist() == [False, True, True]
