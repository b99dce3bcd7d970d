"""A streaming model with the hyperparameters of a fitted one."""

import pytest
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel

from tvbo.fit.model_fitter import ModelFitter
from tvbo.models import StreamingGP, TimeVaryingGP
from tvbo.models.scale import StandardizedModel
from tvbo.optimizers import RefitEvery
from tvbo.spaces import InputLayout
from tvbo.spaces.observations import Observations

pytestmark = [
    pytest.mark.usefixtures("double_by_default"),
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning"),
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.OptimizationWarning"),
]


@pytest.fixture
def observed(small):
    X, Y = small.data(torch.arange(30) / 2)
    X[:, :2] = 5 + 20 * X[:, :2]  # raw units far from the unit cube
    return X, 100 + 30 * torch.sin(X[:, :1] / 8 + X[:, 2:] / 5) + 2 * Y


@pytest.fixture
def choices(small):
    return 5 + 20 * small.choices


def ahead(choices, t):
    return torch.cat([choices, torch.full((9, 1), t)], dim=-1)


@pytest.mark.parametrize("user_kernel", [False, True])
@pytest.mark.parametrize("noise_variance", [None, 4.0])
def test_equals_the_fitted_model(small, observed, choices, generator, user_kernel, noise_variance):
    X, Y = observed
    fitter = ModelFitter(
        InputLayout(2),
        torch.stack([choices.amin(0), choices.amax(0)]),
        covar_module=ScaleKernel(MaternKernel()) if user_kernel else None,
        noise_variance=noise_variance,
        refit=RefitEvery(1),
    )
    fitter.fit(Observations(X, Y), 30, generator)
    fitted = StandardizedModel(fitter.last_model, fitter.transform).in_user_units()
    assert user_kernel != hasattr(fitted, "outcome_transform")
    model = StreamingGP.from_model(fitted, choices)
    if noise_variance is not None:
        assert model.noise_variance.item() == pytest.approx(noise_variance)
    for part in torch.arange(30).split(7):
        model.observe(X[part], Y[part])
    got, expected = model.posterior(ahead(choices, 16.0)), fitted.posterior(ahead(choices, 16.0))
    # Outcomes are some hundreds: 1e-8 of their scale.
    scale = Y.std().item()
    torch.testing.assert_close(got.mean, expected.mean, rtol=0, atol=1e-8 * scale)
    torch.testing.assert_close(got.variance, expected.variance, rtol=0, atol=1e-8 * scale**2)


def test_noise_of_the_model(observed, choices):
    X, Y = observed
    Yvar = torch.linspace(1.0, 3.0, 30).unsqueeze(-1)
    own = TimeVaryingGP(X, Y, Yvar, forgetting_rate=0.1)
    assert StreamingGP.from_model(own, choices).noise_variance.item() == pytest.approx(2.0)
    none = TimeVaryingGP(X[:0], Y[:0], Yvar[:0], forgetting_rate=0.1, outcome_transform=None)
    assert StreamingGP.from_model(none, choices).noise_variance.item() == 0.0
