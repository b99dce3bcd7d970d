"""Models of Figure 2 of Krause, Ong (2011): one kernel over peptides, three over tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Generator, Tensor

from experiments.data.mhc import BindingData
from tvbo.kernels import CovarianceMatrixKernel
from tvbo.kernels.finite import check_covariance, look_up
from tvbo.models import ContextualGP
from tvbo.randomness import seeded

START_NOISE = 0.5
"""Start of the search for the noise variance, as a share of the variance of the rewards."""

SMALLEST_NOISE = 1e-4


class HammingKernel(Kernel):
    r"""Kernel over tasks by the Hamming distances of their sequences.

    .. math:: k(i, j) = e^{-h_{ij} / \ell}

    where :math:`h_{ij}` is the Hamming distance. It is the Gaussian kernel on the letters in
    one-hot encoding, whose squared distances are :math:`2 h_{ij}`, and so positive semi-definite
    for every :math:`\ell`. The length-scale is learned.

    Args:
        distances: Hamming distances ``m x m``.

    Shape:
        ``... x n x 1`` and ``... x n' x 1`` task numbers give ``... x n x n'``.

    Raises:
        ValueError: if ``distances`` are not those of ``m`` sequences.
        InputDataError: if a number is none of a task.
    """

    has_lengthscale = True

    def __init__(self, distances: Tensor):
        super().__init__()
        if (distances.diagonal() != 0).any() or (distances < 0).any():
            raise ValueError(
                "Expected distances >= 0, and 0 from a task to itself. "
                f"Got {distances.min().item():g} to {distances.max().item():g}, and "
                f"{distances.diagonal().tolist()} from a task to itself."
            )
        self.register_buffer("distances", distances)
        check_covariance(self.covar_matrix.detach())

    @property
    def covar_matrix(self) -> Tensor:
        """The covariances of all tasks, ``m x m``."""
        return torch.exp(-self.distances / self.lengthscale)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> Tensor:
        """Return the covariances ``... x n x n'`` of the tasks ``x1`` and ``x2``."""
        return look_up(self.covar_matrix, x1, x2, diag)


@dataclass(frozen=True)
class Method:
    """One of the paper's three models of the context.

    Args:
        context_kernel: Function from the distances ``m x m`` to the kernel over tasks.
        counts_by_task: Whether β counts the trials of each task separately.
    """

    context_kernel: Callable[[Tensor], Kernel]
    counts_by_task: bool = False


CGP_UCB = Method(HammingKernel)
MERGED = Method(lambda distances: CovarianceMatrixKernel(torch.ones_like(distances)))
SEPARATE = Method(
    lambda distances: CovarianceMatrixKernel(torch.eye(len(distances), dtype=torch.float64)),
    counts_by_task=True,
)
METHODS = {"CGP-UCB": CGP_UCB, "merged": MERGED, "separate": SEPARATE}
"""Tasks correlated by their pockets; all equal; independent, with one GP for each."""


def fit_examples(
    data: BindingData, examples: Tensor, method: Method, generator: Generator
) -> ContextualGP:
    """Return a model with hyperparameters of maximum marginal likelihood.

    A Gaussian kernel on the features of the peptides times the method's kernel over the tasks, with
    signal variance, noise variance and mean: each method learns its own, from the same examples.

    Args:
        data: All measurements.
        examples: Indices of the measurements to learn from.
        method: Model of the context.
        generator: Source of new starts if the first one fails.
    """
    train_X, train_Y = data.rows(examples), data.reward[examples].unsqueeze(-1)
    action_kernel = ScaleKernel(RBFKernel()).double()
    distances = torch.pdist(train_X[:, : data.molecule_feature])
    action_kernel.base_kernel.lengthscale = distances.median()
    action_kernel.outputscale = train_Y.var()
    context_kernel = method.context_kernel(data.distances).double()
    if context_kernel.has_lengthscale:
        context_kernel.lengthscale = data.distances.mean()
    likelihood = GaussianLikelihood(noise_constraint=GreaterThan(SMALLEST_NOISE)).double()
    likelihood.noise = START_NOISE
    model = ContextualGP(
        train_X,
        train_Y,
        context_features=[data.molecule_feature],
        action_kernel=action_kernel,
        context_kernel=context_kernel,
        likelihood=likelihood,
        outcome_transform=None,
    )
    model.mean_module.initialize(constant=train_Y.mean())
    with seeded(generator):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model.eval()


class TaskPosterior:
    r"""The posterior at the candidates of one task after another, updated by each trial.

    It equals that of :class:`tvbo.models.EnsembleGP` up to rounding, in a sixteenth of the time:
    a task has a thousand candidates of 180 features, whose covariance is computed once instead of
    row by row. The innovations are rows of :math:`L^{-1} k(X, \cdot)` over the candidates,
    and by :math:`L` the observations of earlier tasks are carried over to new candidates.

    Args:
        model: Model with the hyperparameters; its training data is not used.

    Attributes:
        mean: Posterior mean at the present candidates, ``c``.
        variance: Posterior variance there, without noise, ``c``.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, model: ContextualGP):
        self._kernel = model.covar_module
        self._noise = model.likelihood.noise.item()
        self._prior_mean = model.mean_module.constant.item()
        self._factor = torch.zeros(0, 0, dtype=torch.float64)
        self._innovations = torch.zeros(0, dtype=torch.float64)
        self._observed = torch.zeros(0)

    def enter(self, rows: Tensor) -> None:
        """Set the candidates of a task, ``c x d``, and compute their covariance matrix."""
        self._rows = rows
        with torch.no_grad():
            # Computed at once, which takes less time than a row in each trial.
            self._covar = self._kernel(rows).to_dense()
            self._weights = self._covar.new_zeros(0, len(rows))
            if len(self._factor):
                covar = self._kernel(self._observed, rows).to_dense()
                self._weights = torch.linalg.solve_triangular(self._factor, covar, upper=False)
        self.mean = self._prior_mean + self._innovations @ self._weights
        self.variance = self._covar.diagonal() - self._weights.square().sum(dim=0)

    def observe(self, place: int, outcome: float) -> None:
        """Update the posterior with the outcome of the candidate at index ``place``."""
        row = self._rows[place : place + 1]
        before = self._weights[:, place]
        scale = (self.variance[place] + self._noise).sqrt()
        weights = (self._covar[place] - before @ self._weights) / scale
        innovation = (outcome - self.mean[place]) / scale
        n = len(self._factor)
        factor = self._factor.new_zeros(n + 1, n + 1)
        factor[:n, :n], factor[n, :n], factor[n, n] = self._factor, before, scale
        self._factor = factor
        self._weights = torch.cat([self._weights, weights.unsqueeze(0)])
        self._innovations = torch.cat([self._innovations, innovation.unsqueeze(0)])
        self._observed = torch.cat([self._observed, row]) if n else row
        self.mean = self.mean + innovation * weights
        self.variance = (self.variance - weights.square()).clamp_min(0.0)


def learned(model: ContextualGP) -> dict[str, float]:
    """Return the hyperparameters of a model of :func:`fit_examples` by name."""
    kernel = model.context_action_kernel
    action, context = (part.base_kernel for part in (kernel.action_kernel, kernel.context_kernel))
    found = {
        "lengthscale": action.base_kernel.lengthscale,
        "signal_variance": action.outputscale,
        "noise_variance": model.likelihood.noise,
        "mean": model.mean_module.constant,
    }
    if context.has_lengthscale:
        found["hamming_scale"] = context.lengthscale
    return {name: value.item() for name, value in found.items()}
