"""A streaming model with the hyperparameters of a fitted one."""

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms import Log, Normalize, Standardize
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.means import ConstantMean, ZeroMean

from tvbo.models import StreamingGP, TimeVaryingGP
from tvbo.optimizers import ModelFitter, RefitEvery
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
    fitted = fitter.fit(Observations(X, Y), 30, generator)
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


def test_a_single_precision_model(observed, choices):
    X, Y = (part.float() for part in observed)
    fitted = TimeVaryingGP(X, Y, forgetting_rate=0.1)
    model = StreamingGP.from_model(fitted, choices.float(), noise_variance=1.0)
    model.observe(X, Y)
    assert model.posterior(ahead(choices, 16.0)).mean.dtype == torch.float64
    assert model.noise_variance == 1.0


def test_takes_a_copy_without_observations(observed, choices):
    X, Y = observed
    fitted = TimeVaryingGP(X, Y, forgetting_rate=0.1, mean_module=ConstantMean())
    model = StreamingGP.from_model(fitted, choices)
    before = model.marginals(0.0)
    assert model.num_rows == 0
    fitted.temporal_kernel.forgetting_rate = 0.9
    fitted.mean_module.constant.data.fill_(1e3)
    model.reset()
    for one, two in zip(before, model.marginals(0.0), strict=True):
        assert torch.equal(one, two)
    assert model.forgetting_rate.item() == pytest.approx(0.1)


def test_a_zero_mean_is_left_out(observed, choices):
    X, Y = observed
    plain = TimeVaryingGP(X, Y, forgetting_rate=0.1, mean_module=ZeroMean(), outcome_transform=None)
    assert StreamingGP.from_model(plain, choices).mean_module is None
    # Zero in standardized units is the average in raw ones.
    standardized = TimeVaryingGP(X, Y, forgetting_rate=0.1, mean_module=ZeroMean())
    mean, _ = StreamingGP.from_model(standardized, choices).marginals(0.0)
    torch.testing.assert_close(mean, Y.mean().expand(9), rtol=0, atol=1e-9)


def test_noise_of_the_model(observed, choices):
    X, Y = observed
    Yvar = torch.linspace(1.0, 3.0, 30).unsqueeze(-1)
    own = TimeVaryingGP(X, Y, Yvar, forgetting_rate=0.1)
    assert StreamingGP.from_model(own, choices).noise_variance.item() == pytest.approx(2.0)
    none = TimeVaryingGP(X[:0], Y[:0], Yvar[:0], forgetting_rate=0.1, outcome_transform=None)
    assert StreamingGP.from_model(none, choices).noise_variance.item() == 0.0


def test_what_does_not_carry_over_is_refused(observed, choices):
    X, Y = observed
    two = TimeVaryingGP(X, torch.cat([Y, Y], dim=-1))
    batch = TimeVaryingGP(
        X.expand(2, -1, -1),
        Y.expand(2, -1, -1),
        outcome_transform=Standardize(1, batch_shape=torch.Size([2])),
    )
    log = TimeVaryingGP(X, Y, outcome_transform=Log())
    first = TimeVaryingGP(X[:, [2, 0, 1]], Y, time_feature=0)
    scaled = TimeVaryingGP(X, Y, input_transform=Normalize(3))
    # This one maps t = 1 to itself.
    early = X.clone()
    early[:, -1] = torch.linspace(-3, 1, 30)
    fixed_point = TimeVaryingGP(early, Y, input_transform=Normalize(3))
    for model in (two, batch, log, first, scaled, fixed_point):
        with pytest.raises(UnsupportedError):
            StreamingGP.from_model(model, choices)
