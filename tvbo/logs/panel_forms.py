"""Forms of drift of a panel as state-space models: their parameters, and the chain rule to them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from tvbo.kernels import SeasonalKernel, TemporalKernel
from tvbo.logs.panel_cells import Cells
from tvbo.logs.panel_dynamics import (
    CommonDynamics,
    Dynamics,
    IndependentDynamics,
    VectorDynamics,
)
from tvbo.logs.state_space import Gradient, KalmanFilter, StateSpace
from tvbo.quadratic_model import Array

NOISE_RANGE = (1e-6, 1.0)
"""Range of the noise variance, as a share of the variance of an arm, or of all."""

NOISE_SHIFT = 1e-3
"""What is added to a noise variance before its logarithm is taken, as a share of that variance: the
likelihood is then not flat where noise is small, and searches come back from there."""

DIFFERENCE = 1e-5
"""Step of the differences that give the derivatives of a temporal kernel's few matrices."""


SHRINKAGES = np.geomspace(1.0, 1e5, 40)
"""Weights of the prior of a vector autoregression that are compared."""

FAR = 4.0
"""Standardized innovations are limited to this for the first estimates of their covariance."""

LEAST_KEPT = 0.1
"""Smallest share of an estimate that a prior leaves."""


class Form(ABC):
    """A form of drift: a vector of parameters without bounds or with, and the model they give.

    Args:
        variances: ``k``, of the values whose noise variances are among the parameters.
    """

    name: str
    lags: Array
    start: Array
    num_counted: int
    """Number of parameters that BIC counts: of those without a prior."""
    integrates_means: bool = True
    """Whether the likelihood is the restricted one."""

    def __init__(self, variances: Array):
        self.variances, self.shift = variances, NOISE_SHIFT * variances

    def noise_bounds(self) -> list[tuple[float | None, float | None]]:
        """Return bounds of the parameters of noise variances."""
        low, high = (np.log(end * self.variances + self.shift).tolist() for end in NOISE_RANGE)
        return [*zip(low, high, strict=True)]

    def noise(self, parameters: Array) -> Array:
        """Return the noise variances, ``k``, of their parameters: logarithms with a shift."""
        noise: Array = np.exp(parameters) - self.shift
        return noise

    @abstractmethod
    def bounds(self) -> list[tuple[float | None, float | None]]:
        """Return bounds of the parameters."""

    def space(self, theta: Array) -> StateSpace:
        """Return the state-space model; by default, of all arms together."""
        return self.dynamics(theta, 1.0, 1.0).space(self.lags)

    @abstractmethod
    def chain(self, theta: Array, gradient: Gradient, gaps: NDArray[np.int64]) -> Array:
        """Return the derivatives by the parameters from those by the arrays of the model."""

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        """Return the log density of the prior up to a constant, and its gradient."""
        return 0.0, np.zeros_like(theta)

    @abstractmethod
    def dynamics(self, theta: Array, scale: float, gap: float) -> Dynamics:
        """Return the model in the user's units.

        Args:
            theta: The parameters.
            scale: Unit of variances, in the user's.
            gap: The usual gap, in the user's unit of time.
        """

    def outputs(self, values: Array, theta: Array) -> Array:
        """Return values ``T x n`` as outputs of the model, ``T x m x b``."""
        return values[..., None]

    def arms(self, outputs: Array, theta: Array) -> Array:
        """Return outputs ``T x m x b`` as values of the arms, ``T x n``."""
        return outputs[..., 0]

    def filter(self, cells: Array, gaps: NDArray[np.int64], theta: Array) -> KalmanFilter:
        """Return the filter of a panel ``T x n`` with these cells."""
        observed = ~np.isnan(self.outputs(cells, theta))
        return KalmanFilter(self.space(theta), observed, gaps)


