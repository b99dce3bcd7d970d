"""A stream with pending trials: rows made once, revised, and given up where that is impossible."""

import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo.fit.model_fitter import ModelFitter
from tvbo.models import StreamingGP
from tvbo.models.stream_preview import StreamPreview
from tvbo.optimizers.pending import ConstantLiar, Hallucinate
from tvbo.optimizers.pending_posterior import PendingPosterior
from tvbo.optimizers.streaming_state import StreamingState
from tvbo.spaces import InputLayout
from tvbo.spaces.observations import Observations

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
    stream, policy = PendingPosterior(model(rate)), ConstantLiar(-1.0)
    X = rows((2, 1.0), (4, 2.0), (4, 2.0), (1, 3.0))
    assert stream.update(NONE, X[:3], policy)
    assert stream.model.num_observed == 3
    same(stream, X[:3], [-1.0, -1.0, -1.0], rate=rate)
    # One of two that ask the same comes.
    assert stream.update(seen(X[1:2], 0.7), X[[0, 2, 3]], policy)
    assert stream.model.num_observed == 4
    same(stream, X, [-1.0, 0.7, -1.0, -1.0], rate=rate)
    assert stream.update(seen(X[[3, 0]], 0.1, 0.2), X[2:3], policy)
    assert stream.model.num_observed == 4
    # Of two alike, either may be the one that came.
    same(stream, X, [0.2, 0.7, -1.0, 0.1], rate=rate)


def test_all_answered():
    stream, X = PendingPosterior(model()), rows((2, 1.0), (4, 2.0))
    assert stream.update(NONE, X, Hallucinate())
    # With another open, so that there is something to stand in for.
    more = rows((5, 3.0))
    assert stream.update(seen(X, 0.4, -0.3), more, ConstantLiar(-2.0))
    same(stream, torch.cat([X, more]), [0.4, -0.3, -2.0])


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_hallucinated_outcomes_leave_the_mean_as_it_was(rate):
    stream = PendingPosterior(model(rate))
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
    stream, X = PendingPosterior(model()), rows((2, 1.0), (4, 2.0))
    assert stream.update(NONE, X, ConstantLiar(-1.0))
    assert not stream.update(NONE, X[:1], ConstantLiar(-1.0))


def test_one_of_two_alike_is_lost():
    stream, X = PendingPosterior(model()), rows((2, 1.0), (2, 1.0))
    assert stream.update(NONE, X, ConstantLiar(-1.0))
    assert not stream.update(NONE, X[:1], ConstantLiar(-1.0))


def test_one_of_two_alike_is_answered():
    stream, X = PendingPosterior(model()), rows((2, 1.0), (2, 1.0))
    assert stream.update(NONE, X, ConstantLiar(-1.0))
    assert stream.update(seen(X[:1], 0.5), X[:1], ConstantLiar(-1.0))
    assert stream.model.num_observed == 2
    same(stream, X, [0.5, -1.0])


def test_what_was_never_seen_open_is_taken_in_late():
    stream, X = PendingPosterior(model()), rows((2, 5.0), (6, 2.0), (1, 9.0))
    assert stream.update(NONE, X[:1], ConstantLiar(-1.0))
    assert stream.update(seen(X[1:], 0.2, 0.9), X[:1], ConstantLiar(-1.0))
    same(stream, X, [-1.0, 0.2, 0.9])


@pytest.mark.parametrize("rate", [0.0, 0.1])
@pytest.mark.parametrize("policy", [Hallucinate(), ConstantLiar(-1.0)])
def test_predictions_leave_out_what_is_pending(rate, policy):
    stream = PendingPosterior(model(rate))
    told = seen(rows((3, 1.0), (0, 1.5), (5, 3.5)), 1.0, -0.5, 0.8)
    waiting = rows((3, 2.0), (5, 0.5), (3, 2.0), (2, 3.0))
    assert stream.update(told[:2], waiting[:3], policy)
    assert stream.update(told[2:], waiting, policy)
    alone = model(rate)
    alone.observe(told.X, told.Y)
    for i in range(7):
        at = rows((i, 4.0))
        expected = alone.posterior(at)
        got = stream.predict(at)
        assert got[0] == pytest.approx(expected.mean.item(), abs=1e-10)
        assert got[1] == pytest.approx(expected.variance.item(), abs=1e-10)


def test_predictions_without_anything_pending():
    stream, told = PendingPosterior(model()), seen(rows((3, 1.0), (0, 1.5)), 1.0, -0.5)
    assert stream.update(told, rows(), Hallucinate())
    expected = stream.model.posterior(rows((2, 3.0)))
    assert stream.predict(rows((2, 3.0))) == (expected.mean.item(), expected.variance.item())


def test_outcomes_with_their_own_noise_cannot_take_the_place_of_stand_ins():
    stream, X = PendingPosterior(model()), rows((2, 5.0), (6, 6.0))
    assert stream.update(NONE, X[:1], ConstantLiar(-1.0))
    own = Observations(X[:1], torch.ones(1, 1), torch.ones(1, 1))
    assert not stream.update(own, X[1:], ConstantLiar(-1.0))
    stream.reset()
    assert stream.update(own, X[:0], ConstantLiar(-1.0))
    other = model()
    other.observe(own.X, own.Y, own.Yvar)
    torch.testing.assert_close(
        stream.model.posterior(rows((2, 7.0))).mean, other.posterior(rows((2, 7.0))).mean
    )


