"""The stream of what was asked: rows made once, revised, and given up where that is impossible."""

import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo.feedback.pending import Hallucinate, Minimum
from tvbo.models import StreamingGP
from tvbo.observations import Observations
from tvbo.optimizers.asked_stream import AskedStream

pytestmark = pytest.mark.usefixtures("double_by_default")

CHOICES = torch.linspace(0, 1, 7, dtype=torch.float64).unsqueeze(-1)
NOISE = 0.05
NONE = Observations(torch.empty(0, 2).double(), torch.empty(0, 1).double())


def model(rate=0.1, **options):
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.3, dtype=torch.float64)
    return StreamingGP(CHOICES, kernel, rate, NOISE, **options)


def rows(*pairs):
    """Rows of (number of the choice, time)."""
    return torch.tensor([[CHOICES[i].item(), t] for i, t in pairs]).reshape(-1, 2)


def seen(X, *Y):
    return Observations(X, torch.tensor(Y).reshape(-1, 1))


def same(stream, X, Y, t=10.0, rate=0.1):
    """The model is that of the outcomes ``Y``, stand-ins among them, at rows ``X``."""
    other = model(rate)
    other.observe(X, torch.tensor(Y).reshape(-1, 1))
    at = torch.cat([CHOICES, torch.full((7, 1), t)], -1)
    got, expected = stream.model.posterior(at), other.posterior(at)
    torch.testing.assert_close(got.mean, expected.mean, rtol=0, atol=1e-10)
    torch.testing.assert_close(got.variance, expected.variance, rtol=0, atol=1e-10)


@pytest.mark.parametrize("rate", [0.0, 0.1, 1.0])
def test_a_row_is_made_once_and_revised_for_good(rate):
    stream, policy = AskedStream(model(rate)), Minimum(-1.0)
    X = rows((2, 1.0), (4, 2.0), (4, 2.0), (1, 3.0))
    assert stream.update(NONE, X[:3], policy)
    assert stream.model.num_observed == 3
    same(stream, X[:3], [-1.0, -1.0, -1.0], rate=rate)
    # One of two that ask the same comes.
    told = seen(X[1:2], 0.7)
    assert stream.update(told, X[[0, 2, 3]], policy)
    assert stream.model.num_observed == 4
    same(stream, X, [-1.0, 0.7, -1.0, -1.0], rate=rate)
    told = told.append(seen(X[[3, 0]], 0.1, 0.2))
    assert stream.update(told, X[2:3], policy)
    assert stream.model.num_observed == 4
    # Of two alike, either may be the one that came.
    same(stream, X, [0.2, 0.7, -1.0, 0.1], rate=rate)


def test_all_answered():
    stream, X = AskedStream(model()), rows((2, 1.0), (4, 2.0))
    assert stream.update(NONE, X, Hallucinate())
    # With another open, so that there is something to stand in for.
    more = rows((5, 3.0))
    assert stream.update(seen(X, 0.4, -0.3), more, Minimum(-2.0))
    same(stream, torch.cat([X, more]), [0.4, -0.3, -2.0])


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_hallucinated_outcomes_leave_the_mean_as_it_was(rate):
    stream = AskedStream(model(rate))
    told = seen(rows((3, 1.0), (0, 1.5)), 1.0, -0.5)
    waiting = rows((3, 2.0), (5, 0.5), (3, 2.0))
    assert stream.update(told, waiting, Hallucinate())
    alone = model(rate)
    alone.observe(told.X, told.Y)
    at = torch.cat([CHOICES, torch.full((7, 1), 4.0)], -1)
    torch.testing.assert_close(
        stream.model.posterior(at).mean, alone.posterior(at).mean, rtol=0, atol=1e-10
    )
    everything = model(rate)
    everything.observe(torch.cat([told.X, waiting]), torch.zeros(5, 1))
    torch.testing.assert_close(
        stream.model.posterior(at).variance, everything.posterior(at).variance, rtol=0, atol=1e-10
    )


def test_a_lost_trial_takes_its_row_with_it_by_a_new_stream():
    stream, X = AskedStream(model()), rows((2, 1.0), (4, 2.0))
    assert stream.update(NONE, X, Minimum(-1.0))
    assert not stream.update(NONE, X[:1], Minimum(-1.0))


def test_one_of_two_alike_is_lost():
    stream, X = AskedStream(model()), rows((2, 1.0), (2, 1.0))
    assert stream.update(NONE, X, Minimum(-1.0))
    assert not stream.update(NONE, X[:1], Minimum(-1.0))


def test_one_of_two_alike_is_answered():
    stream, X = AskedStream(model()), rows((2, 1.0), (2, 1.0))
    assert stream.update(NONE, X, Minimum(-1.0))
    assert stream.update(seen(X[:1], 0.5), X[:1], Minimum(-1.0))
    assert stream.model.num_observed == 2
    same(stream, X, [0.5, -1.0])


def test_what_was_never_seen_open_is_taken_in_late():
    stream, X = AskedStream(model()), rows((2, 5.0), (6, 2.0), (1, 9.0))
    assert stream.update(NONE, X[:1], Minimum(-1.0))
    assert stream.update(seen(X[1:], 0.2, 0.9), X[:1], Minimum(-1.0))
    same(stream, X, [-1.0, 0.2, 0.9])


@pytest.mark.parametrize("weighs", [True, False])
def test_dropping(weighs):
    stream, X = AskedStream(model()), rows((2, 5.0), (6, 6.0), (1, 7.0))
    told = seen(X[:2], 0.2, 0.9)
    assert stream.update(told, X[2:], Minimum(-1.0))
    gone = torch.tensor([True, False])
    assert stream.drop(gone, weighs) is (not weighs)
    if not weighs:
        # What stays is counted on from: the next outcome is new.
        assert stream.update(told[1:].append(seen(X[2:], 0.4)), rows((3, 8.0)), Minimum(-1.0))
        same(stream, torch.cat([X, rows((3, 8.0))]), [0.2, 0.9, 0.4, -1.0])


def test_dropping_what_it_has_not_seen_changes_nothing():
    stream = AskedStream(model())
    assert stream.drop(torch.tensor([True, True]), weighs=True)


@pytest.fixture
def held(monkeypatch):
    """A model with 140 observations, of which the oldest rows were merged."""
    monkeypatch.setattr("tvbo.models.streaming.eviction_policy.RESERVE_ENTRIES", 0)
    monkeypatch.setattr("tvbo.models.streaming.eviction_policy.RESERVE_ROWS", (8, 9))
    X = torch.cat([CHOICES.repeat(20, 1), torch.arange(140.0).unsqueeze(-1)], -1)
    model_ = model()
    for i in range(140):
        model_.observe(X[i : i + 1], torch.zeros(1, 1))
    assert model_.earliest > 50
    return model_


def test_an_outcome_before_all_that_is_held(held):
    told = seen(rows((1, 3.0)), 0.5)
    assert AskedStream(held).update(told, rows((1, 140.0)), Minimum(-1.0)) is False


def test_an_open_trial_before_all_that_is_held(held):
    assert AskedStream(held).update(NONE, rows((1, 3.0)), Minimum(-1.0)) is False


def test_an_open_trial_whose_row_is_gone(held):
    stream = AskedStream(held)
    X = rows((1, 140.0))
    assert stream.update(NONE, X, Minimum(-1.0))
    for t in range(141, 300):
        stream.model.observe(rows((t % 7, float(t))), torch.zeros(1, 1))
    assert stream.update(NONE, X, Minimum(-1.0)) is False
