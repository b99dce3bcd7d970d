"""Forms of drift of a panel as state-space models: their parameters, and the chain rule to them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import pad

from tvbo.kernels import TemporalKernel
from tvbo.logs.forms import in_unit_of_time
from tvbo.logs.panel_cells import SAME, Cells, Units, scan_arms
from tvbo.logs.panel_dynamics import (
    CommonDynamics,
    Dynamics,
    IndependentDynamics,
    InTime,
    VectorDynamics,
    added,
    jointly,
)
from tvbo.logs.state_space import KalmanFilter, StateSpace
from tvbo.quadratic_model import Array

NOISE_RANGE = (1e-6, 1.0)
"""Range of the noise variance, as a share of the variance of an arm, or of all."""

NOISE_SHIFT = 1e-3
"""What is added to a noise variance before its logarithm is taken, as a share of that variance: the
likelihood is then not flat where noise is small, and searches come back from there."""

START_NOISE = 0.1
"""Noise variance from which a search with one of all arms starts, as a share of their variance."""

SHRINKAGES = np.geomspace(1.0, 1e5, 40)
"""Weights of the prior of a vector autoregression that are compared."""

FAR = 4.0
"""Standardized innovations are limited to this for the first estimates of their covariance."""

APART = 1e-5
"""Least relative difference of the eigenvalues from which a covariance is searched."""

LEAST_KEPT = 0.1
"""Smallest share of an estimate that a prior leaves."""


class Form(ABC):
    """A form of drift: a vector of parameters without bounds or with, and the model they give.

    Args:
        cells: The panel.
        variances: ``k``, of the values whose noise variances are among the parameters.
    """

    name: str
    start: Array
    num_counted: int
    """Number of parameters that BIC counts: of those without a prior."""
    integrates_means: bool = True
    """Whether the likelihood is the restricted one."""

    def __init__(self, cells: Cells, variances: Array):
        self.lags, self.gaps, self.span = torch.as_tensor(cells.lags), cells.gaps, cells.span
        self.variances, self.shift = variances, torch.as_tensor(NOISE_SHIFT * variances)

    def noise_bounds(self) -> Array:
        """Return bounds of the parameters of noise variances, which are logarithms with a shift."""
        ends = np.multiply.outer(self.variances, NOISE_RANGE) + self.shift.numpy()[:, None]
        return np.asarray(np.log(ends), np.float64)

    @abstractmethod
    def bounds(self) -> Array:
        """Return bounds of the parameters, ``p x 2``."""

    @abstractmethod
    def in_state_space(self, theta: Tensor, values: Tensor) -> tuple[StateSpace, Tensor]:
        """Return the state-space model, and values ``T x n`` as its outputs, ``T x b x m``."""

    @abstractmethod
    def dynamics(self, theta: Array | Tensor, units: Units = SAME) -> Dynamics:
        """Return the model in the user's units, or in those of the panel."""

    def log_prior(self, theta: Tensor) -> Tensor:
        """Return the log density of the prior up to a constant."""
        return theta.new_zeros(())

    @abstractmethod
    def apart(self, theta: Tensor) -> tuple[Tensor, StateSpace]:
        """Return directions in the space of arms, ``n x n``, and a model of one output for each.

        They are those of the form, or near to it, if no cell were missing.
        """

    def white_products(
        self, theta: Array, columns: Array, values: Array | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the directions, and products of whitened columns, as if no cell were missing.

        They are those of :meth:`apart`.

        Args:
            theta: The parameters.
            columns: ``T x q``, the same along all directions.
            values: ``T x n``, of which the products with the columns are wanted too, or None.

        Returns:
            ``n x n``, and ``n x q x q`` or ``n x q x (q + 1)``.
        """
        directions, model = self.apart(torch.as_tensor(theta))
        series = torch.as_tensor(columns).unsqueeze(1).expand(-1, len(directions), -1)
        if values is not None:
            along = torch.as_tensor(values) @ directions
            series = torch.cat([series, along.unsqueeze(-1)], dim=-1)
        observed = torch.ones(*series.shape[:2], 1, dtype=torch.bool)
        with torch.no_grad():
            filtered = KalmanFilter(model, observed, self.gaps)
            white = filtered.whitened(series.unsqueeze(2)).squeeze(2)
        return directions, torch.einsum("tij,tik->ijk", white[..., : columns.shape[1]], white)

    def log_likelihood(self, theta: Tensor, values: Tensor) -> Tensor:
        """Return the log likelihood of a panel ``T x n``, differentiable in both."""
        filtered, outputs = self.filter(theta, values)
        return filtered.log_likelihood(outputs, self.integrates_means).sum()

    def filter(self, theta: Tensor | Array, values: Tensor | Array) -> tuple[KalmanFilter, Tensor]:
        """Return the filter of a panel ``T x n``, and its values as outputs, ``T x b x m``."""
        model, outputs = self.in_state_space(torch.as_tensor(theta), torch.as_tensor(values))
        return KalmanFilter(model, ~outputs.isnan(), self.gaps), outputs


class IndependentForm(Form):
    """Exponential decay of each arm by itself: a rate, a variance and a noise variance for each.

    The parameters are their logarithms, ``3 n``, of the noise with :data:`NOISE_SHIFT`.

    Args:
        cells: The panel.
        start: Parameters from which a search starts; None are the best of a grid.
    """

    name = "independent"

    def __init__(self, cells: Cells, start: Array | None = None):
        super().__init__(cells, cells.deviations**2)
        self.num_counted = 3 * len(self.variances)
        if start is None:
            rates, variances, noise = scan_arms(cells)
            start = np.log(np.concatenate([rates, variances, noise + self.shift.numpy()]))
        self.start = start

    def bounds(self) -> Array:
        """Return bounds, of rates as in :class:`CommonForm`."""
        rates = np.log([1 / self.span, 32.0]) + np.zeros((len(self.variances), 1))
        variances = np.log(self.variances)[:, None] + [-14.0, 9.0]
        return np.concatenate([rates, variances, self.noise_bounds()])

    def in_state_space(self, theta: Tensor, values: Tensor) -> tuple[StateSpace, Tensor]:
        """Return ``n`` models with one state."""
        return self.apart(theta)[1], values.unsqueeze(-1)

    def apart(self, theta: Tensor) -> tuple[Tensor, StateSpace]:
        """Return the arms."""
        model = self.dynamics(theta).of_each(self.lags)
        return torch.eye(len(model.noise), dtype=theta.dtype), model

    def dynamics(self, theta: Array | Tensor, units: Units = SAME) -> IndependentDynamics:
        """Return the decay of each arm."""
        rates, variances, noise = torch.as_tensor(theta).exp().reshape(3, -1)
        noise, scale = noise - self.shift, units.value**2
        return IndependentDynamics(noise * scale, rates / units.time, variances * scale)


class CovarianceFactor:
    """A covariance matrix over arms by the logarithm of the diagonal, and the rest, of a factor.

    Args:
        start: The covariance, ``n x n``, at which all parameters are zero.
        weight: Weight of the prior, in steps of time: of an inverse Wishart distribution about a
            multiple of ``target``, which is maximized over.
        target: ``n``, diagonal of the target.
    """

    def __init__(self, start: Array, weight: float, target: Array):
        self.root = torch.as_tensor(np.linalg.cholesky(start))
        self.weight, self.target = weight, torch.as_tensor(target)
        self.lower = tuple(torch.tril_indices(*start.shape))
        self.is_diagonal = self.lower[0] == self.lower[1]

    @property
    def num_parameters(self) -> int:
        """Number of parameters."""
        return len(self.is_diagonal)

    def factor(self, parameters: Tensor) -> Tensor:
        """Return the factor, ``n x n``."""
        entries = torch.where(self.is_diagonal, parameters.exp(), parameters)
        factor: Tensor = self.root @ torch.zeros_like(self.root).index_put(self.lower, entries)
        return factor

    def covariance(self, parameters: Tensor) -> Tensor:
        """Return the covariance, ``n x n``."""
        factor = self.factor(parameters)
        return factor @ factor.mT

    def log_prior(self, parameters: Tensor) -> Tensor:
        r"""Return :math:`-\frac{\nu}{2} (\log |K| + n \log \mathrm{tr} D K^{-1})`."""
        factor = self.factor(parameters)
        n = len(factor)
        inverse = torch.linalg.solve_triangular(factor, torch.eye(n).to(factor), upper=False)
        trace = (inverse.square() @ self.target).sum()
        log_determinant = 2 * factor.diagonal().log().sum()
        # Zero at a multiple of the target, its largest value.
        best = self.target.log().sum() + n * math.log(n)
        density: Tensor = -0.5 * self.weight * (log_determinant + n * trace.log() - best)
        return density


class CommonForm(Form):
    r"""Temporal kernels that all arms share, with one covariance over arms.

    The components together have the covariance :math:`K \otimes \sum_c p_c \tau_c`. In a panel
    without missing cells they separate into the modes, the eigenvectors of K.

    Args:
        name: Name of the form.
        kernels: The temporal kernels in units of the usual gap; copies that are changed.
        cells: The panel.
        covariance: Covariance over arms from which the search starts, ``n x n``.
        weight: Weight of its prior, in steps of time, which shrinks it to the arms' variances.
        start: Parameters from which the search starts, but for the covariance; None: the kernels'.
    """

    def __init__(
        self,
        name: str,
        kernels: Sequence[TemporalKernel],
        cells: Cells,
        covariance: Array,
        weight: float,
        start: Array | None = None,
    ):
        target = cells.deviations**2
        super().__init__(cells, target.mean(keepdims=True))
        self.name, self.kernels, self.is_full = name, list(kernels), cells.is_full
        # Modes have derivatives where eigenvalues differ, as they go on to do.
        eigenvalues, modes = np.linalg.eigh(covariance)
        apart = eigenvalues * (1 + APART * np.arange(len(modes)))
        self.covariance = CovarianceFactor((modes * apart) @ modes.T, weight, target)
        logs = [_logs(kernel) for kernel in self.kernels]
        self.num_logs = [*map(len, logs)]
        shares = np.zeros(len(self.kernels) - 1)
        noise = np.log(START_NOISE * self.variances + self.shift.numpy())
        counted = np.concatenate([*logs, shares, noise])
        self.num_counted, free = len(counted), np.zeros(self.covariance.num_parameters)
        self.start = np.append(counted if start is None else start[: len(counted)], free)

    def bounds(self) -> Array:
        """Return bounds of the parameters of kernels, shares and noise."""
        kernels = [bound for kernel in self.kernels for bound in _bounds(kernel, self.span)]
        shares = [(-8.0, 8.0)] * (len(self.kernels) - 1)
        free = [(-math.inf, math.inf)] * self.covariance.num_parameters
        return np.array([*kernels, *shares, *self.noise_bounds(), *free])

    def parts(self, theta: Tensor) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
        """Return logarithms for each kernel, shares, noise variance, and covariance over arms."""
        sizes = [*self.num_logs, len(self.kernels) - 1, 1, self.covariance.num_parameters]
        *logs, ratios, noise, rest = theta.split(sizes)
        shares = pad(ratios, (1, 0)).softmax(0)
        return logs, shares, noise.exp() - self.shift, self.covariance.covariance(rest)

    def _in_time(self, logs: list[Tensor], shares: Tensor) -> InTime:
        """Return the sum of the components."""
        pairs = zip(self.kernels, logs, strict=True)
        return added([transition_of(kernel, each, self.lags) for kernel, each in pairs], shares)

    def in_state_space(self, theta: Tensor, values: Tensor) -> tuple[StateSpace, Tensor]:
        """Return ``n`` models of the modes, or one of all arms where cells are missing."""
        if self.is_full:
            modes, model = self.apart(theta)
            return model, (values @ modes).unsqueeze(-1)
        logs, shares, noise, K = self.parts(theta)
        return jointly(self._in_time(logs, shares), K, noise.expand(len(K))), values.unsqueeze(1)

    def apart(self, theta: Tensor) -> tuple[Tensor, StateSpace]:
        """Return the modes."""
        logs, shares, noise, K = self.parts(theta)
        variances, modes = torch.linalg.eigh(K)
        A, P, h = self._in_time(logs, shares)
        fresh, scale = P - A @ P @ A.mT, variances.clamp_min(0.0)[:, None, None]
        transitions = A.unsqueeze(1).expand(-1, len(variances), -1, -1)
        noise = noise.expand(len(variances), 1)
        observation = h.unsqueeze(0)
        return modes, StateSpace(
            transitions, fresh.unsqueeze(1) * scale, P * scale, observation, noise
        )

    def covariance_at(self, theta: Array) -> Array:
        """Return the covariance over arms, of all components together."""
        return self.parts(torch.as_tensor(theta))[-1].numpy()

    def dynamics(self, theta: Array | Tensor, units: Units = SAME) -> CommonDynamics:
        """Return kernels, and the covariance of each component."""
        logs, shares, noise, K = self.parts(torch.as_tensor(theta))
        for kernel, each in zip(self.kernels, logs, strict=True):
            for name, log in zip(_names(kernel), each, strict=True):
                setattr(kernel, name, _from_log(name, log))
        kernels = [in_unit_of_time(kernel, 1 / units.time) for kernel in self.kernels]
        kernels = [kernel.requires_grad_(False) for kernel in kernels]
        scale = units.value**2
        return CommonDynamics(noise.expand(len(K)) * scale, kernels, shares, K * scale)

    def at_rate(self, theta: Array, log_rate: float) -> Array:
        """Return parameters with another rate of the first kernel.

        The variances are such that as much is new in each unit of time.
        """
        theta = theta.copy()
        scale = 0.5 * (theta[0] - log_rate)
        theta[0] = log_rate
        rest = theta[self.num_counted :]
        is_diagonal = self.covariance.is_diagonal.numpy()
        rest[:] = np.where(is_diagonal, rest + scale, rest * math.exp(scale))
        return theta

    def spread(self, theta: Array, factor: float) -> Array:
        """Return parameters whose first kernel is faster than the others by a factor more."""
        theta, count = theta.copy(), self.num_logs[0]
        theta[:count] += 0.5 * math.log(factor)
        theta[count : sum(self.num_logs)] -= 0.5 * math.log(factor)
        return theta

    def log_prior(self, theta: Tensor) -> Tensor:
        """Return that of the covariance over arms."""
        return self.covariance.log_prior(theta[self.num_counted :])


class VectorForm(Form):
    r"""A vector autoregression with noise: :math:`x' = A x + w`, :math:`w \sim N(0, Q)`.

    The prior is that of Litterman (1986) in its conjugate form: rows of A are Gaussian about the
    decay of each arm by itself, and Q is inverse Wishart about a diagonal. Both start at the
    independent form. The parameters are A less its centre in units of the states' deviations, those
    of Q, and the logarithms of the noise variances.

    Args:
        cells: The panel about means and season, whose gaps are multiples of the usual one.
        theta: Parameters of its independent form.
    """

    name = "vector"
    num_counted = 0
    # The information on means would be a pass of the filter for each arm.
    integrates_means = False

    def __init__(self, cells: Cells, theta: Array):
        self.independent = independent = IndependentForm(cells, theta)
        super().__init__(cells, independent.variances)
        alone = independent.dynamics(theta)
        rates, variances = alone.rates.numpy(), alone.variances.numpy()
        filtered, outputs = independent.filter(theta, cells.values)
        states = filtered.innovations(outputs.unsqueeze(-1))[1][..., 0, 0].numpy()
        errors = filtered.whitened(outputs.unsqueeze(-1))[..., 0, 0].numpy().clip(-FAR, FAR)
        # A less its centre starts at the ridge regression of innovations on states, in units of
        # their deviations, with the weight of the largest evidence.
        follows = np.append(cells.lags.round(), 0)[cells.gaps[1:]] == 1
        X, W = (states[:-1] / np.sqrt(variances))[follows], errors[1:][follows]
        eigenvalues, vectors = np.linalg.eigh(X.T @ X)
        eigenvalues = eigenvalues.clip(min=0.0)[:, None]
        projected = ((vectors.T @ (X.T @ W)) ** 2).sum(1)[:, None]
        kept = SHRINKAGES / (SHRINKAGES + eigenvalues)
        evidence = 0.5 * W.shape[1] * np.log(kept) + 0.5 * projected * kept / SHRINKAGES
        self.shrinkage = float(SHRINKAGES[evidence.sum(0).argmax()])
        self.num_arms = n = len(rates)
        ridge = np.linalg.solve(X.T @ X + self.shrinkage * np.eye(n), X.T @ W)
        center = np.exp(-0.5 * rates)
        fresh = variances * (1 - center**2)
        deviation = np.sqrt(fresh)
        self.center, self.initial = torch.as_tensor(np.diag(center)), torch.as_tensor(variances)
        self.scale = torch.as_tensor(deviation[:, None] / np.sqrt(variances))
        covariance, share = ledoit_wolf(W)
        deviation /= np.sqrt(np.diag(covariance))
        self.covariance = CovarianceFactor(
            deviation[:, None] * covariance * deviation, prior_weight(len(W), share), fresh
        )
        rest = np.zeros(self.covariance.num_parameters)
        self.start = np.concatenate([ridge.T.ravel(), rest, theta[-n:]])

    def bounds(self) -> Array:
        """Return bounds of the noise."""
        free = [(-math.inf, math.inf)] * (len(self.start) - self.num_arms)
        return np.array([*free, *self.noise_bounds()])

    def _split(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the parameters of A, of Q, and of the noise."""
        n = self.num_arms
        A, rest, noise = theta.split([n * n, self.covariance.num_parameters, n])
        return A, rest, noise

    def in_state_space(self, theta: Tensor, values: Tensor) -> tuple[StateSpace, Tensor]:
        """Return one model of all arms."""
        return self.dynamics(theta).space(self.lags), values.unsqueeze(1)

    def apart(self, theta: Tensor) -> tuple[Tensor, StateSpace]:
        """Return the arms by themselves, from which the search started."""
        return self.independent.apart(torch.as_tensor(self.independent.start))

    def log_prior(self, theta: Tensor) -> Tensor:
        """Return that of A and Q."""
        A, rest, _ = self._split(theta)
        return self.covariance.log_prior(rest) - 0.5 * self.shrinkage * A.square().sum()

    def dynamics(self, theta: Array | Tensor, units: Units = SAME) -> VectorDynamics:
        """Return the autoregression."""
        A, rest, noise = self._split(torch.as_tensor(theta))
        A = self.center + A.reshape(self.center.shape) * self.scale
        Q, noise, scale = self.covariance.covariance(rest), noise.exp() - self.shift, units.value**2
        return VectorDynamics(noise * scale, A, Q * scale, self.initial * scale, units.time)


def prior_weight(num_times: float, shrinkage: float) -> float:
    """Return the weight of a prior, in steps of time, that shrinks by a share."""
    return max(1.0, num_times * shrinkage / max(1 - shrinkage, LEAST_KEPT))


def ledoit_wolf(rows: Array) -> tuple[Array, float]:
    """Return the covariance of rows, shrunk as by Ledoit and Wolf (2004), and by what share."""
    # Imported here since importing scikit-learn takes a second.
    from sklearn.covariance import LedoitWolf

    found = LedoitWolf().fit(rows)
    return found.covariance_, float(found.shrinkage_)


def _names(kernel: TemporalKernel) -> list[str]:
    return [
        name.removeprefix("raw_") for name, raw in kernel.named_parameters() if raw.requires_grad
    ]


def _logs(kernel: TemporalKernel) -> Array:
    """Return the logarithms of the learned parameters: of ε that of ρ = -log(1 - ε)."""
    return np.array([_to_log(name, getattr(kernel, name)) for name in _names(kernel)])


def _from_log(name: str, log: Tensor) -> Tensor:
    """Return a parameter by the logarithm that is searched."""
    return -torch.expm1(-log.exp()) if name == "forgetting_rate" else log.exp()


class _InTime(torch.nn.Module):
    """The matrices of a temporal kernel, as a module whose parameters can be replaced."""

    def __init__(self, kernel: TemporalKernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, lags: Tensor) -> InTime:
        """Return transitions, stationary covariance and observation."""
        kernel = self.kernel
        return kernel.transition(lags), kernel.stationary_covariance(), kernel.observation


def transition_of(kernel: TemporalKernel, logs: Tensor, lags: Tensor) -> InTime:
    """Return transitions over lags ``g x s x s``, stationary covariance and observation.

    They are differentiable in the logarithms of the kernel's learned parameters.
    """
    raw = {}
    for name, log in zip(_names(kernel), logs, strict=True):
        constraint = getattr(kernel, f"raw_{name}_constraint")
        shape = getattr(kernel, f"raw_{name}").shape
        value = constraint.inverse_transform(_from_log(name, log))
        raw[f"kernel.raw_{name}"] = value.expand(shape)
    found: InTime = functional_call(_InTime(kernel), raw, (lags,))
    return found


def _bounds(kernel: TemporalKernel, span: float) -> list[tuple[float, float]]:
    """Return bounds of the logarithms within the constraints of a kernel.

    Rates from a correlation of 0.6 over the longest segment to 1e-7 over a gap, lengthscales and
    periods of at most that segment. What is slower cannot be told from a random walk.
    """
    bounds = []
    for name in _names(kernel):
        low, high = (1 / span, 32.0) if name == "forgetting_rate" else (0.1, span)
        constraint = getattr(kernel, f"raw_{name}_constraint")
        ends = constraint.lower_bound.double(), constraint.upper_bound.double()
        least, most = (_to_log(name, end) for end in ends)
        bounds.append((max(math.log(low), least), min(math.log(high), most)))
    return bounds


def _to_log(name: str, value: Tensor) -> float:
    """Return the logarithm that is searched; infinite at the ends of its range."""
    return (-torch.log1p(-value) if name == "forgetting_rate" else value).log().item()
