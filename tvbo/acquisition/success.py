"""The probability that a trial succeeds, learned from those that did and those that failed."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve
from scipy.special import softmax
from torch import Tensor

from tvbo.models.closed_form import Array, ClosedForm, Pullback, exp_
from tvbo.spaces.observations import Observations

HALF_LIFE = 20.0
"""Lag in rounds at which the correlation in time has fallen to one half."""

LENGTHSCALE = 0.3
"""Lengthscale in ranges of a column, of one column; it grows with the root of their number."""

PRIOR = 0.75
"""Probability of success where nothing is known."""

DEVIATION = 0.5
"""Prior standard deviation of the probability."""

NOISES = (0.1, 1.0)
"""Variances of the noise, in units of that of the function: where no trial fails by chance, and
where many do."""

LEAST = 0.01
"""Least probability, since a regression of 0 and 1 does not end at these."""

MAX_ROWS = 128
"""Number of rows that are evaluated at once."""

LEAST_SQUARE = 1e-12
"""Least squared distance in lengthscales, since there is no gradient at 0."""


class SuccessModel:
    """The probability that a trial succeeds.

    It is the posterior mean of a GP regression on 1 for a success and 0 for a failure, with an
    exponential kernel over action and context, which follows an edge, and one over rounds. It is
    averaged over small and large noise by their evidence, which tells whether trials fail in a
    region or by chance.

    Args:
        trials: ``n`` trials, with 1 or 0 as outcome.
        bounds: Range of all columns but time, ``2 x (d + c)``.
        drifts: Whether what fails changes over time.
    """

    def __init__(self, trials: Observations, bounds: Tensor, drifts: bool = True):
        rows, (lower, upper) = trials.X, bounds
        times = rows[:, -1].unique()
        # The mean gap between distinct times is the length of a round.
        gap = (times[-1] - times[0]).item() / (len(times) - 1) if len(times) > 1 else 1.0
        rate = math.log(2) / (HALF_LIFE * gap) if drifts else 0.0
        width = torch.where(upper > lower, upper - lower, 1.0)
        scale = LENGTHSCALE * math.sqrt(len(width)) * width
        # By these rows are shifted and multiplied, after which the kernel has no parameters.
        self._origin = torch.cat([lower, times[-1:]]).numpy()
        self._rates = torch.cat([1 / scale, scale.new_tensor([rate])]).numpy()
        self._trials = (rows.numpy() - self._origin) * self._rates
        covar, _ = self._covar(self._trials)
        residuals = (trials.Y.squeeze(-1).numpy() - PRIOR) / DEVIATION
        evidence, solutions = [], []
        for noise in NOISES:
            root = cho_factor(covar + noise * np.eye(len(covar)), lower=True)
            solutions.append(cho_solve(root, residuals))
            evidence.append(-0.5 * residuals @ solutions[-1] - np.log(root[0].diagonal()).sum())
        self._coefficients: Array = DEVIATION * softmax(evidence) @ np.array(solutions)

    def log_probability(self, rows: Tensor) -> Tensor:
        """Return the logarithm of the probability, ``...``, at rows ``... x d``."""
        values: Tensor = ClosedForm.apply(rows.double(), self.evaluate)[0].to(rows)
        return values

    def evaluate(self, X: Array, with_gradients: bool) -> tuple[Array, Pullback | None]:
        """Return log probabilities, ``1 x b``, at rows ``b x d``, and what differentiates them."""
        X = (X - self._origin) * self._rates
        if not with_gradients:
            # In parts, since memory for thousands of choices takes longer than the arithmetic.
            parts = np.array_split(X, 1 + len(X) // MAX_ROWS)
            found = [self._covar(part)[0] @ self._coefficients for part in parts]
            return np.log((PRIOR + np.concatenate(found)).clip(LEAST, 1.0))[None], None
        covar, distances = self._covar(X)
        probability = PRIOR + covar @ self._coefficients
        values = np.log(probability.clip(LEAST, 1.0))[None]

        def pullback(by_values: Array) -> Array:
            is_inside = (probability > LEAST) & (probability < 1.0)
            factors = np.where(is_inside, by_values[0] / probability, 0.0)
            parts = covar * self._coefficients * factors[:, None]
            by_time = (parts * np.sign(self._trials[:, -1] - X[:, -1:])).sum(axis=-1)
            parts = parts / distances
            by_rows = parts @ self._trials - parts.sum(axis=-1, keepdims=True) * X
            by_rows[:, -1] = by_time
            gradient: Array = by_rows * self._rates
            return gradient

        return values, pullback

    def _covar(self, X: Array) -> tuple[Array, Array]:
        """Return the covariances of rows with those of the trials, and the distances, ``b x n``."""
        one, two, times = X[:, :-1], self._trials[:, :-1], X[:, -1:]
        if (times == times[:1]).all():
            times = times[:1]  # In a search, all rows have the same.
        distances = one @ (-2 * two.T)
        distances += np.square(one).sum(axis=-1, keepdims=True)
        distances += np.square(two).sum(axis=-1)
        np.maximum(distances, LEAST_SQUARE, out=distances)
        np.sqrt(distances, out=distances)
        covar: Array = np.subtract(-np.abs(times - self._trials[:, -1]), distances)
        return exp_(covar), distances
