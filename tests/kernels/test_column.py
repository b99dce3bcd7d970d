import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from tvbo.kernels import ColumnKernel

pytestmark = pytest.mark.usefixtures("double_by_default")


def test_sees_its_columns_only_and_leaves_the_kernel_alone(generator):
    X = torch.rand(5, 4, generator=generator)
    base = ScaleKernel(RBFKernel(ard_num_dims=2)).double()
    kernel = ColumnKernel(base, [3, 1])
    assert torch.equal(kernel(X).to_dense(), base(X[:, [3, 1]]).to_dense())
    assert torch.equal(kernel(X, diag=True), base(X[:, [3, 1]], diag=True))
    assert base.active_dims is None
    assert kernel.base_kernel is base


def test_active_dims_of_the_kernel_count_among_its_columns(generator):
    X = torch.rand(5, 4, generator=generator)
    base = RBFKernel(active_dims=[1]).double()
    expected = RBFKernel().double()(X[:, 2:3]).to_dense()
    assert torch.equal(ColumnKernel(base, [0, 2])(X).to_dense(), expected)
