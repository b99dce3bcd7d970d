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
        transitions: ``g x b x s x s``.
        innovations: ``g x b x s x s``, symmetric.
        initial: ``b x s x s``, symmetric.
        noise: ``b x m``.
        states: ``T x b x s``, derivative of the log likelihood about known levels with respect to
            the predicted state at each time.
    """

    log_likelihood: float
    transitions: Array
    innovations: Array
    initial: Array
    noise: Array
    states: Array


@dataclass
class _Run:
    """Successive times that share the covariances of a step, from ``start`` to before ``stop``.

    Args:
        start: The first time.
        stop: The time after the last one.
        gap: Index of the gap before each time.
        transition: From the state at the time before, ``b x s x s``; zero in a new segment.
        predicted: Covariance of the state before its observation, ``b x s x s``.
        gain: ``b x s x m``.
        precision: Of the innovation, ``b x m x m``.
        kept: Factor of the predicted state in the filtered one, ``b x s x s``.
        filtered: Covariance of the state after its observation, ``b x s x s``.
        log_determinant: Of the covariance of the innovation, summed over the models.
    """

    start: int
    stop: int
    gap: int
    transition: Array
    predicted: Array
    gain: Array
    precision: Array
    kept: Array
    filtered: Array
    log_determinant: float


class KalmanFilter:
    """The filter of a panel at given parameters; means are filtered for any values.

    Values are ``T x ... x b x m``, such as several series at once.

    Args:
        model: The model.
        observed: ``T x b x m``, whether each cell has a value.
        gaps: ``T``, index of the gap before each time; -1 where a segment begins.
    """

    def __init__(self, model: StateSpace, observed: NDArray[np.bool_], gaps: NDArray[np.int64]):
        self.model, self.observed, self.gaps = model, observed, gaps
        self.runs: list[_Run] = []
        same = np.zeros(len(gaps), dtype=bool)
        same[1:] = (observed[1:] == observed[:-1]).all((1, 2)) & (gaps[1:] == gaps[:-1])
        scale = np.abs(model.initial).max()
        steady, run = False, None
        for t, gap in enumerate(gaps.tolist()):
            if run is not None and steady and same[t]:
                run.stop = t + 1
                continue
            predicted, before, A = model.initial, run, np.zeros_like(model.initial)
            if gap >= 0:
                assert before is not None
                A = model.transitions[gap]
                predicted = A @ before.filtered @ A.swapaxes(-1, -2) + model.innovations[gap]
                predicted = 0.5 * (predicted + predicted.swapaxes(-1, -2))
            run = self._update(t, gap, A, predicted, observed[t])
            steady = bool(
                before is not None
                and same[t]
                and np.abs(predicted - before.predicted).max() <= STEADY * scale
            )
            self.runs.append(run)

    def _update(
        self, t: int, gap: int, A: Array, predicted: Array, observed: NDArray[np.bool_]
    ) -> _Run:
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
        kept = np.eye(len(A[0])) - gain @ Z
        return _Run(t, t + 1, gap, A, predicted, gain, precision, kept, filtered, log_determinant)

    def innovations(self, values: Array) -> tuple[Array, Array]:
        """Return innovations ``T x ... x b x m``, and filtered states ``T x ... x b x s``.

        Args:
            values: ``T x ... x b x m``; those that are not observed are ignored.
        """
        observed = self._mask(values)
        known = np.where(observed, values, 0.0)
        states = np.zeros((*known.shape[:-1], self.model.initial.shape[-1]))
        state = states[0]
        for run in self.runs:
            times = slice(run.start, run.stop)
            moved = _times(run.gain, known[times])
            states[times] = _recursion(run.kept @ run.transition, moved, state)
            state = states[run.stop - 1]
        predicted = np.zeros_like(states)
        for at, A in self._transitions():
            predicted[at] = _times(A, states[at - 1])
        errors = known - _times(self.model.observation[None], predicted)
        return np.where(observed, errors, 0.0), states

    def whitened(self, values: Array) -> Array:
        """Return independent standardized innovations of models with one output each."""
        errors, _ = self.innovations(values)
        for run in self.runs:
            errors[run.start : run.stop] *= np.sqrt(run.precision[..., 0])
        return errors

    def precision_times(self, values: Array) -> Array:
        """Return the precision matrix of all observed cells times values, ``T x ... x b x m``."""
        errors, _ = self.innovations(values)
        weighted, *_ = self._adjoint(self._weigh(errors))
        return weighted

    def gradient(self, values: Array, restricted: bool = False) -> Gradient:
        """Return the log likelihood of values ``T x b x m``, and its gradient.

        By backpropagation through the filter; where covariances are steady, so are their adjoints
        (Koopman, Shephard, 1992, in the form of Durbin, Koopman, 2012, Section 4.5).

        Args:
            values: The values.
            restricted: Whether a constant level of each output is integrated out, with a flat
                prior, at whose maximum the values are: the restricted likelihood.
        """
        series = values[:, None]
        if restricted:
            # Further series, of ones for each output and zero in the others.
            T, b, m = self.observed.shape
            levels = np.broadcast_to(np.eye(m)[:, None], (T, m, b, m))
            series = np.concatenate([series, levels], axis=1)
        errors, filtered = self.innovations(series)
        weighted = self._weigh(errors)
        logs = sum((run.stop - run.start) * run.log_determinant for run in self.runs)
        logs += int(self.observed.sum()) * math.log(2 * math.pi)
        log_likelihood = -0.5 * (float((errors[:, 0] * weighted[:, 0]).sum()) + logs)
        if restricted:
            # The derivative of log |H| is that of the levels' own quadratic forms, in a basis in
            # which H is the identity.
            information = np.einsum("tjbi,tkbi->bjk", errors[:, 1:], weighted[:, 1:], optimize=True)
            diagonal = np.arange(m)
            # An output that was never observed has none, and counts for nothing.
            information[:, diagonal, diagonal] += ~self.observed.any(0)
            log_likelihood -= 0.5 * float(np.linalg.slogdet(information)[1].sum())
            basis = np.linalg.inv(np.linalg.cholesky(information))
            for part in (weighted, filtered):
                part[:, 1:] = np.einsum("bkj,tjbi->tkbi", basis, part[:, 1:], optimize=True)
        u, states, later = self._adjoint(weighted)
        smoothed = filtered
        for run in self.runs:
            smoothed[run.start : run.stop] += _times(run.filtered, later[run.start : run.stop])
        by_transition = np.zeros_like(self.model.transitions)
        by_innovation = np.zeros_like(self.model.innovations)
        for at, _ in self._transitions():
            gap = self.gaps[at[0]]
            by_transition[gap] = _summed_outer(states[at], smoothed[at - 1])
            by_innovation[gap] = 0.5 * _summed_outer(states[at], states[at])
        first = states[self.gaps < 0]
        by_initial = 0.5 * _summed_outer(first, first)
        by_noise = 0.5 * np.square(u).sum((0, 1))
        self._add_by_covariances(by_transition, by_innovation, by_initial, by_noise)
        return Gradient(
            log_likelihood, by_transition, by_innovation, by_initial, by_noise, states[:, 0]
        )

    def _mask(self, values: Array) -> NDArray[np.bool_]:
        """Return which cells are observed, for values of this shape."""
        T, b, m = self.observed.shape
        return self.observed.reshape(T, *(1,) * (values.ndim - 3), b, m)

    def _weigh(self, errors: Array) -> Array:
        """Return innovations times the inverses of their covariances."""
        weighted = np.empty_like(errors)
        for run in self.runs:
            times = slice(run.start, run.stop)
            weighted[times] = _times(run.precision, errors[times])
        return weighted

    def _transitions(self) -> list[tuple[NDArray[np.int64], Array]]:
        """Return the times after each distinct gap, and the transition over it."""
        gaps = np.unique(self.gaps[self.gaps >= 0])
        return [(np.flatnonzero(self.gaps == gap), self.model.transitions[gap]) for gap in gaps]

    def _adjoint(self, weighted: Array) -> tuple[Array, Array, Array]:
        """Return minus the derivatives by the values, and those by predicted and filtered states.

        Those by a filtered state are without its own time.
        """
        moved = _times(self.model.observation.T[None], weighted)
        states, state = np.empty_like(moved), np.zeros_like(moved[0])
        for run in reversed(self.runs):
            times = slice(run.start, run.stop)
            A, kept = (each.swapaxes(-1, -2) for each in (run.transition, run.kept))
            # Backwards; what comes after the last time has passed its own transition.
            moved[run.stop - 1] += _times(kept, state)
            back = _recursion(kept @ A, moved[times][::-1], np.zeros_like(state))
            states[times] = back[::-1]
            state = _times(A, back[-1])
        later = np.zeros_like(states)
        for at, A in self._transitions():
            later[at - 1] = _times(A.swapaxes(-1, -2), states[at])
        u = weighted.copy()
        for run in self.runs:
            times = slice(run.start, run.stop)
            u[times] -= _times(run.gain.swapaxes(-1, -2), later[times])
        return np.where(self._mask(u), u, 0.0), states, later

    def _add_by_covariances(
        self, by_transition: Array, by_innovation: Array, by_initial: Array, by_noise: Array
    ) -> None:
        """Add what covariances contribute to the derivatives."""
        model, Z = self.model, self.model.observation
        diagonal = np.arange(len(Z))
        after = before = np.zeros_like(model.initial)  # Information of what is later.
        scale = 0.0
        for number in range(len(self.runs) - 1, -1, -1):
            run = self.runs[number]
            observed, A, gain = self.observed[run.start], run.transition, run.gain.swapaxes(-1, -2)
            own = Z.T @ run.precision @ Z
            t = run.stop - 1
            while t >= run.start:
                by_diagonal = (run.precision + gain @ after @ run.gain)[:, diagonal, diagonal]
                now = run.kept.swapaxes(-1, -2) @ after @ run.kept + own
                scale = max(scale, float(np.abs(now).max()))
                # Where it no longer changes, all earlier times of the run are alike.
                is_steady = t < run.stop - 1 and np.abs(now - before).max() <= STEADY * scale
                count = t - run.start + 1 if is_steady else 1
                by_noise -= 0.5 * count * np.where(observed, by_diagonal, 0.0)
                if run.gap < 0:
                    by_initial -= 0.5 * count * now
                    after = np.zeros_like(after)
                else:
                    pulled = now @ A
                    by_innovation[run.gap] -= 0.5 * count * now
                    past = (count - 1) * run.filtered
                    t_first = t - count + 1
                    past = past + (
                        run.filtered if t_first > run.start else self.runs[number - 1].filtered
                    )
                    by_transition[run.gap] -= pulled @ past
                    after = A.swapaxes(-1, -2) @ pulled
                before = now
                t -= count


def _recursion(F: Array, moved: Array, state: Array) -> Array:
    """Return the states :math:`x_t = F x_{t - 1} + u_t` at ``L`` times.

    Long recursions go in pieces of about the square root of their length: all pieces at once from
    zero, then the state at the start of each, and what remains of that.

    Args:
        F: ``b x s x s``.
        moved: ``L x ... x b x s``, u.
        state: ``... x b x s``, before the first time.
    """
    L = len(moved)
    if L == 1:
        return moved + _times(F, state)
    size = math.isqrt(L)
    count = -(-L // size)
    pieces = np.zeros((count * size, *moved.shape[1:]))
    pieces[:L] = moved
    pieces = pieces.reshape(count, size, *moved.shape[1:])
    powers = [F]
    for k in range(1, size):
        pieces[:, k] += _times(F, pieces[:, k - 1])
        powers.append(F @ powers[-1])
    starts = np.empty((count, *state.shape))
    for piece in range(count):
        starts[piece] = state
        state = _times(powers[-1], state) + pieces[piece, -1]
    for k, power in enumerate(powers):
        pieces[:, k] += _times(power, starts)
    states: Array = pieces.reshape(count * size, *moved.shape[1:])[:L]
    return states


def _summed_outer(left: Array, right: Array) -> Array:
    """Return the sum of outer products of states ``t x r x b x s``, ``b x s x s``."""
    b = left.shape[-2]
    left, right = (
        np.moveaxis(each, -2, 0).reshape(b, -1, each.shape[-1]) for each in (left, right)
    )
    return np.asarray(left.swapaxes(-1, -2) @ right, np.float64)


def _times(matrices: Array, vectors: Array) -> Array:
    """Return products of matrices ``b x k x l`` and vectors ``... x b x l``."""
    b, k, size = matrices.shape
    if b == 1:
        flat = vectors.reshape(-1, size) @ matrices[0].T
        return np.asarray(flat.reshape(*vectors.shape[:-1], k), np.float64)
    # Column by column, since NumPy multiplies many small matrices slowly.
    product: Array = matrices[:, :, 0] * vectors[..., :1]
    for column in range(1, size):
        product += matrices[:, :, column] * vectors[..., column, None]
    return product
