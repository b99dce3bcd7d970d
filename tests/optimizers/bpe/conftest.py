import pytest
import torch
from reference import rbf


@pytest.fixture
def kernel():
    return rbf(0.2)


@pytest.fixture
def choices():
    """A grid of 8 x 8 in the unit square."""
    side = torch.linspace(0, 1, 8, dtype=torch.float64)
    return torch.cartesian_prod(side, side)
