import pytest
import torch
from gpytorch.constraints import Interval

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


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_rate_must_be_a_share(bad):
    with pytest.raises(ValueError):
        TemporalDecayKernel().forgetting_rate = bad
