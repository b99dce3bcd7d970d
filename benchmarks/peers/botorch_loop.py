"""The loop of BoTorch's tutorial, for problems that drift.

This file imports none of its neighbors: `moving_peak.py` takes its loop from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from botorch.acquisition import (
    AcquisitionFunction,
    LogExpectedImprovement,
    UpperConfidenceBound,
)
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.optim import optimize_acqf
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

Rule = Callable[[SingleTaskGP, Tensor], AcquisitionFunction]


def ucb(model: SingleTaskGP, rows: Tensor) -> AcquisitionFunction:
    """Return UCB with β = 0.8 log(4 t) in round t."""
    return UpperConfidenceBound(model, beta=0.8 * math.log(4 * (len(rows) + 1)))


def log_ei(model: SingleTaskGP, rows: Tensor) -> AcquisitionFunction:
    """Return the improvement over the largest posterior mean of them, at the present time."""
    with torch.no_grad():
        best = model.posterior(rows.unsqueeze(1)).mean.max()
    return LogExpectedImprovement(model, best)


def log_noisy_ei(model: SingleTaskGP, rows: Tensor) -> AcquisitionFunction:
    """Return the improvement over the best of all actions tried, at the present time."""
    return qLogNoisyExpectedImprovement(model, rows, prune_baseline=True)


class PlainBoTorch:
    """The loop of BoTorch's tutorial, with time as one more input.

    Args:
        bounds: Lower and upper bounds of the actions, ``2 x d``.
        seed: Seed of the first actions, the starts and the samples.
        initial: Number of space-filling actions before the first fit.
        rule: Builds the acquisition function from the model and the inputs of all actions tried at
            the present time, ``n x (d + 1)``.
    """

    def __init__(self, bounds: Tensor, seed: int, initial: int = 10, rule: Rule = ucb):
        self.bounds = bounds
        self.seed = seed
        self.start = draw_sobol_samples(bounds, n=initial, q=1, seed=seed).squeeze(-2)
        self.rule = rule
        self.X = torch.empty(0, bounds.shape[-1] + 1, dtype=torch.float64)
        self.Y = torch.empty(0, 1, dtype=torch.float64)

    @property
    def model_size(self) -> int:
        """Number of observations held."""
        return len(self.X)

    def ask(self, t: float) -> Tensor:
        """Return the action ``1 x d``."""
        n, d = len(self.X), self.bounds.shape[-1]
        if n < len(self.start):
            return self.start[n : n + 1]
        now = torch.full((2, 1), float(t), dtype=torch.float64)
        past = torch.cat([self.X[:, :d], now[:1].expand(n, 1)], dim=-1)
        with torch.random.fork_rng():
            torch.manual_seed(1_000 * self.seed + n)
            model = SingleTaskGP(self.X, self.Y, input_transform=Normalize(d + 1))
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
            rows, _ = optimize_acqf(
                self.rule(model, past),
                bounds=torch.cat([self.bounds, now], dim=-1),
                q=1,
                num_restarts=4,
                raw_samples=64,
                fixed_features={d: float(t)},
            )
        return rows[:, :d].clamp(*self.bounds)

    def tell(self, X: Tensor, t: float, Y: float) -> None:
        """Add an outcome."""
        row = torch.cat([X, torch.full((1, 1), float(t), dtype=torch.float64)], dim=-1)
        self.X = torch.cat([self.X, row])
        self.Y = torch.cat([self.Y, torch.tensor([[Y]], dtype=torch.float64)])
