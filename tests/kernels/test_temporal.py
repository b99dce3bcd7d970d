import math
import pickle

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.constraints import Interval
from gpytorch.kernels import RBFKernel
from gpytorch.priors import UniformPrior

from tvbo.kernels import TemporalDecayKernel

pytestmark = pytest.mark.usefixtures("double_by_default")


def kernel_at(rate, **kwargs):
    kernel = TemporalDecayKernel(
        forgetting_rate_constraint=Interval(0.0, 1.0, transform=None), **kwargs
    ).double()
    kernel.forgetting_rate = rate
    return kernel


@pytest.fixture
def times(generator):
    return 10 * torch.rand(7, 1, generator=generator)


@pytest.mark.parametrize("rate", [0.0, 1e-3, 0.03, 0.5, 0.999])
def test_equals_the_double_loop(times, rate):
    covar = kernel_at(rate)(times).to_dense()
    for i in range(7):
        for j in range(7):
            lag = abs(times[i, 0].item() - times[j, 0].item())
            assert covar[i, j].item() == pytest.approx((1 - rate) ** (lag / 2), abs=1e-14)


def test_rate_zero_never_forgets_and_rate_one_forgets_all():
    times = torch.tensor([[0.0], [0.0], [1.0], [1e6]])
    assert torch.equal(kernel_at(0.0)(times).to_dense(), torch.ones(4, 4))
    same = torch.tensor([[1.0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    assert torch.equal(kernel_at(1.0)(times).to_dense(), same)


def test_is_positive_semi_definite_and_diag_is_the_dense_diagonal(times):
    kernel = kernel_at(0.2)
    assert torch.linalg.eigvalsh(kernel(times).to_dense()).min() > 0
    assert torch.equal(kernel(times, diag=True), kernel(times).to_dense().diagonal())
    other = times + 1
    torch.testing.assert_close(kernel(times, other, diag=True), torch.full((7,), 0.8**0.5))


def test_gradient_in_the_rate(times):
    kernel = kernel_at(0.2)

    def covar(raw):
        kernel._parameters["raw_forgetting_rate"] = raw
        return kernel.forward(times, times)

    raw = torch.tensor([0.2], requires_grad=True)
    assert torch.autograd.gradcheck(covar, (raw,))
    # (25): the derivative of (1 - ε)^v is -v (1 - ε)^(v - 1).
    [gradient] = torch.autograd.grad(covar(raw)[0, 1], raw)
    v = (times[0] - times[1]).abs() / 2
    torch.testing.assert_close(gradient, -v * 0.8 ** (v - 1))


def test_default_rate_lies_in_a_box_that_lbfgs_sees():
    kernel = TemporalDecayKernel()
    assert kernel.forgetting_rate.item() == pytest.approx(0.05)
    assert not kernel.raw_forgetting_rate_constraint.enforced
    assert kernel.raw_forgetting_rate_constraint.upper_bound.item() < 1


def test_prior_and_constraint_are_those_given():
    constraint = Interval(0.1, 0.2, transform=None, initial_value=0.15)
    kernel = TemporalDecayKernel(UniformPrior(0.1, 0.2), constraint)
    assert kernel.raw_forgetting_rate_constraint is constraint
    [(_, prior, closure)] = [(n, p, c) for n, _, p, c, _ in kernel.named_priors()]
    assert isinstance(prior, UniformPrior)
    assert closure(kernel) is not None
    with torch.random.fork_rng():
        kernel.sample_from_prior("forgetting_rate_prior")
    assert 0.1 <= kernel.forgetting_rate.item() <= 0.2
    with pytest.raises(TypeError, match="float"):
        TemporalDecayKernel(forgetting_rate_prior=0.5)


def test_batches_of_rates_and_of_times(generator):
    rates = torch.tensor([[0.1], [0.4], [1.0]])
    kernel = kernel_at(rates, batch_shape=torch.Size([3]))
    times = torch.rand(3, 5, 1, generator=generator)
    covar = kernel(times).to_dense()
    assert covar.shape == (3, 5, 5)
    for b in range(3):
        expected = kernel_at(rates[b])(times[b]).to_dense()
        torch.testing.assert_close(covar[b], expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(kernel(times, diag=True), torch.ones(3, 5))
    torch.testing.assert_close(kernel[1](times[1]).to_dense(), covar[1])


def test_pickles_and_restores(times):
    kernel = TemporalDecayKernel(UniformPrior(0, 1)).double()
    kernel.forgetting_rate = 0.3
    again = pickle.loads(pickle.dumps(kernel))
    torch.testing.assert_close(again(times).to_dense(), kernel(times).to_dense())
    fresh = TemporalDecayKernel(UniformPrior(0, 1)).double()
    fresh.load_state_dict(kernel.state_dict())
    assert torch.equal(fresh.forgetting_rate, kernel.forgetting_rate)


def test_multiplies_with_a_kernel_over_other_columns(generator):
    X = torch.rand(6, 3, generator=generator)
    kernel = (RBFKernel(active_dims=[0, 1]) * TemporalDecayKernel(active_dims=[2])).double()
    expected = RBFKernel().double()(X[:, :2]).to_dense() * math.sqrt(0.95) ** torch.cdist(
        X[:, 2:], X[:, 2:]
    )
    torch.testing.assert_close(kernel(X).to_dense(), expected, rtol=0, atol=1e-7)


def test_single_precision_is_kept(times):
    assert TemporalDecayKernel().float()(times.float()).to_dense().dtype == torch.float32


def test_last_dimension_as_batch(times):
    kernel = kernel_at(0.2)
    with pytest.warns(DeprecationWarning, match="last_dim_is_batch"):
        covar = kernel(times, last_dim_is_batch=True).to_dense()
    assert torch.equal(covar, kernel(times).to_dense().unsqueeze(-3))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_times_must_be_finite(bad):
    with pytest.raises(InputDataError):
        TemporalDecayKernel()(torch.tensor([[0.0], [bad]])).to_dense()


def test_one_column_only():
    with pytest.raises(BotorchTensorDimensionError):
        TemporalDecayKernel()(torch.zeros(3, 2)).to_dense()


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_rate_must_be_a_share(bad):
    with pytest.raises(ValueError):
        TemporalDecayKernel().forgetting_rate = bad
