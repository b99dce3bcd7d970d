"""Where nothing is forgotten, time is no question; and what is remembered of the rows asked about.

The factor and what is known of candidates grow in place: copies made on the way must not notice.
"""

import copy
from typing import ClassVar

import pytest
import torch
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import RBFKernel
from gpytorch.means import Mean, ZeroMean
from reference import dense_gp, with_lengthscale

from tvbo.models import ContextualGP, IncrementalGP, TimeVaryingGP

pytestmark = pytest.mark.usefixtures("double_by_default")

NOISE = 0.01
RATE = 0.03


class CountingKernel(RBFKernel):
    """Notes the sizes of the covariances it is asked for."""

    asked: ClassVar[list[tuple[int, int, bool]]] = []

    def forward(self, x1, x2, diag=False, **params):
        CountingKernel.asked.append((x1.shape[-2], x2.shape[-2], diag))
        return super().forward(x1, x2, diag=diag, **params)


class Trend(Mean):
    def forward(self, x):
        return 0.3 + 0.4 * x[..., 0] - 0.2 * x[..., 1] + 0.05 * x[..., 2]


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


def test_rows_at_several_times_in_one_question():
    X, Y = data(30)
    for rate in (0.0, RATE):
        model = incremental(rate)
        model.observe(X, Y)
        rows = torch.cat([at(3.0, 6), at(40.0, 6)])
        assert_same(model, dense(X, Y, rate), rows)
        assert_same(model, dense(X, Y, rate), rows.squeeze(1))


def test_a_later_time_costs_no_covariance():
    X, Y = data(6)
    for rate, expected in ((0.0, []), (RATE, [(20, 20, True), (6, 20, False)])):
        model = incremental(rate, kind=CountingKernel)
        model.observe(X, Y)
        with torch.no_grad():
            model.posterior(at(6.0))
            CountingKernel.asked.clear()
            model.posterior(at(7.0))
        assert CountingKernel.asked == expected


def test_a_new_observation_costs_one_row_of_covariances():
    X, Y = data(7)
    model = incremental(kind=CountingKernel)
    model.observe(X[:6], Y[:6])
    with torch.no_grad():
        model.posterior(at(6.0))
        model.observe(at(6.0)[3], Y[6:])
        CountingKernel.asked.clear()
        model.posterior(at(7.0))
    assert CountingKernel.asked == [(1, 20, False)]


def test_a_prior_mean_may_move_in_time_all_the_same():
    """The kernel forgets nothing, the mean has a trend: what is remembered must not hold it."""
    X, Y = data(25)
    model = incremental(mean=Trend())
    model.observe(X, Y)
    reference = dense(X, Y, mean=Trend())
    for t in (25.0, 26.0, 90.0):
        assert_same(model, reference, at(t))


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


@pytest.mark.parametrize(("rate", "step"), [(0.0, 1), (RATE, 3), (0.0, 50)])
def test_what_is_remembered_grows_past_every_capacity(rate, step):
    """Asked after each step; there is room for 64 at first, then for half as many again."""
    X, Y = data(110)
    X[:, 2] = 0.0
    model = incremental(rate)
    rows = at(1.0)
    for i, (x, y) in enumerate(zip(X.split(step), Y.split(step), strict=True)):
        model.observe(x, y)
        with torch.no_grad():
            model.posterior(rows)
        if i % (40 // step + 1) == 0:
            n = model.num_observations
            assert_same(model, dense(X[:n], Y[:n], rate), rows, atol=1e-8)
    assert_same(model, dense(X, Y, rate), rows, atol=1e-8)


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


@pytest.mark.parametrize("rate", [0.0, RATE])
def test_a_model_does_not_notice_what_its_conditioned_ones_see(rate):
    X, Y = data(40)
    rows = at(40.0)
    model = incremental(rate)
    model.observe(X[:30], Y[:30])
    before = frozen(model, rows)
    fantasies = model.fantasize(rows[:2].squeeze(1), SobolQMCNormalSampler(torch.Size([3]), seed=1))
    again = fantasies.condition_on_observations(rows[4], torch.full((1, 1), 9.0))
    for each in (fantasies, again):
        for t in (40.0, 50.0):
            frozen(each, at(t).unsqueeze(1))
    assert_unchanged(model, rows, before)
    model.observe(X[30:], Y[30:])
    assert_same(model, dense(X, Y, rate), rows)


def test_two_conditioned_models_do_not_notice_each_other():
    X, Y = data(30)
    rows, extra = at(30.0), at(31.0, 2).squeeze(1)
    model = incremental()
    model.observe(X[:25], Y[:25])
    frozen(model, rows)
    first = model.condition_on_observations(extra, torch.ones(2, 1))
    model.observe(X[25:], Y[25:])
    second = model.condition_on_observations(extra, -torch.ones(2, 1))
    for each, n, sign in ((second, 30, -1.0), (first, 25, 1.0), (second, 30, -1.0)):
        outcomes = torch.cat([Y[:n], torch.full((2, 1), sign)])
        assert_same(each, dense(torch.cat([X[:n], extra]), outcomes), rows)


def test_deep_copies_go_their_own_ways():
    X, Y = data(40)
    rows = at(40.0)
    model = incremental()
    for i in range(20):
        model.observe(X[i : i + 1], Y[i : i + 1])
        frozen(model, rows)
    other = copy.deepcopy(model)
    for i in range(20, 40):
        model.observe(X[i : i + 1], Y[i : i + 1])
        other.observe(X[i : i + 1] + 0.01, -Y[i : i + 1])
        frozen(model, rows)
        frozen(other, rows)
    assert_same(model, dense(X, Y), rows)
    moved, turned = X.clone(), Y.clone()
    moved[20:] += 0.01
    turned[20:] *= -1
    assert_same(other, dense(moved, turned), rows)


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


@pytest.mark.parametrize("rate", [0.0, RATE])
def test_one_row_among_those_asked_about(rate):
    """The prediction for the chosen action, after all were compared; also at another time."""
    X, Y = data(30)
    model = incremental(rate)
    model.observe(X, Y)
    frozen(model, at(30.0))
    for t in (30.0, 31.0):
        assert_same(model, dense(X, Y, rate), at(t)[7])
        assert_same(model, dense(X, Y, rate), at(t)[[3, 3, 9]])


def test_asked_in_inference_mode_it_learns_on():
    """Memory made in inference mode must not be written outside of it."""
    model = incremental()
    X, Y = data(8)
    model.observe(X[:3], Y[:3])
    for i in range(3, 7):
        with torch.inference_mode():
            model.posterior(at(1.0))
        model.observe(X[i : i + 1], Y[i : i + 1])
        model.posterior(at(2.0))
    assert_same(model, dense(X[:7], Y[:7]), at(2.0))
