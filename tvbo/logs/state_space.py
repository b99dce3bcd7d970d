"""The Kalman filter of a panel: log likelihood with missing cells, and its exact gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tvbo.quadratic_model import Array

STEADY = 1e-10
"""Change of covariances, as a share of each state's variance with noise, below which they are taken
as constant while cells and gaps are the same from time to time."""


@dataclass(frozen=True)
class StateSpace:
    r"""``b`` independent linear Gaussian state-space models with ``s`` states and ``m`` outputs.

    From one time to the next the state becomes :math:`A x + w` with :math:`w \sim N(0, Q)`, and is
    observed as :math:`Z x` with independent noise of variances ``R``. The models are the last
    dimension of every array, since many small ones are fastest side by side.

    Args:
        transitions: ``g x s x s x b``, A of each of ``g`` distinct gaps.
        innovations: ``g x s x s x b``, Q of each of them.
        initial: ``s x s x b``, covariance of the first state of a segment, whose mean is zero.
        observation: ``m x s``, Z.
        noise: ``m x b``, R.
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
        log_likelihood: Of the observed cells of each model, ``b``.
        transitions: ``g x s x s x b``.
        innovations: ``g x s x s x b``, symmetric.
        initial: ``s x s x b``, symmetric.
        noise: ``m x b``.
        states: ``T x s x b``, derivative of the log likelihood about known levels with respect to
            the predicted state at each time.
    """

    log_likelihood: Array
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
        transition: From the state at the time before, ``s x s x b``; zero in a new segment.
        predicted: Covariance of the state before its observation, ``s x s x b``.
        gain: ``s x m x b``.
        precision: Of the innovation, ``m x m x b``.
        kept: Factor of the predicted state in the filtered one, ``s x s x b``.
        filtered: Covariance of the state after its observation, ``s x s x b``.
        log_determinant: Of the covariance of the innovation, ``b``.
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
    log_determinant: Array


class KalmanFilter:
    """The filter of a panel at given parameters; means are filtered for any values.

    Values are ``T x ... x m x b``, such as several series at once.

    Args:
        model: The model.
        observed: ``T x m x b``, whether each cell has a value.
        gaps: ``T``, index of the gap before each time; -1 where a segment begins.
    """

    def __init__(self, model: StateSpace, observed: NDArray[np.bool_], gaps: NDArray[np.int64]):
        self.model, self.observed, self.gaps = model, observed, gaps
        self.runs: list[_Run] = []
        same = np.zeros(len(gaps), dtype=bool)
        same[1:] = (observed[1:] == observed[:-1]).all((1, 2)) & (gaps[1:] == gaps[:-1])
        # Noise variance of what shows each state.
        noise = (model.observation**2).T @ model.noise
        steady, run = False, None
        for t, gap in enumerate(gaps.tolist()):
            if run is not None and steady and same[t]:
                run.stop = t + 1
                continue
            predicted, before, A = model.initial, run, np.zeros_like(model.initial)
            if gap >= 0:
                assert before is not None
                A = model.transitions[gap]
                predicted = _product(_product(A, before.filtered), _transposed(A))
                predicted += model.innovations[gap]
                predicted = 0.5 * (predicted + _transposed(predicted))
            run = self._update(t, gap, A, predicted, observed[t])
            steady = False
            if before is not None and same[t]:
                size = np.sqrt(noise + predicted.diagonal().T)
                change = np.abs(predicted - before.predicted)
                steady = bool((change <= STEADY * size[:, None] * size).all())
            self.runs.append(run)

    def _update(
        self, t: int, gap: int, A: Array, predicted: Array, observed: NDArray[np.bool_]
    ) -> _Run:
        """Condition on the observed cells; the others have a precision of zero."""
        Z = self.model.observation[..., None]
        crossed = _product(predicted, _transposed(Z))
        total = _product(Z, crossed)
        diagonal = np.arange(len(Z))
        total[diagonal, diagonal] += self.model.noise
        is_full = observed.all()
        if not is_full:
            total = np.where(observed[:, None] & observed, total, 0.0)
            total[diagonal, diagonal] += ~observed
            crossed = np.where(observed, crossed, 0.0)
        if len(Z) == 1:
            precision = 1 / total
            log_determinant = np.log(total[0, 0])
        else:
            roots = np.linalg.cholesky(total.T)[:, diagonal, diagonal]
            log_determinant = 2 * np.log(roots).sum(1)
            precision = np.asarray(np.linalg.inv(total.T).T, np.float64)
        if not is_full:
            precision[diagonal, diagonal] -= ~observed
        gain = _product(crossed, precision)
        filtered = predicted - _product(gain, _transposed(crossed))
        kept = np.eye(len(A))[..., None] - _product(gain, Z)
        return _Run(t, t + 1, gap, A, predicted, gain, precision, kept, filtered, log_determinant)

    def innovations(self, values: Array) -> tuple[Array, Array]:
        """Return innovations ``T x ... x m x b``, and filtered states ``T x ... x s x b``.

        Args:
            values: ``T x ... x m x b``; those that are not observed are ignored.
        """
        observed = self._mask(values)
        known = np.where(observed, values, 0.0)
        states = np.zeros((*known.shape[:-2], *self.model.initial.shape[1:]))
        state = states[0]
        for run in self.runs:
            times = slice(run.start, run.stop)
            moved = _times(run.gain, known[times])
            states[times] = _recursion(_product(run.kept, run.transition), moved, state)
            state = states[run.stop - 1]
        predicted = np.zeros_like(states)
        for at, A in self._transitions():
            predicted[at] = _times(A, states[at - 1])
        errors = known - _times(self.model.observation[..., None], predicted)
        return np.where(observed, errors, 0.0), states

    def whitened(self, values: Array) -> Array:
        """Return independent standardized innovations of models with one output each."""
        errors, _ = self.innovations(values)
        for run in self.runs:
            errors[run.start : run.stop] *= np.sqrt(run.precision[0])
        return errors

    def precision_times(self, values: Array) -> Array:
        """Return the precision matrix of all observed cells times values, ``T x ... x m x b``."""
        errors, _ = self.innovations(values)
        weighted, *_ = self._adjoint(self._weigh(errors))
        return weighted

    def gradient(self, values: Array, restricted: bool = False) -> Gradient:
        """Return the log likelihood of values ``T x m x b``, and its gradient.

        By backpropagation through the filter (Koopman, Shephard, 1992, in the form of Durbin,
        Koopman, 2012, Section 4.5).

        Args:
            values: The values.
            restricted: Whether a constant level of each output is integrated out, with a flat
                prior, at whose maximum the values are: the restricted likelihood.
        """
        series = values[:, None]
        if restricted:
            # Further series, of ones for each output and zero in the others.
            T, m, b = self.observed.shape
            levels = np.broadcast_to(np.eye(m)[..., None], (T, m, m, b))
            series = np.concatenate([series, levels], axis=1)
        errors, filtered = self.innovations(series)
        weighted = self._weigh(errors)
        log_likelihood = np.einsum("tmb,tmb->b", errors[:, 0], weighted[:, 0])
        for run in self.runs:
            log_likelihood += (run.stop - run.start) * run.log_determinant
        log_likelihood += self.observed.sum((0, 1)) * math.log(2 * math.pi)
        log_likelihood *= -0.5
        if restricted:
            # The derivative of log |H| is that of the levels' own quadratic forms, in a basis in
            # which H is the identity.
            information = np.einsum(
                "tjib,tkib->bjk", errors[:, 1:], weighted[:, 1:], optimize=m > 1
            )
            diagonal = np.arange(m)
            # An output that was never observed has none, and counts for nothing.
            information[:, diagonal, diagonal] += ~self.observed.any(0).T
            log_likelihood -= 0.5 * np.linalg.slogdet(information)[1]
            basis = np.linalg.inv(np.linalg.cholesky(information))
            for part in (weighted, filtered):
                part[:, 1:] = np.einsum("bkj,tjib->tkib", basis, part[:, 1:], optimize=m > 1)
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
        by_noise = 0.5 * np.einsum("trmb,trmb->mb", u, u)
        self._add_by_covariances(by_transition, by_innovation, by_initial, by_noise)
        return Gradient(
            log_likelihood, by_transition, by_innovation, by_initial, by_noise, states[:, 0]
        )

    def _mask(self, values: Array) -> NDArray[np.bool_]:
        """Return which cells are observed, for values of this shape."""
        T, m, b = self.observed.shape
        return self.observed.reshape(T, *(1,) * (values.ndim - 3), m, b)

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
        moved = _times(self.model.observation.T[..., None], weighted)
        states, state = np.empty_like(moved), np.zeros_like(moved[0])
        for run in reversed(self.runs):
            times = slice(run.start, run.stop)
            A, kept = _transposed(run.transition), _transposed(run.kept)
            # Backwards; what comes after the last time has passed its own transition.
            moved[run.stop - 1] += _times(kept, state)
            back = _recursion(_product(kept, A), moved[times][::-1], np.zeros_like(state))
            states[times] = back[::-1]
            state = _times(A, back[-1])
        later = np.zeros_like(states)
        for at, A in self._transitions():
            later[at - 1] = _times(_transposed(A), states[at])
        u = weighted.copy()
        for run in self.runs:
            times = slice(run.start, run.stop)
            u[times] -= _times(_transposed(run.gain), later[times])
        return np.where(self._mask(u), u, 0.0), states, later

    def _add_by_covariances(
        self, by_transition: Array, by_innovation: Array, by_initial: Array, by_noise: Array
    ) -> None:
        """Add what covariances contribute to the derivatives."""
        model, Z = self.model, self.model.observation[..., None]
        diagonal = np.arange(len(Z))
        after = np.zeros_like(model.initial)  # Information of what is later.
        for number in range(len(self.runs) - 1, -1, -1):
            run = self.runs[number]
            A, gain, count = run.transition, _transposed(run.gain), run.stop - run.start - 1
            own = _product(_product(_transposed(Z), run.precision), Z)
            first = _conjugated(after, run.kept) + own
            total = run.precision + _product(_product(gain, after), run.gain)
            every = first
            if count:
                others, first = _summed_information(_product(A, run.kept), own, first, count)
                every = others + first
                pulled = _product(others, A)
                by_transition[run.gap] -= _product(pulled, run.filtered)
                later = _product(_transposed(A), pulled)
                total = total + count * run.precision
                total += _product(_product(gain, later), run.gain)
            observed = self.observed[run.start]
            by_noise -= 0.5 * np.where(observed, total[diagonal, diagonal], 0.0)
            if run.gap < 0:
                by_initial -= 0.5 * every
                after = np.zeros_like(after)
                continue
            by_innovation[run.gap] -= 0.5 * every
            pulled = _product(first, A)
            by_transition[run.gap] -= _product(pulled, self.runs[number - 1].filtered)
            after = _product(_transposed(A), pulled)


def _summed_information(F: Array, own: Array, last: Array, count: int) -> tuple[Array, Array]:
    """Return the sum of informations :math:`I_0, ..., I_{c - 1}`, and :math:`I_c`, by doubling.

    Args:
        F: ``s x s x b``, such that :math:`I_{k + 1} = F^T I_k F + J`.
        own: ``s x s x b``, J.
        last: ``s x s x b``, the first of them, at the last time.
        count: Their number c, at least 1.
    """
    # Powers of F; sums of J, and of what follows from the first, with them; sums of sums of J.
    power, sums, from_last, twice = F, own, last, np.zeros_like(own)
    done = 1
    for bit in f"{count:b}"[1:]:
        twice = twice + done * sums + _conjugated(twice, power)
        sums = sums + _conjugated(sums, power)
        from_last = from_last + _conjugated(from_last, power)
        power = _product(power, power)
        done *= 2
        if bit == "1":
            twice = twice + sums
            sums = sums + _conjugated(own, power)
            from_last = from_last + _conjugated(last, power)
            power = _product(power, F)
            done += 1
    return from_last + twice, _conjugated(last, power) + sums


def _recursion(F: Array, moved: Array, state: Array) -> Array:
    """Return the states :math:`x_t = F x_{t - 1} + u_t` at ``L`` times.

    Long recursions go in pieces of about the square root of their length: all pieces at once from
    zero, then the state at the start of each, and what remains of that.

    Args:
        F: ``s x s x b``.
        moved: ``L x ... x s x b``, u.
        state: ``... x s x b``, before the first time.
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
        powers.append(_product(F, powers[-1]))
    starts = np.empty((count, *state.shape))
    for piece in range(count):
        starts[piece] = state
        state = _times(powers[-1], state) + pieces[piece, -1]
    for k, power in enumerate(powers):
        pieces[:, k] += _times(power, starts)
    states: Array = pieces.reshape(count * size, *moved.shape[1:])[:L]
    return states


