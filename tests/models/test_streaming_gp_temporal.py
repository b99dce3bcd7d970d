"""The streaming model with other temporal kernels than one decay, beside the dense posterior."""

import math

import pytest
import reference
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import ScaleKernel
from gpytorch.means import ConstantMean
from torch.distributions import MultivariateNormal

from tvbo.kernels import (
    ConstantTemporalKernel,
    DampedOscillationKernel,
    SeasonalKernel,
    TemporalDecayKernel,
    TemporalMaternKernel,
)
from tvbo.models import StreamingGP, TimeVaryingGP
from tvbo.models.stream_preview import Amendments, StreamPreview, amended, predict_without
from tvbo.models.streaming import streaming_rows
from tvbo.spaces.observations import Observations

pytestmark = pytest.mark.usefixtures("double_by_default")

# Unequal steps, several at one time, and late ones in the second half.
TIMES = [0, 0, 0, 1, 1.5, 4, 4, 7, 8, 8.25, 9, 12, 3, 12.5, 11, 11, 13, 1.25, 13, 13]


def decay(rate=0.1):
    kernel = TemporalDecayKernel()
    kernel.forgetting_rate = rate
    return kernel


def matern(nu=1.5, lengthscale=4.0):
    return reference.with_lengthscale(TemporalMaternKernel(nu=nu), lengthscale)


def oscillation(rate=0.05):
    kernel = DampedOscillationKernel(period=5.0)
    kernel.forgetting_rate = rate
    return kernel


def season():
    return SeasonalKernel(period=6.0, num_harmonics=2)


def scaled(kernel, scale):
    kernel = ScaleKernel(kernel)
    kernel.outputscale = scale
    return kernel


def one(kernel):
    return [reference.rbf(0.4)], [kernel]


CASES = {
    "matern32": lambda: one(matern()),
    "matern52": lambda: one(matern(2.5)),
    "oscillation": lambda: one(oscillation()),
    "season": lambda: one(season()),
    "constant": lambda: one(ConstantTemporalKernel()),
    "scaled decay": lambda: one(scaled(decay(), 2.0)),
    "two decays": lambda: (
        [reference.rbf(0.4), scaled(reference.matern(0.8), 0.5)],
        [decay(), decay(0.01)],
    ),
    "level and season, shared": lambda: (
        [reference.rbf(0.4)],
        [scaled(matern(), 0.7), scaled(season(), 0.4)],
    ),
    "three": lambda: (
        [reference.rbf(0.4), reference.rbf(1.0), scaled(reference.matern(0.5), 0.3)],
        [decay(0.3), matern(2.5), oscillation()],
    ),
    "constant and two": lambda: (
        [reference.rbf(0.4), reference.rbf(1.0), reference.rbf(0.2)],
        [ConstantTemporalKernel(), decay(), season()],
    ),
}


