"""Outcomes put right later: the same as if they had been right from the start."""

import math

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
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
def test_what_is_observed_after_a_revision_finds_it(small, rate):
    X, Y = small.data(TIMES)
    model = small.streaming(rate)
    one_by_one(model, X[:9], Y[:9])
    model.revise(torch.tensor([2, 6]), torch.tensor([1.5, -0.5]))
    model.observe(X[9:], Y[9:])
    Y = Y.clone()
    Y[[2, 6], 0] += torch.tensor([1.5, -0.5])
    small.assert_same(model, small.dense(X, Y, rate), small.rows(13), atol=1e-9)


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


def test_batches_have_their_own_changes(small):
    rates = torch.tensor([0.0, 0.1, 1.0])
    X, Y = small.data(TIMES[:7])
    model = small.streaming(rates)
    model.observe(X, Y.expand(3, -1, -1))
    change = torch.tensor([[1.0, 0.0], [0.0, -2.0], [0.5, 0.5]])
    model.revise(torch.tensor([4, 2]), change)
    residual = model.leave_out_residual(torch.tensor([1]))
    for i, rate in enumerate(rates):
        alone = small.streaming(rate.item())
        own = Y.clone()
        own[[4, 2], 0] += change[i]
        alone.observe(X, own)
        got, expected = model.posterior(small.rows(9)), alone.posterior(small.rows(9))
        torch.testing.assert_close(got.mean[i], expected.mean, rtol=0, atol=1e-10)
        torch.testing.assert_close(residual[i], alone.leave_out_residual(torch.tensor([1])))


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.6])
def test_numbers_go_on_where_old_rows_are_gone(small, rate, monkeypatch):
    """Merged or dropped: what is held can be revised and is exact, what is not is refused."""
    monkeypatch.setattr("tvbo.models.streaming.eviction_policy.RESERVE_ENTRIES", 0)
    monkeypatch.setattr("tvbo.models.streaming.eviction_policy.RESERVE_ROWS", (10, 11))
    X, Y = small.data(torch.arange(150.0))
    model = small.streaming(rate)
    one_by_one(model, X, Y)
    assert model.num_observed == 150
    held = model.holds(torch.arange(150))
    first = int(held.to(torch.uint8).argmax())
    assert 0 < first < 140
    assert held[first:].all()
    numbers = torch.tensor([149, first, first + 3])
    change = torch.tensor([1.0, -2.0, 3.0])
    residual = model.leave_out_residual(numbers)
    model.revise(numbers, change)
    # Revising changes the residual by as much: the others do not depend on it.
    torch.testing.assert_close(
        model.leave_out_residual(numbers), residual + change, rtol=0, atol=1e-9
    )
    Y = Y.clone()
    Y[numbers, 0] += change
    small.assert_same(model, small.dense(X, Y, rate), small.rows(150), atol=1e-8)
    with pytest.raises(InputDataError):
        model.revise(torch.tensor([0]), torch.tensor([1.0]))


def test_reset_and_blank_count_from_zero(small):
    X, Y = small.data(TIMES)
    model = small.streaming(0.1)
    model.observe(X, Y)
    blank = model.blank()
    assert (model.num_observed, blank.num_observed) == (14, 0)
    assert blank.innovations.prior is model.innovations.prior
    before = model.posterior(small.rows(13)).mean
    blank.observe(X[:3], Y[:3])
    blank.revise(torch.tensor([0]), torch.tensor([5.0]))
    assert torch.equal(model.posterior(small.rows(13)).mean, before)
    assert torch.equal(blank.noise_variance, model.noise_variance)
    model.reset()
    assert model.num_observed == 0
    assert blank.num_observed == 3


def test_a_conditioned_copy_is_revised_alone(small):
    X, Y = small.data(TIMES)
    model = small.streaming(0.1)
    model.observe(X[:5], Y[:5])
    more = model.condition_on_observations(X[5:], Y[5:])
    before = model.posterior(small.rows(20)).mean
    more.revise(torch.tensor([1, 9]), torch.tensor([3.0, -1.0]))
    assert torch.equal(model.posterior(small.rows(20)).mean, before)
    Y = Y.clone()
    Y[[1, 9], 0] += torch.tensor([3.0, -1.0])
    order = torch.cat([torch.arange(5), 5 + X[5:, -1].argsort(stable=True)])
    Y_in_order = Y.clone()
    # Those of one call are numbered by time.
    ninth = int(order[9])
    Y_in_order[9] += 1.0
    Y_in_order[ninth] += -1.0
    small.assert_same(more, small.dense(X, Y_in_order, 0.1), small.rows(20), atol=1e-9)


def test_nothing_to_revise(small):
    model = small.streaming(0.1)
    model.revise(torch.tensor([], dtype=torch.long), torch.tensor([]))
    assert model.num_observed == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_change_that_is_not_finite(small, bad):
    X, Y = small.data(TIMES)
    model = small.streaming(0.1)
    model.observe(X, Y)
    before = model.posterior(small.rows(13)).mean
    with pytest.raises(InputDataError):
        model.revise(torch.tensor([1]), torch.tensor([bad]))
    assert torch.equal(model.posterior(small.rows(13)).mean, before)


def test_a_change_for_each_number(small):
    X, Y = small.data(TIMES)
    model = small.streaming(0.1)
    model.observe(X, Y)
    with pytest.raises(BotorchTensorDimensionError):
        model.revise(torch.tensor([1, 2]), torch.tensor([1.0]))


@pytest.mark.parametrize("number", [-1, 14, 99])
def test_an_unknown_number(small, number):
    X, Y = small.data(TIMES)
    model = small.streaming(0.1)
    model.observe(X, Y)
    with pytest.raises(InputDataError):
        model.revise(torch.tensor([number]), torch.tensor([1.0]))


def test_holds_is_false_of_what_was_never_observed(small):
    """Negative numbers and those to come are not held."""
    X, Y = small.data(TIMES)
    model = small.streaming(0.1)
    model.observe(X, Y)
    assert model.holds(torch.tensor([-1, 0, 13])).tolist() == [False, True, True]


def test_holds_is_false_of_what_is_still_to_come(small):
    X, Y = small.data(TIMES)
    model = small.streaming(0.1)
    model.observe(X, Y)
    assert not model.holds(torch.tensor([14])).any()


def test_without_a_factor_nothing_is_revised(small):
    X, Y = small.data([1.0, 2.0])
    model = small.streaming(0.1, max_lateness=0.0)
    model.observe(X, Y)
    with pytest.raises(InputDataError, match="max_lateness=0"):
        model.revise(torch.tensor([1]), torch.tensor([1.0]))
    with pytest.raises(InputDataError, match="max_lateness=0"):
        model.leave_out_residual(torch.tensor([1]))