class IndependentForm(Form):
    """Exponential decay of each arm by itself: a rate, a variance and a noise variance for each.

    The parameters are their logarithms, ``3 n``, of the noise with :data:`NOISE_SHIFT`.

    Args:
        cells: The panel.
        start: Parameters from which a search starts; None are the best of a grid.
    """

    name = "independent"

    def __init__(self, cells: Cells, start: Array | None = None):
        self.lags, self.span = cells.lags, cells.span
        self.num_arms = cells.values.shape[1]
        self.num_counted = 3 * self.num_arms
        super().__init__(cells.deviations**2)
        if start is None:
            rates, variances, noise = _scan(cells)
            start = np.log(np.concatenate([rates, variances, noise + self.shift]))
        self.start = start

    def bounds(self) -> list[tuple[float | None, float | None]]:
        """Return bounds, of rates as in :class:`CommonForm`."""
        n = self.num_arms
        rates = math.log(1 / self.span), math.log(32.0)
        variances = [(log - 14.0, log + 9.0) for log in np.log(self.variances).tolist()]
        return [*[rates] * n, *variances, *self.noise_bounds()]

    def outputs(self, values: Array, theta: Array) -> Array:
        """Return the values of each arm as those of its own model."""
        return values[:, None]

    def arms(self, outputs: Array, theta: Array) -> Array:
        """Return the values of the arms."""
        return outputs[:, 0]

    def space(self, theta: Array) -> StateSpace:
        """Return ``n`` models with one state."""
        rates, variances, noise = self.parts(theta)
        decay = np.exp(-0.5 * np.multiply.outer(self.lags, rates))
        fresh = variances * (1 - decay**2)
        return StateSpace(
            decay[:, None, None],
            fresh[:, None, None],
            variances[None, None],
            np.ones((1, 1)),
            noise[None],
        )

    def chain(self, theta: Array, gradient: Gradient, gaps: NDArray[np.int64]) -> Array:
        """Return the derivatives by the logarithms."""
        rates, variances, shifted = np.exp(theta.reshape(3, -1))
        decay = np.exp(-0.5 * np.multiply.outer(self.lags, rates))
        by_decay = gradient.transitions[:, 0, 0]
        by_fresh = gradient.innovations[:, 0, 0]
        by_decay = by_decay - 2 * variances * decay * by_fresh
        by_rate = (by_decay * decay * -0.5 * self.lags[:, None]).sum(0) * rates
        by_variance = (by_fresh * (1 - decay**2)).sum(0) + gradient.initial[0, 0]
        return np.concatenate([by_rate, by_variance * variances, gradient.noise[0] * shifted])

    def parts(self, theta: Array) -> tuple[Array, Array, Array]:
        """Return rates, variances and noise variances, each ``n``."""
        rates, variances, noise = theta.reshape(3, -1)
        return np.exp(rates), np.exp(variances), self.noise(noise)

    def dynamics(self, theta: Array, scale: float, gap: float) -> Dynamics:
        """Return the decay of each arm."""
        rates, variances, noise = self.parts(theta)
        return IndependentDynamics(noise * scale, -np.expm1(-rates / gap), variances * scale)


class CovarianceFactor:
    """A covariance matrix over arms by the logarithm of the diagonal, and the rest, of a factor.

    Args:
        start: The covariance, ``n x n``, at which all parameters are zero.
        weight: Weight of the prior, in steps of time: of an inverse Wishart distribution about a
            multiple of ``target``, which is maximized over.
        target: ``n``, diagonal of the target.
    """

    def __init__(self, start: Array, weight: float, target: Array):
        self.root = np.asarray(np.linalg.cholesky(start), np.float64)
        self.weight = weight
        self.target = target
        self.lower = np.tril_indices(len(start))
        self.is_diagonal = self.lower[0] == self.lower[1]

    @property
    def num_parameters(self) -> int:
        """Number of parameters."""
        return len(self.is_diagonal)

    def factor(self, parameters: Array) -> Array:
        """Return the factor, ``n x n``."""
        M = np.zeros_like(self.root)
        M[self.lower] = np.where(self.is_diagonal, np.exp(parameters), parameters)
        factor: Array = self.root @ M
        return factor

    def chain(self, parameters: Array, by_covariance: Array) -> Array:
        """Return the derivatives by the parameters from a symmetric one by the covariance."""
        M = np.zeros_like(self.root)
        M[self.lower] = np.where(self.is_diagonal, np.exp(parameters), parameters)
        by_M = 2 * self.root.T @ by_covariance @ self.root @ M
        lower: Array = by_M[self.lower]
        return np.where(self.is_diagonal, lower * M[self.lower], lower)

    def log_prior(self, parameters: Array) -> tuple[float, Array]:
        r"""Return :math:`-\frac{\nu}{2} (\log |K| + n \log \mathrm{tr} D K^{-1})`, and slope."""
        if self.weight == 0:
            return 0.0, np.zeros_like(parameters)
        factor = self.factor(parameters)
        n = len(factor)
        inverse = solve_triangular(factor, np.eye(n), lower=True)
        precision = inverse.T @ inverse
        trace = float(self.target @ np.diag(precision))
        log_determinant = 2 * float(np.log(np.diag(factor)).sum())
        # Zero at a multiple of the target, its largest value.
        best = float(np.log(self.target).sum()) + n * math.log(n)
        value = -0.5 * self.weight * (log_determinant + n * math.log(trace) - best)
        by_covariance = (
            -0.5 * self.weight * (precision - n / trace * (precision * self.target) @ precision)
        )
        return value, self.chain(parameters, by_covariance)


