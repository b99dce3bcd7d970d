import pytest
import torch
from botorch.exceptions.errors import InputDataError

from tvbo.kernels import CovarianceMatrixKernel

pytestmark = pytest.mark.usefixtures("double_by_default")


@pytest.fixture
def matrix(generator):
    root = torch.randn(5, 5, generator=generator)
    return root @ root.mT


def column(*indices):
    return torch.tensor(indices, dtype=torch.float64).unsqueeze(-1)


def test_looks_up_entries(matrix):
    i, j = column(3, 0, 3), column(1, 4)
    covar = CovarianceMatrixKernel(matrix)(i, j).to_dense()
    for a, row in enumerate((3, 0, 3)):
        for b, col in enumerate((1, 4)):
            assert covar[a, b] == matrix[row, col]


def test_identity_is_unrelated_arms():
    covar = CovarianceMatrixKernel(torch.eye(3))(column(0, 1, 1)).to_dense()
    assert torch.equal(covar, torch.tensor([[1.0, 0, 0], [0, 1, 1], [0, 1, 1]]))


def test_batches_of_matrices_and_of_indices(matrix):
    kernel = CovarianceMatrixKernel(torch.stack([matrix, 2 * matrix, matrix.diag().diag()]))
    i = column(4, 1)
    covar = kernel(i).to_dense()
    assert covar.shape == (3, 2, 2)
    torch.testing.assert_close(covar[1], 2 * covar[0])
    assert kernel(i, diag=True).shape == (3, 2)
    torch.testing.assert_close(kernel[1](i).to_dense(), covar[1])
    many = torch.stack([column(0, 1), column(2, 3)])
    assert CovarianceMatrixKernel(matrix)(many).to_dense().shape == (2, 2, 2)
    assert CovarianceMatrixKernel(matrix)(many)[1].to_dense()[0, 1] == matrix[2, 3]


def test_a_singular_matrix_is_allowed():
    CovarianceMatrixKernel(torch.ones(4, 4))


@pytest.mark.parametrize("bad", [-1.0, 5.0, 1.5])
def test_index_must_be_one_of_the_rows(matrix, bad):
    with pytest.raises(InputDataError, match=str(bad)):
        CovarianceMatrixKernel(matrix)(column(0, bad)).to_dense()


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (ValueError, lambda: CovarianceMatrixKernel(torch.zeros(2, 3))),
        (ValueError, lambda: CovarianceMatrixKernel(torch.tensor([[1.0, 0.5], [0.4, 1.0]]))),
        (ValueError, lambda: CovarianceMatrixKernel(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))),
        (InputDataError, lambda: CovarianceMatrixKernel(torch.full((2, 2), float("nan")))),
    ],
)
def test_what_is_refused(error, call):
    with pytest.raises(error):
        call()
