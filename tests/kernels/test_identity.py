import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import RBFKernel

from tvbo.kernels import IdentityKernel

pytestmark = pytest.mark.usefixtures("double_by_default")


@pytest.fixture
def rows(generator):
    return torch.randint(2, (8, 2), generator=generator) / 2.0


def test_equals_the_double_loop(rows):
    X1, X2 = rows[:5], rows[2:]
    covar = IdentityKernel()(X1, X2).to_dense()
    for i, a in enumerate(X1.tolist()):
        for j, b in enumerate(X2.tolist()):
            assert covar[i, j].item() == (1.0 if a == b else 0.0)
    # Neither all alike nor all different, or the loop shows nothing.
    assert 0 < covar.mean() < 1


def test_rows_that_differ_in_the_last_bit_share_nothing():
    X = torch.tensor([[1.0], [1.0 + 2.0**-52]])
    assert torch.equal(IdentityKernel()(X).to_dense(), torch.eye(2))


def test_has_no_parameters_and_no_gradient(rows):
    kernel = IdentityKernel()
    assert list(kernel.parameters()) == []
    assert kernel.is_stationary
    X = rows.clone().requires_grad_()
    covar = kernel(X).to_dense() + RBFKernel()(X).to_dense()
    covar.sum().backward()  # a sum with a kernel that has one still has it
    assert torch.isfinite(X.grad).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_inputs_must_be_finite(rows, bad):
    # A NaN equals nothing, itself included: without the check its variance were zero.
    X = rows.clone()
    X[3, 1] = bad
    for pair in ((X, rows), (rows, X)):
        with pytest.raises(InputDataError):
            IdentityKernel()(*pair).to_dense()
