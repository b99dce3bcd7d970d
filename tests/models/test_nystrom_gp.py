"""The sketched posterior against the direct formula in numpy, the exact GP, and its limits."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import LinearMean

from tvbo.models import IncrementalGP
from tvbo.models.nystrom_gp import NystromGP

pytestmark = pytest.mark.usefixtures("double_by_default")

NOISE = 0.02
LENGTHSCALE, OUTPUTSCALE = 0.4, 1.7


def kernel(base=None):
    base = MaternKernel(nu=2.5).double() if base is None else base.double()
    base.lengthscale = LENGTHSCALE
    scaled = ScaleKernel(base).double()
    scaled.outputscale = OUTPUTSCALE
    return scaled


def kernel_in_numpy(A, B):
    """Matérn 5/2, written out."""
    r = np.sqrt(5) * np.sqrt(((A[:, None] - B[None]) ** 2).sum(axis=-1)) / LENGTHSCALE
    return OUTPUTSCALE * (1 + r + r**2 / 3) * np.exp(-r)


def data(n=40, d=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=generator, dtype=torch.float64)
    return X, torch.randn(n, 1, generator=generator, dtype=torch.float64)


X, Y = data()
YVAR = 0.01 + 0.1 * data(seed=1)[0][:, :1]
AHEAD = data(seed=2)[0][:24]


def sketch(S, Yvar=None, **options):
    return NystromGP(kernel(), NOISE, S, X, Y, Yvar, **options)


def direct(S, rows, Yvar=None, mean=lambda rows: 0.0):
    """Mean and covariance by pseudo-inverses of the m x m matrices, no root taken anywhere."""
    S, rows, inputs, outcomes = (part.numpy() for part in (S, rows, X, Y))
    weights = np.full(len(X), 1 / NOISE) if Yvar is None else 1 / Yvar.numpy().ravel()
    to_data, to_rows = kernel_in_numpy(S, inputs), kernel_in_numpy(S, rows)
    of_set = kernel_in_numpy(S, S)
    inner = np.linalg.pinv((to_data * weights) @ to_data.T + of_set, rcond=1e-13, hermitian=True)
    residual = outcomes.ravel() - mean(inputs)
    posterior_mean = mean(rows) + to_rows.T @ inner @ ((to_data * weights) @ residual)
    inverse = np.linalg.pinv(of_set, rcond=1e-13, hermitian=True)
    covar = kernel_in_numpy(rows, rows) - to_rows.T @ (inverse - inner) @ to_rows
    return posterior_mean, covar


def assert_posterior(model, rows, mean, covar, atol=1e-8):
    posterior = model.posterior(rows)
    np.testing.assert_allclose(posterior.mean.squeeze(-1).detach(), mean, rtol=0, atol=atol)
    found = posterior.distribution.covariance_matrix.detach()
    np.testing.assert_allclose(found, covar, rtol=0, atol=atol)


SETS = {
    "observed": X[:12],
    "one": X[5:6],
    "not observed": data(9, seed=7)[0],
    "repeats": torch.cat([X[:12], X[3:9], X[4:5]]),
    "all": X,
}


@pytest.mark.parametrize("Yvar", [None, YVAR], ids=["one noise", "own noise"])
@pytest.mark.parametrize("name", list(SETS))
def test_posterior_is_the_direct_formula(name, Yvar):
    S = SETS[name]
    for rows in (AHEAD, X, S):
        assert_posterior(sketch(S, Yvar), rows, *direct(S, rows, Yvar))


def test_prior_mean_is_taken_off_and_added():
    with torch.random.fork_rng():
        mean_module = LinearMean(3).double()
    slope, bias = np.array([1.5, -2.0, 0.5]), 0.7
    mean_module.weights.data = torch.tensor(slope).unsqueeze(-1)
    mean_module.bias.data = torch.tensor([bias])
    model = sketch(X[:12], mean_module=mean_module)
    expected = direct(X[:12], AHEAD, mean=lambda rows: rows @ slope + bias)
    assert_posterior(model, AHEAD, *expected)


@pytest.mark.parametrize("smooth", [False, True])
def test_with_all_observations_in_the_set_it_is_the_exact_posterior(smooth):
    base = RBFKernel() if smooth else MaternKernel(nu=2.5)
    exact = IncrementalGP(kernel(base), NOISE)
    exact.observe(X, Y)
    with torch.no_grad():
        expected = exact.posterior(AHEAD)
        model = NystromGP(kernel(base), NOISE, torch.cat([X, X[:10]]), X, Y)
        covar = expected.distribution.covariance_matrix
        assert_posterior(model, AHEAD, expected.mean.squeeze(-1), covar)


def test_a_near_singular_set_keeps_what_matters_at_small_noise():
    """The smooth kernel on 200 rows has a rank of about 60: a coarse cut-off loses 1e-5 here."""
    inputs, outcomes = data(200, d=2, seed=4)
    base = RBFKernel()
    exact = IncrementalGP(kernel(base), 1e-4)
    exact.observe(inputs, outcomes)
    model = NystromGP(kernel(base), 1e-4, inputs, inputs, outcomes)
    with torch.no_grad():
        one, two = (each.posterior(AHEAD[:, :2]) for each in (model, exact))
    torch.testing.assert_close(one.mean, two.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(one.variance, two.variance, rtol=0, atol=1e-10)


def test_near_duplicates_in_the_set_make_no_variance_too_small():
    """Two points a rounding error apart would claim to know the slope between them."""
    rows = torch.linspace(-0.2, 1.2, 41).reshape(-1, 1, 1)
    seen, outcome = data(30, d=1, seed=1)

    def variance(distance):
        S = torch.tensor([[0.5], [0.5 + distance], [0.1], [0.9]])
        model = NystromGP(
            kernel(RBFKernel()), NOISE, S, torch.cat([S, seen]), outcome[:1].expand(34, 1)
        )
        return model.posterior(rows).variance.flatten()

    limit = variance(1e-4)
    for distance in torch.logspace(-9, -5, 41).tolist():
        assert (variance(distance) > 0.9 * limit).all()


@pytest.mark.parametrize(
    ("m", "n"), [(0, 40), (12, 0), (0, 0)], ids=["no set", "no data", "nothing"]
)
def test_without_a_set_or_data_it_is_the_prior(m, n):
    model = NystromGP(kernel(), NOISE, X[:m], X[:n], Y[:n])
    prior = kernel_in_numpy(AHEAD.numpy(), AHEAD.numpy())
    assert_posterior(model, AHEAD, np.zeros(len(AHEAD)), prior, atol=1e-12)


def test_far_from_the_set_the_variance_is_the_prior():
    far = torch.full((1, 3), 50.0)
    assert sketch(X[:3]).posterior(far).variance.item() == pytest.approx(OUTPUTSCALE, abs=1e-9)


def test_variances_at_the_observations():
    model = sketch(X[:12], YVAR)
    expected = direct(X[:12], X, YVAR)[1].diagonal()
    np.testing.assert_allclose(model.observed_variance, expected, rtol=0, atol=1e-8)
    np.testing.assert_allclose(model.observed_prior_variance, OUTPUTSCALE, rtol=1e-12)
    torch.testing.assert_close(model.observed_noise, YVAR.squeeze(-1))
    assert model.num_observations == 40


def test_batches_of_rows_are_those_one_by_one():
    model = sketch(X[:12])
    rows = AHEAD.reshape(2, 3, 4, 3)
    joint = model.posterior(rows)
    assert joint.mean.shape == (2, 3, 4, 1)
    for i in range(2):
        for j in range(3):
            alone = model.posterior(rows[i, j]).distribution.covariance_matrix
            found = joint.distribution.covariance_matrix[i, j]
            torch.testing.assert_close(found, alone, rtol=0, atol=1e-12)
    single = model.posterior(AHEAD.unsqueeze(-2)).variance.flatten()
    torch.testing.assert_close(single, model.posterior(AHEAD).variance.flatten())


def test_observation_noise_and_transform():
    model = sketch(X[:12])
    plain = model.posterior(AHEAD).variance
    noisy = model.posterior(AHEAD, observation_noise=True).variance
    torch.testing.assert_close(noisy - plain, torch.full_like(plain, NOISE))
    transform = ScalarizedPosteriorTransform(torch.tensor([-2.0]))
    doubled = model.posterior(AHEAD, posterior_transform=transform)
    torch.testing.assert_close(doubled.mean, -2 * model.posterior(AHEAD).mean)


def test_gradients_in_the_rows():
    model = sketch(X[:12])

    def moments(rows):
        posterior = model.posterior(rows)
        return posterior.mean, posterior.distribution.covariance_matrix

    assert torch.autograd.gradcheck(moments, (AHEAD[:3].clone().requires_grad_(),))


def test_further_outcomes_condition_the_sketch_as_it_is():
    model = sketch(X[:6])
    new, outcome = data(2, seed=11)
    conditioned = model.condition_on_observations(new, outcome)
    mean, covar = direct(X[:6], torch.cat([new, AHEAD]))
    gain = covar[2:, :2] @ np.linalg.inv(covar[:2, :2] + NOISE * np.eye(2))
    expected = mean[2:] + gain @ (outcome.numpy().ravel() - mean[:2])
    assert_posterior(conditioned, AHEAD, expected, covar[2:, 2:] - gain @ covar[:2, 2:])


def test_fantasies_have_the_batch_of_their_samples():
    sampler = SobolQMCNormalSampler(torch.Size([5]), seed=0)
    with torch.random.fork_rng():
        fantasies = sketch(X[:6]).fantasize(AHEAD[:2], sampler)
    assert fantasies.posterior(AHEAD[5:8]).mean.shape == (5, 3, 1)


def test_other_data_leaves_the_model_as_it_is():
    model = sketch(X[:12])
    before = model.posterior(AHEAD).mean
    other = model.with_data(X[:5], X[:20], Y[:20])
    assert other.num_observations == 20
    assert len(other.inducing_points) == 5
    assert len(model.inducing_points) == 12
    assert torch.equal(model.posterior(AHEAD).mean, before)
    again = NystromGP(kernel(), NOISE, X[:5], X[:20], Y[:20])
    torch.testing.assert_close(other.posterior(AHEAD).mean, again.posterior(AHEAD).mean)


def test_a_later_change_of_the_kernel_or_the_rows_is_not_seen():
    own, rows = kernel(), X[:12].clone()
    model = NystromGP(own, NOISE, rows, X, Y)
    before = model.posterior(AHEAD).mean
    own.outputscale = 100.0
    rows.zero_()
    assert torch.equal(model.posterior(AHEAD).mean, before)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), lambda m: m.to(X)]
)
def test_copies_predict_the_same(copied):
    model = sketch(X[:12])
    before = model.posterior(AHEAD).mean
    assert torch.equal(copied(model).posterior(AHEAD).mean, before)


def test_single_precision_is_taken_in():
    model = NystromGP(kernel(), NOISE, X[:12].float(), X.float(), Y.float())
    assert model.posterior(AHEAD.float()).mean.dtype == torch.float64


@pytest.mark.parametrize("noise", [-0.1, float("nan"), float("inf"), torch.ones(2)])
def test_noise_variance_out_of_range(noise):
    with pytest.raises(ValueError):
        NystromGP(kernel(), noise, X, X, Y)


@pytest.mark.parametrize("place", ["inducing_points", "X", "Y"])
def test_nan(place):
    parts = {"inducing_points": X[:5].clone(), "X": X.clone(), "Y": Y.clone()}
    parts[place][2, 0] = float("nan")
    with pytest.raises(InputDataError):
        NystromGP(kernel(), NOISE, **parts)


@pytest.mark.parametrize("loaded_over", [0, 7, 40])
def test_a_saved_state_restores_the_sketch_to_the_last_bit(loaded_over):
    model = sketch(X[:10], YVAR)
    new = NystromGP(kernel(), NOISE, X[:loaded_over], X[:loaded_over], Y[:loaded_over])
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    new.load_state_dict(torch.load(file, weights_only=True))
    one, two = model.posterior(AHEAD), new.posterior(AHEAD)
    assert torch.equal(one.mean, two.mean)
    assert torch.equal(one.distribution.covariance_matrix, two.distribution.covariance_matrix)
    for name in ("inducing_points", "observed_noise", "observed_variance"):
        assert torch.equal(getattr(new, name), getattr(model, name))
    assert new.num_observations == 40


def test_a_saved_state_without_observations_is_one():
    blank = NystromGP(kernel(), NOISE, X[:0], X[:0], Y[:0])
    model = sketch(X[:10])
    model.load_state_dict(blank.state_dict())
    assert model.num_observations == 0
    assert torch.equal(model.posterior(AHEAD).mean, torch.zeros(24, 1))


def test_a_state_of_other_rows_is_refused_and_nothing_lost():
    model = sketch(X[:10])
    other = NystromGP(kernel(), NOISE, X[:5, :2], X[:5, :2], Y[:5])
    before = model.posterior(AHEAD).mean
    with pytest.raises(RuntimeError, match="2"):
        model.load_state_dict(other.state_dict())
    assert torch.equal(model.posterior(AHEAD).mean, before)


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (InputDataError, lambda: NystromGP(kernel(), 0.0, X, X, Y)),
        (ValueError, lambda: NystromGP(MaternKernel(batch_shape=torch.Size([2])), NOISE, X, X, Y)),
        (BotorchTensorDimensionError, lambda: NystromGP(kernel(), NOISE, X[:, :2], X, Y)),
        (BotorchTensorDimensionError, lambda: NystromGP(kernel(), NOISE, X[0], X, Y)),
        (BotorchTensorDimensionError, lambda: NystromGP(kernel(), NOISE, X, X, Y[:-1])),
        (InputDataError, lambda: sketch(X, -YVAR)),
        (UnsupportedError, lambda: sketch(X).posterior(AHEAD, output_indices=[1])),
    ],
)
def test_what_is_refused(error, call):
    with pytest.raises(error):
        call()
