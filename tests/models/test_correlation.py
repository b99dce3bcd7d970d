"""Correlations by squared distance, against GPyTorch's kernels."""

from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel

from tvbo.models.correlation import correlation_of

KERNELS = [RBFKernel, MaternKernel]


@pytest.mark.parametrize("kernel", KERNELS)
def test_values_and_slopes_are_gpytorchs(kernel):
    kernel = kernel().double()
    kernel.lengthscale = 1.0
    distances = torch.linspace(1e-3, 6, 50, dtype=torch.float64)
    squares = distances.square().requires_grad_()
    correlation = correlation_of(kernel)
    expected = kernel(torch.zeros(1, 1).double(), distances.unsqueeze(-1)).to_dense()[0]
    values, slopes = correlation.evaluate(squares.detach().numpy(), True)
    in_torch = correlation.in_torch(squares)
    torch.testing.assert_close(torch.from_numpy(values), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(in_torch, expected, rtol=1e-12, atol=0)
    (gradient,) = torch.autograd.grad(in_torch.sum(), squares)
    torch.testing.assert_close(-2 * gradient, torch.from_numpy(slopes), rtol=1e-10, atol=0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_at_distance_zero_it_is_one_and_gradients_are_finite(kernel):
    zero = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    correlation = correlation_of(kernel())
    value = correlation.in_torch(zero.square())
    assert value.tolist() == [1.0, 1.0]
    (gradient,) = torch.autograd.grad(value.sum(), zero)
    assert gradient.tolist() == [0.0, 0.0]
    values, slopes = correlation.evaluate(zero.detach().numpy(), True)
    assert values.tolist() == [1.0, 1.0]
    assert slopes.tolist() == pytest.approx([1.0 if kernel is RBFKernel else 5 / 3] * 2)
