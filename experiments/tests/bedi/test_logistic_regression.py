"""Training, against autograd and against an independent solver."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp
from torch.nn.functional import cross_entropy

from experiments.bedi.logistic_regression import (
    Hyperparameters,
    descend,
    drop_out,
    train_logistic_regression,
    with_intercept,
)
from experiments.data.digits import ClassificationData, digits


def blobs(generator, n=60, gap=6.0):
    """Three clouds of unit width on a circle, far apart or not; in float64."""
    Y = torch.arange(n) % 3
    angle = 2 * math.pi * Y / 3
    center = gap * torch.stack([angle.cos(), angle.sin()], dim=-1).double()
    X = center + torch.randn(n, 2, generator=generator, dtype=torch.float64)
    half = n // 2
    return ClassificationData(X[:half], Y[:half], X[half:], Y[half:], num_classes=3)


@pytest.mark.parametrize("l2", [0.0, 0.7])
@pytest.mark.parametrize("n", [1, 7])
def test_a_step_is_that_of_autograd(l2, n, generator):
    X = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    Y = torch.randint(4, (n,), generator=generator)
    weights = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    leaf = weights.clone().requires_grad_()
    logits = X @ leaf[:, :-1].T + leaf[:, -1]
    loss = cross_entropy(logits, Y) + l2 / 2 * leaf[:, :-1].square().sum()
    loss.backward()
    expected = weights - 0.3 * leaf.grad
    targets = torch.eye(4, dtype=torch.float64)[Y].T
    descend(weights, with_intercept(X), targets, Hyperparameters(0.3, n, l2=l2))
    assert torch.allclose(weights, expected, rtol=0, atol=1e-12)


def test_many_steps_reach_the_minimum_that_scipy_finds(generator):
    data = blobs(generator, gap=1.0)
    X, Y = data.train_X.numpy(), data.train_Y.numpy()

    def objective(flat):
        W = flat.reshape(3, 3)
        logits = X @ W[:, :2].T + W[:, 2]
        fit = logsumexp(logits, axis=1) - logits[np.arange(len(Y)), Y]
        return fit.mean() + 0.05 / 2 * (W[:, :2] ** 2).sum()

    best = minimize(objective, np.zeros(9), method="BFGS", options={"gtol": 1e-6})
    weights = torch.zeros(3, 3, dtype=torch.float64)
    targets = torch.eye(3, dtype=torch.float64)[data.train_Y].T
    for _ in range(2000):
        descend(weights, with_intercept(data.train_X), targets, Hyperparameters(0.5, 30, l2=0.05))
    assert objective(weights.numpy().ravel()) == pytest.approx(best.fun, abs=1e-9)


def test_dropout_keeps_the_mean_and_the_intercept(generator):
    X = torch.full((4000, 3), 2.0, dtype=torch.float64)
    X[:, -1] = 1.0
    drop_out(X, 0.3, generator)
    assert (X[:, -1] == 1.0).all()
    inputs = X[:, :-1]
    assert set(inputs.unique().tolist()) == {0.0, 2.0 / 0.7}
    # 8,000 draws: five standard errors of a share, and of the mean.
    assert (inputs == 0).double().mean().item() == pytest.approx(0.3, abs=0.026)
    assert inputs.mean().item() == pytest.approx(2.0, abs=0.08)
    whole = X.clone()
    drop_out(whole, 0.0, generator)
    assert torch.equal(whole, X)


@pytest.mark.parametrize("batch_size", [1, 7, 30, 1000])
def test_a_separable_set_is_learned(batch_size, generator):
    data = blobs(generator)
    how = Hyperparameters(0.1, batch_size, dropout=0.1, l2=1e-4)
    assert train_logistic_regression(data, how, 30, generator) == 1.0


def test_a_penalty_too_large_learns_nothing(generator):
    """With rate times l2 at 1 each step forgets all before: what is left is one batch."""
    data = digits()
    strong = Hyperparameters(0.1, 8, l2=10.0)
    weak = Hyperparameters(0.1, 8, l2=1e-4)
    accuracy = [train_logistic_regression(data, how, 2, generator) for how in (strong, weak)]
    assert accuracy[0] < 0.7
    assert accuracy[1] > 0.92


def test_a_learning_rate_too_large_or_too_small_is_bad(generator):
    data = blobs(generator, n=600, gap=1.5)
    wild, good, slow = (
        np.mean(
            [
                train_logistic_regression(data, Hyperparameters(rate, 8), 1, generator)
                for _ in range(20)
            ]
        )
        for rate in (300.0, 0.1, 1e-6)
    )
    assert wild < good - 0.05
    assert slow < good - 0.1


def test_a_training_that_diverges_scores_nothing(generator):
    # Each step multiplies the weights by 1 - 10 * 100.
    how = Hyperparameters(10.0, 1, l2=100.0)
    assert train_logistic_regression(blobs(generator), how, 10, generator) == 0.0


def test_randomness_is_that_of_the_generator(generator):
    data, how = blobs(generator, n=300, gap=1.0), Hyperparameters(1.0, 8, dropout=0.3)

    def scores(seed):
        source = torch.Generator().manual_seed(seed)
        return [train_logistic_regression(data, how, 2, source) for _ in range(4)]

    assert scores(0) == scores(0)
    assert scores(0) != scores(1)
    assert len(set(scores(0))) > 1


def test_training_leaves_the_data_as_it_is(generator):
    data = blobs(generator)
    before = data.train_X.clone()
    train_logistic_regression(data, Hyperparameters(1.0, 30, dropout=0.5), 1, generator)
    assert torch.equal(data.train_X, before)
