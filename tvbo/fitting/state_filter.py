"""Kalman filters of independent modes whose temporal kernels are Markov with a small state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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

    def log_likelihood(self) -> Array:
        """Return the log likelihoods of all modes and series together, ``p``."""
        count = self.innovations.shape[-1]
        misfit = (self.innovations**2).sum(-1) / self.variances
        logs = np.log(2 * math.pi * self.variances)
        return -0.5 * (misfit + count * logs).sum((0, 2))


def filter_modes(series: Array, gaps: Sequence[int], model: StateSpace) -> Filtered:
    """Filter series of the modes; all begin in the stationary state.

    Args:
        series: ``T x n x c``; the ``c`` columns are independent series with the same model.
        gaps: ``T - 1`` indices into ``model.transitions``.
        model: The models.
    """
    T, n, c = series.shape
    p, _, s, _ = model.transitions.shape
    h = model.observation
    noise = model.noise_variance[:, None]
    # vec(A P A') = (A x A) vec(P): one product of matrices for all modes.
    pairs = np.einsum("guij,gukl->guikjl", model.transitions, model.transitions)
    pairs = pairs.reshape(p, -1, s * s, s * s)
    stationary = model.stationary.reshape(p, s * s, n)
    fresh = stationary[:, None] - pairs @ stationary[:, None]
    reading = np.kron(np.eye(s), h)
    P, m = stationary, np.zeros((p, s, n * c))
    innovations, variances = np.empty((T, p, n * c)), np.empty((T, p, n))
    rows = series.reshape(T, n * c)
    steady = False
    for k in range(T):
        if not steady:
            crossed = reading @ P
            total = h @ crossed + noise
            gain = crossed / total[:, None]
            wide = np.repeat(gain, c, axis=-1) if c > 1 else gain
        variances[k] = total
        error = rows[k] - h @ m
        innovations[k] = error
        m = m + wide * error[:, None]
        if k == T - 1:
            break
        gap = gaps[k]
        m = model.transitions[:, gap] @ m
        if k and gap != gaps[k - 1]:
            steady = False
        if not steady:
            after = P - (crossed[:, :, None] * gain[:, None]).reshape(p, s * s, n)
            following = pairs[:, gap] @ after + fresh[:, gap]
            # Tested at some steps only, since the test costs as much as the step.
            if k % 16 == 15 and gap == gaps[k - 1]:
                steady = bool((np.abs(following - P) <= STEADY * np.abs(stationary).max()).all())
            P = following
    after = P - (crossed[:, :, None] * gain[:, None]).reshape(p, s * s, n)
    return Filtered(
        innovations.reshape(T, p, n, c),
        variances,
        m.reshape(p, s, n, c),
        after.reshape(p, s, s, n),
    )