class Dense:
    """The joint normal distribution of the outcomes and the function, by the definition."""

    def __init__(self, case, X, Y, noise):
        self.over_actions, self.over_time = case
        self.X, self.Y = X, Y
        self.K = self.covar(X, X) + torch.diag_embed(noise.expand(len(X)))

    @torch.no_grad()
    def covar(self, X1, X2):
        kernels = self.over_actions * (len(self.over_time) // len(self.over_actions))
        return sum(
            k(X1[:, :-1], X2[:, :-1]).to_dense() * tau(X1[:, -1:], X2[:, -1:]).to_dense()
            for k, tau in zip(kernels, self.over_time, strict=True)
        )

    def posterior(self, X):
        cross = self.covar(X, self.X)
        weights = torch.linalg.solve(self.K, cross.mT).mT
        covar = self.covar(X, X) - weights @ cross.mT
        return (weights @ self.Y).squeeze(-1), covar

    def log_likelihood(self):
        return MultivariateNormal(torch.zeros(len(self.X)), self.K).log_prob(self.Y.squeeze(-1))


def make(small, case, noise=None, **options):
    covar_module, temporal_kernel = case
    return StreamingGP(
        small.choices,
        covar_module if len(covar_module) > 1 else covar_module[0],
        noise_variance=small.noise if noise is None else noise,
        temporal_kernel=temporal_kernel if len(temporal_kernel) > 1 else temporal_kernel[0],
        **options,
    )


def assert_same(model, dense, X, atol=1e-9):
    posterior = model.posterior(X)
    mean, covar = dense.posterior(X)
    torch.testing.assert_close(posterior.mean.squeeze(-1), mean, rtol=0, atol=atol)
    found = posterior.distribution.covariance_matrix
    torch.testing.assert_close(found, covar, rtol=0, atol=atol)


@pytest.fixture(params=list(CASES))
def case(request):
    return CASES[request.param]()


@pytest.mark.parametrize("blocks", [[1] * 20, [3, 1, 9, 7]])
def test_equals_the_dense_posterior(small, case, blocks):
    X, Y = small.data(TIMES)
    X[6] = X[5]  # a repeat
    generator = torch.Generator().manual_seed(2)
    Yvar = 0.01 + torch.rand(20, 1, generator=generator)
    model = make(small, case)
    for part in torch.arange(20).split(blocks):
        model.observe(X[part], Y[part], Yvar[part])
    dense = Dense(case, X, Y, Yvar.squeeze(-1))
    for t in (13.0, 13.75, 40.0):
        assert_same(model, dense, small.rows(t))
    # Different future times in one joint posterior, and single rows.
    mixed = small.rows(13.0)
    mixed[:, -1] += torch.tensor([0.0, 1, 1, 2, 0.5, 0, 7, 3, 100])
    assert_same(model, dense, mixed)
    single = model.posterior(mixed.unsqueeze(1))
    mean, covar = dense.posterior(mixed)
    torch.testing.assert_close(single.mean.flatten(), mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(single.variance.flatten(), covar.diagonal(), rtol=0, atol=1e-9)
    mean, variance = model.marginals(14.0)
    posterior = model.posterior(small.rows(14.0))
    torch.testing.assert_close(mean, posterior.mean[:, 0], rtol=0, atol=1e-12)
    torch.testing.assert_close(variance, posterior.variance[:, 0], rtol=0, atol=1e-12)
    expected = dense.log_likelihood()
    torch.testing.assert_close(model.log_likelihood, expected, rtol=1e-9, atol=0)
    prior = model.prior_covariance(X, mixed)
    torch.testing.assert_close(prior, dense.covar(X, mixed), rtol=0, atol=1e-12)


def in_order(count, seed=1):
    """Times of ``count`` events, unequal steps, each third late by some."""
    generator = torch.Generator().manual_seed(seed)
    times = torch.rand(count, generator=generator).cumsum(0)
    late = torch.rand(count, generator=generator) * 6
    return times - torch.where(torch.arange(count) % 3 == 2, late, 0.0)


@pytest.mark.slow
def test_evicted_rows_are_dropped_or_merged_without_error(small, case):
    """Many late events, some before the time of the summary of merged rows."""
    count = 160
    X, Y = small.data(in_order(count))
    model = make(small, case, max_lateness=7.0)
    summary, early = model.innovations.evicted, 0
    for i in range(count):
        early += int(summary.early is not None and X[i, -1] < model.now)
        model.observe(X[i : i + 1], Y[i : i + 1])
    assert model.innovations.store.num_evicted > 0
    assert (summary.merged is None) or early > 0
    forgets = all(kernel.weight(torch.tensor(1e6)) < 1e-9 for kernel in flat(case[1]))
    assert forgets or summary.merged is not None
    dense = Dense(case, X, Y, torch.tensor(small.noise))
    now = model.now.item()
    assert_same(model, dense, small.rows(now + 0.7), atol=1e-8)
    assert model.neglected.item() <= 1e-11
    assert model.log_likelihood.item() == pytest.approx(dense.log_likelihood().item(), rel=1e-8)


def flat(kernels):
    return [k.base_kernel if isinstance(k, ScaleKernel) else k for k in kernels]


def test_late_events_after_a_merge_need_no_inverse(small):
    """Forgetting so fast that what a row said at its time cannot be recovered from later ones."""
    case = [reference.rbf(0.4)] * 2, [ConstantTemporalKernel(), decay(0.9999)]
    times = torch.arange(160.0)
    times[1::2] -= 40
    X, Y = small.data(times)
    model = make(small, case, max_lateness=45.0)
    for i in range(160):
        model.observe(X[i : i + 1], Y[i : i + 1])
    assert model.innovations.evicted.early is not None
    dense = Dense(case, X, Y, torch.tensor(small.noise))
    assert_same(model, dense, small.rows(model.now.item()), atol=1e-9)


def test_from_model(small, case):
    covar_module, temporal_kernel = case
    shared = len(covar_module) == 1 and len(temporal_kernel) > 1
    if any(isinstance(kernel, ScaleKernel) for kernel in temporal_kernel) and not shared:
        pytest.skip("A dense model has its amplitudes in the kernels over actions.")
    X, Y = small.data(TIMES)
    dense = TimeVaryingGP(
        X,
        3 * Y + 5,
        torch.full_like(Y, small.noise),
        covar_module=covar_module[0] if len(covar_module) == 1 else covar_module,
        temporal_kernel=flat(temporal_kernel),
    )
    if shared:
        for part, kernel in zip(
            dense.covar_module.kernels[1].kernels, temporal_kernel, strict=True
        ):
            part.outputscale = kernel.outputscale.item()
    model = StreamingGP.from_model(dense, small.choices, noise_variance=small.noise)
    model.observe(X, 3 * Y + 5)
    small.assert_same(model, dense, small.rows(14.0), atol=1e-8)
    dense_decay = isinstance(temporal_kernel[0], TemporalDecayKernel) and len(temporal_kernel) == 1
    assert (model.forgetting_rate is None) == (
        not dense_decay and not isinstance(dense.temporal_kernel, ConstantTemporalKernel)
    )


def test_batches(small):
    temporal = TemporalMaternKernel(batch_shape=torch.Size([2]))
    temporal.lengthscale = torch.tensor([2.0, 6.0]).reshape(2, 1, 1)
    rate = TemporalDecayKernel(batch_shape=torch.Size([3, 1]))
    rate.forgetting_rate = torch.tensor([0.01, 0.1, 0.5]).reshape(3, 1, 1)
    model = StreamingGP(
        small.choices,
        [reference.rbf(0.4), reference.rbf(0.8)],
        noise_variance=small.noise,
        temporal_kernel=[temporal, rate],
    )
    assert model.batch_shape == (3, 2)
    data = [[small.data(TIMES, seed=2 * i + j) for j in range(2)] for i in range(3)]
    X = torch.stack([torch.stack([X for X, _ in row]) for row in data])
    Y = torch.stack([torch.stack([Y for _, Y in row]) for row in data])
    model.observe(X[..., :12, :], Y[..., :12, :])
    model.observe(X[..., 12:, :], Y[..., 12:, :])
    mixed = small.rows(13.0)
    mixed[:, -1] += torch.arange(9.0)
    posterior = model.posterior(mixed)
    mean, variance = model.marginals(15.0)
    for i in range(3):
        for j in range(2):
            parts = [matern(lengthscale=[2.0, 6.0][j]), decay([0.01, 0.1, 0.5][i])]
            case = [reference.rbf(0.4), reference.rbf(0.8)], parts
            dense = Dense(case, X[i, j], Y[i, j], torch.tensor(small.noise))
            expected, covar = dense.posterior(mixed)
            torch.testing.assert_close(posterior.mean[i, j, :, 0], expected)
            found = posterior.distribution.covariance_matrix[i, j]
            torch.testing.assert_close(found, covar, rtol=0, atol=1e-9)
            torch.testing.assert_close(
                model.log_likelihood[i, j], dense.log_likelihood(), rtol=1e-9, atol=0
            )
            later, covar = dense.posterior(small.rows(15.0))
            torch.testing.assert_close(mean[i, j], later)
            torch.testing.assert_close(variance[i, j], covar.diagonal())
    # Copies of batch elements, with one more observation each.
    more = model.condition_on_observations(mixed[:1], torch.ones(4, 3, 2, 1, 1))
    assert more.batch_shape == (4, 3, 2)
    assert more.num_observed == model.num_observed + 1


def test_revisions_previews_and_observations_left_out(small, case):
    X, Y = small.data(TIMES)
    noise = torch.tensor(small.noise)
    model = make(small, case)
    model.observe(X, torch.zeros_like(Y))
    order = X[:, -1].argsort(stable=True)
    model.revise(torch.arange(20), Y[order].squeeze(-1))
    dense = Dense(case, X, Y, noise)
    assert_same(model, dense, small.rows(13.5))
    assert model.log_likelihood.item() == pytest.approx(dense.log_likelihood().item(), rel=1e-9)

    left_out = [3, 8, 17]
    kept = order[[i for i in range(20) if i not in left_out]]
    without = Dense(case, X[kept], Y[kept], noise)
    mean, covar = without.posterior(small.rows(14.0)[4:5])
    found = predict_without(model, left_out, small.rows(14.0)[4:5])
    assert found == pytest.approx((mean.item(), covar.item()), abs=1e-9)
    residual = model.leave_out_residual(torch.tensor(left_out))
    mean, _ = without.posterior(X[order[left_out]])
    expected = Y[order[left_out]].squeeze(-1) - mean
    torch.testing.assert_close(residual, expected, rtol=0, atol=1e-9)

    new_X, new_Y = small.data([13.0, 14.5, 14.5], seed=5)
    new = Observations(new_X, new_Y)
    sums = amended(model, Amendments({2: 0.5, 11: -1.0}, left_out, new))
    changed = Y.clone()
    changed[order[2]] += 0.5
    changed[order[11]] -= 1.0
    all_X, all_Y = torch.cat([X[kept], new_X]), torch.cat([changed[kept], new_Y])
    preview = StreamPreview(model.blank(), sums, Observations(all_X, all_Y))
    dense = Dense(case, all_X, all_Y, noise)
    mean, covar = dense.posterior(small.rows(15.0))
    posterior = preview.posterior(small.rows(15.0).unsqueeze(1))
    torch.testing.assert_close(posterior.mean.flatten(), mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(posterior.variance.flatten(), covar.diagonal(), rtol=0, atol=1e-9)
    assert_same(preview, dense, small.rows(15.0))


@pytest.mark.slow
def test_draws_have_the_posterior_distribution(small, case, monkeypatch):
    """A draw is linear in its normal numbers: their images add to the posterior covariance."""
    X, Y = small.data([0, 0, 1.5, 9, 8, 13])
    model = make(small, case)
    model.observe(X, Y)
    rows = small.rows(14.0)
    taken = 0

    def drawn(source):
        nonlocal taken
        taken = 0

        def normals(size, dtype=None, generator=None):
            nonlocal taken
            part = torch.zeros(size, dtype=dtype)
            if source is not None and taken <= source < taken + size:
                part[source - taken] = 1.0
            taken += size
            return part

        with monkeypatch.context() as patch:
            patch.setattr(torch, "randn", normals)
            return model.draw(14.0, torch.Generator())

    posterior = model.posterior(rows)
    mean = drawn(None)
    torch.testing.assert_close(mean, posterior.mean.squeeze(-1), rtol=0, atol=1e-8)
    count = taken
    images = torch.stack([drawn(i) - mean for i in range(count)])
    covar = posterior.distribution.covariance_matrix
    torch.testing.assert_close(images.mT @ images, covar, rtol=0, atol=1e-7)


def test_state_is_saved_and_restored(small, case):
    X, Y = small.data(TIMES)
    model, fresh = make(small, case), make(small, case)
    model.observe(X[:10], Y[:10])
    fresh.load_state_dict(model.state_dict())
    for each in (model, fresh):
        each.observe(X[10:], Y[10:])
    rows = small.rows(14.0)
    assert torch.equal(model.posterior(rows).mean, fresh.posterior(rows).mean)
    blank = model.blank()
    model.reset()
    for each in (model, blank):
        each.observe(X, Y)
    assert torch.equal(model.posterior(rows).mean, blank.posterior(rows).mean)


def test_one_decay_is_the_same_model_in_any_form(small):
    X, Y = small.data(TIMES)
    by_rate = small.streaming(0.1)
    by_kernel = make(small, one(decay()))
    as_states = make(small, one(scaled(decay(), 1.0 + 1e-15)))
    for model in (by_rate, by_kernel, as_states):
        model.observe(X, Y)
    rows = small.rows(14.0)
    assert torch.equal(by_rate.posterior(rows).mean, by_kernel.posterior(rows).mean)
    assert by_kernel.forgetting_rate.item() == pytest.approx(0.1)
    assert as_states.forgetting_rate is None
    small.assert_same(as_states, by_rate, rows, atol=1e-11)
    static = make(small, one(ConstantTemporalKernel()))
    assert static.is_static
    assert static.forgetting_rate == 0


def test_what_is_held_is_what_weighs():
    """As many rows as the component needs that forgets least."""
    choices = torch.linspace(0, 1, 300).unsqueeze(-1)
    kernels, temporal = [reference.rbf(0.1), reference.rbf(0.3)], [decay(0.2), decay(0.1)]
    model = StreamingGP(
        choices, kernels, None, 0.04, temporal_kernel=temporal, max_lateness=0.0, tol=1e-4
    )
    for t in range(250):
        X = torch.tensor([[choices[(7 * t) % 300].item(), float(t)]])
        model.observe(X, torch.ones(1, 1))
    assert model.innovations.evicted.merged is None
    assert model.num_rows <= 1.6 * streaming_rows(0.1, 1e-4)
    assert 0 < model.neglected.item() < 1e-2


def test_max_rows_bounds_the_error(small, case):
    X, Y = small.data(torch.arange(60.0))
    model = make(small, case, max_rows=20)
    model.observe(X, Y)
    dense = Dense(case, X, Y, torch.tensor(small.noise))
    _, covar = dense.posterior(small.rows(60.0))
    prior = dense.covar(*[small.rows(60.0)] * 2).diagonal()
    error = (model.posterior(small.rows(60.0)).variance.squeeze(-1) - covar.diagonal()).abs()
    assert model.num_rows <= 20
    assert (error <= model.neglected * prior + 1e-9).all()


def test_prior_mean(small):
    mean_module = ConstantMean()
    mean_module.constant.data.fill_(3.0)
    case = CASES["matern32"]()
    X, Y = small.data(TIMES)
    model, plain = make(small, case, mean_module=mean_module), make(small, case)
    model.observe(X, Y + 3)
    plain.observe(X, Y)
    difference = model.posterior(small.rows(14.0)).mean - plain.posterior(small.rows(14.0)).mean
    torch.testing.assert_close(difference, torch.full((9, 1), 3.0))


def test_errors(small):
    kernel = reference.rbf(0.4)

    def refuses(error, message, *args, **kwargs):
        with pytest.raises(error):
            StreamingGP(small.choices, *args, **{"noise_variance": 0.1, **kwargs})

    refuses(ValueError, "exactly one of forgetting_rate.*Got neither", kernel)
    refuses(ValueError, "exactly one of.*Got both", kernel, 0.1, temporal_kernel=decay())
    refuses(ValueError, "noise_variance >= 0, finite. Got None", kernel, 0.1, noise_variance=None)
    refuses(ValueError, "without active_dims", kernel, temporal_kernel=matern_on_column())
    two = [kernel, kernel]
    refuses(ValueError, "as many as.*Got 2 and 1", two, temporal_kernel=decay())
    refuses(ValueError, "as many as.*Got 1 and 0", kernel, temporal_kernel=[])
    model = make(small, CASES["matern32"](), max_lateness=0.0)
    X, Y = small.data([1.0, 2.0])
    model.observe(X, Y)
    with pytest.raises(InputDataError, match="max_lateness=0"):
        _ = model.log_likelihood
    assert math.isfinite(model.posterior(small.rows(3.0)).mean.sum())


def matern_on_column():
    return TemporalMaternKernel(active_dims=[2])
