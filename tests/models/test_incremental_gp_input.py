"""What an incremental posterior refuses, and that it is left as it was."""

import pytest
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
)
from gpytorch.kernels import MaternKernel

from tvbo.models import IncrementalGP

pytestmark = pytest.mark.usefixtures("double_by_default")

NOISE = 0.01


def data(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 4, generator=generator, dtype=torch.float64)
    return X, torch.randn(n, 1, generator=generator, dtype=torch.float64)


AHEAD = data(24, seed=9)[0].reshape(4, 6, 4)


def observed(n=30, noise=NOISE):
    model = IncrementalGP(MaternKernel(nu=2.5).double(), noise)
    model.observe(*data(n))
    return model


def refused(error, match, *args):
    """Observing raises, and leaves the model as it was."""
    model = observed()
    with torch.no_grad():
        before = model.posterior(AHEAD)
        with pytest.raises(error):
            model.observe(*args)
        after = model.posterior(AHEAD)
    assert model.num_observations == 30
    assert torch.equal(before.mean, after.mean)
    assert torch.equal(before.variance, after.variance)


BAD = {
    "width": (lambda X, Y: (X[:, :3], Y), BotorchTensorDimensionError, "X with last dimension 4"),
    "one row": (lambda X, Y: (X[0], Y), BotorchTensorDimensionError, r"X of shape \.\.\. x q x d"),
    "batch": (lambda X, Y: (X[None], Y), BotorchTensorDimensionError, r"q x d.*X.shape=\(1, 2"),
    "Y short": (lambda X, Y: (X, Y[:1]), BotorchTensorDimensionError, r"Y of shape .* for 2 rows"),
    "Y flat": (lambda X, Y: (X, Y[:, 0]), BotorchTensorDimensionError, r"Y.shape=\(2,\)"),
    "Yvar short": (
        lambda X, Y: (X, Y, Y[:1].abs()),
        BotorchTensorDimensionError,
        r"Yvar of shape .* Got Yvar.shape=\(1, 1\)",
    ),
    "Yvar batch": (
        lambda X, Y: (X, Y, Y[None].abs()),
        BotorchTensorDimensionError,
        r"Got Yvar.shape=\(1, 2, 1\)",
    ),
    "X nan": (lambda X, Y: (X * torch.nan, Y), InputDataError, r"finite X\. Got nan at"),
    "Y inf": (lambda X, Y: (X, Y / 0), InputDataError, r"finite Y\. Got -?inf at"),
    "Yvar nan": (lambda X, Y: (X, Y, Y * torch.nan), InputDataError, r"finite Yvar"),
    "Yvar negative": (lambda X, Y: (X, Y, -Y.abs()), InputDataError, r"Yvar >= 0\. Got -"),
    "certain": (
        lambda X, Y: (X[[0, 0]], Y, torch.zeros(2, 1)),
        InputDataError,
        "not certain already",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_observations_are_refused(name):
    make, error, match = BAD[name]
    refused(error, match, *make(*data(2, seed=1)))


def test_a_repeat_without_noise_is_refused():
    model = observed(3, noise=0.0)
    X, Y = data(3)
    with pytest.raises(InputDataError):
        model.observe(X[1:2], Y[1:2])
    assert model.num_observations == 3


@pytest.mark.parametrize(
    "keep", [torch.ones(29, dtype=torch.bool), torch.ones(30), torch.ones(1, 30, dtype=torch.bool)]
)
def test_a_bad_mask_is_refused(keep):
    with pytest.raises(BotorchTensorDimensionError):
        observed().drop(keep)
