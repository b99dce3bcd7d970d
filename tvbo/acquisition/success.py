"""The probability that a trial succeeds, learned from those that did and those that failed."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve
from scipy.special import softmax
from torch import Tensor

from tvbo.fit.drift import round_length
from tvbo.models.closed_form import Array, ClosedForm, HyperparameterSets, Pullback
from tvbo.spaces.observations import Observations

HALF_LIFE = 12.0
"""Lag in rounds at which the correlation in time has fallen to one half."""

LENGTHSCALE = 0.3
"""Lengthscale in ranges of a column, of one column; it grows with the root of their number."""

PRIOR = 0.85
"""Probability of success where nothing is known."""

DEVIATION = 0.5
"""Prior standard deviation of the probability."""

NOISES = (0.1, 1.0)
"""Variances of the noise, in units of that of the function: where no trial fails by chance, and
where many do."""

LEAST = 0.01
"""Least probability, since a regression of 0 and 1 does not end at these."""


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
        lower, upper = bounds
        scale = LENGTHSCALE * math.sqrt(len(lower)) * torch.where(upper > lower, upper - lower, 1.0)
        rate = math.log(2) / (HALF_LIFE * round_length(trials.X[:, -1])) if drifts else 0.0
        one = torch.ones(1, dtype=torch.float64)
        time, rest = (rate * one, 0 * one, one), (0 * one, 0 * one, 0 * one, one.unsqueeze(-1))
        self._sets = HyperparameterSets("Exponential", len(lower), scale[None], *time, *rest)
        self._trials = trials.X.numpy()
        (covar,), _ = self._sets.with_rows(self._trials)(self._trials, False)
        residuals = (trials.Y.squeeze(-1).numpy() - PRIOR) / DEVIATION
        evidence, solutions = [], []
        for noise in NOISES:
            root = cho_factor(covar + noise * np.eye(len(covar)), lower=True)
            solutions.append(cho_solve(root, residuals))
            evidence.append(-0.5 * residuals @ solutions[-1] - np.log(root[0].diagonal()).sum())
        self._coefficients: Array = DEVIATION * softmax(evidence) @ np.array(solutions)

    def log_probability(self, rows: Tensor) -> Tensor:
        """Return the logarithm of the probability, ``...``, at rows ``... x d``."""
        return ClosedForm.apply(rows.double(), self.evaluate)[0].to(rows)

    def evaluate(self, X: Array, with_gradients: bool) -> tuple[Array, Pullback | None]:
        """Return log probabilities, ``1 x b``, at rows ``b x d``, and what differentiates them."""
        covar, from_covar = self._sets.with_rows(self._trials)(X, with_gradients)
        probability = PRIOR + covar[0] @ self._coefficients
        values = np.log(probability.clip(LEAST, 1.0))[None]
        if from_covar is None:
            return values, None

        def pullback(by_values: Array) -> Array:
            is_inside = (probability > LEAST) & (probability < 1.0)
            factors = np.where(is_inside, by_values[0] / probability, 0.0)
            by_covar = factors[:, None] * self._coefficients
            return from_covar(by_covar[None]).sum(axis=-1).T

        return values, pullback
