"""The streaming model with other temporal kernels than one decay, beside the dense posterior."""

import pytest
import reference
import torch
from gpytorch.kernels import ScaleKernel
from gpytorch.means import ConstantMean
from torch.distributions import MultivariateNormal

from tvbo.kernels import (
    ConstantTemporalKernel,
    SeasonalKernel,
    TemporalDecayKernel,
    TemporalMaternKernel,
)
from tvbo.models import StreamingGP, TimeVaryingGP

pytestmark = pytest.mark.usefixtures("double_by_default")

# Unequal steps, several at one time, and late ones in the second half.
TIMES = [0, 0, 0, 1, 1.5, 4, 4, 7, 8, 8.25, 9, 12, 3, 12.5, 11, 11, 13, 1.25, 13, 13]


def decay(rate=0.1):
    kernel = TemporalDecayKernel()
    kernel.forgetting_rate = rate
    return kernel


def matern(nu=1.5, lengthscale=4.0):
    return reference.with_lengthscale(TemporalMaternKernel(nu=nu), lengthscale)


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
        [decay(0.3), matern(2.5), season()],
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
