"""Every temporal kernel: its correlation, its states, and GPyTorch's kernels as a reference."""

import math
import pickle
from copy import deepcopy

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.constraints import Interval
from gpytorch.kernels import MaternKernel, PeriodicKernel, RBFKernel
from gpytorch.priors import UniformPrior

from tvbo.kernels import (
    ConstantTemporalKernel,
    SeasonalKernel,
    TemporalDecayKernel,
    TemporalKernel,
    TemporalMaternKernel,
)

pytestmark = pytest.mark.usefixtures("double_by_default")

MAKE = {
    "decay": TemporalDecayKernel,
    "constant": ConstantTemporalKernel,
    "matern32": TemporalMaternKernel,
    "matern52": lambda **kwargs: TemporalMaternKernel(nu=2.5, **kwargs),
    "season": lambda **kwargs: SeasonalKernel(period=7.0, num_harmonics=3, **kwargs),
}

LAGS = torch.tensor([0.0, 1e-6, 0.3, 1.0, 6.9, 7.0, 40.0], dtype=torch.float64)


@pytest.fixture(params=list(MAKE))
def make(request):
    return MAKE[request.param]


def subclasses(cls):
    return {cls}.union(*(subclasses(each) for each in cls.__subclasses__()))


def test_every_temporal_kernel_is_tested_here():
    made = {type(make()) for make in MAKE.values()}
    whole = {
        each
        for each in subclasses(TemporalKernel)
        if each.correlation is not TemporalKernel.correlation
        and each.__module__.startswith("tvbo.")
    }
    assert whole == made


