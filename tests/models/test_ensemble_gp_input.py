"""What an exact posterior refuses."""

import pytest
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
)
from gpytorch.kernels import MaternKernel

from tvbo.models import EnsembleGP

pytestmark = pytest.mark.usefixtures("double_by_default")

NOISE = 0.01


def data(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 4, generator=generator, dtype=torch.float64)
    return X, torch.randn(n, 1, generator=generator, dtype=torch.float64)


def observed(n=30, noise=NOISE):
    model = EnsembleGP(MaternKernel(nu=2.5).double(), noise)
    return model.condition_on_observations(*data(n))


BAD = {
    "width": (lambda X, Y: (X[:, :3], Y), BotorchTensorDimensionError),
    "one row": (lambda X, Y: (X[0], Y), BotorchTensorDimensionError),
    "batches apart": (
        lambda X, Y: (X.expand(3, 2, 4), Y.expand(2, 2, 1)),
        BotorchTensorDimensionError,
    ),
    "Y short": (lambda X, Y: (X, Y[:1]), BotorchTensorDimensionError),
    "Y flat": (lambda X, Y: (X, Y[:, 0]), BotorchTensorDimensionError),
    "noise short": (lambda X, Y: (X, Y, Y[:1].abs()), BotorchTensorDimensionError),
    "X nan": (lambda X, Y: (X * torch.nan, Y), InputDataError),
    "Y inf": (lambda X, Y: (X, Y / 0), InputDataError),
    "noise nan": (lambda X, Y: (X, Y, Y * torch.nan), InputDataError),
    "noise negative": (lambda X, Y: (X, Y, -Y.abs()), InputDataError),
    "certain": (lambda X, Y: (X[[0, 0]], Y, torch.zeros(2, 1)), InputDataError),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_observations_are_refused(name):
    make, error = BAD[name]
    with pytest.raises(error):
        observed().condition_on_observations(*make(*data(2, seed=1)))


def test_a_repeat_without_noise_is_refused():
    model = observed(3, noise=0.0)
    X, Y = data(3)
    with pytest.raises(InputDataError):
        model.condition_on_observations(X[1:2], Y[1:2])
