import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo.kernels.batch import ColumnKernel

pytestmark = pytest.mark.usefixtures("double_by_default")


def test_active_dims_of_the_kernel_count_among_its_columns(generator):
    X = torch.rand(5, 4, generator=generator)
    base = RBFKernel(active_dims=[1]).double()
    expected = RBFKernel().double()(X[:, 2:3]).to_dense()
    assert torch.equal(ColumnKernel(base, [0, 2])(X).to_dense(), expected)
