"""Drifting components of the model of a panel as state-space models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch

from tvbo.kernels import SeasonalKernel, TemporalKernel
from tvbo.logs.state_filter import StateSpace
from tvbo.quadratic_model import Array

AMPLITUDE_BOUNDS, POWER_BOUNDS = (-14.0, 7.0), (0.25, 2.0)
"""Bounds of the logarithm of an amplitude and of the power of the eigenvalues that it follows."""


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
        return np.array([_to_log(name, getattr(self.kernel, name).item()) for name in self.names])

    def set(self, logs: Array) -> None:
        """Set the kernel from the logarithms."""
        for name, log in zip(self.names, logs.tolist(), strict=True):
            # A tensor, since GPyTorch would round a number to single precision.
            value = torch.tensor(_from_log(name, log), dtype=torch.float64)
            setattr(self.kernel, name, value)

    def bounds(self, span: float) -> list[tuple[float, float]]:
        """Return bounds of the logarithms, in a unit of time of about one gap.

        Rates from a correlation of 0.6 over the longest segment to 1e-7 over a gap, lengthscales
        and periods of at most that segment, and within the constraints of the kernel. What is
        slower cannot be told from a random walk by the likelihood, but its variance, without a
        limit, would be that of every forecast.

        Args:
            span: Length of the longest segment.
        """
        bounds = []
        for name in self.names:
            is_rate = name == "forgetting_rate"
            low, high = (1 / span, 32.0) if is_rate else (0.1, span)
            constraint = getattr(self.kernel, f"raw_{name}_constraint")
            ends = constraint.lower_bound, constraint.upper_bound
            least, most = (_to_log(name, end.item()) for end in ends)
            bounds.append((max(math.log(low), least), min(math.log(high), most)))
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


class DriftTerms:
    r"""The drifting components of ``n`` modes and the noise, by one vector of parameters.

    Component ``c`` has in mode ``i`` the variance :math:`e^{a_c} \lambda_i^b`: their covariances
    over the arms are multiples of one power of the estimated covariance. The vector holds for each
    component the logarithms of its kernel's parameters and :math:`a_c`, and at the end :math:`b`
    and the logarithm of the noise variance.

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
        counts = [len(component.names) + 1 for component in components]
        self.parts = [slice(b - k, b) for b, k in zip(np.cumsum(counts), counts, strict=True)]

    def start(self) -> Array:
        """Return a start: the kernels as they are, equal shares of 0.9, noise of a tenth."""
        share = math.log(0.9 / len(self.components))
        parts = [[*component.get(), share] for component in self.components]
        noise = math.log(0.1) + np.log(np.exp(self.log_eigenvalues).mean())
        return np.concatenate([*parts, [1.0, noise]])

    def bounds(self) -> list[tuple[float, float]]:
        """Return bounds of all parameters."""
        largest = float(np.log(np.exp(self.log_eigenvalues).mean()))
        bounds: list[tuple[float, float]] = []
        for component in self.components:
            bounds += [*component.bounds(self.span), AMPLITUDE_BOUNDS]
        noise = largest + math.log(NOISE_RANGE[0]), largest + math.log(NOISE_RANGE[1])
        return [*bounds, POWER_BOUNDS, noise]

    def amplitudes(self, theta: Array) -> Array:
        """Return the variances of each component in each mode, ``c x n``."""
        logs = np.array([theta[part][-1] for part in self.parts])
        amplitudes: Array = np.exp(logs[:, None] + theta[-2] * self.log_eigenvalues)
        return amplitudes

    @torch.no_grad()
    def covariance_in_time(self, theta: Array, times: Array) -> Array:
        """Return the covariance of the components together over times, where ``K`` is one."""
        lags = torch.as_tensor(np.abs(times[:, None] - times))
        total = np.zeros((len(times), len(times)))
        for component, part in zip(self.components, self.parts, strict=True):
            component.set(theta[part][:-1])
            total += math.exp(theta[part][-1]) * component.kernel.correlation(lags).numpy()
        return total

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
                logs = theta[part][:-1]
                if logs.tobytes() not in known:
                    component.set(logs)
                    known[logs.tobytes()] = component.matrices(self.lags)
                transitions[i, :, states, states], prior = known[logs.tobytes()]
                stationary[i, states, states] = prior[:, :, None] * amplitudes[i, c]
        return StateSpace(transitions, stationary, self.observation, np.exp(thetas[:, -1]))


NOISE_RANGE = (1e-6, 1.0)
"""Range of the noise variance, as a multiple of the mean variance of the modes."""


def spectrum(model: StateSpace, frequencies: Array, length: float = math.inf) -> Array:
    """Return the spectral density of the observations at equal gaps, ``p x n x len(frequencies)``.

    Args:
        model: The models; the first of their gaps is the one.
        frequencies: Angular, per gap.
        length: Length of a series, in gaps: correlations are damped by ``exp(-2 / length)`` a gap.
            At frequency zero, the density over the length is then the variance of the best
            estimate of a constant under exponential decay however slow, which without damping is
            that of a series without end.
    """
    A = model.transitions[:, 0] * math.exp(-2 / length)
    fresh = model.stationary - np.einsum("pij,pjkn,plk->piln", A, model.stationary, A)
    eye = np.eye(A.shape[-1])
    shifts = np.exp(1j * frequencies)[:, None, None] * eye
    filters = np.linalg.solve(shifts - A[:, None], np.broadcast_to(eye, shifts.shape))
    gains = np.einsum("i,pwij->pwj", model.observation, filters)
    density: Array = np.einsum("pwi,pijn,pwj->pnw", gains, fresh, gains.conj(), optimize=True).real
    density += model.noise_variance[:, None, None]
    return density


def _to_log(name: str, value: float) -> float:
    """Return the logarithm that is searched; infinite at the ends of its range."""
    if name == "forgetting_rate":
        value = math.inf if value >= 1 else -math.log1p(-value)
    return -math.inf if value <= 0 else math.log(value)


def _from_log(name: str, log: float) -> float:
    """Return the parameter from the logarithm."""
    return -math.expm1(-math.exp(log)) if name == "forgetting_rate" else math.exp(log)
