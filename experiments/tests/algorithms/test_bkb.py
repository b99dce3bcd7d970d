"""BKB: its sketch by direct formulas, what is drawn by its probabilities, and the loop."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel

from experiments.algorithms.bkb import BKB, BKBBeta, bkb_qbar
from experiments.algorithms.nystrom_gp import NystromGP
from tvbo import recipes
from tvbo.acquisition import UCB, ConstantBeta
from tvbo.spaces import FiniteSpace

NOISE = 0.05
LENGTHSCALE = 0.2
CHOICES = torch.linspace(0, 1, 30, dtype=torch.float64).unsqueeze(-1)


def kernel():
    made = MaternKernel(nu=1.5).double()
    made.lengthscale = torch.tensor(LENGTHSCALE, dtype=torch.float64)
    return made


def covariance(A, B):
    r = np.sqrt(3) * np.abs(A.numpy() - B.numpy().T) / LENGTHSCALE
    return (1 + r) * np.exp(-r)


def data(n=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 1, generator=generator, dtype=torch.float64)
    return X, torch.sin(6 * X) + 0.1 * torch.randn(n, 1, generator=generator, dtype=torch.float64)


X, Y = data()
AHEAD = data(seed=2)[0][:24]


def direct(S, rows):
    """Mean and covariance by pseudo-inverses of the m x m matrices, no root taken anywhere."""
    to_data, to_rows, of_set = covariance(S, X), covariance(S, rows), covariance(S, S)
    inner = np.linalg.pinv(to_data @ to_data.T / NOISE + of_set, rcond=1e-13, hermitian=True)
    inverse = np.linalg.pinv(of_set, rcond=1e-13, hermitian=True)
    mean = to_rows.T @ inner @ (to_data / NOISE) @ Y.numpy().ravel()
    return mean, covariance(rows, rows) - to_rows.T @ (inverse - inner) @ to_rows


@pytest.mark.parametrize(
    "S",
    [X[:12], X[5:6], data(9, seed=7)[0], torch.cat([X[:12], X[3:9]])],
    ids=["observed", "one", "not observed", "repeats"],
)
def test_posterior_is_the_direct_formula(S):
    model = NystromGP(kernel(), NOISE, S, X, Y)
    mean, covar = direct(S, AHEAD)
    posterior = model.posterior(AHEAD)
    np.testing.assert_allclose(posterior.mean.squeeze(-1).detach(), mean, rtol=0, atol=1e-8)
    found = posterior.distribution.covariance_matrix.detach()
    np.testing.assert_allclose(found, covar, rtol=0, atol=1e-8)
    _, at_data = direct(S, X)
    np.testing.assert_allclose(model.observed_variance, at_data.diagonal(), rtol=0, atol=1e-8)


def test_with_all_observations_in_the_set_it_is_the_exact_posterior():
    K = covariance(X, X) + NOISE * np.eye(len(X))
    expected = covariance(AHEAD, X) @ np.linalg.solve(K, Y.numpy()).ravel()
    mean = NystromGP(kernel(), NOISE, X, X, Y).posterior(AHEAD).mean.flatten().detach()
    np.testing.assert_allclose(mean, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("m", "n"), [(0, 40), (12, 0), (0, 0)])
def test_without_a_set_or_data_it_is_the_prior(m, n):
    posterior = NystromGP(kernel(), NOISE, X[:m], X[:n], Y[:n]).posterior(AHEAD)
    assert posterior.mean.abs().max() == 0
    torch.testing.assert_close(posterior.variance, torch.ones(24, 1).double())


def test_observations_are_drawn_as_often_as_their_probability_says():
    included, probabilities = [], None
    for seed in range(60):
        optimizer = BKB(
            FiniteSpace(CHOICES),
            kernel(),
            NOISE,
            qbar=0.7,
            generator=torch.Generator().manual_seed(seed),
        )
        for number, x in enumerate(CHOICES[::2]):
            optimizer.tell(optimizer.attach(x, t=0.0), math.sin(6 * x.item()))
            if number == 9:
                assert optimizer.update().inducing_points.tolist() == CHOICES[:20:2].tolist()
        rows = optimizer.update().inducing_points
        included.append((CHOICES[::2] == rows.T).any(dim=1))
        probabilities = optimizer.inclusion_probabilities
    share = torch.stack(included).double().mean(dim=0)
    deviation = (probabilities * (1 - probabilities) / 60).sqrt()
    assert (probabilities < 1).sum() > 5
    assert ((share - probabilities).abs() <= 4 * deviation + 1e-12).all()


def test_with_a_large_qbar_it_chooses_as_gp_ucb():
    rule = UCB(ConstantBeta(4.0))
    sketched = BKB(FiniteSpace(CHOICES), kernel(), NOISE, rule, qbar=1e9)
    exact = recipes.gp_ucb(
        choices=CHOICES, covar_module=kernel(), noise_variance=NOISE, acquisition=rule
    )
    for _ in range(12):
        one, two = sketched.ask(), exact.ask()
        assert torch.equal(one.X, two.X)
        for optimizer, trial in ((sketched, one), (exact, two)):
            optimizer.tell(trial, math.sin(6 * trial.X.item()))
    sketched.ask()
    assert sketched.model_size == len(torch.unique(exact.observations.X[:, 0]))


def test_the_width_is_that_of_the_theorem():
    model = NystromGP(kernel(), NOISE, X[:12], X, Y)
    alpha = 1.3 / 0.7
    total = direct(X[:12], X)[1].diagonal().sum() / NOISE
    width = 2 * math.sqrt(alpha * math.log(40) * total + math.log(20))
    width += (1 + 1 / math.sqrt(0.7)) * 3.0
    assert BKBBeta(3.0, 0.05, 0.3).beta(model) == pytest.approx(width**2, rel=1e-8)


def test_the_sketch_of_the_theorems_qbar_has_variances_within_alpha():
    """Theorem 1 on 300 rows drawn as it says from the exact variances."""
    rows, outcomes = data(300)
    K = covariance(rows, rows)
    exact = torch.tensor(K - K @ np.linalg.solve(K + NOISE * np.eye(300), K)).diagonal()
    p = (bkb_qbar(300, 0.1, 0.5) / 20 * exact / NOISE).clamp_max(1.0)
    for seed in range(10):
        drawn = torch.rand(300, generator=torch.Generator().manual_seed(seed)) < p
        ratio = NystromGP(kernel(), NOISE, rows[drawn], rows, outcomes).observed_variance / exact
        assert ratio.min() > 1 / 3
        assert ratio.max() < 3
