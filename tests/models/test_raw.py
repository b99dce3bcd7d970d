"""A fitted model's hyperparameters over whole rows, its transforms undone."""

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.transforms import Log, Normalize, Warp
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean, ZeroMean

from tvbo.kernels import TemporalDecayKernel, TemporalMaternKernel
from tvbo.models import ContextualGP, EnsembleGP, TimeVaryingGP

pytestmark = pytest.mark.usefixtures("double_by_default")

RATE = 0.03


def data(n, seed=0):
    """Rows [x1, x2, z, t] and outcomes."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 4, generator=generator, dtype=torch.float64)
    return X, torch.randn(n, 1, generator=generator, dtype=torch.float64)


AHEAD = data(24, seed=9)[0].reshape(4, 6, 4)


@pytest.mark.parametrize("transforms", [False, True])
@pytest.mark.parametrize("drifting", [False, True])
def test_from_a_contextual_model(transforms, drifting):
    X, Y = data(25)
    Y = 5 + 3 * Y
    columns = {"context_features": [2], "time_feature": 3, "forgetting_rate": RATE}
    if not drifting:
        X, columns = X[:, :3], {"context_features": [2]}
    options = {"outcome_transform": None}
    if transforms:
        d = X.shape[-1]
        bounds = torch.tensor([[-1.0] * d, [2.0] * d])
        options = {"input_transform": Normalize(d, indices=[0, 1], bounds=bounds)}
    plain = ContextualGP(X, Y, structure="both", mean_module=ConstantMean(), **columns, **options)
    plain.mean_module.initialize(constant=0.3)
    plain.likelihood.noise = 0.07
    model = EnsembleGP.from_model(plain.eval())
    assert len(model.train_targets) == 0
    for x, y in zip(X.split(4), Y.split(4), strict=True):
        model = model.condition_on_observations(x, y)
    with torch.no_grad():
        got, expected = (each.posterior(AHEAD[..., : X.shape[-1]]) for each in (model, plain))
    torch.testing.assert_close(got.mean, expected.mean, rtol=0, atol=1e-8)
    one, two = (each.distribution.covariance_matrix for each in (got, expected))
    torch.testing.assert_close(one, two, rtol=0, atol=1e-8)
    assert EnsembleGP.from_model(plain, noise_variance=0.5).noise_variance == 0.5


@pytest.mark.parametrize("temporal", [TemporalDecayKernel, lambda: TemporalMaternKernel(nu=2.5)])
@pytest.mark.parametrize(
    "kernel",
    [
        lambda: RBFKernel(),
        lambda: ScaleKernel(RBFKernel(ard_num_dims=3)),
        lambda: ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=3)),
    ],
)
@pytest.mark.parametrize("scaled", [False, True])
def test_common_kernels_have_a_closed_form(kernel, temporal, scaled):
    X, Y = data(25)
    given = kernel()
    if isinstance(given, ScaleKernel):
        given.outputscale, given.base_kernel.lengthscale = 2.0, torch.tensor([0.2, 0.5, 1.5])
    bounds = torch.tensor([[-1.0, 0.0, 0.0], [2.0, 1.0, 4.0]])
    plain = TimeVaryingGP(
        X,
        5 + 3 * Y,
        covar_module=given,
        temporal_kernel=temporal(),
        mean_module=ConstantMean(),
        input_transform=Normalize(3, indices=[0, 1, 2], bounds=bounds) if scaled else None,
        **({} if scaled else {"outcome_transform": None}),
    ).eval()
    plain.mean_module.initialize(constant=0.3)
    model = EnsembleGP.from_model(plain).condition_on_observations(X, 5 + 3 * Y)
    assert model.is_closed_form
    with torch.no_grad():
        for rows in (AHEAD, AHEAD.unsqueeze(-2)):
            got, expected = (each.posterior(rows) for each in (model, plain))
            torch.testing.assert_close(got.mean, expected.mean, rtol=1e-8, atol=1e-8)
            one, two = (each.distribution.covariance_matrix for each in (got, expected))
            torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-8)


def test_from_a_plain_model_without_observations():
    X, Y = data(0)
    plain = TimeVaryingGP(
        X, Y, Y, mean_module=ZeroMean(), outcome_transform=None, forgetting_rate=RATE
    )
    model = EnsembleGP.from_model(plain.eval())
    assert model.noise_variance == 0.0
    assert model.mean_module is None
    with pytest.raises(BotorchTensorDimensionError):
        model.posterior(AHEAD[..., :3])


@pytest.mark.parametrize(
    "make",
    [
        lambda X, Y: SingleTaskGP(X, Y.repeat(1, 2), outcome_transform=None),
        lambda X, Y: SingleTaskGP(X[None], Y[None], outcome_transform=None),
        lambda X, Y: SingleTaskGP(X, Y.abs(), outcome_transform=Log()),
        lambda X, Y: SingleTaskGP(
            X, Y, outcome_transform=None, input_transform=Warp(d=4, indices=[0])
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
def test_models_that_do_not_carry_over_are_refused(make):
    with pytest.raises(UnsupportedError):
        EnsembleGP.from_model(make(*data(5)))
