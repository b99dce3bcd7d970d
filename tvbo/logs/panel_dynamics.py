"""How a panel moves from time to time, and what is believed of it, in any units."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
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

    noise: Tensor

    @abstractmethod
    def space(self, lags: Tensor) -> StateSpace:
        """Return the model of all arms together, with transitions over some lags, ``g``."""

    @cached_property
    def at_once(self) -> StateSpace:
        """The model over a lag of one, for what does not depend on lags."""
        return self.space(torch.ones(1, dtype=torch.float64))

    def step(self, lag: float) -> tuple[Array, Array]:
        """Return the transition of the state over a lag, and the covariance of what is new."""
        space = self.space(torch.tensor([lag], dtype=torch.float64))
        return space.transitions[0, 0].numpy(), space.innovations[0, 0].numpy()

    def apart(self, lags: Tensor, is_full: bool) -> tuple[Tensor, StateSpace] | None:
        """Return directions, ``n x n``, and a model of each; None where they are not independent.

        Args:
            lags: The lags, ``g``.
            is_full: Whether every arm has a value at every time.
        """
        return None


InTime = tuple[Tensor, Tensor, Tensor]
"""Transitions over lags ``g x s x s``, stationary covariance ``s x s``, and observation ``s``."""


def added(components: Sequence[InTime], shares: Tensor) -> InTime:
    """Return the sum of independent components with shares in the variance."""
    transitions, initial, observations = zip(*components, strict=True)
    return (
        torch.stack([torch.block_diag(*each) for each in zip(*transitions, strict=True)]),
        torch.block_diag(*(share * P for share, P in zip(shares, initial, strict=True))),
        torch.cat(observations),
    )


def jointly(in_time: InTime, covariance: Tensor, noise: Tensor) -> StateSpace:
    """Return one model of all arms, which move alike and have a covariance, ``n x n``."""
    A, P, h = in_time
    eye = torch.eye(len(covariance), dtype=A.dtype)
    return StateSpace(
        torch.stack([torch.kron(eye, each) for each in A]).unsqueeze(1),
        torch.stack([torch.kron(covariance, each) for each in P - A @ P @ A.mT]).unsqueeze(1),
        torch.kron(covariance, P).unsqueeze(0),
        torch.kron(eye, h.unsqueeze(0)),
        noise.unsqueeze(0),
    )


def by_modes(in_time: InTime, covariance: Tensor, noise: Tensor) -> tuple[Tensor, StateSpace]:
    """Return the eigenvectors of a covariance over arms that move alike, and a model of each.

    They are independent where all arms have the same noise, and none is missing.
    """
    A, P, h = in_time
    variances, modes = torch.linalg.eigh(covariance)
    fresh, scale = P - A @ P @ A.mT, variances.clamp_min(0.0)[:, None, None]
    transitions = A.unsqueeze(1).expand(-1, len(variances), -1, -1)
    fresh, observation = fresh.unsqueeze(1) * scale, h.unsqueeze(0)
    return modes, StateSpace(transitions, fresh, P * scale, observation, noise.unsqueeze(-1))


@dataclass(frozen=True)
class CommonDynamics(Dynamics):
    """Temporal kernels that all arms share, with one covariance over arms.

    Args:
        noise: Noise variance of each arm, ``n``.
        kernels: Temporal kernel of each component.
        shares: Share of each component in the variance, ``c``.
        covariance: Covariance over the arms, of all components together, ``n x n``.
    """

    kernels: list[TemporalKernel]
    shares: Tensor
    covariance: Tensor

    @property
    def covariances(self) -> Tensor:
        """Covariance of each component over the arms, ``c x n x n``."""
        return self.shares[:, None, None] * self.covariance

    def space(self, lags: Tensor) -> StateSpace:
        """Return the model of the components, arm by arm."""
        return jointly(self._in_time(lags), self.covariance, self.noise)

    def apart(self, lags: Tensor, is_full: bool) -> tuple[Tensor, StateSpace] | None:
        """Return the modes."""
        return by_modes(self._in_time(lags), self.covariance, self.noise) if is_full else None

    @torch.no_grad()
    def _in_time(self, lags: Tensor) -> InTime:
        """Return the sum of the components."""
        parts = [
            (k.transition(lags), k.stationary_covariance(), k.observation) for k in self.kernels
        ]
        return added(parts, self.shares)


@dataclass(frozen=True)
class IndependentDynamics(Dynamics):
    """Exponential decay of each arm by itself.

    Args:
        noise: Noise variance of each arm, ``n``.
        rates: ``n``, ρ of each arm.
        variances: ``n``.
    """

    rates: Tensor
    variances: Tensor

    @property
    def forgetting_rates(self) -> Tensor:
        """ε of each arm, ``n``."""
        return -torch.expm1(-self.rates)

    def apart(self, lags: Tensor, is_full: bool = False) -> tuple[Tensor, StateSpace]:
        """Return the arms."""
        decay = torch.exp(-0.5 * lags.unsqueeze(-1) * self.rates)
        fresh = self.variances * (1 - decay**2)
        eye = torch.eye(len(self.noise), dtype=decay.dtype)
        return eye, StateSpace(
            decay[..., None, None],
            fresh[..., None, None],
            self.variances[:, None, None],
            eye[:1, :1],
            self.noise.unsqueeze(-1),
        )

    def space(self, lags: Tensor) -> StateSpace:
        """Return the model whose states are the arms."""
        eye, alone = self.apart(lags)
        matrices = alone.transitions, alone.innovations, alone.initial
        A, Q, P = (torch.diag_embed(each[..., 0, 0]).unsqueeze(-3) for each in matrices)
        return StateSpace(A, Q, P, eye, self.noise.unsqueeze(0))


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

    transition: Tensor
    innovation: Tensor
    initial: Tensor
    gap: float

    def space(self, lags: Tensor) -> StateSpace:
        """Return the model whose states are the arms, over as many gaps as are nearest."""
        eye = torch.eye(len(self.noise), dtype=self.noise.dtype)
        steps = [self._steps(round(lag / self.gap)) for lag in lags.tolist()]
        A, Q = (torch.stack(each).unsqueeze(1) for each in zip(*steps, strict=True))
        initial = torch.diag(self.initial).unsqueeze(0)
        return StateSpace(A, Q, initial, eye, self.noise.unsqueeze(0))

    def _steps(self, count: int) -> tuple[Tensor, Tensor]:
        """Return transition and innovation covariance of some steps, by repeated squaring."""
        A, Q = self.transition, self.innovation
        power, fresh = torch.eye(len(A), dtype=A.dtype), torch.zeros_like(Q)
        for digit in f"{count:b}":
            power, fresh = power @ power, power @ fresh @ power.mT + fresh
            if digit == "1":
                power, fresh = A @ power, A @ fresh @ A.mT + Q
        return power, fresh


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
    """Means, season and dynamics of the arms.

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
        return columns_of(self.season, times) @ self.coefficients

    def filter_panel(self, cells: Cells) -> Belief:
        """Return the belief at the last time of a panel, in the units of the model."""
        lags = torch.as_tensor(cells.lags)
        residuals = torch.as_tensor(cells.values - self.levels(cells.times))
        observed, apart = ~residuals.isnan(), self.dynamics.apart(lags, cells.is_full)
        if apart is None:
            model, outputs, observed = self.dynamics.space(lags), residuals, observed.unsqueeze(1)
        else:
            directions, model = apart
            outputs, observed = residuals.nan_to_num() @ directions, observed.unsqueeze(-1)
        filtered = KalmanFilter(model, observed, cells.gaps)
        _, states = filtered.innovations(outputs.reshape(*observed.shape, 1))
        mean, covariance = states[-1, ..., 0], filtered.filtered
        if apart is not None:
            mean = directions @ mean
            pairs = torch.einsum("ib,bst,jb->isjt", directions, covariance, directions)
            covariance = pairs.reshape(1, mean.numel(), -1)
        return Belief(mean.flatten().numpy(), covariance[0].numpy())

    @property
    def prior(self) -> Belief:
        """What is believed of the state of a new segment."""
        stationary = self.dynamics.at_once.initial[0].numpy()
        return Belief(np.zeros(len(stationary)), stationary)

    def predict(self, since: float | None, belief: Belief, t: float) -> Belief:
        """Return the belief at a time from one at an earlier time; None is in another segment."""
        if since is None:
            return self.prior
        return advance(belief, *self.dynamics.step(max(0.0, t - since)))

    def arms(self, belief: Belief) -> tuple[Array, Array]:
        """Return mean and variance of what drifts in each arm, both ``... x n``."""
        H = self.dynamics.at_once.observation.numpy()
        # An arm is the sum of a few states.
        count = np.count_nonzero(H, axis=1).max()
        states = np.argsort(H == 0, axis=1, kind="stable")[:, :count]
        weights = np.take_along_axis(H, states, axis=1)
        own = belief.covariance[..., states[:, :, None], states[:, None, :]]
        variances = np.einsum("ij,...ijk,ik->...i", weights, own, weights)
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
        H = self.dynamics.at_once.observation.numpy()[arms]
        crossed = (belief.covariance @ H[..., None])[..., 0]
        variance = (crossed * H).sum(-1) + self.dynamics.noise.numpy()[arms]
        limit = WINSORIZED * np.sqrt(variance)
        errors = np.nan_to_num((residuals - (belief.mean * H).sum(-1)).clip(-limit, limit))
        gain = np.where(np.isnan(residuals)[..., None], 0.0, crossed / variance[..., None])
        mean = belief.mean + gain * errors[..., None]
        return Belief(mean, belief.covariance - gain[..., None] * crossed[..., None, :])


def advance(belief: Belief, A: Array, Q: Array) -> Belief:
    """Return beliefs after a transition A with innovations of covariance Q."""
    decay = np.diag(A)
    if np.array_equal(A, np.diag(decay)):
        covariance = belief.covariance * np.outer(decay, decay)
        covariance += Q
        return Belief(belief.mean * decay, covariance)
    return Belief(belief.mean @ A.T, A @ belief.covariance @ A.T + Q)