def _summed_outer(left: Array, right: Array) -> Array:
    """Return the sum of outer products of states ``t x r x s x b``, ``s x s x b``."""
    if left.shape[-1] == 1:
        left, right = (each.reshape(-1, each.shape[-2]) for each in (left, right))
        return np.asarray((left.T @ right)[..., None], np.float64)
    rows = [np.einsum("trb,trsb->sb", left[:, :, i], right) for i in range(left.shape[-2])]
    return np.stack(rows)


def _transposed(matrices: Array) -> Array:
    """Return the transposes of matrices ``k x l x b``."""
    return matrices.swapaxes(0, 1)


def _product(left: Array, right: Array) -> Array:
    """Return products of matrices ``k x l x b`` and ``l x n x b``; with one ``b`` for all."""
    if left.shape[-1] == right.shape[-1] == 1:
        dense: Array = left[..., 0] @ right[..., 0]
        return dense[..., None]
    product: Array = left[:, :1] * right[0]
    for i in range(1, len(right)):
        product += left[:, i : i + 1] * right[i]
    return product


def _conjugated(inner: Array, outer: Array) -> Array:
    """Return :math:`F^T M F` for matrices ``M``, ``s x s x b``, and ``F``."""
    return _product(_product(_transposed(outer), inner), outer)


def _times(matrices: Array, vectors: Array) -> Array:
    """Return products of matrices ``k x l x b`` and vectors ``... x l x b``."""
    size, b = vectors.shape[-2:]
    if b == 1:
        flat: Array = vectors.reshape(-1, size) @ matrices[..., 0].T
        return flat.reshape(*vectors.shape[:-2], len(matrices), 1)
    product: Array = matrices[:, 0] * vectors[..., :1, :]
    for i in range(1, size):
        product += matrices[:, i] * vectors[..., i : i + 1, :]
    return product
