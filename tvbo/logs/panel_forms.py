"""Forms of drift of a panel as state-space models: their parameters, and the chain rule to them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

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
    by_modes,
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

APART, LEAST = 1e-5, 1e-10
"""Least relative difference of the eigenvalues from which a covariance is searched, and the least
one as a share of the largest."""

HIDDEN = 0.1
"""Multiple of the noise variance below which a direction is not shrunk towards the others."""

LEAST_KEPT = 0.1
"""Smallest share of an estimate that a prior leaves."""


class Parameters(ABC):
    """A part of the vector that is searched, and the quantity that it stands for.

    Args:
        bounds: ``k x 2``; a whole number ``k`` for none.

    Attributes:
        bounds: ``k x 2``.
    """

    def __init__(self, bounds: Array | int):
        none = np.array([-math.inf, math.inf])
        self.bounds: Array = np.tile(none, (bounds, 1)) if isinstance(bounds, int) else bounds

    @abstractmethod
    def value(self, x: Tensor) -> Any:
        """Return the quantity."""

    def log_prior(self, x: Tensor) -> Tensor:
        """Return the log density of the prior up to a constant."""
        return x.new_zeros(())


class Shares(Parameters):
    """Shares of ``k + 1`` components, by the logarithms of their ratios to the first one."""

    def value(self, x: Tensor) -> Tensor:
        """Return the shares, ``k + 1``."""
        return pad(x, (1, 0)).softmax(0)


class Logarithms(Parameters):
    """Positive numbers by their logarithms, of noise variances with :data:`NOISE_SHIFT`.

    Args:
        bounds: ``k x 2``.
        shift: ``k``, what is added before the logarithm is taken.
    """

    def __init__(self, bounds: Array, shift: Array | float = 0.0):
        super().__init__(bounds)
        self.shift = torch.as_tensor(shift)

    def value(self, x: Tensor) -> Tensor:
        """Return the numbers, ``k``."""
        return x.exp() - self.shift


def noise_logarithms(variances: Array) -> Logarithms:
    """Return the parameters of noise variances of values with some variances, ``k``."""
    shift = NOISE_SHIFT * variances
    return Logarithms(np.log(np.multiply.outer(variances, NOISE_RANGE) + shift[:, None]), shift)


class CovarianceFactor(Parameters):
    r"""A covariance matrix over arms by the lower triangle of a factor.

    With ``K`` in units of the target, its prior is an inverse Wishart one of :math:`C = K + s I`,
    about a multiple of the identity that is maximized over; ``s`` is a share of the mean diagonal.
    A prior of ``K`` alone would raise what noise hides, and with it the rate.

    Args:
        start: The covariance, ``n x n``, where the search starts.
        weight: Weight of the prior, in steps of time.
        target: ``n``, diagonal of the target.
        noise: Noise variance, as a share of the target. The factor is in units of that of ``start``
            and noise, since the likelihood hardly changes with less.

    Attributes:
        start: The parameters of ``start``.
    """

    def __init__(self, start: Array, weight: float, target: Array, noise: float):
        root = np.linalg.cholesky(start + noise * np.diag(target))
        lower = np.tril_indices(len(start))
        self.root, self.lower = torch.as_tensor(root), tuple(map(torch.as_tensor, lower))
        self.start = np.linalg.solve(root, np.linalg.cholesky(start))[lower]
        self.deviations = torch.as_tensor(np.sqrt(target))
        self.weight, self.share = weight, HIDDEN * noise
        super().__init__(len(self.start))

    def value(self, x: Tensor) -> Tensor:
        """Return the covariance, ``n x n``."""
        factor = self.root @ torch.zeros_like(self.root).index_put(self.lower, x)
        return factor @ factor.mT

    def log_prior(self, x: Tensor) -> Tensor:
        r"""Return :math:`-\frac{\nu}{2} (\log |C| + n \log \frac{1}{n} \mathrm{tr} C^{-1})`."""
        K = self.value(x) / self.deviations / self.deviations[:, None]
        eye = torch.eye(len(K)).to(K)
        factor = torch.linalg.cholesky(K + self.share * K.diagonal().mean() * eye)
        inverse = torch.linalg.solve_triangular(factor, eye, upper=False)
        trace = inverse.square().sum() / len(K)
        return -self.weight * (factor.diagonal().log().sum() + 0.5 * len(K) * trace.log())


class Autoregression(Parameters):
    """A transition matrix less its centre, in units in which it is about equally uncertain.

    Args:
        center: ``n x n``.
        scale: ``n x n``, prior deviations for a weight of one.
        weight: Precision of the prior, the same of all entries in units of ``scale``.
        left: ``n x n``, a factor of the covariance of what is new.
        right: ``n x n``, a factor of the precision of the states.
    """

    def __init__(self, center: Array, scale: Array, weight: float, left: Tensor, right: Array):
        super().__init__(center.size)
        self.center, self.scale = torch.as_tensor(center), torch.as_tensor(scale)
        self.weight, self.left, self.right = weight, left, torch.as_tensor(right)

    def value(self, x: Tensor) -> Tensor:
        """Return the transition, ``n x n``."""
        return self.center + self._change(x)

    def log_prior(self, x: Tensor) -> Tensor:
        """Return that of a Gaussian."""
        return -0.5 * self.weight * (self._change(x) / self.scale).square().sum()

    def _change(self, x: Tensor) -> Tensor:
        return self.left @ x.reshape(self.center.shape) @ self.right.mT

    def parameters(self, change: Array) -> Array:
        """Return the parameters of a transition less its centre."""
        left, right = self.left.numpy(), self.right.numpy()
        return np.linalg.solve(left, np.linalg.solve(right, change.T).T).ravel()


class KernelLogarithms(torch.nn.Module, Parameters):
    """The logarithms of the learned parameters of a temporal kernel: of ε that of ρ.

    Rates are from a correlation of 0.6 over the longest segment to 1e-7 over a gap, lengthscales
    and periods of at most that segment. What is slower cannot be told from a random walk.

    Args:
        kernel: The kernel, which is changed.
        cells: The panel.

    Attributes:
        start: The present logarithms.
    """

    def __init__(self, kernel: TemporalKernel, cells: Cells):
        super().__init__()
        self.kernel, self.lags = kernel, torch.as_tensor(cells.lags)
        learned = [name for name, raw in kernel.named_parameters() if raw.requires_grad]
        self.names = [name.removeprefix("raw_") for name in learned]
        self.start = np.array([_to_log(name, getattr(kernel, name)) for name in self.names])
        self.bounds = np.zeros((len(self.names), 2))
        for place, name in enumerate(self.names):
            low, high = (1 / cells.span, 32.0) if name == "forgetting_rate" else (0.1, cells.span)
            constraint = getattr(kernel, f"raw_{name}_constraint")
            ends = constraint.lower_bound.double(), constraint.upper_bound.double()
            least, most = (_to_log(name, end) for end in ends)
            self.bounds[place] = max(math.log(low), least), min(math.log(high), most)

    def forward(self) -> InTime:
        """Return transitions over the lags, stationary covariance and observation."""
        kernel = self.kernel
        return kernel.transition(self.lags), kernel.stationary_covariance(), kernel.observation

    def value(self, x: Tensor) -> InTime:
        """Return what :meth:`forward` does, differentiable in the logarithms."""
        raw = {}
        for name, log in zip(self.names, x, strict=True):
            constraint = getattr(self.kernel, f"raw_{name}_constraint")
            value = constraint.inverse_transform(_from_log(name, log))
            raw[f"kernel.raw_{name}"] = value.expand(getattr(self.kernel, f"raw_{name}").shape)
        return functional_call(self, raw, ())

    def kernel_at(self, x: Tensor, gap: float) -> TemporalKernel:
        """Return a kernel with these parameters, for times in units of which a gap is so long."""
        for name, log in zip(self.names, x, strict=True):
            setattr(self.kernel, name, _from_log(name, log))
        return in_unit_of_time(self.kernel, 1 / gap).requires_grad_(False)


def _from_log(name: str, log: Tensor) -> Tensor:
    """Return a parameter by the logarithm that is searched."""
    return -torch.expm1(-log.exp()) if name == "forgetting_rate" else log.exp()


def _to_log(name: str, value: Tensor) -> float:
    """Return the logarithm that is searched; infinite at the ends of its range."""
    return (-torch.log1p(-value) if name == "forgetting_rate" else value).log().item()


class Form(ABC):
    """A form of drift: a vector of parameters, and the model they give.

    Args:
        cells: The panel.
        start: Parameters from which a search starts.
        parts: What stands in the vector, in its order.
    """

    name: str
    num_counted: int
    """Number of parameters that BIC counts: of those without a prior."""
    integrates_means: bool = True
    """Whether the likelihood is the restricted one."""

    def __init__(self, cells: Cells, start: Array, *parts: Parameters):
        self.lags, self.gaps = torch.as_tensor(cells.lags), cells.gaps
        self.start, self.parts = start, parts

    def bounds(self) -> Array:
        """Return bounds of the parameters, ``p x 2``."""
        return np.concatenate([part.bounds for part in self.parts])

    def split(self, theta: Array | Tensor) -> list[tuple[Any, Tensor]]:
        """Return each part with its parameters."""
        pieces = torch.as_tensor(theta).split([len(part.bounds) for part in self.parts])
        return [*zip(self.parts, pieces, strict=True)]

    def values(self, theta: Array | Tensor) -> list[Any]:
        """Return the quantity of each part."""
        return [part.value(x) for part, x in self.split(theta)]

    def log_prior(self, theta: Tensor) -> Tensor:
        """Return the log density of the prior up to a constant."""
        return torch.stack([part.log_prior(x) for part, x in self.split(theta)]).sum()

    @abstractmethod
    def in_state_space(self, theta: Tensor, values: Tensor) -> tuple[StateSpace, Tensor]:
        """Return the state-space model, and values ``T x n`` as its outputs, ``T x b x m``."""

    @abstractmethod
    def dynamics(self, theta: Array | Tensor, units: Units = SAME) -> Dynamics:
        """Return the model in the user's units, or in those of the panel."""

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
            values: ``T x n``, of which the products with the columns are wanted too, or None; the
                directions are then orthonormal.

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

    Args:
        cells: The panel.
        start: Parameters from which a search starts; None are the best of a grid.
    """

    name = "independent"

    def __init__(self, cells: Cells, start: Array | None = None):
        of_arms = cells.deviations**2
        noise = noise_logarithms(of_arms)
        if start is None:
            rates, variances, least = scan_arms(cells)
            start = np.log(np.concatenate([rates, variances, least + noise.shift.numpy()]))
        of_rates = np.tile(np.log([1 / cells.span, 32.0]), (len(of_arms), 1))
        of_variances = np.log(of_arms)[:, None] + [-14.0, 9.0]
        super().__init__(cells, start, Logarithms(of_rates), Logarithms(of_variances), noise)
        self.num_counted = len(start)

    def in_state_space(self, theta: Tensor, values: Tensor) -> tuple[StateSpace, Tensor]:
        """Return ``n`` models with one state."""
        return self.apart(theta)[1], values.unsqueeze(-1)

    def apart(self, theta: Tensor) -> tuple[Tensor, StateSpace]:
        """Return the arms."""
        return self.dynamics(theta).apart(self.lags)

    def dynamics(self, theta: Array | Tensor, units: Units = SAME) -> IndependentDynamics:
        """Return the decay of each arm."""
        (rates, variances, noise), scale = self.values(theta), units.value**2
        return IndependentDynamics(noise * scale, rates / units.time, variances * scale)


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
        noise: About the noise variance, as a share of the arms'.
        start: Parameters from which the search starts, but for the covariance; None: the kernels'.
    """

    def __init__(
        self,
        name: str,
        kernels: Sequence[TemporalKernel],
        cells: Cells,
        covariance: Array,
        weight: float,
        noise: float,
        start: Array | None = None,
    ):
        target = cells.deviations**2
        self.name, self.is_full = name, cells.is_full
        self.kernels = [KernelLogarithms(kernel, cells) for kernel in kernels]
        # Modes have derivatives where eigenvalues differ, as they go on to do.
        eigenvalues, modes = np.linalg.eigh(covariance)
        apart = eigenvalues.clip(LEAST * eigenvalues[-1]) * (1 + APART * np.arange(len(modes)))
        self.covariance = CovarianceFactor((modes * apart) @ modes.T, weight, target, noise)
        shares = Shares(np.tile([-8.0, 8.0], (len(kernels) - 1, 1)))
        variance = target.mean(keepdims=True)
        of_noise = noise_logarithms(variance)
        self.start_noise = np.log(START_NOISE * variance + of_noise.shift.numpy())
        of_kernels = [kernel.start for kernel in self.kernels]
        counted = np.concatenate([*of_kernels, np.zeros(len(kernels) - 1), self.start_noise])
        self.num_counted = len(counted)
        counted = counted if start is None else start[: len(counted)]
        start = np.append(counted, self.covariance.start)
        super().__init__(cells, start, *self.kernels, shares, of_noise, self.covariance)

    def _moments(self, theta: Tensor) -> tuple[InTime, Tensor, Tensor]:
        """Return the sum of the components, covariance over arms, and noise variances."""
        *components, shares, noise, K = self.values(theta)
        return added(components, shares), K, noise.expand(len(K))

    def in_state_space(self, theta: Tensor, values: Tensor) -> tuple[StateSpace, Tensor]:
        """Return ``n`` models of the modes, or one of all arms where cells are missing."""
        if self.is_full:
            modes, model = self.apart(theta)
            return model, (values @ modes).unsqueeze(-1)
        return jointly(*self._moments(theta)), values.unsqueeze(1)

    def apart(self, theta: Tensor) -> tuple[Tensor, StateSpace]:
        """Return the modes."""
        return by_modes(*self._moments(theta))

    def dynamics(self, theta: Array | Tensor, units: Units = SAME) -> CommonDynamics:
        """Return kernels, and the covariance of each component."""
        *_, shares, noise, K = self.values(theta)
        pairs, scale = self.split(theta)[: len(self.kernels)], units.value**2
        kernels = [kernel.kernel_at(x, units.time) for kernel, x in pairs]
        return CommonDynamics(noise.expand(len(K)) * scale, kernels, shares, K * scale)

    def variances_along(self, theta: Array, directions: Array) -> Array:
        """Return the variance of what drifts along orthonormal directions, the columns, ``n``."""
        K = self.dynamics(theta).covariance.numpy()
        return np.einsum("ij,ik,kj->j", directions, K, directions).clip(min=0.0)

    def at_rate(self, theta: Array, log_rate: float) -> Array:
        """Return parameters with another rate of the first kernel.

        The variances are such that as much is new in each unit of time.
        """
        theta = theta.copy()
        scale = 0.5 * (theta[0] - log_rate)
        theta[0] = log_rate
        theta[self.num_counted :] *= math.exp(scale)
        return theta

    def with_noise(self, theta: Array) -> Array:
        """Return parameters with at least the noise from which a first search starts."""
        theta, place = theta.copy(), self.num_counted - 1
        theta[place] = max(theta[place], self.start_noise.item())
        return theta

    def spread(self, theta: Array, factor: float) -> Array:
        """Return parameters whose first kernel is faster than the others by a factor more."""
        theta, first, *others = theta.copy(), *(len(kernel.names) for kernel in self.kernels)
        theta[:first] += 0.5 * math.log(factor)
        theta[first : first + sum(others)] -= 0.5 * math.log(factor)
        return theta


