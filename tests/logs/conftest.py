"""What the tests of every likelihood share: a kernel with parameters, and values with gradients."""

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from tvbo.logs.dataset import panel_rows


@pytest.fixture
def make_kernel():
    """A kernel over actions with a scale and a length-scale per column."""

    def make(columns=1):
        kernel = ScaleKernel(RBFKernel(ard_num_dims=columns)).double()
        kernel.base_kernel.lengthscale = 1.5
        kernel.outputscale = 0.8
        return kernel

    return make


@pytest.fixture
def evaluate():
    """Value, mean and gradient in ρ, σ² and every kernel parameter, flat."""

    def run(likelihood_of, kernel, rate, noise=0.2):
        inputs = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (rate, noise)]
        value, mean = likelihood_of(kernel)(*inputs)
        gradients = torch.autograd.grad(
            value, [*inputs, *kernel.parameters()], allow_unused=True, materialize_grads=True
        )
        return value.item(), mean, torch.cat([x.flatten() for x in gradients])

    return run


@pytest.fixture
def differences():
    """The gradient of :func:`evaluate` by central differences, one parameter after the other."""

    def run(likelihood_of, kernel, rate, noise=0.2, step=1e-5):
        point = [torch.tensor(x, dtype=torch.float64) for x in (rate, noise)]
        likelihood = likelihood_of(kernel)
        slopes = []
        with torch.no_grad():
            for parameter in [*point, *kernel.parameters()]:
                for i in range(parameter.numel()):
                    ends = []
                    for sign in (1, -1):
                        parameter.view(-1)[i] += sign * step
                        ends.append(likelihood(*point)[0].item())
                        parameter.view(-1)[i] -= sign * step
                    slopes.append((ends[0] - ends[1]) / (2 * step))
        return torch.tensor(slopes)

    return run


@pytest.fixture
def rows(generator):
    """A small panel with unequal steps, as rows and outcomes."""
    values = torch.randn(9, 5, generator=generator)
    times = torch.tensor([0, 1, 2, 2.5, 4, 7, 7.25, 9, 14.0])
    return panel_rows(values, times)
