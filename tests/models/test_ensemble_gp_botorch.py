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
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from botorch.sampling import SobolQMCNormalSampler
from reference import dense_gp, matern

from tvbo.models import EnsembleGP

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
    model = EnsembleGP(dense(*data(0)).covar_module, NOISE)
    return model.condition_on_observations(*data(25))


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
        model.condition_on_observations(*data(7, seed=6))
        new.condition_on_observations(*data(7, seed=7))
        assert_same(new.posterior(rows(6)), expected)
        assert_same(model.posterior(rows(6)), dense(*data(25)).posterior(rows(6)))
    assert new.num_outputs == 1
    assert new.noise_variance == NOISE


def test_fantasies_equal_those_of_the_dense_model(model):
    X = rows(6, seed=3).reshape(3, 2, 4)
    plain = dense(*data(25))
    # GPyTorch conditions a model only after it has predicted.
    plain.posterior(X)
    noise = torch.full((3, 2, 1), NOISE)
    with torch.no_grad():
        got = model.fantasize(X, sampler(4))
        expected = plain.fantasize(X, sampler(4), observation_noise=noise)
        assert got.batch_shape == expected.batch_shape == (4, 3)
        assert_same(got.posterior(rows(5)), expected.posterior(rows(5)), atol=1e-8)
        known = model.fantasize(X, sampler(4), observation_noise=noise).posterior(rows(5))
        assert_same(known, got.posterior(rows(5)), atol=1e-12)
