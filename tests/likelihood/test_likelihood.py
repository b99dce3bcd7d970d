"""Dense against a double loop, panel against dense, gradients against differences."""

import math

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from gpytorch.kernels import RBFKernel, ScaleKernel

from tvbo.kernels import CovarianceMatrixKernel
from tvbo.likelihood import DenseLikelihood, DriftLog, Panel, PanelLikelihood, panel_rows

pytestmark = pytest.mark.usefixtures("double_by_default")


def make_kernel():
    kernel = ScaleKernel(RBFKernel()).double()
    kernel.base_kernel.lengthscale = 1.5
    kernel.outputscale = 0.8
    return kernel


@pytest.fixture
def rows(generator):
    values = torch.randn(9, 5, generator=generator)
    times = torch.tensor([0, 1, 2, 2.5, 4, 7, 7.25, 9, 14.0])
    return panel_rows(values, times)


def loop_likelihood(X, Y, rate, noise, kernel, mean):
    """(24), written from the paper."""
    n = len(X)
    covar = torch.zeros(n, n)
    for i in range(n):
        for j in range(n):
            k = kernel(X[i : i + 1, :1], X[j : j + 1, :1]).to_dense().item()
            covar[i, j] = k * math.exp(-0.5 * rate * abs(X[i, 1] - X[j, 1]).item())
    covar += noise * torch.eye(n)
    if mean is None:
        weights = torch.linalg.inv(covar).sum(0)
        mean = ((weights @ Y) / weights.sum()).item()
    residual = Y.squeeze(-1) - mean
    value = -0.5 * residual @ torch.linalg.inv(covar) @ residual
    return (value - 0.5 * torch.logdet(covar) - n / 2 * math.log(2 * math.pi)).item(), mean


@pytest.mark.parametrize("mean", [None, 0.3])
@pytest.mark.parametrize("rate", [0.0, 0.05, 2.0, 1e9])
def test_dense_and_panel_equal_the_double_loop(rows, rate, mean):
    X, Y = rows
    log = DriftLog.from_rows(X, Y, None, -1)
    expected, expected_mean = loop_likelihood(X, Y, rate, 0.2, make_kernel(), mean)
    for likelihood in (
        DenseLikelihood(log, make_kernel(), mean),
        PanelLikelihood(Panel.from_log(log), make_kernel(), mean),
    ):
        value, used_mean = likelihood(torch.tensor(rate), torch.tensor(0.2))
        assert value.item() == pytest.approx(expected, rel=1e-10)
        assert used_mean == pytest.approx(expected_mean, abs=1e-8)


def test_panel_gradient_equals_dense_gradient_with_repeated_eigenvalues(generator):
    values = torch.randn(12, 4, generator=generator)
    X, Y = panel_rows(values, torch.arange(12.0))
    # Arms far apart: their covariance is a multiple of the identity, every eigenvalue repeated.
    X[:, 0] *= 1e3
    log = DriftLog.from_rows(X, Y, None, -1)
    gradients = []
    for make in (
        lambda k: DenseLikelihood(log, k, None),
        lambda k: PanelLikelihood(Panel.from_log(log), k, None),
    ):
        kernel = make_kernel()
        inputs = [torch.tensor(0.1, requires_grad=True), torch.tensor(0.3, requires_grad=True)]
        value, _ = make(kernel)(*inputs)
        gradients.append(torch.autograd.grad(value, [*inputs, *kernel.parameters()]))
    for dense, panel in zip(*gradients, strict=True):
        torch.testing.assert_close(panel, dense, rtol=1e-9, atol=1e-9)


def test_gradients_equal_differences(rows):
    X, Y = rows
    log = DriftLog.from_rows(X, Y, None, -1)
    for likelihood_of in (
        lambda k: DenseLikelihood(log, k, None),
        lambda k: PanelLikelihood(Panel.from_log(log), k, None),
    ):
        kernel = make_kernel()
        likelihood = likelihood_of(kernel)
        point = [torch.tensor(0.1, requires_grad=True), torch.tensor(0.3, requires_grad=True)]
        parameters = [*point, *kernel.parameters()]
        value, _ = likelihood(*point)
        gradients = torch.autograd.grad(value, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            step, ends = 1e-5, []
            for sign in (1, -1):
                with torch.no_grad():
                    parameter += sign * step
                    ends.append(likelihood(*point)[0].item())
                    parameter -= sign * step
            assert gradient.sum().item() == pytest.approx(
                (ends[0] - ends[1]) / (2 * step), rel=1e-5
            )


def test_known_noise_enters_the_dense_likelihood(rows):
    X, Y = rows
    noise = torch.linspace(0.1, 0.5, len(Y)).unsqueeze(-1)
    log = DriftLog.from_rows(X, Y, noise, -1)
    same = DriftLog.from_rows(X, Y, torch.full_like(Y, 0.2), -1)
    plain = DriftLog.from_rows(X, Y, None, -1)
    rate, unused = torch.tensor(0.1), torch.tensor(123.0)
    expected = DenseLikelihood(plain, make_kernel(), 0.0)(rate, torch.tensor(0.2))[0]
    torch.testing.assert_close(DenseLikelihood(same, make_kernel(), 0.0)(rate, unused)[0], expected)
    assert DenseLikelihood(log, make_kernel(), 0.0)(rate, unused)[0] != expected
    assert Panel.from_log(log) is None


def test_rows_in_any_order_form_the_same_panel(rows, generator):
    X, Y = rows
    order = torch.randperm(len(X), generator=generator)
    one = Panel.from_log(DriftLog.from_rows(X, Y, None, -1))
    other = Panel.from_log(DriftLog.from_rows(X[order], Y[order], None, -1))
    assert torch.equal(one.values, other.values)
    assert torch.equal(one.times, other.times)


def test_a_missing_or_repeated_cell_is_no_panel(rows):
    X, Y = rows
    assert Panel.from_log(DriftLog.from_rows(X[1:], Y[1:], None, -1)) is None
    twice = torch.cat([X[1:], X[1:2]])
    assert Panel.from_log(DriftLog.from_rows(twice, Y, None, -1)) is None


def test_singular_spatial_covariance(rows):
    X, Y = rows
    log = DriftLog.from_rows(X, Y, None, -1)
    kernel = CovarianceMatrixKernel(torch.ones(5, 5))
    rate, noise = torch.tensor(0.1), torch.tensor(0.2)
    torch.testing.assert_close(
        PanelLikelihood(Panel.from_log(log), kernel, None)(rate, noise)[0],
        DenseLikelihood(log, kernel, None)(rate, noise)[0],
        rtol=1e-10,
        atol=0,
    )


def test_panel_rows_need_one_time_per_row():
    with pytest.raises(BotorchTensorDimensionError, match=r"values T x n and T times. Got"):
        panel_rows(torch.zeros(4, 3), torch.zeros(5))