class CommonForm(Form):
    r"""Temporal kernels that all arms share, with one covariance over arms.

    The components together have the covariance :math:`K \otimes \sum_c p_c \tau_c`. In a panel
    without missing cells they separate into the modes, the eigenvectors of K.

    Args:
        name: Name of the form.
        kernels: The temporal kernels in units of the usual gap; copies that are changed.
        cells: The panel.
        covariance: Covariance over arms from which the search starts, ``n x n``.
        weight: Weight of its prior, in steps of time.
        noise: Noise variance from which the search starts.
        target: ``n``, diagonal to which the prior of the covariance shrinks.
    """

    def __init__(
        self,
        name: str,
        kernels: Sequence[TemporalKernel],
        cells: Cells,
        covariance: Array,
        weight: float,
        noise: float,
        target: Array,
    ):
        super().__init__(target.mean(keepdims=True))
        self.name, self.kernels = name, list(kernels)
        self.lags, self.span, self.is_full = cells.lags, cells.span, cells.is_full
        self.covariance = CovarianceFactor(covariance, weight, target)
        self.logs = np.concatenate([_logs(kernel) for kernel in self.kernels])
        shares = np.zeros(len(self.kernels) - 1)
        free = np.zeros(self.covariance.num_parameters)
        self.start = np.concatenate([self.logs, shares, np.log(noise + self.shift), free])
        self.num_counted = len(self.logs) + len(shares) + 1
        self._modes: tuple[Array, Array, Array] | None = None

    def bounds(self) -> list[tuple[float | None, float | None]]:
        """Return bounds of the parameters of kernels, shares and noise."""
        kernels = [bound for kernel in self.kernels for bound in _bounds(kernel, self.span)]
        shares = [(-8.0, 8.0)] * (len(self.kernels) - 1)
        free = [(None, None)] * self.covariance.num_parameters
        return [*kernels, *shares, *self.noise_bounds(), *free]

    def in_time(self, parameters: Array) -> tuple[Array, Array, Array]:
        """Return transitions over lags ``g x s x s``, stationary covariance and observation.

        Args:
            parameters: Logarithms of the kernels' parameters, and log ratios of the shares.
        """
        shares = self.shares(parameters)
        start, blocks, stationary, readings = 0, [], [], []
        for kernel, share in zip(self.kernels, shares, strict=True):
            count = len(_names(kernel))
            _set(kernel, parameters[start : start + count])
            start += count
            with torch.no_grad():
                blocks.append(kernel.transition(torch.as_tensor(self.lags)).numpy())
                stationary.append(share * kernel.stationary_covariance().numpy())
                readings.append(kernel.observation.numpy())
        sizes = [len(block) for block in stationary]
        ends = np.cumsum([0, *sizes])
        A = np.zeros((len(self.lags), ends[-1], ends[-1]))
        P = np.zeros((ends[-1], ends[-1]))
        for block, one, first, last in zip(blocks, stationary, ends, ends[1:], strict=False):
            A[:, first:last, first:last] = block
            P[first:last, first:last] = one
        return A, P, np.concatenate(readings).astype(float)

    def _parts(self, theta: Array) -> tuple[Array, float, Array]:
        """Return parameters in time, noise variance, and those of the covariance."""
        k = self.num_counted
        return theta[: k - 1], float(self.noise(theta[k - 1 : k])[0]), theta[k:]

    def modes(self, theta: Array) -> tuple[Array, Array]:
        """Return eigenvalues and eigenvectors of the covariance over arms."""
        # The parts of one evaluation ask for the modes of the same parameters.
        if self._modes is None or not np.array_equal(self._modes[0], theta):
            eigenvalues, modes = np.linalg.eigh(self.covariance_at(theta))
            eigenvalues = np.asarray(eigenvalues.clip(min=0.0), np.float64)
            self._modes = theta.copy(), eigenvalues, np.asarray(modes, np.float64)
        return self._modes[1:]

    def outputs(self, values: Array, theta: Array) -> Array:
        """Return the modes where no cell is missing, else the arms."""
        if self.is_full:
            return (values @ self.modes(theta)[1])[:, None]
        return values[..., None]

    def arms(self, outputs: Array, theta: Array) -> Array:
        """Return the values of the arms."""
        if self.is_full:
            turned: Array = outputs[:, 0] @ self.modes(theta)[1].T
            return turned
        return outputs[..., 0]

    def _mode_space(self, theta: Array) -> StateSpace:
        """Return ``n`` models of the modes."""
        parameters, noise, _ = self._parts(theta)
        A, P, h = self.in_time(parameters)
        fresh = P - A @ P @ A.swapaxes(1, 2)
        variances = self.modes(theta)[0]
        n = len(variances)
        return StateSpace(
            np.broadcast_to(A[..., None], (*A.shape, n)).copy(),
            fresh[..., None] * variances,
            P[..., None] * variances,
            h[None],
            np.full((1, n), noise),
        )

    def mode_filter(self, theta: Array, cells: Cells) -> tuple[Array, Array, KalmanFilter]:
        """Return variances and modes of the arms, and the modes' filter if no cell were missing."""
        observed = np.ones(cells.values[:, None].shape, dtype=bool)
        return *self.modes(theta), KalmanFilter(self._mode_space(theta), observed, cells.gaps)

    def space(self, theta: Array) -> StateSpace:
        """Return ``n`` models of the modes, or one of all arms."""
        return self._mode_space(theta) if self.is_full else super().space(theta)

    def chain(self, theta: Array, gradient: Gradient, gaps: NDArray[np.int64]) -> Array:
        """Return the derivatives by the parameters."""
        parameters, _, rest = self._parts(theta)
        A, P, _ = self.in_time(parameters)
        fresh = P - A @ P @ A.swapaxes(1, 2)
        if self.is_full:
            variances, vectors = self.modes(theta)
            by_A = gradient.transitions.sum(-1)
            by_fresh = gradient.innovations @ variances
            by_P = gradient.initial @ variances
            by_modes = np.zeros((len(variances),) * 2)
            diagonal = np.einsum("gkli,gkl->i", gradient.innovations, fresh)
            diagonal += np.einsum("kli,kl->i", gradient.initial, P)
            for gap in range(-1, len(A)):
                states = gradient.states[gaps == gap]
                weights = P if gap < 0 else fresh[gap]
                for k, m in np.ndindex(P.shape):
                    by_modes += 0.5 * weights[k, m] * states[:, k].T @ states[:, m]
            np.fill_diagonal(by_modes, diagonal)
            by_K = vectors @ by_modes @ vectors.T
        else:
            factor = self.covariance.factor(rest)
            K = factor @ factor.T
            n, s = len(K), len(P)
            G = gradient.innovations.reshape(-1, n, s, n, s)
            G0 = gradient.initial.reshape(n, s, n, s)
            by_A = np.einsum("gikil->gkl", gradient.transitions.reshape(-1, n, s, n, s))
            by_fresh = np.einsum("gikjl,ij->gkl", G, K)
            by_P = np.einsum("ikjl,ij->kl", G0, K)
            by_K = np.einsum("gikjl,gkl->ij", G, fresh) + np.einsum("ikjl,kl->ij", G0, P)
        by_parameters = np.empty(len(parameters))
        for j, step in enumerate(DIFFERENCE * np.eye(len(parameters))):
            ends = []
            for each in (parameters + step, parameters - step):
                A_, P_, _ = self.in_time(each)
                ends.append((A_, P_, P_ - A_ @ P_ @ A_.swapaxes(1, 2)))
            total = sum(
                float((by * (up - down)).sum())
                for by, up, down in zip((by_A, by_P, by_fresh), *ends, strict=True)
            )
            by_parameters[j] = total / (2 * DIFFERENCE)
        by_K = 0.5 * (by_K + by_K.T)
        by_rest = self.covariance.chain(rest, by_K)
        by_noise = gradient.noise.sum() * math.exp(theta[len(parameters)])
        return np.concatenate([by_parameters, [by_noise], by_rest])

    def covariance_at(self, theta: Array) -> Array:
        """Return the covariance over arms, of all components together."""
        factor = self.covariance.factor(theta[self.num_counted :])
        return factor @ factor.T

    def dynamics(self, theta: Array, scale: float, gap: float) -> Dynamics:
        """Return kernels, and the covariance of each component."""
        parameters, noise, _ = self._parts(theta)
        self.in_time(parameters)
        kernels = [in_unit_of_time(kernel, 1 / gap) for kernel in self.kernels]
        covariances = np.multiply.outer(self.shares(parameters), self.covariance_at(theta))
        return CommonDynamics(
            np.full(covariances.shape[1], noise * scale),
            [kernel.requires_grad_(False) for kernel in kernels],
            covariances * scale,
        )

    def at_rate(self, theta: Array, log_rate: float) -> Array:
        """Return parameters with another rate of the first kernel.

        The variances are such that as much is new in each unit of time.
        """
        theta = theta.copy()
        scale = 0.5 * (theta[0] - log_rate)
        theta[0] = log_rate
        rest = theta[self.num_counted :]
        is_diagonal = self.covariance.is_diagonal
        rest[:] = np.where(is_diagonal, rest + scale, rest * math.exp(scale))
        return theta

    def spread(self, theta: Array, factor: float) -> Array:
        """Return parameters whose first kernel is faster than the others by a factor more."""
        theta = theta.copy()
        count = len(_names(self.kernels[0]))
        theta[:count] += 0.5 * math.log(factor)
        theta[count : len(self.logs)] -= 0.5 * math.log(factor)
        return theta

    def shares(self, parameters: Array) -> Array:
        """Return the shares of the components in the variance."""
        shares = np.exp(np.append(0.0, parameters[len(self.logs) :]))
        result: Array = shares / shares.sum()
        return result

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        """Return that of the covariance over arms."""
        value, gradient = self.covariance.log_prior(theta[self.num_counted :])
        return value, np.concatenate([np.zeros(self.num_counted), gradient])


