"""The incremental posterior as a citizen of BoTorch: acquisitions, fantasies, optimization."""

import pytest
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    PosteriorMean,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qLogNoisyExpectedImprovement,
    qUpperConfidenceBound,
)
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.generation import MaxPosteriorSampling
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from botorch.sampling import SobolQMCNormalSampler
from reference import dense_gp, matern

from tvbo.models import IncrementalGP
from tvbo.models.incremental import ConditionedGP

pytestmark = [
    pytest.mark.usefixtures("double_by_default"),
    pytest.mark.draws_globally,  # BoTorch's optimizers and samplers do
]

NOISE = 0.05
T = 10.0


def data(n, seed=0):
    """Rows [x1, x2, z, t] at times up to 9, and outcomes."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 4, generator=generator, dtype=torch.float64)
    X[:, 3] = (9 * X[:, 3]).round()
    return X, torch.randn(n, 1, generator=generator, dtype=torch.float64)


def rows(n, seed=9):
    """Rows in one context at the present time."""
    X = data(n, seed)[0]
    X[:, 2], X[:, 3] = 0.4, T
    return X


def dense(X, Y, Yvar=None):
    return dense_gp(X, Y, NOISE if Yvar is None else Yvar, 0.03, matern(0.5)).eval()


@pytest.fixture
def model():
    model = IncrementalGP(dense(*data(0)).covar_module, NOISE)
    model.observe(*data(25))
    return model


def assert_same(got, expected, atol=1e-9):
    torch.testing.assert_close(got.mean, expected.mean, rtol=0, atol=atol)
    torch.testing.assert_close(
        got.distribution.covariance_matrix,
        expected.distribution.covariance_matrix,
        rtol=0,
        atol=atol,
    )


def sampler(n):
    return SobolQMCNormalSampler(torch.Size([n]), seed=0)


ACQUISITIONS = {
    "UCB": lambda model: UpperConfidenceBound(model, beta=2.0),
    "LogEI": lambda model: LogExpectedImprovement(model, best_f=0.5),
    "mean": PosteriorMean,
    "qUCB": lambda model: qUpperConfidenceBound(model, 2.0, sampler=sampler(16)),
    "qLogNEI": lambda model: qLogNoisyExpectedImprovement(
        model, rows(3, seed=4), sampler=sampler(16), prune_baseline=True, cache_root=False
    ),
    "qKG": lambda model: qKnowledgeGradient(model, num_fantasies=4, sampler=sampler(4)),
}


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_acquisitions_and_gradients_equal_those_of_the_dense_model(model, name):
    q = {"qKG": 5, "qUCB": 2, "qLogNEI": 2}.get(name, 1)
    found = []
    for each in (model, dense(*data(25))):
        X = rows(6 * q).reshape(6, q, 4).requires_grad_()
        values = ACQUISITIONS[name](each)(X)
        values.sum().backward()
        found.append((values.detach(), X.grad))
        with torch.no_grad():
            again = ACQUISITIONS[name](each)(X.detach())
        torch.testing.assert_close(again, values.detach(), rtol=0, atol=1e-10)
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ["UCB", "LogEI", "mean", "qUCB", "qLogNEI", "qKG"])
def test_optimize_in_a_box_with_time_and_context_fixed(model, name):
    bounds = torch.tensor([[0.0, 0.0, 0.4, T], [1.0, 1.0, 0.4, T]])
    best = []
    for each in (model, dense(*data(25))):
        torch.manual_seed(0)
        options = {"options": {"maxiter": 20}} if name == "qKG" else {}
        found, value = optimize_acqf(
            ACQUISITIONS[name](each),
            bounds=bounds,
            q=1,
            num_restarts=2,
            raw_samples=16,
            fixed_features={-2: 0.4, -1: T},
            **options,
        )
        assert found.shape == (1, 4)
        assert found[0, 2:].tolist() == [0.4, T]
        best.append(value)
    torch.testing.assert_close(*best, rtol=0, atol=1e-4)


def test_optimize_over_choices(model):
    found, _ = optimize_acqf_discrete(ACQUISITIONS["UCB"](model), q=1, choices=rows(40))
    expected, _ = optimize_acqf_discrete(
        ACQUISITIONS["UCB"](dense(*data(25))), q=1, choices=rows(40)
    )
    assert torch.equal(found, expected)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_thompson_sampling(model):
    draws = MaxPosteriorSampling(model, replacement=True)(rows(12), num_samples=300)
    assert draws.shape == (300, 4)
    share = [(draws == row).all(-1).double().mean().item() for row in rows(12)]
    assert sum(share) == pytest.approx(1.0)
    assert max(share) < 1.0


def test_posterior_transform_and_noise(model):
    X = rows(5)
    plain = model.posterior(X)
    transform = ScalarizedPosteriorTransform(torch.tensor([-2.0]), offset=1.0)
    scaled = model.posterior(X, posterior_transform=transform)
    torch.testing.assert_close(scaled.mean, 1 - 2 * plain.mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(scaled.variance, 4 * plain.variance, rtol=0, atol=1e-12)
    noises = torch.arange(1.0, 6.0).unsqueeze(-1)
    for noise, expected in ((True, NOISE * torch.eye(5)), (noises, noises * torch.eye(5))):
        noisy = model.posterior(X, observation_noise=noise).distribution.covariance_matrix
        added = noisy - plain.distribution.covariance_matrix
        torch.testing.assert_close(added, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("noise", [None, 0.5])
def test_conditioning_equals_the_dense_model_of_all(model, noise):
    X, Y = data(4, seed=5)
    Yvar = torch.full_like(Y, NOISE if noise is None else noise)
    new = model.condition_on_observations(X, Y, noise=None if noise is None else Yvar)
    old_X, old_Y = data(25)
    old = torch.full_like(old_Y, NOISE)
    all_of_them = [torch.cat(pair) for pair in ((old_X, X), (old_Y, Y), (old, Yvar))]
    expected = dense(*all_of_them).posterior(rows(6))
    with torch.no_grad():
        for each in (rows(6), rows(6).clone().requires_grad_()):
            assert_same(new.posterior(each), expected)
        # Neither learns of the other from here on.
        model.observe(*data(7, seed=6))
        assert_same(new.posterior(rows(6)), expected)
        model.drop(torch.arange(32) > 9)
        model.observe(*data(20, seed=7))
        model.reset()
        model.observe(*data(20, seed=8))
        assert_same(new.posterior(rows(6)), expected)
    assert new.num_outputs == 1
    assert new.noise_variance == NOISE


@pytest.mark.parametrize("of_X", [(), (2,), (4, 2)])
@pytest.mark.parametrize("of_Y", [(), (2,), (4, 2)])
@pytest.mark.parametrize("of_noise", [None, (), (2,)])
@pytest.mark.combinations
def test_conditioning_on_batches(model, of_X, of_Y, of_noise):
    generator = torch.Generator().manual_seed(1)
    X = data(3 * torch.Size(of_X).numel(), seed=5)[0].reshape(*of_X, 3, 4)
    Y = torch.randn(*of_Y, 3, 1, generator=generator)
    noise = None if of_noise is None else 0.1 + torch.rand(*of_noise, 3, 1, generator=generator)
    new = model.condition_on_observations(X, Y, noise=noise)
    batch = torch.broadcast_shapes(of_X, of_Y, of_noise or ())
    assert new.batch_shape == batch
    with torch.no_grad():
        posterior = new.posterior(rows(6))
    assert posterior.mean.shape == (*batch, 6, 1)
    for i in range(torch.Size(batch).numel()):
        parts = [
            None if x is None else x.expand(*batch, *x.shape[-2:]).reshape(-1, *x.shape[-2:])[i]
            for x in (X, Y, noise)
        ]
        with torch.no_grad():
            one = model.condition_on_observations(*parts).posterior(rows(6))
        mean = posterior.mean.reshape(-1, 6, 1)[i]
        covar = posterior.distribution.covariance_matrix.reshape(-1, 6, 6)[i]
        torch.testing.assert_close(mean, one.mean, rtol=0, atol=1e-12)
        torch.testing.assert_close(covar, one.distribution.covariance_matrix, rtol=0, atol=1e-12)


def test_conditioning_twice_is_conditioning_on_both(model):
    X, Y = data(6, seed=5)
    twice = model.condition_on_observations(X[:2], Y[:2]).condition_on_observations(X[2:], Y[2:])
    with torch.no_grad():
        expected = model.condition_on_observations(X, Y).posterior(rows(6))
        assert_same(twice.posterior(rows(6)), expected, atol=1e-12)


def test_fantasies_equal_those_of_the_dense_model(model):
    X = rows(6, seed=3).reshape(3, 2, 4)
    plain = dense(*data(25))
    # GPyTorch conditions a model only after it has predicted.
    plain.posterior(X)
    noise = torch.full((3, 2, 1), NOISE)
    with torch.no_grad():
        got = model.fantasize(X, sampler(4))
        expected = plain.fantasize(X, sampler(4), observation_noise=noise)
        assert isinstance(got, ConditionedGP)
        assert got.batch_shape == expected.batch_shape == (4, 3)
        assert_same(got.posterior(rows(5)), expected.posterior(rows(5)), atol=1e-8)
        known = model.fantasize(X, sampler(4), observation_noise=noise).posterior(rows(5))
        assert_same(known, got.posterior(rows(5)), atol=1e-12)
    # The factor is shared by all of them, with the model too.
    assert got.given.factor.root.data_ptr() == model.factor.root.data_ptr()
    assert got._innovations.shape == (4, 3, 2, 1)
    assert got._root.shape == (3, 2, 2)


@pytest.mark.parametrize(
    ("X", "Y", "noise", "error"),
    [
        (rows(2), torch.zeros(3, 1), None, BotorchTensorDimensionError),
        (rows(2), torch.zeros(2, 1), torch.zeros(2), BotorchTensorDimensionError),
        (rows(2), torch.zeros(2, 1), -torch.ones(2, 1), InputDataError),
        (rows(2), torch.zeros(2, 1) / 0, None, InputDataError),
        (rows(2) * torch.nan, torch.zeros(2, 1), None, InputDataError),
        (rows(2)[[0, 0]], torch.zeros(2, 1), torch.zeros(2, 1), InputDataError),
        (rows(6).reshape(3, 2, 4), torch.zeros(2, 2, 1), None, BotorchTensorDimensionError),
    ],
)
def test_bad_observations_to_condition_on(model, X, Y, noise, error):
    with pytest.raises(error):
        model.condition_on_observations(X, Y, noise=noise)


def test_rows_that_do_not_broadcast_with_the_fantasies(model):
    fantasies = model.fantasize(rows(2), sampler(4))
    with pytest.raises(BotorchTensorDimensionError):
        fantasies.posterior(rows(6).reshape(3, 2, 4))
