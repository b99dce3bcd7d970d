"""Each way in which old rows go: dropped by weight, merged, dropped for want of room."""

import pytest
import torch
from botorch.exceptions.errors import InputDataError

pytestmark = pytest.mark.usefixtures("double_by_default")


def observe(model, X, Y, block=1):
    for part in torch.arange(len(X)).split(block):
        model.observe(X[part], Y[part])


@pytest.mark.parametrize("rate", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("block", [1, 7])
@pytest.mark.combinations
def test_rows_that_weigh_nothing_are_dropped(small, rate, block):
    X, Y = small.data(torch.arange(300))
    # On so small a set rows would be merged, but not where their number is limited.
    model = small.streaming(rate, max_lateness=0, tol=1e-10, max_rows=200)
    observe(model, X, Y, block)
    assert model.num_rows <= 200
    assert model.innovations.evicted.merged is None
    assert model.neglected <= 1e-10 / (1 - min(rate, 0.9))
    small.assert_same(model, small.dense(X, Y, rate), small.rows(300), atol=1e-8)


@pytest.mark.parametrize("rate", [0.0, 1e-3, 0.03])
@pytest.mark.parametrize("block", [1, 11])
@pytest.mark.combinations
def test_merging_loses_nothing(small, rate, block):
    X, Y = small.data(torch.arange(400) / 2)
    model = small.streaming(rate, max_lateness=5.0)
    observe(model, X, Y, block)
    assert model.num_rows < 120
    assert model.innovations.evicted.merged is not None
    assert model.neglected == 0
    small.assert_same(model, small.dense(X, Y, rate), small.rows(200))


@pytest.mark.parametrize("rate", [0.0, 1e-3, 0.03, 0.3])
def test_late_after_merging(small, rate):
    """Late ones among late ones: a row held may tell of an event before all that was merged."""
    generator = torch.Generator().manual_seed(3)
    times = torch.arange(300.0)
    late = (torch.rand(300, generator=generator) < 0.3) & (times > 20)
    times = torch.where(late, times - 1 - 39 * torch.rand(300, generator=generator), times)
    X, Y = small.data(times)
    model = small.streaming(rate, max_lateness=40.0)
    early = 0
    for i in range(300):
        evicted, store = model.innovations.evicted, model.innovations.store
        if evicted.merged is not None and times[i] < model.now:
            early += int((store.held.time < evicted.time).any())
        model.observe(X[i : i + 1], Y[i : i + 1])
    assert early > 0
    small.assert_same(model, small.dense(X, Y, rate), small.rows(300))


@pytest.mark.parametrize("rate", [0.0, 0.03])
@pytest.mark.parametrize("max_rows", [1, 5, 20, 31, 64, 100])
@pytest.mark.combinations
def test_never_more_rows_and_neglected_bounds_the_error(small, rate, max_rows):
    X, Y = small.data(torch.arange(150))
    model = small.streaming(rate, max_rows=max_rows)
    for i in range(150):
        model.observe(X[i : i + 1], Y[i : i + 1])
        assert model.num_rows <= max_rows
        assert model.innovations.store.capacity <= max_rows
        if i % 15 == 14:
            ahead, other = small.rows(i), small.dense(X[: i + 1], Y[: i + 1], rate)
            with torch.no_grad():
                error = (
                    model.posterior(ahead).distribution.covariance_matrix
                    - other.posterior(ahead).distribution.covariance_matrix
                )
            # The prior variance is 1; what was dropped makes the model less sure, never more.
            assert error.abs().max() <= model.neglected + 1e-12
            assert error.diagonal().min() >= -1e-12
    assert 0 < model.neglected <= 1


@pytest.mark.parametrize("rate", [0.0, 0.03])
def test_too_late(small, rate):
    X, Y = small.data(range(200))
    model = small.streaming(rate, max_lateness=10.0)
    observe(model, X, Y)
    assert 100 < model.earliest <= 189
    before, state = model.marginals(199.0), model.num_rows
    early = X[:1].clone()
    early[:, -1] = model.earliest - 0.5
    with pytest.raises(InputDataError):
        model.observe(early, Y[:1])
    assert model.num_rows == state
    for one, two in zip(before, model.marginals(199.0), strict=True):
        assert torch.equal(one, two)
    early[:, -1] = model.earliest
    model.observe(early, Y[:1])
    both = small.dense(torch.cat([X, early]), torch.cat([Y, Y[:1]]), rate)
    small.assert_same(model, both, small.rows(200))