class VectorForm(Form):
    r"""A vector autoregression with noise: :math:`x' = A x + w`, :math:`w \sim N(0, Q)`.

    The prior is that of Litterman (1986) in its conjugate form: rows of A are Gaussian about the
    decay of each arm by itself, and Q is inverse Wishart about a diagonal. Both start at the
    independent form. The parameters are A less its centre in units of the states' deviations, those
    of Q, and the logarithms of the noise variances.

    Args:
        cells: The panel about means and season, all of whose gaps are one.
        theta: Parameters of its independent form.
    """

    name = "vector"
    num_counted = 0
    # The information on means would be a pass of the filter for each arm.
    integrates_means = False

    def __init__(self, cells: Cells, theta: Array):
        independent = IndependentForm(cells)
        super().__init__(independent.variances)
        rates, variances, noise = independent.parts(theta)
        filtered = independent.filter(cells.values, cells.gaps, theta)
        outputs = independent.outputs(cells.values, theta)
        _, states = filtered.innovations(outputs)
        errors = filtered.whitened(outputs)[:, 0].clip(-FAR, FAR)
        # A less its centre starts at the ridge regression of innovations on states, in units of
        # their deviations, with the weight of the largest evidence.
        follows = cells.gaps[1:] >= 0
        X, W = (states[:-1, 0] / np.sqrt(variances))[follows], errors[1:][follows]
        eigenvalues, vectors = np.linalg.eigh(X.T @ X)
        eigenvalues = eigenvalues.clip(min=0.0)[:, None]
        projected = ((vectors.T @ (X.T @ W)) ** 2).sum(1)[:, None]
        kept = SHRINKAGES / (SHRINKAGES + eigenvalues)
        evidence = 0.5 * W.shape[1] * np.log(kept) + 0.5 * projected * kept / SHRINKAGES
        self.shrinkage = float(SHRINKAGES[evidence.sum(0).argmax()])
        self.num_arms = n = len(rates)
        ridge = np.linalg.solve(X.T @ X + self.shrinkage * np.eye(n), X.T @ W)
        self.lags = cells.lags
        self.center = np.exp(-0.5 * rates)
        self.initial = variances
        fresh = variances * (1 - self.center**2)
        deviation = np.sqrt(fresh)
        self.scale = deviation[:, None] / np.sqrt(variances)
        covariance, share = ledoit_wolf(W)
        deviation /= np.sqrt(np.diag(covariance))
        self.covariance = CovarianceFactor(
            deviation[:, None] * covariance * deviation, prior_weight(len(W), share), fresh
        )
        rest = np.zeros(self.covariance.num_parameters)
        self.start = np.concatenate([ridge.T.ravel(), rest, np.log(noise + self.shift)])

    def bounds(self) -> list[tuple[float | None, float | None]]:
        """Return bounds of the noise."""
        free = [(None, None)] * (len(self.start) - self.num_arms)
        return [*free, *self.noise_bounds()]

    def _parts(self, theta: Array) -> tuple[Array, Array, Array]:
        """Return A, the parameters of Q, and the noise variances."""
        n = self.num_arms
        A = np.diag(self.center) + theta[: n * n].reshape(n, n) * self.scale
        return A, theta[n * n : -n], self.noise(theta[-n:])

    def chain(self, theta: Array, gradient: Gradient, gaps: NDArray[np.int64]) -> Array:
        """Return the derivatives by the parameters."""
        _, rest, _ = self._parts(theta)
        by_A = gradient.transitions[0, ..., 0] * self.scale
        by_Q = self.covariance.chain(rest, gradient.innovations[0, ..., 0])
        by_noise = gradient.noise[:, 0] * np.exp(theta[-self.num_arms :])
        return np.concatenate([by_A.ravel(), by_Q, by_noise])

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        """Return that of A and Q."""
        n = self.num_arms
        A = theta[: n * n]
        value, gradient = self.covariance.log_prior(theta[n * n : -n])
        value -= 0.5 * self.shrinkage * float(A @ A)
        return value, np.concatenate([-self.shrinkage * A, gradient, np.zeros(n)])

    def dynamics(self, theta: Array, scale: float, gap: float) -> Dynamics:
        """Return the autoregression."""
        A, rest, noise = self._parts(theta)
        factor = self.covariance.factor(rest)
        return VectorDynamics(
            noise * scale, A, factor @ factor.T * scale, self.initial * scale, gap
        )


