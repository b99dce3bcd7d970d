"""Kalman filters of independent modes whose temporal kernels are Markov with a small state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

STEADY = 1e-15
"""Relative change of the variances below which they are taken as constant over equal gaps."""


@dataclass(frozen=True)
class StateSpace:
    r"""``p`` state-space models of ``n`` independent modes each.

    Mode ``i`` has a state of size ``s`` with the stationary covariance :math:`P_i`; over a gap it
    becomes :math:`A x + w` with noise of covariance :math:`P_i - A P_i A^\top`, and is observed as
    :math:`h^\top x` with noise variance :math:`r`.

    Args:
        transitions: ``p x u x s x s``, :math:`A` of each of ``u`` distinct gaps.
        stationary: ``p x s x s x n``.
        observation: ``s``.
        noise_variance: ``p``.
    """

    transitions: Array
    stationary: Array
    observation: Array
    noise_variance: Array


@dataclass(frozen=True)
class Filtered:
    """What a filter says of ``c`` series of the modes.

    Args:
        innovations: ``T x p x n x c``, observations less their predictions.
        variances: ``T x p x n``, variances of the innovations.
        mean: ``p x s x n x c``, mean of the state after the last observation.
        covariance: ``p x s x s x n``, its covariance.
    """

    innovations: Array
    variances: Array
    mean: Array
    covariance: Array

    @property
    def log_likelihoods(self) -> Array:
        """Log likelihoods of the modes, of all series together, ``p x n``."""
        misfit = np.einsum("tpnc,tpnc->tpn", self.innovations, self.innovations) / self.variances
        logs = self.innovations.shape[-1] * np.log(2 * math.pi * self.variances)
        values: Array = -0.5 * (misfit + logs).sum(0)
        return values


def filter_modes(series: Array, gaps: Sequence[int], model: StateSpace) -> Filtered:
    """Filter series of the modes; all begin in the stationary state.

    Args:
        series: ``T x n x c``; the ``c`` columns are independent series with the same model.
        gaps: ``T - 1`` indices into ``model.transitions``.
        model: The models.
    """
    T, n, c = series.shape
    p, _, s, _ = model.transitions.shape
    innovations, variances = np.empty((T, p, n * c)), np.empty((T, p, n))
    for k, step in enumerate(_steps(series, gaps, model)):
        innovations[k], variances[k] = step.errors, step.variances
    crossed, gain = step.crossed, step.crossed / step.variances[:, None]
    after = step.covariance - (crossed[:, :, None] * gain[:, None]).reshape(p, s * s, n)
    mean = step.mean + np.repeat(gain, c, axis=-1) * step.errors[:, None]
    return Filtered(
        innovations.reshape(T, p, n, c),
        variances,
        mean.reshape(p, s, n, c),
        after.reshape(p, s, s, n),
    )


def precision_times(series: Array, gaps: Sequence[int], model: StateSpace) -> Array:
    r"""Return :math:`\Sigma^{-1} y` of each series of each mode, ``T x n x c``.

    It is minus the derivative of the log likelihood with respect to the observations, by
    backpropagation through the filter.

    Args:
        series: As in :func:`filter_modes`.
        gaps: As in :func:`filter_modes`.
        model: One model, ``p = 1``.
    """
    T, n, c = series.shape
    transitions, h = model.transitions[0], model.observation
    gains, white = [], np.empty((T, n, c))
    for k, step in enumerate(_steps(series, gaps, model)):
        if step.is_new:
            gain = step.crossed[0] / step.variances[0]
        gains.append(gain)
        white[k] = step.errors[0].reshape(n, c) / step.variances[0][:, None]
    state = np.zeros((len(h), n, c))
    for k in range(T - 1, -1, -1):
        if k < T - 1:
            state = np.einsum("ij,inc->jnc", transitions[gaps[k]], state)
        white[k] -= (gains[k][..., None] * state).sum(0)
        state = state + h[:, None, None] * white[k]
    return white


class _Step(NamedTuple):
    """A step of the filter.

    Args:
        mean: ``p x s x nc``, prediction of the state.
        covariance: ``p x s² x n``, of that prediction.
        crossed: ``p x s x n``, covariance of state and observation.
        errors: ``p x nc``, innovations.
        variances: ``p x n``, of the innovations.
        is_new: Whether covariances may differ from those of the step before.
    """

    mean: Array
    covariance: Array
    crossed: Array
    errors: Array
    variances: Array
    is_new: bool


def _steps(series: Array, gaps: Sequence[int], model: StateSpace) -> Iterator[_Step]:
    """Yield the steps of the filter."""
    T, n, c = series.shape
    p, _, s, _ = model.transitions.shape
    h, noise = model.observation, model.noise_variance[:, None]
    # vec(A P A') = (A x A) vec(P): one product of matrices for all modes.
    pairs = np.einsum("guij,gukl->guikjl", model.transitions, model.transitions)
    pairs = pairs.reshape(p, -1, s * s, s * s)
    stationary = model.stationary.reshape(p, s * s, n)
    fresh = stationary[:, None] - pairs @ stationary[:, None]
    reading = np.kron(np.eye(s), h)
    close = STEADY * np.abs(stationary).max(initial=0.0)
    P, m = stationary, np.zeros((p, s, n * c))
    rows = series.reshape(T, n * c)
    steady = False
    for k in range(T):
        is_new = not steady
        if is_new:
            crossed = reading @ P
            total = h @ crossed + noise
            gain = crossed / total[:, None]
            wide = np.repeat(gain, c, axis=-1) if c > 1 else gain
        errors = rows[k] - h @ m
        yield _Step(m, P, crossed, errors, total, is_new)
        if k == T - 1:
            return
        gap = gaps[k]
        m = model.transitions[:, gap] @ (m + wide * errors[:, None])
        same = k > 0 and gap == gaps[k - 1]
        steady = steady and same
        if not steady:
            after = P - (crossed[:, :, None] * gain[:, None]).reshape(p, s * s, n)
            following = pairs[:, gap] @ after + fresh[:, gap]
            # Tested at some steps only, since the test costs as much as the step.
            if same and k % 16 == 15:
                steady = bool((np.abs(following - P) <= close).all())
            P = following
