"""The log likelihood of a log: dense, or of a long one block by block."""

from __future__ import annotations

import math

import torch
from gpytorch.kernels import Kernel
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from tvbo.logs.dataset import DriftLog

MAX_DENSE = 1000
"""Rows up to which a log is one block, whose likelihood is exact."""

ROWS = 250
"""Rows of a covariance of which derivatives are taken at once."""

EXACT_BLOCK = 80
"""Rows of a block of an exact likelihood: smaller blocks cost more time between blocks, larger ones
within."""

MAX_ACTIONS = 200
"""Distinct actions up to which a long log has an exact likelihood, block by block."""

BLOCKS_PAY = 2
"""Blocks are faster than the dense factorization in logs more than this many times as long as the
sum of block size and distinct actions, as measured; the operations are N (b + n)² and N³."""

BLOCK, GIVEN = 200, 100
"""Rows of a block of a longer log, and rows it is given: half of them just before, and further ones
the sparser the older they are, by which long lags are seen."""


def windows_of(log: DriftLog) -> list[tuple[DriftLog, int]]:
    """Return the blocks of a log, each behind the rows it is given, and the number of these.

    A short log is one block.

    The age of earlier rows grows geometrically, since without distant rows a slow drift is hardly
    seen (Stein, Chi, Welty, 2004, "Approximating likelihoods for large spatial data sets").
    """
    if len(log) <= MAX_DENSE:
        return [(log, 0)]
    windows, first = [], 0
    for block, is_first in log.blocks(BLOCK):
        first = block.start if is_first else first
        age = block.start - first
        reach = torch.logspace(0, math.log10(max(age, 1)), GIVEN, dtype=torch.float64)
        ages = torch.cat([torch.arange(1, GIVEN // 2 + 1), reach.long()]).unique()
        given = block.start - ages[ages <= age].flip(0)
        rows = torch.cat([given, torch.arange(block.start, block.stop)])
        windows.append((log.rows(rows), len(given)))
    return windows


class LogLikelihood:
    r"""Log marginal likelihood (24) of Bogunovic et al. (2016), Appendix B.

    .. math:: \log p(y) = -\tfrac12 r^\top \Sigma^{-1} r - \tfrac12 \log |\Sigma|
        - \tfrac{n}{2} \log 2\pi, \quad
        \Sigma_{ij} = k(x_i, x_j)\,e^{-\rho |t_i - t_j| / 2} + \sigma_i^2 \delta_{ij}

    with :math:`r = y - m` and :math:`\rho = -\log(1 - \varepsilon)`, and
    :math:`\Sigma_{ij} = 0` between different segments. A mean :math:`m` that is not given is
    integrated out with a flat prior: the restricted likelihood (Patterson, Thompson, 1971), which
    is that at the best mean, plus :math:`\tfrac12 \log (2 \pi / 1^\top \Sigma^{-1} 1)`. At its
    maximum what drifts slowly would be taken for a mean.

    It is exact, in :math:`O(n^3)`, for logs of up to 1,000 rows. That of a longer one is
    :math:`\sum_j \log p(y_j \mid y_{c(j)})` over blocks of successive rows, in :math:`O(n)`, each
    given some 100 earlier rows (Vecchia, 1988).

    Args:
        log: The observations.
        covar_module: The kernel over actions.
        mean: The prior mean; None integrates it out.
    """

    def __init__(self, log: DriftLog, covar_module: Kernel, mean: float | None):
        self.covar_module, self.mean, self.windows = covar_module, mean, windows_of(log)

    def __call__(self, rate: Tensor, noise_variance: Tensor) -> tuple[Tensor, float]:
        """Return the log likelihood, differentiable, and the mean at which it was evaluated.

        Args:
            rate: ρ per unit of time, a scalar.
            noise_variance: σ², a scalar; not used if the noise variances of the log are known.

        Raises:
            NotPSDError: if the covariance is singular to rounding.
        """
        factored = []
        for log, _ in self.windows:
            with torch.no_grad():
                covar = covariance_of(log, self.covar_module, rate, noise_variance)
            factored.append(whiten(covar, torch.stack([log.Y, torch.ones_like(log.Y)], dim=-1)))
        pairs = list(zip(self.windows, factored, strict=True))
        white = torch.cat([each[given:] for (_, given), (_, each) in pairs])
        diagonal = torch.cat([root.diagonal()[given:] for (_, given), (root, _) in pairs])
        value, mean = log_density(white, diagonal, self.mean)
        inputs = [rate, noise_variance, *self.covar_module.parameters()]
        inputs = [each for each in inputs if each.requires_grad]
        if not inputs or not torch.is_grad_enabled():
            return value, mean
        # Outcomes less the mean and, where this is integrated out, ones of length one.
        combinations = [[1.0, -mean]]
        if self.mean is None:
            combinations.append([0.0, 1 / white[:, 1].norm().item()])
        combined = torch.tensor(combinations, dtype=torch.float64).mT
        slopes = [torch.zeros_like(each) for each in inputs]
        for (log, given), (root, each) in pairs:
            residuals = each @ combined
            weights = _in_covariance(root, residuals)
            if given:
                part = slice(given)
                weights[part, part] -= _in_covariance(root[part, part], residuals[part])
            # Some rows at once, since autograd holds several matrices of them.
            for first in range(0, len(log), ROWS):
                rows = slice(first, first + ROWS)
                covar = covariance_of(log, self.covar_module, rate, noise_variance, rows)
                found = torch.autograd.grad(
                    covar, inputs, weights[rows], allow_unused=True, materialize_grads=True
                )
                slopes = [old + slope for old, slope in zip(slopes, found, strict=True)]
        return with_gradient(value.item(), *zip(inputs, slopes, strict=True)), mean


class BlockLikelihood:
    r"""Log likelihood of any log over ``n`` distinct actions, exact, in time linear in the log.

    The function over the actions is a Markov process in time. So the future depends on the past
    only by the posterior of ``f`` over the ``n`` actions at the last time. With
    :math:`\phi(d) = e^{-\rho d / 2}`, at times :math:`s, s'` that are later than a posterior by
    :math:`d, d'`, ``f`` has the mean :math:`\phi(d) m` and the covariance
    :math:`\phi(|s - s'|) K - \phi(d) \phi(d') R`. The covariance of each block of ``b``
    observations given that posterior is factorized, and the posterior updated:
    :math:`\log p(y) = \sum_j \log p(y_j \mid y_1, \dots, y_{j-1})`. Costs
    :math:`O(N (b + n)^2)`; memory :math:`O(N (b + n))`.

    Gaps, unequal steps, repeats, many observations at one time and known noise variances are
    allowed. Each segment begins with the prior.

    Args:
        log: The observations.
        covar_module: The kernel over actions.
        mean: The prior mean; None integrates it out.
        block: Observations in a block.
    """

    def __init__(
        self, log: DriftLog, covar_module: Kernel, mean: float | None, block: int = EXACT_BLOCK
    ):
        self.log, self.covar_module, self.mean = log, covar_module, mean
        self.actions, self.arms = torch.unique(log.actions, dim=0, return_inverse=True)
        self.blocks = log.blocks(block)

    def __call__(self, rate: Tensor, noise_variance: Tensor) -> tuple[Tensor, float]:
        """Return the log likelihood, differentiable, and the mean at which it was evaluated.

        Args:
            rate: ρ per unit of time, a scalar.
            noise_variance: σ², a scalar; not used if the noise variances of the log are known.

        Raises:
            NotPSDError: if the covariance of a block is singular to rounding.
        """
        log, covar = self.log, self.covar_module(self.actions).to_dense()
        n, end, white, diagonals = len(covar), log.times[0], [], []
        series = torch.stack([log.Y, torch.ones_like(log.Y)], dim=-1)
        for rows, is_first in self.blocks:
            arms, times = self.arms[rows], log.times[rows]
            if is_first:
                # R, and below it the means of outcomes and ones.
                state, end = covar.new_zeros(n + 2, n), times[0]
            since = torch.exp(-0.5 * rate * (times - end))[:, None]
            until = torch.exp(-0.5 * rate * (times[-1] - times))[:, None]
            correlation = torch.exp(-0.5 * rate * (times[:, None] - times).abs())
            kept, prior, aged = since[-1], covar[arms], state[:, arms].mT * since
            noise = noise_variance if log.Yvar is None else log.Yvar[rows]
            of_block = prior[:, arms] * correlation - aged[:, arms] * since.mT
            of_block = of_block + torch.diag(noise.expand(len(arms)))
            crossed = prior * until - kept * aged[:, :n]
            rest = torch.cat([crossed, series[rows] - aged[:, n:]], dim=-1)
            root, solved = whiten(of_block, rest)
            faded = torch.cat([kept**2 * state[:n], kept * state[n:]])
            state, end = faded + solved.mT @ solved[:, :n], times[-1]
            white.append(solved[:, n:])
            diagonals.append(root.diagonal())
        return log_density(torch.cat(white), torch.cat(diagonals), self.mean)


def is_exact(log: DriftLog) -> bool:
    """Return whether the likelihood of a log is exact."""
    return len(log) <= MAX_DENSE or log.num_actions <= MAX_ACTIONS


def likelihood_of(
    log: DriftLog, covar_module: Kernel, mean: float | None
) -> BlockLikelihood | LogLikelihood:
    """Return the likelihood of a log, block by block where that is exact and faster."""
    n = log.num_actions
    in_blocks = n <= MAX_ACTIONS and len(log) > BLOCKS_PAY * (EXACT_BLOCK + n)
    return (BlockLikelihood if in_blocks else LogLikelihood)(log, covar_module, mean)


def covariance_of(
    log: DriftLog,
    covar_module: Kernel,
    rate: Tensor,
    noise_variance: Tensor,
    rows: slice = slice(0, None),
) -> Tensor:
    r"""Return :math:`\Sigma`, or some of its rows.

    Args:
        log: The observations.
        covar_module: The kernel over actions.
        rate: ρ.
        noise_variance: σ²; not used if the noise variances of the log are known.
        rows: The rows.
    """
    lags = (log.times[rows].unsqueeze(-1) - log.times).abs_()
    kernel = covar_module(log.actions[rows], log.actions).to_dense()
    covar: Tensor = (-0.5 * rate * lags).exp_() * kernel
    if log.segments.any():
        covar = covar * (log.segments[rows].unsqueeze(-1) == log.segments)
    covar.diagonal(rows.start).add_(noise_variance if log.Yvar is None else log.Yvar[rows])
    return covar


def _in_covariance(root: Tensor, white: Tensor) -> Tensor:
    """Return the derivative (25) by the covariance, cheaper than through the factorization."""
    alpha = torch.linalg.solve_triangular(root.mT, white, upper=True)
    return torch.cholesky_inverse(root).neg_().addmm_(alpha, alpha.mT).mul_(0.5)


def whiten(covar: Tensor, series: Tensor) -> tuple[Tensor, Tensor]:
    """Return the Cholesky factor of a covariance, and series whitened by it.

    Args:
        covar: ``n x n``.
        series: ``n x m``.

    Raises:
        NotPSDError: if the covariance is singular to rounding.
    """
    root, info = torch.linalg.cholesky_ex(covar)
    # No jitter: it would act as additional noise, and change the likelihood.
    if info != 0:
        raise NotPSDError("The covariance of the log is singular to rounding.")
    return root, torch.linalg.solve_triangular(root, series, upper=False)


def log_density(white: Tensor, diagonal: Tensor, mean: float | None) -> tuple[Tensor, float]:
    """Return the log density of outcomes, and the mean at which it is that of a normal variable.

    Args:
        white: ``n x 2`` whitened outcomes and ones.
        diagonal: ``n``, the diagonal of the Cholesky factor of their covariance.
        mean: The prior mean; None integrates it out, which gives its generalized least squares
            value.
    """
    y, one = white.unbind(-1)
    value = -diagonal.log().sum() - 0.5 * len(y) * math.log(2 * math.pi)
    if mean is None:
        precision = one.square().sum()
        # A number: the density is stationary in this mean.
        mean = ((y * one).sum() / precision).item()
        value = value + 0.5 * (math.log(2 * math.pi) - precision.log())
    return value - 0.5 * (y - mean * one).square().sum(), mean


def with_gradient(value: float, *parts: tuple[Tensor, Tensor]) -> Tensor:
    r"""Return a scalar tensor with a given value and given derivatives.

    To ``value`` are added terms of value zero, :math:`\langle G, X - X_0 \rangle`, each of which
    carries the derivative ``G`` with respect to the tensor ``X``. Autograd continues from ``X`` to
    whatever ``X`` was computed from.

    Args:
        value: The value.
        *parts: Pairs of a tensor and the derivative with respect to it, of the same shape.
    """
    total = torch.tensor(value, dtype=torch.float64)
    for tensor, gradient in parts:
        total = total + (gradient * (tensor - tensor.detach())).sum()
    return total