def prior_weight(num_times: float, shrinkage: float) -> float:
    """Return the weight of a prior, in steps of time, that shrinks by a share."""
    return max(1.0, num_times * shrinkage / max(1 - shrinkage, LEAST_KEPT))


def ledoit_wolf(rows: Array) -> tuple[Array, float]:
    """Return the covariance of rows, shrunk as by Ledoit and Wolf (2004), and by what share."""
    # Imported here since importing scikit-learn takes a second.
    from sklearn.covariance import LedoitWolf

    found = LedoitWolf().fit(rows)
    return found.covariance_, float(found.shrinkage_)


RATES = np.geomspace(2e-4, 8.0, 20)
RATIOS = np.concatenate([[1e-4], np.geomspace(1e-3, 5.0, 10)])
"""Rates, and ratios of noise to signal, from which the best of each arm is the start."""


def _scan(cells: Cells) -> tuple[Array, Array, Array]:
    """Return rates, variances and noise variances of the arms, the best of a grid."""
    T, n = cells.values.shape
    rates, ratios = (each.ravel()[:, None] for each in np.meshgrid(RATES, RATIOS, indexing="ij"))
    decay = np.exp(-0.5 * cells.lags[:, None, None] * rates)
    observed, known = ~np.isnan(cells.values), np.nan_to_num(cells.values)
    mean, variance = np.zeros((len(rates), n)), np.ones((len(rates), n))
    squares, logs = np.zeros_like(mean), np.zeros_like(mean)
    for t in range(T):
        if cells.gaps[t] < 0:
            mean[:], variance[:] = 0.0, 1.0
        else:
            a = decay[cells.gaps[t]]
            mean, variance = a * mean, a**2 * variance + 1 - a**2
        total = variance + ratios
        error = known[t] - mean
        seen = observed[t]
        squares += np.where(seen, error**2 / total, 0.0)
        logs += np.where(seen, np.log(total), 0.0)
        gain = np.where(seen, variance / total, 0.0)
        mean = mean + gain * error
        variance = variance * (1 - gain)
    counts = observed.sum(0)
    # An arm without a value has the variance of the whole log.
    scale = np.where(counts > 0, squares / counts.clip(min=1), cells.deviations**2) + 1e-12
    best = (-0.5 * (counts * np.log(scale) + logs)).argmax(0)
    arms = np.arange(n)
    scale = scale[best, arms]
    return rates[best, 0], scale, scale * ratios[best, 0]


