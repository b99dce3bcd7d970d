import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError

from tvbo.spaces import FiniteSpace

pytestmark = pytest.mark.usefixtures("double_by_default")


def grid(d, side):
    line = torch.linspace(0, 1, side)
    return torch.cartesian_prod(*[line] * d).reshape(-1, d)


SETS = {
    "one": torch.tensor([[0.3]]),
    "line": grid(1, 50),
    "square": grid(2, 12),
    "d=10": grid(10, 2),
    "large": 1e6 * grid(2, 7) - 5e5,
    "small": 1e-9 * grid(2, 7),
    # Keys of one number each, all equal after rounding.
    "equal keys": torch.tensor([[1e16, k / 10] for k in range(10)]),
    "random": torch.rand(300, 3, generator=torch.Generator().manual_seed(0)),
}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.combinations
def test_each_row_is_found(name, dtype):
    choices = SETS[name]
    finite = FiniteSpace(choices)
    order = torch.randperm(len(choices), generator=torch.Generator().manual_seed(1))
    assert finite.dim == choices.shape[-1]
    assert torch.equal(finite.index(choices[order].to(dtype)), order)
    assert torch.equal(finite.index(choices[order].repeat(2, 3, 1, 1).to(dtype))[1, 2], order)


def test_single_precision_and_no_more():
    finite = FiniteSpace(torch.tensor([[0.1, 200.0], [0.0, 200.0]]))
    assert finite.index(torch.tensor([[0.1 * (1 + 9e-7), 200.0 * (1 - 9e-7)]])).tolist() == [0]
    for bad in ([0.1 * (1 + 2e-6), 200.0], [1e-9, 200.0]):
        with pytest.raises(InputDataError):
            finite.index(torch.tensor([bad]))


def test_nearest_among_those_that_are_meant():
    """Nearer in sum, but not the same to single precision: no candidate."""
    finite = FiniteSpace(torch.tensor([[1e6, 0.0], [1e6 + 0.9, 0.5]]))
    assert finite.index(torch.tensor([[1e6 + 0.9, 0.0]])).tolist() == [0]


def test_a_copy():
    given = torch.tensor([[1.0], [2.0]])
    finite = FiniteSpace(given)
    given.mul_(10)
    assert finite.choices.flatten().tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("X", "error"),
    [
        ([[0.5, 0.5]], InputDataError),
        ([[0.0, 0.0], [0.0, -1.0]], InputDataError),
        ([[float("nan"), 0.0]], InputDataError),
        ([[float("inf"), 0.0]], InputDataError),
        ([[0.0]], BotorchTensorDimensionError),
    ],
)
def test_rows_that_are_none_of_them(X, error):
    with pytest.raises(error):
        FiniteSpace(grid(2, 2)).index(torch.tensor(X))