def test_correlation_is_that_of_the_observed_state(make):
    kernel = make()
    h, P = kernel.observation, kernel.stationary_covariance()
    assert h.shape == (kernel.num_states,)
    assert P.shape == (kernel.num_states, kernel.num_states)
    A = kernel.transition(LAGS)
    assert A.shape == (len(LAGS), kernel.num_states, kernel.num_states)
    torch.testing.assert_close(h @ A @ P @ h, kernel.correlation(LAGS), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(h @ P @ h, torch.tensor(1.0), rtol=1e-14, atol=0)
    assert kernel.transition(LAGS[3]).shape == P.shape


def test_transitions_follow_each_other_and_keep_the_prior(make):
    kernel = make()
    P = kernel.stationary_covariance()
    A = kernel.transition(LAGS)
    identity = torch.eye(kernel.num_states)
    torch.testing.assert_close(A[0], identity, rtol=0, atol=1e-15)
    for a, first in zip(LAGS, A, strict=True):
        torch.testing.assert_close(first @ A, kernel.transition(LAGS + a), rtol=1e-12, atol=1e-13)
    noise = P - A @ P @ A.mT
    assert torch.linalg.eigvalsh(noise).min() > -1e-14


def test_covariances_equal_the_double_loop_and_are_positive_semi_definite(make, generator):
    kernel = make()
    # Unequal steps, several at one time, in no order.
    times = torch.cat([20 * torch.rand(6, 1, generator=generator), torch.full((2, 1), 3.0)])
    covar = kernel(times).to_dense()
    for i, s in enumerate(times.flatten()):
        for j, t in enumerate(times.flatten()):
            expected = kernel.correlation((s - t).abs())
            torch.testing.assert_close(covar[i, j], expected, rtol=1e-14, atol=1e-15)
    assert torch.linalg.eigvalsh(covar).min() > -1e-13
    torch.testing.assert_close(kernel(times, diag=True), torch.ones(8), rtol=1e-14, atol=0)
    other = times + 1.5
    diag = kernel(times, other, diag=True)
    torch.testing.assert_close(diag, kernel(times, other).to_dense().diagonal())
    assert kernel(times, times[:0]).shape == (8, 0)


def test_gradients_in_the_parameters_and_in_time(make):
    kernel = make()
    names, raw = (
        zip(*kernel.named_parameters(), strict=True) if list(kernel.parameters()) else ((), ())
    )
    times = torch.tensor([[0.0], [0.4], [3.0], [8.5]], requires_grad=True)
    other = times.detach() + 0.1

    def covar(times, *values):
        twin = deepcopy(kernel)
        for name, value in zip(names, values, strict=True):
            twin._parameters[name] = value
        A = twin.transition(times.flatten())
        return twin.forward(times, other), A, twin.stationary_covariance() + 0 * A[0]

    values = [value.detach().clone().requires_grad_() for value in raw]
    assert torch.autograd.gradcheck(covar, (times, *values))


@pytest.mark.parametrize("nu", [1.5, 2.5])
def test_matern_equals_gpytorch(nu):
    kernel = TemporalMaternKernel(nu=nu)
    kernel.lengthscale = 3.7
    # The closed form, since GPyTorch's adds rounding when it computes distances.
    reference = MaternKernel(nu=nu)
    reference.lengthscale = 3.7
    covar = kernel(LAGS[:, None], torch.zeros(1, 1)).to_dense()
    expected = reference(LAGS[:, None], torch.zeros(1, 1)).to_dense()
    torch.testing.assert_close(covar, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("lengthscale", [0.15, 1.0, 30.0])
def test_season_tends_to_the_periodic_kernel_without_its_constant(lengthscale):
    kernel = SeasonalKernel(period=7.0, num_harmonics=60)
    kernel.lengthscale = lengthscale
    reference = PeriodicKernel()
    reference.period_length, reference.lengthscale = 7.0, lengthscale**2
    grid = torch.arange(4096) * 7.0 / 4096
    periodic = reference(
        torch.stack([grid, 0 * grid], dim=0)[:, :, None], grid[:1, None]
    ).to_dense()
    mean = periodic[0].mean()
    expected = (periodic[0].flatten() - mean) / (1 - mean)
    if lengthscale == 30.0:
        # The difference above cancels; the limit is a sine wave with a known correction.
        z = lengthscale**-2
        expected = torch.cos(2 * math.pi * grid / 7) + z / 4 * torch.cos(4 * math.pi * grid / 7)
        expected = expected / (1 + z / 4)
        tolerance = z**2
    else:
        tolerance = 1e-12
    torch.testing.assert_close(kernel.correlation(grid), expected, rtol=0, atol=tolerance)


def test_weights_of_harmonics_have_full_relative_precision():
    from scipy.special import ive

    for lengthscale in (0.05, 0.5, 2.0, 100.0):
        kernel = SeasonalKernel(period=1.0, num_harmonics=5)
        kernel.lengthscale = lengthscale
        bessel = torch.tensor([ive(j, lengthscale**-2) for j in range(1, 6)])
        torch.testing.assert_close(kernel.weights, bessel / bessel.sum(), rtol=1e-12, atol=0)


def test_limits():
    far = torch.tensor([7e6])
    assert SeasonalKernel(period=7.0).correlation(far).item() == pytest.approx(1.0, abs=1e-8)
    assert torch.equal(ConstantTemporalKernel().correlation(LAGS), torch.ones(7))


def test_batches(make, generator):
    kernel = make(batch_shape=torch.Size([3]))
    for parameter in kernel.parameters():
        parameter.data += 0.5 * torch.rand(parameter.shape, generator=generator)
    times = 5 * torch.rand(3, 4, 1, generator=generator)
    covar = kernel(times).to_dense()
    assert covar.shape == (3, 4, 4)
    assert kernel(times, diag=True).shape == (3, 4)
    # The same times in every batch element, and more dimensions in front.
    assert kernel(times[0]).shape == (3, 4, 4)
    assert kernel(times.expand(2, 3, 4, 1)).to_dense().shape == (2, 3, 4, 4)
    lag = times.squeeze(-1)
    A, P = kernel.transition(lag), kernel.stationary_covariance()
    assert A.shape == (3, 4, kernel.num_states, kernel.num_states)
    for b in range(3):
        one = kernel[b]
        assert one.batch_shape == torch.Size()
        torch.testing.assert_close(one(times[b]).to_dense(), covar[b])
        torch.testing.assert_close(one.transition(lag[b]), A[b])
        torch.testing.assert_close(one.stationary_covariance(), P[b])
    some = kernel[torch.tensor([2, 0, 0])]
    torch.testing.assert_close(some.transition(lag[[2, 0, 0]]), A[[2, 0, 0]])


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (TemporalMaternKernel, "lengthscale", 15.0),
        (TemporalDecayKernel, "forgetting_rate", 0.3),
        (MAKE["season"], "period", 15.0),
        (MAKE["season"], "lengthscale", 15.0),
    ],
)
def test_prior_and_constraint_are_those_given(make, name, value):
    low, high = (0.1, 0.6) if name == "forgetting_rate" else (5.0, 20.0)
    constraint = Interval(low, high)
    prior = UniformPrior(low, high)
    kernel = make(**{f"{name}_prior": prior, f"{name}_constraint": constraint})
    assert getattr(kernel, f"raw_{name}_constraint") is constraint
    assert getattr(kernel, f"raw_{name}").requires_grad
    setattr(kernel, name, value)
    torch.testing.assert_close(getattr(kernel, name).flatten(), torch.tensor([value]))
    [(given, closure)] = [(p, c) for _, _, p, c, _ in kernel.named_priors()]
    assert given is prior
    torch.testing.assert_close(closure(kernel).flatten(), torch.tensor([value]))
    with torch.random.fork_rng():
        kernel.sample_from_prior(f"{name}_prior")
    assert low <= getattr(kernel, name).item() <= high
    again = pickle.loads(pickle.dumps(kernel))
    torch.testing.assert_close(again.correlation(LAGS), kernel.correlation(LAGS))
    with pytest.raises(TypeError, match="gpytorch.priors.Prior"):
        make(**{f"{name}_prior": 0.5})


