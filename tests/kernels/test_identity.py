import pickle

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import RBFKernel, ScaleKernel

from tvbo.kernels import CovarianceMatrixKernel, IdentityKernel

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


def test_is_the_identity_matrix_where_no_rows_are_alike():
    X = torch.arange(5.0).unsqueeze(-1)
    assert torch.equal(IdentityKernel()(X).to_dense(), torch.eye(5))
    assert torch.equal(
        IdentityKernel()(X).to_dense(), CovarianceMatrixKernel(torch.eye(5))(X).to_dense()
    )


def test_rows_that_differ_in_the_last_bit_share_nothing():
    X = torch.tensor([[1.0], [1.0 + 2.0**-52]])
    assert torch.equal(IdentityKernel()(X).to_dense(), torch.eye(2))


def test_is_positive_semi_definite_and_diag_is_the_dense_diagonal(rows):
    kernel = IdentityKernel()
    assert torch.linalg.eigvalsh(kernel(rows).to_dense()).min() > -1e-12
    assert torch.equal(kernel(rows, diag=True), torch.ones(8))
    other = rows.flip(0)
    assert torch.equal(kernel(rows, other, diag=True), kernel(rows, other).to_dense().diagonal())


def test_batches(rows):
    X1, X2 = rows.reshape(2, 1, 4, 2), rows.reshape(1, 2, 4, 2)[..., :3, :]
    covar = IdentityKernel()(X1, X2).to_dense()
    assert covar.shape == (2, 2, 4, 3)
    for a in range(2):
        for b in range(2):
            expected = IdentityKernel()(X1[a, 0], X2[0, b]).to_dense()
            assert torch.equal(covar[a, b], expected)
    batched = IdentityKernel(batch_shape=torch.Size([3]))
    assert batched(rows).shape == (3, 8, 8)
    assert batched(rows).to_dense().shape == (3, 8, 8)


def test_batch_of_scales_and_its_parts(rows):
    kernel = ScaleKernel(IdentityKernel(), batch_shape=torch.Size([2]))
    kernel.outputscale = torch.tensor([0.5, 2.0])
    covar = kernel(rows).to_dense()
    torch.testing.assert_close(covar[1], 4 * covar[0], rtol=0, atol=1e-12)


def test_sees_its_active_dims(rows):
    kernel = IdentityKernel(active_dims=[1])
    assert torch.equal(kernel(rows).to_dense(), IdentityKernel()(rows[:, 1:]).to_dense())


def test_has_no_parameters_and_no_gradient(rows):
    kernel = IdentityKernel()
    assert list(kernel.parameters()) == []
    assert kernel.is_stationary
    X = rows.clone().requires_grad_()
    covar = kernel(X).to_dense() + RBFKernel()(X).to_dense()
    covar.sum().backward()  # a sum with a kernel that has one still has it
    assert torch.isfinite(X.grad).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_is_that_of_the_rows(rows, dtype):
    assert IdentityKernel()(rows.to(dtype)).to_dense().dtype == dtype
    assert IdentityKernel()(rows.to(dtype), diag=True).dtype == dtype


def test_pickles_and_restores(rows):
    kernel = IdentityKernel(active_dims=[0])
    again = pickle.loads(pickle.dumps(kernel))
    assert torch.equal(again(rows).to_dense(), kernel(rows).to_dense())
    IdentityKernel(active_dims=[1]).load_state_dict(IdentityKernel(active_dims=[1]).state_dict())


def test_last_dimension_as_batch(rows):
    with pytest.warns(DeprecationWarning, match="last_dim_is_batch"):
        covar = IdentityKernel()(rows, last_dim_is_batch=True).to_dense()
    expected = torch.stack([IdentityKernel()(rows[:, [i]]).to_dense() for i in range(2)])
    assert torch.equal(covar, expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_inputs_must_be_finite(rows, bad):
    # A NaN equals nothing, itself included: without the check its variance were zero.
    X = rows.clone()
    X[3, 1] = bad
    for pair in ((X, rows), (rows, X)):
        with pytest.raises(InputDataError):
            IdentityKernel()(*pair).to_dense()
