"""The Kalman filter of a panel: log likelihood with missing cells, and its exact gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tvbo.quadratic_model import Array

STEADY = 1e-11
"""Relative change of covariances below which they are taken as constant while cells and gaps are
the same from time to time."""


@dataclass(frozen=True)
class StateSpace:
    r"""``b`` independent linear Gaussian state-space models with ``s`` states and ``m`` outputs.

    From one time to the next the state becomes :math:`A x + w` with :math:`w \sim N(0, Q)`, and is
    observed as :math:`Z x` with independent noise of variances ``R``.

    Args:
        transitions: ``g x b x s x s``, A of each of ``g`` distinct gaps.
        innovations: ``g x b x s x s``, Q of each of them.
        initial: ``b x s x s``, covariance of the first state of a segment, whose mean is zero.
        observation: ``m x s``, Z.
        noise: ``b x m``, R.
    """

    transitions: Array
    innovations: Array
    initial: Array
    observation: Array
    noise: Array


@dataclass(frozen=True)
class Gradient:
    """The log likelihood and its derivatives with respect to the arrays of a model.

    Args:
        log_likelihood: Of all observed cells.
        values: ``T x b x m``, minus the derivative with respect to the values: the precision times
            the values, zero where there is none.
        transitions: ``g x b x s x s``.
        innovations: ``g x b x s x s``, symmetric.
        initial: ``b x s x s``, symmetric.
        noise: ``b x m``.
        states: ``T x b x s``, derivative with respect to the predicted state at each time.
    """

    log_likelihood: float
    values: Array
    transitions: Array
    innovations: Array
    initial: Array
    noise: Array
    states: Array


@dataclass
class _Step:
    """Covariances of a step, which steps with the same cells and gap may share."""

    predicted: Array
    gain: Array
    precision: Array
    filtered: Array
    log_determinant: float


class KalmanFilter:
    """The filter of a panel at given parameters; means are filtered for any values.

    Args:
        model: The model.
        observed: ``T x b x m``, whether each cell has a value.
        gaps: ``T``, index of the gap before each time; -1 where a segment begins.
    """

    def __init__(self, model: StateSpace, observed: NDArray[np.bool_], gaps: NDArray[np.int64]):
        self.model, self.observed, self.gaps = model, observed, gaps
        self.steps: list[_Step] = []
        T = len(gaps)
        same = np.zeros(T, dtype=bool)
        same[1:] = (observed[1:] == observed[:-1]).all((1, 2)) & (gaps[1:] == gaps[:-1])
        scale = np.abs(model.initial).max()
        steady = False
        for t in range(T):
            if steady and same[t]:
                self.steps.append(self.steps[-1])
                continue
            before = self.steps[-1] if t else None
            predicted = model.initial if gaps[t] < 0 else self._predict(before, gaps[t])
            step = self._update(predicted, observed[t])
            steady = bool(
                before is not None
                and same[t]
                and np.abs(predicted - before.predicted).max() <= STEADY * scale
            )
            self.steps.append(step)

    def _predict(self, before: _Step | None, gap: int) -> Array:
        """Return the covariance of the next state."""
        assert before is not None
        A = self.model.transitions[gap]
        predicted = A @ before.filtered @ A.swapaxes(-1, -2) + self.model.innovations[gap]
        symmetric: Array = 0.5 * (predicted + predicted.swapaxes(-1, -2))
        return symmetric

    def _update(self, predicted: Array, observed: NDArray[np.bool_]) -> _Step:
        """Condition on the observed cells; the others have a precision of zero."""
        Z = self.model.observation
        crossed = predicted @ Z.T
        total = Z @ crossed
        size = len(Z)
        diagonal = np.arange(size)
        total[:, diagonal, diagonal] += self.model.noise
        if not observed.all():
            both = observed[:, :, None] & observed[:, None]
            total = np.where(both, total, 0.0)
            total[:, diagonal, diagonal] += ~observed
            crossed = np.where(observed[:, None], crossed, 0.0)
        if size == 1:
            precision = 1 / total
            log_determinant = float(np.log(total).sum())
        else:
            factor = np.linalg.cholesky(total)
            log_determinant = 2 * float(np.log(factor[:, diagonal, diagonal]).sum())
            precision = np.asarray(np.linalg.inv(total), np.float64)
        if not observed.all():
            precision[:, diagonal, diagonal] -= ~observed
        gain = crossed @ precision
        filtered = predicted - gain @ crossed.swapaxes(-1, -2)
        return _Step(predicted, gain, precision, filtered, log_determinant)

    def innovations(self, values: Array) -> tuple[Array, Array]:
        """Return innovations ``T x b x m``, and filtered states ``T x b x s``.

        Args:
            values: ``T x b x m``; those that are not observed are ignored.
        """
        model, T = self.model, len(values)
        b, s = model.initial.shape[:2]
        errors, filtered = np.empty(values.shape), np.empty((T, b, s))
        Zt = model.observation.T
        known = np.where(self.observed, values, 0.0)
        state = np.zeros((b, s))
        for t, step in enumerate(self.steps):
            gap = self.gaps[t]
            state = np.zeros((b, s)) if gap < 0 else _times(model.transitions[gap], state)
            error = known[t] - state @ Zt
            errors[t] = error
            state = state + _times(step.gain, error)
            filtered[t] = state
        return np.where(self.observed, errors, 0.0), filtered

    def log_likelihood(self, values: Array) -> float:
        """Return the log likelihood of values ``T x b x m``."""
        errors, _ = self.innovations(values)
        return self._log_likelihood(errors, self._weigh(errors))

    def _weigh(self, errors: Array) -> Array:
        """Return innovations times the inverses of their covariances."""
        weighted = np.empty_like(errors)
        for start, stop, step in self._runs():
            weighted[start:stop] = _times(step.precision, errors[start:stop])
        return weighted

    def _log_likelihood(self, errors: Array, weighted: Array) -> float:
        logs = sum((stop - start) * step.log_determinant for start, stop, step in self._runs())
        constant = int(self.observed.sum()) * math.log(2 * math.pi)
        return -0.5 * (float((errors * weighted).sum()) + logs + constant)

    def _runs(self) -> list[tuple[int, int, _Step]]:
        """Return the first and the last index of the times that share a step."""
        runs, start = [], 0
        for t in range(1, len(self.steps) + 1):
            if t == len(self.steps) or self.steps[t] is not self.steps[start]:
                runs.append((start, t, self.steps[start]))
                start = t
        return runs

    def precision_times(self, values: Array) -> Array:
        """Return the precision matrix of all observed cells times values, ``T x b x m``."""
        errors, _ = self.innovations(values)
        weighted, _ = self._adjoint(self._weigh(errors))
        return weighted

    def _adjoint(self, weighted: Array) -> tuple[Array, Array]:
        """Return minus the derivatives by the values, and those by the predicted states."""
        model, T = self.model, len(weighted)
        b, s = model.initial.shape[:2]
        u, states = np.empty_like(weighted), np.empty((T, b, s))
        Z, state = model.observation, np.zeros((b, s))
        for t in range(T - 1, -1, -1):
            step = self.steps[t]
            u[t] = weighted[t] - _transposed_times(step.gain, state)
            state = state + u[t] @ Z
            states[t] = state
            gap = self.gaps[t]
            state = (
                np.zeros((b, s)) if gap < 0 else _transposed_times(model.transitions[gap], state)
            )
        return np.where(self.observed, u, 0.0), states

    def gradient(self, values: Array) -> Gradient:
        """Return the log likelihood of values ``T x b x m``, and its gradient.

        By backpropagation through the filter; where covariances are steady, so are their adjoints
        (Koopman, Shephard, 1992, in the form of Durbin, Koopman, 2012, Section 4.5).
        """
        model, T = self.model, len(values)
        errors, filtered = self.innovations(values)
        weighted = self._weigh(errors)
        u, states = self._adjoint(weighted)
        by_transition = np.zeros_like(model.transitions)
        by_innovation = np.zeros_like(model.innovations)
        by_initial = np.zeros_like(model.initial)
        by_noise = 0.5 * (u * u).sum(0)
        Z = model.observation
        diagonal = np.arange(len(Z))
        after = np.zeros_like(model.initial)  # Adjoint information after the update.
        before = after
        scale = 0.0
        reuse: _Step | None = None
        for t in range(T - 1, -1, -1):
            step, gap = self.steps[t], self.gaps[t]
            if step is not reuse:
                weights = step.gain.swapaxes(-1, -2) @ after
                D = step.precision + weights @ step.gain
                correction = step.gain @ Z
                rest = after - after @ correction
                now = rest - correction.swapaxes(-1, -2) @ rest
                now = now + Z.T @ step.precision @ Z
                by_noise_now = np.where(self.observed[t], D[:, diagonal, diagonal], 0.0)
                scale = max(scale, float(np.abs(now).max()))
                steady = (
                    t + 1 < T
                    and self.steps[t + 1] is step
                    and np.abs(now - before).max() <= STEADY * scale
                )
                before = now
                if gap >= 0:
                    A = model.transitions[gap]
                    pulled = now @ A
                    next_after = A.swapaxes(-1, -2) @ pulled
                if steady:
                    reuse = step
            by_noise -= 0.5 * by_noise_now
            if gap < 0:
                by_initial += 0.5 * (_outer(states[t], states[t]) - now)
                after = np.zeros_like(after)
                reuse = None
                continue
            past = self.steps[t - 1]
            by_innovation[gap] -= 0.5 * now
            by_transition[gap] -= pulled @ past.filtered
            after = next_after
        by_transition_, by_innovation_ = self._mean_parts(states, filtered)
        log_likelihood = self._log_likelihood(errors, weighted)
        return Gradient(
            log_likelihood,
            u,
            by_transition + by_transition_,
            by_innovation + by_innovation_,
            by_initial,
            by_noise,
            states,
        )

    def smoothed(self, states: Array, filtered: Array) -> Array:
        """Return the smoothed states ``T x b x s``, from the adjoint and the filtered ones."""
        smoothed = filtered.copy()
        following = np.zeros_like(states)
        later = self.gaps[1:] >= 0
        for gap in np.unique(self.gaps[1:][later]):
            at = np.flatnonzero(self.gaps[1:] == gap)
            following[at] = _transposed_times(self.model.transitions[gap], states[at + 1])
        for start, stop, step in self._runs():
            smoothed[start:stop] += _times(step.filtered, following[start:stop])
        return smoothed

    def _mean_parts(self, states: Array, filtered: Array) -> tuple[Array, Array]:
        """Return what means add to the derivatives by transitions and innovations."""
        smoothed = self.smoothed(states, filtered)
        by_transition = np.zeros_like(self.model.transitions)
        by_innovation = np.zeros_like(self.model.innovations)
        for gap in np.unique(self.gaps[self.gaps >= 0]):
            at = np.flatnonzero(self.gaps == gap)
            by_transition[gap] = np.einsum("tbi,tbj->bij", states[at], smoothed[at - 1])
            by_innovation[gap] = 0.5 * np.einsum("tbi,tbj->bij", states[at], states[at])
        return by_transition, by_innovation


def _outer(left: Array, right: Array) -> Array:
    """Return the outer products of rows, ``b x s x s``."""
    return left[:, :, None] * right[:, None]


def _times(matrices: Array, vectors: Array) -> Array:
    """Return products of matrices ``b x k x l`` and vectors ``... x b x l``."""
    if matrices.shape[-1] == 1:
        # NumPy multiplies many small matrices slowly.
        return matrices[..., 0] * vectors
    product: Array = (matrices @ vectors[..., None])[..., 0]
    return product


def _transposed_times(matrices: Array, vectors: Array) -> Array:
    """Return products of transposed matrices ``b x k x l`` and vectors ``... x b x k``."""
    return _times(matrices.swapaxes(-1, -2), vectors)