@pytest.mark.parametrize("rate", [0.0, 0.1])
@pytest.mark.parametrize("lost", [0, 2])
@pytest.mark.parametrize("num_late", [0, 1, 3])
def test_a_preview_is_the_posterior_of_the_outcomes(rate, lost, num_late):
    """Some of the pending are answered, some are not, and some outcomes come unasked for."""
    stream = PendingPosterior(model(rate))
    told = seen(rows((3, 1.0), (0, 1.5)), 1.0, -0.5)
    waiting = rows((3, 2.0), (5, 2.5), (3, 2.0), (2, 3.0))
    assert stream.update(told, waiting, ConstantLiar(-1.0))
    before = stream.model.marginals(6.0)
    came = seen(waiting[lost:], *[0.4, -0.2, 0.3, 0.9][lost:])
    came = came.append(
        seen(rows((6, 2.7), (1, 4.5), (4, 5.0))[:num_late], *[0.7, 0.1, 0.2][:num_late])
    )
    sums = stream.preview(came)
    alone = model(rate)
    alone.observe(torch.cat([told.X, came.X]), torch.cat([told.Y, came.Y]))
    got = StreamPreview(model(rate), sums, told.append(came))
    for one, other in zip(got.marginals(6.0), alone.marginals(6.0), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    at = torch.cat([CHOICES, torch.full((7, 1), 6.0)], -1)
    for X in (at.unsqueeze(-2), at):
        one, other = got.posterior(X), alone.posterior(X)
        torch.testing.assert_close(one.mean, other.mean, rtol=0, atol=1e-10)
        covars = (each.distribution.covariance_matrix for each in (one, other))
        torch.testing.assert_close(*covars, rtol=0, atol=1e-10)
    for one, other in zip(stream.model.marginals(6.0), before, strict=True):
        assert torch.equal(one, other)
    assert stream.update(came[: 4 - lost], rows((1, 4.0)), ConstantLiar(-1.0)) is (lost == 0)


def test_no_preview_of_what_the_rows_cannot_tell(held):
    stream = PendingPosterior(held)
    assert stream.preview(seen(rows((1, 3.0)), 0.5)) is None
    limited = PendingPosterior(model(max_rows=5))
    assert limited.preview(seen(rows((1, 3.0)), 0.5)) is None
    stream = PendingPosterior(model())
    assert stream.update(NONE, rows((1, 3.0)), ConstantLiar(-1.0))
    own = Observations(rows((1, 3.0)), torch.ones(1, 1), torch.ones(1, 1))
    assert stream.preview(own) is None


@pytest.mark.parametrize("weighs", [True, False])
def test_what_is_dropped_leaves_the_posterior_if_it_weighs(weighs, monkeypatch, generator):
    resets = []
    reset = StreamingGP.reset
    monkeypatch.setattr(StreamingGP, "reset", lambda self: (resets.append(self), reset(self)))
    kernel = RBFKernel().double()
    bounds = torch.tensor([[0.0], [1.0]])
    fitter = ModelFitter(InputLayout(1), bounds, kernel, forgetting_rate=0.1, noise_variance=NOISE)
    state = StreamingState(fitter, CHOICES, tol=1e-2 if weighs else 0.5)
    X = rows((2, 1.0), (6, 8.0), (1, 9.0))
    told = seen(X[:2], 0.2, 0.9)
    state.update(told, 2, generator)
    state.condition(told, X[2:], ConstantLiar(-1.0))
    state.drop(told, torch.tensor([False, True]), 9.0)
    assert len(resets) == weighs
    # What stays is counted on from: the next outcome is new.
    told = told[1:].append(seen(X[2:], 0.4))
    state.update(told, 3, generator)
    more = rows((3, 10.0))
    got = state.condition(told, more, ConstantLiar(-1.0))
    expected = StreamingGP(CHOICES, kernel, 0.1, NOISE)
    first = int(weighs)
    Y = torch.tensor([[0.2], [0.9], [0.4], [-1.0]])
    expected.observe(torch.cat([X, more])[first:], Y[first:])
    at = torch.cat([CHOICES, torch.full((7, 1), 10.0)], -1)
    torch.testing.assert_close(
        got.posterior(at).mean, expected.posterior(at).mean, rtol=0, atol=1e-10
    )


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
    assert PendingPosterior(held).update(told, rows((1, 140.0)), ConstantLiar(-1.0)) is False


def test_an_open_trial_before_all_that_is_held(held):
    assert PendingPosterior(held).update(NONE, rows((1, 3.0)), ConstantLiar(-1.0)) is False


def test_an_open_trial_whose_row_is_gone(held):
    stream = PendingPosterior(held)
    X = rows((1, 140.0))
    assert stream.update(NONE, X, ConstantLiar(-1.0))
    for t in range(141, 300):
        stream.model.observe(rows((t % 7, float(t))), torch.zeros(1, 1))
    assert stream.update(NONE, X, ConstantLiar(-1.0)) is False
