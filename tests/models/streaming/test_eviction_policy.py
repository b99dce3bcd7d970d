"""Each way in which old rows go: dropped by weight, merged, dropped for want of room."""

import math

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import RBFKernel

from tvbo.models import StreamingGP

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


def test_a_large_set_drops_and_does_not_merge():
    choices = torch.linspace(0, 1, 200).unsqueeze(-1)
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.2
    model = StreamingGP(choices, kernel, 0.5, 0.04, max_lateness=0)
    twin = StreamingGP(choices, kernel, 0.5, 0.04, tol=1e-300)
    generator = torch.Generator().manual_seed(0)
    for t in range(150):
        row = torch.tensor([[choices[(t * 37) % 200].item(), float(t)]])
        y = torch.randn(1, 1, generator=generator)
        model.observe(row, y)
        twin.observe(row, y)
    assert twin.num_rows == 150
    assert model.num_rows <= 64
    assert model.innovations.evicted.merged is None
    assert 0 < model.neglected < 1e-12
    for one, two in zip(model.marginals(150.0), twin.marginals(150.0), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-8)


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


def test_enough_rows_neglect_nothing(small):
    X, Y = small.data(torch.arange(50))
    model = small.streaming(0.0, max_rows=50)
    observe(model, X, Y)
    assert model.neglected == 0
    small.assert_same(model, small.dense(X, Y, 0.0), small.rows(50))


def test_more_at_once_than_rows_are_allowed(small):
    X, Y = small.data(torch.arange(50))
    model = small.streaming(0.03, max_rows=8)
    model.observe(X, Y)
    assert model.num_rows <= 8


@pytest.mark.parametrize("rate", [0.0, 0.03])
def test_nothing_may_come_late_once_rows_that_weigh_were_dropped(small, rate):
    X, Y = small.data([*range(20), 18.5, 19.0])
    model = small.streaming(rate, max_rows=10)
    observe(model, X[:10], Y[:10])
    assert model.earliest == -math.inf
    observe(model, X[10:20], Y[10:20])
    with pytest.raises(InputDataError):
        model.observe(X[20:21], Y[20:21])
    model.observe(X[21:], Y[21:])
    assert model.num_rows <= 10


def test_none_comes_late(small):
    X, Y = small.data([0.0, 3.0, 1.0])
    model = small.streaming(0.1, max_lateness=0)
    assert model.innovations.store.root is None
    observe(model, X[:2], Y[:2])
    before = model.marginals(3.0)
    with pytest.raises(InputDataError):
        model.observe(X[2:], Y[2:])
    assert (model.num_rows, model.earliest) == (2, 3.0)
    for one, two in zip(before, model.marginals(3.0), strict=True):
        assert torch.equal(one, two)
    # In one call the order is put right, and at the newest time nothing is late.
    together = small.streaming(0.1, max_lateness=0)
    together.observe(X, Y)
    small.assert_same(together, small.dense(X, Y, 0.1), small.rows(4))


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


def test_by_default_the_last_256_may_be_overtaken(small):
    X, Y = small.data(range(700))
    model = small.streaming(0.0)
    # On a set of 9, some 900 rows cost nothing; of 40 trials, each holds fewer.
    many = small.streaming(0.0, batch_shape=torch.Size([40]))
    model.observe(X, Y)
    for part in torch.arange(700).split(50):
        many.observe(X[part], Y[part].expand(40, -1, 1))
    assert model.earliest == -math.inf
    assert 0 < many.earliest <= 699 - 256
    assert 256 <= many.num_rows < 500


def test_late_in_the_call_that_drops_is_refused(small):
    """Rows that have to go now may not be newer than what comes."""
    model = small.streaming(0.3, max_rows=1)
    X, Y = small.data([100.0, 60.0])
    model.observe(X[:1], Y[:1])
    before = [x.clone() for x in model.marginals(100.0)]
    with pytest.raises(InputDataError):
        model.observe(X[1:], Y[1:])
    for x, y in zip(model.marginals(100.0), before, strict=True):
        assert torch.equal(x, y)
    full = small.streaming(0.3, max_rows=16)
    X, Y = small.data(range(16))
    full.observe(X, Y)
    late, outcome = small.data([0.5])
    # Two rows have to go, of the times 0 and 1: an event between them comes too late.
    with pytest.raises(InputDataError):
        full.observe(late, outcome)


def test_a_refused_outcome_drops_nothing(small):
    model = small.streaming(0.0, max_rows=2)
    X, Y = small.data([0.0, 0.0])
    X[1, :2] = 1 - X[0, :2]
    model.observe(X, Y, torch.tensor([[0.1], [0.0]]))
    before = [x.clone() for x in model.marginals(1.0)]
    with pytest.raises(InputDataError, match="certain"):
        model.observe(X[1:], Y[1:], torch.zeros(1, 1))
    assert model.num_rows == 2
    assert model.neglected == 0
    for x, y in zip(model.marginals(1.0), before, strict=True):
        assert torch.equal(x, y)


def test_rows_that_fill_their_room_exactly_go_in_time(small):
    """In time, every outcome is taken, at each number of rows."""
    model = small.streaming(0.1, max_rows=9)
    X, Y = small.data(range(100))
    for i in range(100):
        model.observe(X[i : i + 1], Y[i : i + 1])
    assert model.num_rows <= 9