def test_what_is_learned_without_being_told_how():
    def learned(kernel):
        return {name for name, p in kernel.named_parameters() if p.requires_grad}

    assert learned(MAKE["season"]()) == {"raw_lengthscale"}
    assert learned(SeasonalKernel(period=7.0, num_harmonics=1)) == set()


def test_parameters_are_restored_and_types_kept(make):
    kernel = make()
    state = kernel.state_dict()
    assert not any("_one" in name for name in state)
    fresh = make()
    fresh.load_state_dict(state)
    single = make().float()
    times = torch.linspace(0, 5, 4).float()[:, None]
    assert single(times).to_dense().dtype == torch.float32
    assert single.transition(times[:, 0]).dtype == torch.float32
    assert single.stationary_covariance().dtype == torch.float32
    assert single.observation.dtype == torch.float32


def test_multiplies_with_a_kernel_over_other_columns(make, generator):
    X = torch.rand(6, 3, generator=generator)
    kernel = RBFKernel(active_dims=[0, 1]) * make(active_dims=[2])
    expected = RBFKernel()(X[:, :2]).to_dense() * make()(X[:, 2:]).to_dense()
    torch.testing.assert_close(kernel(X).to_dense(), expected)


def test_errors(make):
    with pytest.raises(InputDataError):
        make()(torch.tensor([[0.0], [math.nan]])).to_dense()
    with pytest.raises(BotorchTensorDimensionError):
        make()(torch.zeros(3, 2)).to_dense()


def test_arguments_out_of_range():
    with pytest.raises(ValueError, match="0.5"):
        TemporalMaternKernel(nu=0.5)
    for period in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError):
            SeasonalKernel(period=period)
    with pytest.raises(ValueError, match="0"):
        SeasonalKernel(period=7.0, num_harmonics=0)
