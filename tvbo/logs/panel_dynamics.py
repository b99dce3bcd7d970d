"""How a panel moves, in the user's units: from time to time, and what is believed of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import block_diag
from torch import Tensor

from tvbo.kernels import TemporalKernel
from tvbo.logs.panel_cells import Cells, columns_of
from tvbo.logs.season import Season
from tvbo.logs.state_space import KalmanFilter, StateSpace
from tvbo.quadratic_model import Array

WINSORIZED = 6.0
"""Deviations of an outcome from its prediction beyond which it counts as one at this distance."""


@dataclass(frozen=True)
class Dynamics(ABC):
    """A linear Gaussian model of what drifts in a panel, by one state for all arms.

    Args:
        noise: Noise variance of each arm, ``n``.
    """

    noise: Array

    @property
    @abstractmethod
    def stationary(self) -> Array:
        """Covariance of the state before any observation, ``k x k``."""

    @property
    def observation(self) -> Array:
        """The arms as functions of the state, ``n x k``; by default they are the state."""
        return np.eye(len(self.stationary))

    @abstractmethod
    def step(self, lag: float) -> tuple[Array, Array]:
        """Return the transition of the state over a lag, and the covariance of what is new."""

    def space(self, lags: Array) -> StateSpace:
        """Return the model of all arms together, with transitions over some lags."""
        steps = [self.step(lag) for lag in lags.tolist()]
        transitions, innovations = (np.stack(each)[:, None] for each in zip(*steps, strict=True))
        arrays = transitions, innovations, self.stationary[None], self.observation, self.noise[None]
        return StateSpace(*map(torch.as_tensor, arrays))


@dataclass(frozen=True)
class CommonDynamics(Dynamics):
    """Temporal kernels that all arms share.

    Args:
        noise: Noise variance of each arm, ``n``.
        kernels: Temporal kernel of each component.
        covariances: ``c x n x n``, covariance of each component over the arms.
    """

    kernels: list[TemporalKernel]
    covariances: Array

    @property
    def stationary(self) -> Array:
        """Covariance of the states of all components, arm by arm."""
        parts = [kernel.stationary_covariance().detach().numpy() for kernel in self.kernels]
        total = np.zeros((sum(map(len, parts)) * self.covariances.shape[1],) * 2)
        for number, covariance in enumerate(self.covariances):
            own = [part * (place == number) for place, part in enumerate(parts)]
            total += np.kron(covariance, block_diag(*own))
        return total

    @property
    def observation(self) -> Array:
        """The arms as sums over components."""
        reading = np.concatenate([kernel.observation.numpy() for kernel in self.kernels])
        return np.asarray(np.kron(np.eye(self.covariances.shape[1]), reading[None]), np.float64)

    def step(self, lag: float) -> tuple[Array, Array]:
        """Return the transitions of all components."""
        age = torch.tensor(lag, dtype=torch.float64)
        with torch.no_grad():
            parts = [kernel.transition(age).numpy() for kernel in self.kernels]
        A = np.kron(np.eye(self.covariances.shape[1]), block_diag(*parts))
        P = self.stationary
        return A, P - A @ P @ A.T


@dataclass(frozen=True)
class IndependentDynamics(Dynamics):
    """Exponential decay of each arm by itself.

    Args:
        noise: Noise variance of each arm, ``n``.
        forgetting_rates: ``n``, ε of each arm.
        variances: ``n``.
    """

    forgetting_rates: Array
    variances: Array

    @property
    def stationary(self) -> Array:
        """Variances of the arms."""
        return np.diag(self.variances)

    def step(self, lag: float) -> tuple[Array, Array]:
        """Return the decay of each arm."""
        decay = (1 - self.forgetting_rates) ** (lag / 2)
        return np.diag(decay), np.diag(self.variances * (1 - decay**2))


@dataclass(frozen=True)
class VectorDynamics(Dynamics):
    """A vector autoregression of the arms.

    Args:
        noise: Noise variance of each arm, ``n``.
        transition: ``n x n``, A over one gap.
        innovation: ``n x n``, Q over one gap.
        initial: ``n``, variances before any observation.
        gap: The gap; other lags count as the nearest multiple of it.
    """

    transition: Array
    innovation: Array
    initial: Array
    gap: float

    @property
    def stationary(self) -> Array:
        """Variances of the arms."""
        return np.diag(self.initial)

    def step(self, lag: float) -> tuple[Array, Array]:
        """Return the transition over as many gaps as are nearest."""
        count = round(lag / self.gap)
        if count == 0:
            return np.eye(len(self.initial)), np.zeros_like(self.innovation)
        return several_steps(self.transition, self.innovation, count)


AnyArray = TypeVar("AnyArray", Array, Tensor)


def several_steps(A: AnyArray, Q: AnyArray, count: int) -> tuple[AnyArray, AnyArray]:
    """Return transition and innovation covariance of one step or more, by repeated squaring."""
    if count == 1:
        return A, Q
    power, fresh = several_steps(A, Q, count // 2)
    power, fresh = power @ power, power @ fresh @ power.T + fresh
    return (A @ power, A @ fresh @ A.T + Q) if count % 2 else (power, fresh)


@dataclass(frozen=True)
class Belief:
    """Gaussian beliefs about the state of a panel, one or several at once.

    Args:
        mean: ``... x k``.
        covariance: ``... x k x k``.
    """

    mean: Array
    covariance: Array


@dataclass(frozen=True)
class PanelModel:
    """Means, season and dynamics of the arms, in the user's units.

    Args:
        dynamics: What drifts.
        season: The season; None if there is none.
        coefficients: ``q x n``, of means and season.
    """

    dynamics: Dynamics
    season: Season | None
    coefficients: Array

    def levels(self, times: Array) -> Array:
        """Return means and season of the arms, ``len(times) x n``."""
        levels: Array = columns_of(self.season, times) @ self.coefficients
        return levels

    def filter_panel(self, values: Array, cells: Cells, gap: float) -> Belief:
        """Return the belief at the last time of a panel.

        Args:
            values: ``T x n``; NaN where there is none.
            cells: The same panel, for its gaps.
            gap: Unit of its times, in the user's.
        """
        model = self.dynamics.space(cells.lags * gap)
        residuals = torch.as_tensor(values - self.levels(cells.times * gap)).unsqueeze(1)
        filtered = KalmanFilter(model, ~residuals.isnan(), cells.gaps)
        _, states = filtered.innovations(residuals.unsqueeze(-1))
        return Belief(states[-1, 0, :, 0].numpy(), filtered.filtered[0].numpy())

    @property
    def prior(self) -> Belief:
        """What is believed of the state of a new segment."""
        stationary = self.dynamics.stationary
        return Belief(np.zeros(len(stationary)), stationary)

    def predict(self, since: float | None, belief: Belief, t: float) -> Belief:
        """Return the belief at a time from one at an earlier time; None is in another segment."""
        if since is None:
            return self.prior
        return advance(belief, *self.dynamics.step(max(0.0, t - since)))

    def arms(self, belief: Belief) -> tuple[Array, Array]:
        """Return mean and variance of what drifts in each arm, both ``... x n``."""
        H = self.dynamics.observation
        variances = np.einsum("ij,...jk,ik->...i", H, belief.covariance, H, optimize=True)
        return belief.mean @ H.T, variances.clip(min=0.0)

    def update(
        self, belief: Belief, arms: NDArray[np.int64] | int, residuals: Array | np.float64
    ) -> Belief:
        """Return beliefs after an outcome each, of one arm; those far out are drawn in.

        Args:
            belief: One belief, or ``p``.
            arms: The arm, or ``p``.
            residuals: The outcome less :meth:`levels`, or ``p``; NaN where there is none.
        """
        H = self.dynamics.observation[arms]
        crossed = (belief.covariance @ H[..., None])[..., 0]
        variance = (crossed * H).sum(-1) + self.dynamics.noise[arms]
        limit = WINSORIZED * np.sqrt(variance)
        errors = np.nan_to_num((residuals - (belief.mean * H).sum(-1)).clip(-limit, limit))
        gain = np.where(np.isnan(residuals)[..., None], 0.0, crossed / variance[..., None])
        mean = belief.mean + gain * errors[..., None]
        return Belief(mean, belief.covariance - gain[..., None] * crossed[..., None, :])


def advance(belief: Belief, A: Array, Q: Array) -> Belief:
    """Return beliefs after a transition A with innovations of covariance Q."""
    decay = np.diag(A)
    if np.array_equal(A, np.diag(decay)):
        return Belief(belief.mean * decay, belief.covariance * np.outer(decay, decay) + Q)
    return Belief(belief.mean @ A.T, A @ belief.covariance @ A.T + Q)