def _names(kernel: TemporalKernel) -> list[str]:
    return [
        name.removeprefix("raw_") for name, raw in kernel.named_parameters() if raw.requires_grad
    ]


def _logs(kernel: TemporalKernel) -> Array:
    """Return the logarithms of the learned parameters: of ε that of ρ = -log(1 - ε)."""
    return np.array([_to_log(name, getattr(kernel, name).item()) for name in _names(kernel)])


def _set(kernel: TemporalKernel, logs: Array) -> None:
    """Set the learned parameters of a kernel from their logarithms."""
    for name, log in zip(_names(kernel), logs.tolist(), strict=True):
        value = -math.expm1(-math.exp(log)) if name == "forgetting_rate" else math.exp(log)
        # A tensor, since GPyTorch would round a number to single precision.
        setattr(kernel, name, torch.tensor(value, dtype=torch.float64))


def _bounds(kernel: TemporalKernel, span: float) -> list[tuple[float | None, float | None]]:
    """Return bounds of the logarithms within the constraints of a kernel.

    Rates from a correlation of 0.6 over the longest segment to 1e-7 over a gap, lengthscales and
    periods of at most that segment. What is slower cannot be told from a random walk.
    """
    bounds: list[tuple[float | None, float | None]] = []
    for name in _names(kernel):
        low, high = (1 / span, 32.0) if name == "forgetting_rate" else (0.1, span)
        constraint = getattr(kernel, f"raw_{name}_constraint")
        ends = constraint.lower_bound.item(), constraint.upper_bound.item()
        least, most = (_to_log(name, end) for end in ends)
        bounds.append((max(math.log(low), least), min(math.log(high), most)))
    return bounds


def _to_log(name: str, value: float) -> float:
    """Return the logarithm that is searched; infinite at the ends of its range."""
    if name == "forgetting_rate":
        value = math.inf if value >= 1 else -math.log1p(-value)
    return -math.inf if value <= 0 else math.log(value)


def in_unit_of_time(kernel: TemporalKernel, unit: float) -> TemporalKernel:
    """Return a copy of a temporal kernel for times divided by ``unit``.

    Raises:
        ValueError: if a parameter in that unit breaks a constraint of the kernel.
    """
    kernel = deepcopy(kernel).double()
    if unit == 1.0:
        return kernel
    for name, _ in kernel.named_parameters():
        name = name.removeprefix("raw_")
        if isinstance(kernel, SeasonalKernel) and name == "lengthscale":
            # It has no unit.
            continue
        value = getattr(kernel, name)
        is_rate = name == "forgetting_rate"
        changed = -torch.expm1(unit * torch.log1p(-value)) if is_rate else value / unit
        try:
            setattr(kernel, name, changed.detach())
        except RuntimeError as error:
            raise ValueError(
                f"Expected {name} within the constraint of {type(kernel).__name__} in every unit "
                f"of time. Got {changed.item():.3g} for times divided by {unit:g}."
            ) from error
    return kernel
