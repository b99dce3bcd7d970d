"""Where nothing is forgotten, time is no question; and what is remembered of the rows asked about.

The factor and what is known of candidates grow in place: copies made on the way must not notice.
"""

import pytest
import torch
from gpytorch.kernels import RBFKernel
from gpytorch.means import ZeroMean
from reference import dense_gp, with_lengthscale

from tvbo.models import ContextualGP, IncrementalGP, TimeVaryingGP

pytestmark = pytest.mark.usefixtures("double_by_default")

NOISE = 0.01
RATE = 0.03


def kernel(kind=RBFKernel):
    return with_lengthscale(kind(ard_num_dims=2), [0.3, 0.5])


def dense(X, Y, rate=0.0, Yvar=None, mean=None, kind=RBFKernel):
    options = {} if mean is None else {"mean_module": mean}
    noise = NOISE if Yvar is None else Yvar
    return dense_gp(X, Y, noise, rate, kernel(kind), **options).eval()


def incremental(rate=0.0, **options):
    return IncrementalGP.from_model(dense(*data(0), rate=rate, **options), NOISE)


def data(n, seed=0):
    """Rows [x1, x2, t], one for each unit of time, and outcomes."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 3, generator=generator)
    X[:, 2] = torch.arange(n)
    return X, torch.randn(n, 1, generator=generator)


def at(t, n=20):
    """Candidates, each by itself, at a time."""
    rows = data(n, seed=5)[0]
    rows[:, 2] = t
    return rows.unsqueeze(1)


def assert_same(model, other, X, atol=1e-9):
    with torch.no_grad():
        one, two = model.posterior(X), other.posterior(X)
        for name in ("mean", "variance"):
            torch.testing.assert_close(getattr(one, name), getattr(two, name), rtol=0, atol=atol)
        one, two = (each.distribution.covariance_matrix for each in (one, two))
        torch.testing.assert_close(one, two, rtol=0, atol=atol)


def frozen(model, X):
    with torch.no_grad():
        posterior = model.posterior(X)
        return posterior.mean.clone(), posterior.distribution.covariance_matrix.clone()


def assert_unchanged(model, X, before):
    mean, covar = frozen(model, X)
    torch.testing.assert_close(mean, before[0], rtol=0, atol=1e-13)
    torch.testing.assert_close(covar, before[1], rtol=0, atol=1e-13)


@pytest.mark.parametrize("rate", [0.0, RATE, 1.0])
@pytest.mark.parametrize("joint", [False, True])
def test_posterior_at_any_time_equals_the_dense_one(rate, joint):
    X, Y = data(20)
    model = incremental(rate)
    reference = dense(X, Y, rate)
    for i in range(20):
        model.observe(X[i : i + 1], Y[i : i + 1])
        with torch.no_grad():
            model.posterior(at(i + 1.0))
    for t in (20.0, 12.5, -4.0, 1e7):
        rows = at(t)
        assert_same(model, reference, rows.squeeze(1) if joint else rows)


@pytest.mark.parametrize("rate", [0.0, RATE])
def test_gradients_equal_the_dense_ones(rate):
    """After the same actions were asked about without gradients, at another time."""
    X, Y = data(25)
    model, reference = incremental(rate), dense(X, Y, rate)
    model.observe(X, Y)
    with torch.no_grad():
        model.posterior(at(3.0))
    gradients = []
    for each in (model, reference):
        rows = at(30.0).requires_grad_()
        posterior = each.posterior(rows)
        gradients.append(
            torch.autograd.grad((posterior.mean + 3 * posterior.variance.sqrt()).sum(), rows)[0]
        )
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-8)
    assert gradients[0][..., :2].abs().max() > 0.1
    assert (gradients[0][..., 2].abs().max() > 1e-4) == (rate > 0)


@pytest.mark.parametrize("rate", [0.0, RATE])
def test_drop_and_reset_in_between(rate):
    X, Y = data(100)
    model, rows = incremental(rate), at(100.0)
    held = torch.arange(0)
    generator = torch.Generator().manual_seed(4)
    for i, part in enumerate(torch.arange(100).split(5)):
        model.observe(X[part], Y[part])
        held = torch.cat([held, part])
        with torch.no_grad():
            model.posterior(rows)
        if i % 4 == 3:
            keep = torch.rand(len(held), generator=generator) < 0.7
            model.drop(keep)
            held = held[keep]
        if i == 9:
            model.reset()
            held = held[:0]
            assert_same(model, dense(X[held], Y[held], rate), rows)
        assert_same(model, dense(X[held], Y[held], rate), rows)
    assert 20 < len(held) < 50


@pytest.mark.parametrize("rate", [0.0, RATE])
@pytest.mark.parametrize("asked_before", [False, True])
def test_a_conditioned_model_does_not_notice_later_observations(rate, asked_before):
    """Also where the candidates had not yet heard of the newest observations."""
    X, Y = data(60)
    rows = at(60.0)
    model = incremental(rate)
    model.observe(X[:20], Y[:20])
    with torch.no_grad():
        model.posterior(rows)
    model.observe(X[20:24], Y[20:24])
    if asked_before:
        with torch.no_grad():
            model.posterior(rows)
    extra = at(61.0, 3).squeeze(1)
    conditioned = model.condition_on_observations(extra, torch.ones(3, 1))
    reference = dense(torch.cat([X[:24], extra]), torch.cat([Y[:24], torch.ones(3, 1)]), rate=rate)
    before = frozen(conditioned, rows) if asked_before else None
    for i in range(24, 60):
        model.observe(X[i : i + 1], -5 * Y[i : i + 1])
        with torch.no_grad():
            model.posterior(rows)
    assert_same(conditioned, reference, rows)
    if before is not None:
        assert_unchanged(conditioned, rows, before)
    shifted = Y.clone()
    shifted[24:] *= -5
    assert_same(model, dense(X, shifted, rate), rows, atol=1e-8)


@pytest.mark.parametrize("rate", [None, 0.0, RATE])
def test_contextual_models_with_and_without_time(rate):
    """Without a time column there is none to overlook: the last one is a context that counts."""
    X, Y = data(15)
    X[:, 2] = X[:, 2] / 15

    def contextual(X, Y):
        context = {"context_features": [2]} if rate is None else {"context_features": [1]}
        time = {} if rate is None else {"time_feature": 2, "forgetting_rate": rate}
        each = {"action_kernel": RBFKernel(), "context_kernel": RBFKernel()}
        return ContextualGP(
            X,
            Y,
            torch.full_like(Y, NOISE),
            mean_module=ZeroMean(),
            outcome_transform=None,
            **context,
            **time,
            **each,
        ).eval()

    model = IncrementalGP.from_model(contextual(*data(0)), NOISE)
    for i in range(15):
        model.observe(X[i : i + 1], Y[i : i + 1])
        frozen(model, at(i / 15))
    for last in (1.0, 0.2):
        assert_same(model, contextual(X, Y), at(last))
        assert_same(model, contextual(X, Y), at(last).squeeze(1))
    spread = (frozen(model, at(1.0))[0] - frozen(model, at(0.2))[0]).abs().max()
    assert (spread > 1e-3) == (rate != 0.0)


def test_a_time_column_in_the_middle():
    """[x1, t, x2]: the column that is overlooked is the one that the model names."""
    X, Y = data(30)
    rows = at(0.4)

    def model_of(X, Y):
        return TimeVaryingGP(
            X,
            Y,
            torch.full_like(Y, NOISE),
            time_feature=1,
            forgetting_rate=0.0,
            covar_module=kernel(),
            mean_module=ZeroMean(),
            outcome_transform=None,
        ).eval()

    model = IncrementalGP.from_model(model_of(*data(0)), NOISE)
    model.observe(X, Y)
    frozen(model, rows)
    for last in (0.4, 3.0):
        assert_same(model, model_of(X, Y), at(last))
