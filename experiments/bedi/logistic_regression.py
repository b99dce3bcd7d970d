"""Multi-class logistic regression, trained by stochastic gradients in plain torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from experiments.data.digits import ClassificationData

INITIAL_SCALE = 0.01
"""Standard deviation of the weights before training."""


@dataclass(frozen=True)
class Hyperparameters:
    r"""Hyperparameters of training by stochastic gradients.

    Args:
        learning_rate: Factor of the gradient in a step, above 0.
        batch_size: Number of inputs in a step, at least 1.
        dropout: Probability with which an entry of an input is set to 0 in training, in [0, 1).
        l2: λ of the penalty :math:`\tfrac{\lambda}{2} \|W\|^2`, at least 0.

    Raises:
        ValueError: if one of them is out of range.
    """

    learning_rate: float
    batch_size: int
    dropout: float = 0.0
    l2: float = 0.0

    def __post_init__(self):
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"Expected learning_rate > 0. Got {self.learning_rate}.")
        if not 1 <= self.batch_size < math.inf or self.batch_size != int(self.batch_size):
            raise ValueError(
                f"Expected batch_size to be a whole number >= 1. Got {self.batch_size}."
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"Expected dropout in [0, 1). Got {self.dropout}.")
        if not 0 <= self.l2 < math.inf:
            raise ValueError(f"Expected l2 >= 0. Got {self.l2}.")


@torch.inference_mode()
def train_logistic_regression(
    data: ClassificationData,
    hyperparameters: Hyperparameters,
    epochs: int,
    generator: Generator,
) -> float:
    r"""Train multi-class logistic regression, and return its accuracy.

    Training minimizes the mean of :math:`-\log \mathrm{softmax}(W x + c)_y` over the training set
    plus the penalty, without the intercepts c, by plain stochastic gradients at a constant rate.
    Initial weights, the order of the inputs and the dropout masks are random; entries that are kept
    are scaled by :math:`1 / (1 - p)`. Computations are in the precision of the data.

    Args:
        data: Training set and hold-out set.
        hyperparameters: Hyperparameters of the training.
        epochs: Passes through the training set, at least 1.
        generator: Source of all randomness.

    Returns:
        Accuracy on the hold-out set, in [0, 1]; 0 if the training diverged.

    Raises:
        ValueError: if ``epochs`` is below 1.
    """
    if epochs < 1:
        raise ValueError(f"Expected epochs >= 1. Got {epochs}.")
    X = with_intercept(data.train_X)
    targets = one_hot(data.train_Y, data.num_classes).to(X).T
    weights = INITIAL_SCALE * torch.randn(
        data.num_classes, X.shape[-1], dtype=X.dtype, generator=generator
    )
    for _ in range(epochs):
        order = torch.randperm(len(X), generator=generator)
        inputs = X.index_select(0, order)
        drop_out(inputs, hyperparameters.dropout, generator)
        batches = zip(
            inputs.split(hyperparameters.batch_size),
            targets.index_select(1, order).split(hyperparameters.batch_size, dim=1),
            strict=True,
        )
        for batch, batch_targets in batches:
            descend(weights, batch, batch_targets, hyperparameters)
    logits = weights @ with_intercept(data.test_X).T
    right = (logits.argmax(dim=0) == data.test_Y) & logits.isfinite().all(dim=0)
    return right.double().mean().item()


def with_intercept(X: Tensor) -> Tensor:
    """Return inputs ``n x d`` with a last column of ones, ``n x (d + 1)``."""
    return torch.cat([X, X.new_ones(len(X), 1)], dim=-1)


def drop_out(X: Tensor, probability: float, generator: Generator) -> None:
    """Apply dropout in place to inputs ``n x (d + 1)``, except for the last column.

    Other entries are scaled by ``1 / (1 - probability)``.
    """
    if probability > 0:
        inputs = X[:, :-1]
        inputs *= torch.rand(inputs.shape, dtype=X.dtype, generator=generator) >= probability
        inputs /= 1 - probability


def descend(weights: Tensor, X: Tensor, targets: Tensor, hyperparameters: Hyperparameters) -> None:
    r"""Take a step along the negative gradient :math:`(P - T) X / n + \lambda W`, in place.

    Args:
        weights: ``c x (d + 1)``, the intercepts in the last column.
        X: Inputs with a column of ones, ``n x (d + 1)``.
        targets: Their classes as unit vectors, ``c x n``.
        hyperparameters: Learning rate and penalty.
    """
    rate = hyperparameters.learning_rate
    excess = torch.softmax(weights @ X.T, dim=0).sub_(targets)
    if hyperparameters.l2 > 0:
        weights[:, :-1].mul_(1 - rate * hyperparameters.l2)
    weights.addmm_(excess, X, alpha=-rate / len(X))
