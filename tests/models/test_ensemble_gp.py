"""The factor grown row by row against the dense model with all the data."""

import io

import pytest
import torch
from botorch.models.transforms import Normalize
from gpytorch.kernels import ScaleKernel
from gpytorch.means import LinearMean
from reference import dense_gp, matern

from tvbo.models import EnsembleGP, TimeVaryingGP

pytestmark = pytest.mark.usefixtures("double_by_default")

RATE = 0.03
NOISE = 0.01


def kernel():
    scaled = ScaleKernel(matern([0.3, 0.5, 0.8], ard_num_dims=3)).double()
    scaled.outputscale = 1.7
    return scaled


def data(n, seed=0, repeats=0):
    """Rows [x1, x2, z, t] at times in random order, the last ones repeated, and outcomes."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 4, generator=generator, dtype=torch.float64)
    X[:, 3] = (20 * X[:, 3]).round()
    X[n - repeats :] = X[:repeats]
    return X, torch.randn(n, 1, generator=generator, dtype=torch.float64)


def dense(X, Y, Yvar=None, rate=RATE, **options):
    options = {"covar_module": kernel(), **options}
    return dense_gp(X, Y, NOISE if Yvar is None else Yvar, rate, **options).eval()


def incremental(rate=RATE, noise=NOISE):
    return EnsembleGP(dense(*data(0), rate=rate).covar_module, noise)


def observed(n=30, **options):
    return incremental(**options).condition_on_observations(*data(n))


def assert_same(model, other, X, atol=1e-9):
    with torch.no_grad():
        one, two = model.posterior(X), other.posterior(X)
        for name in ("mean", "variance"):
            torch.testing.assert_close(getattr(one, name), getattr(two, name), rtol=0, atol=atol)
        one, two = (each.distribution.covariance_matrix for each in (one, two))
        torch.testing.assert_close(one, two, rtol=0, atol=atol)


AHEAD = data(24, seed=9)[0].reshape(4, 6, 4)


@pytest.mark.parametrize("rate", [0.0, RATE, 1.0])
@pytest.mark.parametrize("size", [1, 7, 60])
@pytest.mark.combinations
def test_posterior_equals_the_dense_one(rate, size):
    X, Y = data(60, repeats=9)
    model = incremental(rate)
    for x, y in zip(X.split(size), Y.split(size), strict=True):
        model = model.condition_on_observations(x, y)
    assert len(model.train_targets) == 60
    for rows in (AHEAD, AHEAD[0], AHEAD.reshape(24, 1, 4), X[:5]):
        assert_same(model, dense(X, Y, rate=rate), rows)


def test_more_observations_than_the_default_keeps():
    n = 311
    X, Y = data(n)
    model = incremental()
    for x, y in zip(X.split(50), Y.split(50), strict=True):
        model = model.condition_on_observations(x, y)
    assert_same(model, dense(X, Y), AHEAD)


def test_own_noise_of_each_observation():
    X, Y = data(40, repeats=5)
    Yvar = 0.01 + torch.rand(40, 1, generator=torch.Generator().manual_seed(2))
    model = incremental()
    for part in torch.arange(40).split(3):
        model = model.condition_on_observations(X[part], Y[part], Yvar[part])
    assert_same(model, dense(X, Y, Yvar), AHEAD)


@pytest.mark.draws_globally  # GPyTorch's mean does
def test_prior_mean():
    mean = LinearMean(4).double()
    X, Y = data(20)
    plain = dense(X, Y, mean_module=mean)
    model = EnsembleGP(plain.covar_module, NOISE, mean_module=mean)
    assert_same(model, dense(*data(0), mean_module=mean), AHEAD)
    model = model.condition_on_observations(X, Y)
    assert_same(model, plain, AHEAD)
    with torch.no_grad():
        mean.weights.add_(1.0)
    assert_same(model, dense(X, Y, mean_module=model.mean_module), AHEAD)


def test_without_observations_it_is_the_prior():
    model = incremental()
    assert_same(model, dense(*data(0)), AHEAD, atol=1e-12)
    model = model.condition_on_observations(*data(0))
    assert len(model.train_targets) == 0
    assert_same(model, dense(*data(0)), AHEAD, atol=1e-12)


def test_what_was_given_may_change_afterwards():
    X, Y = data(20)
    given = kernel()
    model = EnsembleGP(given, NOISE)
    expected = EnsembleGP(given, NOISE)
    expected = expected.condition_on_observations(X[:, :3].clone(), Y.clone())
    x, y, ahead = X[:, :3].clone(), Y.clone(), AHEAD[0, :, :3].clone()
    model = model.condition_on_observations(x, y)
    with torch.no_grad():
        model.posterior(ahead)
    x.zero_()
    y.zero_()
    ahead.add_(0.1)
    given.outputscale = 9.0
    assert_same(model, expected, ahead, atol=1e-12)


@pytest.mark.parametrize("q", [1, 3])
def test_gradient_equals_that_of_the_dense_model(q):
    gradients = []
    for model in (observed(200), dense(*data(200))):
        X = AHEAD[:, :q].clone().requires_grad_()
        posterior = model.posterior(X)
        covar = posterior.distribution.covariance_matrix
        (posterior.mean.sin().sum() + posterior.variance.sqrt().sum() + covar.sum()).backward()
        gradients.append(X.grad)
    assert gradients[0].abs().min() > 0
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-8)


def through_file(model, new):
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    new.load_state_dict(torch.load(file, weights_only=True))
    return new


def standardized(**options):
    """From a model with transforms of inputs and outcomes, and a mean."""
    X, Y = data(12, seed=3)
    model = TimeVaryingGP(
        X, 7.0 + 3.0 * Y, forgetting_rate=0.0, input_transform=Normalize(4, indices=[0, 1, 2])
    )
    return EnsembleGP.from_model(model.eval(), **options)


@pytest.mark.parametrize("make", [incremental, standardized])
@pytest.mark.parametrize("loaded_over", [0, 200])
def test_a_saved_state_restores_every_observation(make, loaded_over):
    X, Y = data(200)
    model, new = make(), make()
    new = new.condition_on_observations(X[:loaded_over], Y[:loaded_over])
    for x, y in zip(X[:150].split(3), Y[:150].split(3), strict=True):
        model = model.condition_on_observations(x, y)
    new = through_file(model, new)
    assert len(new.train_targets) == 150
    assert_same(new, model, AHEAD)
    assert_same(new, model, AHEAD.reshape(24, 1, 4))
    more = X[150:], Y[150:]
    assert_same(new.condition_on_observations(*more), model.condition_on_observations(*more), AHEAD)


def test_a_state_carries_the_scale_of_the_outcomes():
    X, Y = data(20)
    model, other = standardized(), standardized()
    other.sets.variance.mul_(2.0)
    model = model.condition_on_observations(X, Y)
    assert_same(through_file(model, other), model, AHEAD)
