import pytest
import torch
from gpytorch.kernels import RBFKernel


def rbf(lengthscale=0.2):
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    return kernel


@pytest.fixture
def kernel():
    return rbf()


@pytest.fixture
def choices():
    """A grid of 8 x 8 in the unit square."""
    side = torch.linspace(0, 1, 8, dtype=torch.float64)
    return torch.cartesian_prod(side, side)