class VectorForm(Form):
    r"""A vector autoregression with noise: :math:`x' = A x + w`, :math:`w \sim N(0, Q)`.

    The prior is that of Litterman (1986) in its conjugate form: rows of A are Gaussian about the
    decay of each arm by itself, and Q is inverse Wishart about a diagonal. Both start at a ridge
    regression of the independent form's innovations on its states. The parameters are those of A
    less its centre, those of Q, and the logarithms of the noise variances.

    Args:
        cells: The panel about means and season, whose gaps are multiples of the usual one.
        theta: Parameters of its independent form.
    """

    name = "vector"
    num_counted = 0
    # The information on means would be a pass of the filter for each arm.
    integrates_means = False

    def __init__(self, cells: Cells, theta: Array):
        independent = IndependentForm(cells, theta)
        alone = independent.dynamics(theta)
        rates, variances = alone.rates.numpy(), alone.variances.numpy()
        filtered, outputs = independent.filter(theta, cells.values)
        means = filtered.innovations(outputs.unsqueeze(-1))[1][..., 0, 0].numpy()
        errors = filtered.whitened(outputs.unsqueeze(-1))[..., 0, 0].numpy().clip(-FAR, FAR)
        # A less its centre starts at the ridge regression of innovations on states, in units of
        # their deviations.
        follows = np.append(cells.lags.round(), 0)[cells.gaps[1:]] == 1
        deviations = np.sqrt(variances)
        states = means / deviations
        X, W = states[:-1][follows], errors[1:][follows]
        shrinkage = best_shrinkage(X, W)
        information = X.T @ X + shrinkage * np.eye(len(rates))
        ridge = np.linalg.solve(information, X.T @ W)
        center = np.exp(-0.5 * rates)
        fresh = variances * (1 - center**2)
        scale = np.sqrt(fresh)[:, None] / deviations
        covariance, share = ledoit_wolf(W)
        of_fresh = np.sqrt(fresh / np.diag(covariance))
        noise = float(np.median(alone.noise.numpy() / fresh))
        innovation = CovarianceFactor(
            of_fresh[:, None] * covariance * of_fresh, prior_weight(len(W), share), fresh, noise
        )
        # What the states are multiplied with so that they are white, and successive ones
        # uncorrelated but along each direction (Switzer, Green, 1984).
        whitener = np.linalg.inv(np.linalg.cholesky(information / len(X))).T
        lagged = (states[1:][follows] @ whitener).T @ (X @ whitener)
        whitener = whitener @ np.linalg.eigh(lagged + lagged.T)[1] / deviations[:, None]
        rows = np.where(np.isnan(cells.values), means, cells.values) @ whitener
        found = scan_arms(replace(cells, values=rows))
        of_rates, of_variances, of_noise = map(torch.as_tensor, found)
        self._along = IndependentDynamics(of_noise, of_rates, of_variances)
        transition = Autoregression(np.diag(center), scale, shrinkage, innovation.root, whitener)
        x = transition.parameters(scale * ridge.T)
        start = np.concatenate([x, innovation.start, theta[-len(rates) :]])
        self.initial, self._whitener = alone.variances, transition.right
        super().__init__(cells, start, transition, innovation, independent.parts[-1])

    def in_state_space(self, theta: Tensor, values: Tensor) -> tuple[StateSpace, Tensor]:
        """Return one model of all arms."""
        return self.dynamics(theta).space(self.lags), values.unsqueeze(1)

    def apart(self, theta: Tensor) -> tuple[Tensor, StateSpace]:
        """Return directions along which the states are nearly independent of one another."""
        return torch.linalg.inv(self._whitener).mT, self._along.apart(self.lags)[1]

    def dynamics(self, theta: Array | Tensor, units: Units = SAME) -> VectorDynamics:
        """Return the autoregression."""
        (A, Q, noise), scale = self.values(theta), units.value**2
        return VectorDynamics(noise * scale, A, Q * scale, self.initial * scale, units.time)


def best_shrinkage(X: Array, W: Array) -> float:
    """Return the weight of a ridge regression of ``W`` on ``X`` that has the largest evidence."""
    eigenvalues, vectors = np.linalg.eigh(X.T @ X)
    total = SHRINKAGES + eigenvalues.clip(min=0.0)[:, None]
    projected = ((vectors.T @ (X.T @ W)) ** 2).sum(1)[:, None]
    evidence = W.shape[1] * np.log(SHRINKAGES / total) + projected / total
    return float(SHRINKAGES[evidence.sum(0).argmax()])


def prior_weight(num_times: float, shrinkage: float) -> float:
    """Return the weight of a prior, in steps of time, that shrinks by a share."""
    return max(1.0, num_times * shrinkage / max(1 - shrinkage, LEAST_KEPT))


def ledoit_wolf(rows: Array) -> tuple[Array, float]:
    """Return the covariance of rows, shrunk as by Ledoit and Wolf (2004), and by what share."""
    # Imported here since importing scikit-learn takes a second.
    from sklearn.covariance import LedoitWolf

    found = LedoitWolf().fit(rows)
    return found.covariance_, float(found.shrinkage_)
