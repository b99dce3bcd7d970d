"""Terms of the model of a panel: drifting components as state-space models, and a season."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ive

from tvbo.fitting.state_filter import StateSpace
from tvbo.kernels import TemporalKernel

Array = NDArray[np.float64]

MAX_HARMONICS = 24
"""Largest number of harmonics of a season."""

AMPLITUDE_BOUNDS, POWER_BOUNDS = (-14.0, 7.0), (0.0, 2.0)
"""Bounds of the logarithm of an amplitude and of the power of the eigenvalues that it follows."""


class Season(ABC):
    """A function of time that is the same in every period, as a sum of ``q`` smooth functions.

    Args:
        length: Length of the period, or of the segments, in units of time.
        num_harmonics: Number ``J`` of harmonics.
    """

    def __init__(self, length: float, num_harmonics: int):
        self.length, self.num_harmonics = length, num_harmonics
        self.orders = np.arange(1, num_harmonics + 1)

    @abstractmethod
    def basis(self, times: Array) -> Array:
        """Return the functions at some times, ``len(times) x q``."""

    @abstractmethod
    def weights(self, lengthscale: float) -> Array:
        """Return the prior variances of the coefficients, ``q``, for a season of variance one.

        Args:
            lengthscale: The larger, the more of the variance is in the first harmonics.
        """

    @property
    @abstractmethod
    def frequencies(self) -> Array:
        """Angular frequency of each function per unit of time, ``q``."""

    def to_dict(self) -> dict[str, Any]:
        """Return class and arguments, in types of JSON."""
        words = {"length": float(self.length), "num_harmonics": self.num_harmonics}
        return {"class": type(self).__name__, **words}

    def in_unit_of_time(self, unit: float) -> Season:
        """Return the same season for times divided by ``unit``."""
        return type(self)(self.length / unit, self.num_harmonics)


class PeriodicSeason(Season):
    r"""A strict season with a known period.

    The prior is that of :class:`tvbo.kernels.SeasonalKernel`: harmonic ``j`` has the variance
    :math:`w_j \propto I_j(\ell^{-2})` (Solin, Särkkä, 2014, equation (25)).
    """

    def basis(self, times: Array) -> Array:
        """Return cosines and sines of all harmonics, ``len(times) x 2J``."""
        angles = np.outer(times, self.frequencies[: self.num_harmonics])
        return np.hstack([np.cos(angles), np.sin(angles)])

    def weights(self, lengthscale: float) -> Array:
        """Return the prior variances of the coefficients, ``2J``."""
        shares = ive(self.orders, lengthscale**-2)
        return np.tile(shares / shares.sum(), 2)

    @property
    def frequencies(self) -> Array:
        """Angular frequencies, ``2J``."""
        return np.tile(2 * math.pi * self.orders / self.length, 2)


class SegmentProfile(Season):
    r"""What is the same in all segments, as a smooth function of the time within a segment.

    The functions are cosines over the length of a segment, with the spectral density of a squared
    exponential kernel as prior (Solin, Särkkä, 2020, with reflecting ends). The lengthscale is a
    share of the length.

    Args:
        length: Length of the segments.
        num_harmonics: Number of cosines.
        start: Time at which the segments begin.
    """

    def __init__(self, length: float, num_harmonics: int, start: float = 0.0):
        super().__init__(length, num_harmonics)
        self.start = start

    def basis(self, times: Array) -> Array:
        """Return the cosines, ``len(times) x J``."""
        return math.sqrt(2) * np.cos(np.outer(times - self.start, self.frequencies))

    def weights(self, lengthscale: float) -> Array:
        """Return the prior variances of the coefficients, ``J``."""
        shares = np.exp(-0.5 * (math.pi * lengthscale * self.orders) ** 2)
        return shares / shares.sum()

    @property
    def frequencies(self) -> Array:
        """Angular frequencies, ``J``."""
        return math.pi * self.orders / self.length

    def to_dict(self) -> dict[str, Any]:
        """Return class and arguments, in types of JSON."""
        return {**super().to_dict(), "start": float(self.start)}

    def in_unit_of_time(self, unit: float) -> SegmentProfile:
        """Return the same profile for times divided by ``unit``."""
        return SegmentProfile(self.length / unit, self.num_harmonics, self.start / unit)


@dataclass(frozen=True)
class Component:
    """A drifting component: a temporal kernel, whose parameters are searched as logarithms.

    A forgetting rate ε is searched as the logarithm of ρ = -log(1 - ε), any other parameter as its
    own logarithm.

    Args:
        kernel: The kernel, a copy that the search may change.
    """

    kernel: TemporalKernel

    @property
    def names(self) -> list[str]:
        """Names of the parameters that are learned."""
        return [
            name.removeprefix("raw_")
            for name, raw in self.kernel.named_parameters()
            if raw.requires_grad
        ]

    def get(self) -> Array:
        """Return the logarithms."""
        values = [getattr(self.kernel, name).item() for name in self.names]
        pairs = zip(self.names, values, strict=True)
        return np.array([_to_log(name, value) for name, value in pairs])

    def set(self, logs: Array) -> None:
        """Set the kernel from the logarithms."""
        for name, log in zip(self.names, logs.tolist(), strict=True):
            # A tensor, since GPyTorch would round a number to single precision.
            value = torch.tensor(_from_log(name, log), dtype=torch.float64)
            setattr(self.kernel, name, value)

    def bounds(self, span: float) -> list[tuple[float, float]]:
        """Return bounds of the logarithms, in a unit of time of about one gap.

        Rates from a correlation of 1 - 1e-6 over the whole log to 1e-7 over a gap; lengthscales
        and periods alike; and within the constraints of the kernel.

        Args:
            span: Length of the longest segment.
        """
        bounds = []
        for name in self.names:
            is_rate = name == "forgetting_rate"
            low, high = (2e-6 / span, 32.0) if is_rate else (0.1, 1e3 * span)
            constraint = getattr(self.kernel, f"raw_{name}_constraint")
            least, most = constraint.lower_bound.item(), constraint.upper_bound.item()
            bounds.append(
                (
                    max(math.log(low), _to_log(name, least)),
                    min(math.log(high), _to_log(name, most)),
                )
            )
        return bounds

    @torch.no_grad()
    def matrices(self, lags: Array) -> tuple[Array, Array]:
        """Return the transitions over lags, ``... x s x s``, and the stationary covariance."""
        transition = self.kernel.transition(torch.as_tensor(lags, dtype=torch.float64))
        return transition.numpy(), self.kernel.stationary_covariance().detach().numpy()


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


class DriftTerms:
    r"""The drifting components of ``n`` modes and the noise, by one vector of parameters.

    Component ``c`` has in mode ``i`` the variance :math:`e^{a_c} \lambda_i^{b_c}`: its covariance
    over the arms is a power of the estimated one. The vector holds for each component the
    logarithms of its kernel's parameters, :math:`a_c` and :math:`b_c`, and at the end the logarithm
    of the noise variance.

    Args:
        components: The components.
        eigenvalues: ``n``, positive.
        lags: Distinct gaps between times; the first is the usual one.
        span: Length of the longest segment.
    """

    def __init__(
        self, components: Sequence[Component], eigenvalues: Array, lags: Array, span: float
    ):
        self.components, self.lags, self.span = components, lags, span
        self.log_eigenvalues = np.log(eigenvalues)
        sizes = [component.kernel.num_states for component in components]
        self.ends = np.cumsum([0, *sizes])
        readings = [component.kernel.observation.detach().numpy() for component in components]
        self.observation = np.concatenate(readings).astype(float)
        counts = [len(component.names) + 2 for component in components]
        self.parts = [slice(b - k, b) for b, k in zip(np.cumsum(counts), counts, strict=True)]

    def start(self) -> Array:
        """Return a start: the kernels as they are, equal shares of 0.9, noise of a tenth."""
        share = math.log(0.9 / len(self.components))
        parts = [[*component.get(), share, 1.0] for component in self.components]
        noise = math.log(0.1) + np.log(np.exp(self.log_eigenvalues).mean())
        return np.concatenate([*parts, [noise]])

    def bounds(self) -> list[tuple[float, float]]:
        """Return bounds of all parameters."""
        largest = float(np.log(np.exp(self.log_eigenvalues).mean()))
        bounds: list[tuple[float, float]] = []
        for component in self.components:
            bounds += [*component.bounds(self.span), AMPLITUDE_BOUNDS, POWER_BOUNDS]
        return [*bounds, (largest + math.log(NOISE_RANGE[0]), largest + math.log(NOISE_RANGE[1]))]

    def amplitudes(self, theta: Array) -> Array:
        """Return the variances of each component in each mode, ``c x n``."""
        scales = np.array([theta[part][-2:] for part in self.parts])
        return np.exp(scales[:, :1] + scales[:, 1:] * self.log_eigenvalues)

    def spaces(self, thetas: Array) -> StateSpace:
        """Return the state-space models of several vectors, ``p x k``."""
        p, s, n = len(thetas), self.ends[-1], len(self.log_eigenvalues)
        transitions = np.zeros((p, len(self.lags), s, s))
        stationary = np.zeros((p, s, s, n))
        amplitudes = np.array([self.amplitudes(theta) for theta in thetas])
        for c, (component, part) in enumerate(zip(self.components, self.parts, strict=True)):
            states = slice(self.ends[c], self.ends[c + 1])
            known: dict[bytes, tuple[Array, Array]] = {}
            for i, theta in enumerate(thetas):
                logs = theta[part][:-2]
                if logs.tobytes() not in known:
                    component.set(logs)
                    known[logs.tobytes()] = component.matrices(self.lags)
                transitions[i, :, states, states], prior = known[logs.tobytes()]
                stationary[i, states, states] = prior[:, :, None] * amplitudes[i, c]
        return StateSpace(transitions, stationary, self.observation, np.exp(thetas[:, -1]))


NOISE_RANGE = (1e-6, 1.0)
"""Range of the noise variance, as a multiple of the mean variance of the modes."""


def spectrum(model: StateSpace, frequencies: Array) -> Array:
    """Return the spectral density of the observations at equal gaps, ``p x n x len(frequencies)``.

    Args:
        model: The models; the first of their gaps is the one.
        frequencies: Angular, per gap.
    """
    A = model.transitions[:, 0]
    fresh = model.stationary - np.einsum("pij,pjkn,plk->piln", A, model.stationary, A)
    shifts = np.exp(1j * frequencies)[:, None, None] * np.eye(A.shape[-1])
    filters = np.linalg.solve(
        shifts - A[:, None], np.broadcast_to(np.eye(A.shape[-1]), shifts.shape)
    )
    gains = np.einsum("i,pwij->pwj", model.observation, filters)
    density = np.einsum("pwi,pijn,pwj->pnw", gains, fresh, gains.conj(), optimize=True).real
    return density + model.noise_variance[:, None, None]


def _to_log(name: str, value: float) -> float:
    """Return the logarithm that is searched; infinite at the ends of its range."""
    if name == "forgetting_rate":
        value = math.inf if value >= 1 else -math.log1p(-value)
    return -math.inf if value <= 0 else math.log(value)


def _from_log(name: str, log: float) -> float:
    """Return the parameter from the logarithm."""
    return -math.expm1(-math.exp(log)) if name == "forgetting_rate" else math.exp(log)
