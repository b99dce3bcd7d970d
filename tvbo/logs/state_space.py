"""The Kalman filter of a panel: log likelihood with missing cells, differentiable by autograd."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

MAX_PRODUCT = 32
"""Largest number of states of a model whose transitions over several times are multiplied."""

STEADY = 1e-10
"""Change of covariances, as a share of each state's variance with noise, below which they are taken
as constant while cells and gaps are the same from time to time."""


@dataclass(frozen=True)
class StateSpace:
    r"""``b`` independent linear Gaussian state-space models with ``s`` states and ``m`` outputs.

    From one time to the next the state becomes :math:`A x + w` with :math:`w \sim N(0, Q)`, and is
    observed as :math:`H x` with independent noise of variances ``R``.

    Args:
        transitions: ``g x b x s x s``, A of each of ``g`` distinct gaps.
        innovations: ``g x b x s x s``, Q of each of them.
        initial: ``b x s x s``, covariance of the first state of a segment, whose mean is zero.
        observation: ``m x s``, H.
        noise: ``b x m``, R.
    """

    transitions: Tensor
    innovations: Tensor
    initial: Tensor
    observation: Tensor
    noise: Tensor


class KalmanFilter:
    """The filter of a panel at given parameters; means are filtered for any values.

    Values are ``T x b x m x r``, of ``r`` series at once.

    Args:
        model: The model.
        observed: ``T x b x m``, whether each cell has a value.
        gaps: ``T``, index of the gap before each time; -1 where a segment begins.
    """

    def __init__(self, model: StateSpace, observed: Tensor, gaps: NDArray[np.int64]):
        self.model, self.observed = model, observed
        predicted, place, first = _predicted_covariances(model, observed, gaps)
        self.place, H, seen = torch.as_tensor(place), model.observation, observed[first]
        crossed = _product(predicted, H.mT)
        total = _product(H, crossed) + torch.diag_embed(model.noise)
        # A cell without a value is independent of all others.
        both = seen.unsqueeze(-1) & seen.unsqueeze(-2)
        total = torch.where(both, total, torch.eye(len(H), dtype=total.dtype))
        self.root = total.sqrt() if len(H) == 1 else torch.linalg.cholesky(total)
        crossed = torch.where(seen.unsqueeze(-2), crossed, 0.0)
        self.gain = (
            torch.cholesky_solve(crossed.mT, self.root).mT if len(H) > 1 else crossed / total
        )
        self.kept = torch.eye(predicted.shape[-1], dtype=total.dtype) - _product(self.gain, H)
        self.transitions = pad(model.transitions, (0, 0, 0, 0, 0, 0, 0, 1))[gaps[first]]
        self.filtered = self.kept[-1] @ predicted[-1]

    def innovations(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return innovations ``T x b x m x r``, and filtered states ``T x b x s x r``.

        Args:
            values: ``T x b x m x r``; those that are not observed are ignored.
        """
        observed = self.observed.unsqueeze(-1)
        known = torch.where(observed, values, 0.0)
        steps = _product(self.kept, self.transitions)
        moved = _product(self._at(self.gain), known)
        if self.kept.shape[-1] > MAX_PRODUCT:
            # The derivative by an index would be of the size of all matrices.
            matrices, states = steps.unbind(), [moved[0]]
            for place, new in zip(self.place[1:].tolist(), moved[1:], strict=True):
                states.append(torch.baddbmm(new, matrices[place], states[-1]))
            filtered = torch.stack(states)
        else:
            filtered = _recursion(self._at(steps), moved)
        before = pad(filtered[:-1], (0, 0, 0, 0, 0, 0, 1, 0))
        predicted = _product(self._at(self.transitions), before)
        errors = known - _product(self.model.observation, predicted)
        return torch.where(observed, errors, 0.0), filtered

    def whitened(self, values: Tensor) -> Tensor:
        """Return independent standardized innovations, ``T x b x m x r``."""
        errors, _ = self.innovations(values)
        root = self._at(self.root)
        if root.shape[-1] == 1:
            return errors / root
        return torch.linalg.solve_triangular(root, errors, upper=False)

    def log_likelihood(self, values: Tensor, restricted: bool = False) -> Tensor:
        """Return the log likelihood of the observed cells of each model, ``b``.

        Args:
            values: ``T x b x m``.
            restricted: Whether a constant level of each output is integrated out, with a flat
                prior, at whose maximum the values are: the restricted likelihood.
        """
        series, m = values.unsqueeze(-1), values.shape[-1]
        if restricted:
            # Further series, of ones for each output and zero in the others.
            levels = torch.eye(m, dtype=values.dtype).expand(*values.shape, m)
            series = torch.cat([series, levels], dim=-1)
        white = self.whitened(series)
        products = torch.einsum("tbmr,tbms->brs", white, white)
        logs = self.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        counts = self.observed.sum((0, 2)).to(values)
        value = -0.5 * (products[:, 0, 0] + counts * math.log(2 * math.pi))
        value = value - self._at(logs).sum(0)
        if restricted:
            # An output that was never observed has no information, and counts for nothing.
            never = torch.diag_embed((~self.observed.any(0)).to(values))
            value = value - 0.5 * torch.linalg.slogdet(products[:, 1:, 1:] + never)[1]
        return value

    def _at(self, each: Tensor) -> Tensor:
        """Return what belongs to each time."""
        return each if len(each) == len(self.place) else each.index_select(0, self.place)


def _predicted_covariances(
    model: StateSpace, observed: Tensor, gaps: NDArray[np.int64]
) -> tuple[Tensor, NDArray[np.int64], NDArray[np.int64]]:
    """Return distinct covariances of predicted states, which each time has, and their first times.

    The covariances of successive times with the same cells and gaps follow from each other by one
    function, which is doubled (Anderson, 1978, "Second-order convergent algorithms for the
    steady-state Riccati equation"): that of ``k`` steps gives the next ``k`` covariances at once.
    """
    changes = np.ones(len(gaps), dtype=bool)
    same = (observed[1:] == observed[:-1]).all(-1).all(-1).numpy()
    changes[1:] = ~same | (gaps[1:] != gaps[:-1]) | (gaps[1:] < 0)
    starts = np.flatnonzero(changes)
    H, noise = model.observation, model.noise
    usual, eye = (noise @ H.square()).squeeze(0), torch.eye(H.shape[1], dtype=noise.dtype)
    # One model alone is taken without the dimension of models, which is faster.
    transitions, innovations = model.transitions.squeeze(1), model.innovations.squeeze(1)
    initial = model.initial.squeeze(0)
    informations = ((H.mT * (observed[starts] / noise).unsqueeze(-2)) @ H).squeeze(1).unbind()
    parts: list[Tensor] = []
    first: list[int] = []
    place, last, known = np.empty(len(gaps), dtype=np.int64), initial, initial
    for start, stop, G in zip(starts, np.append(starts[1:], len(gaps)), informations, strict=True):
        A, Q = transitions[gaps[start]], innovations[gaps[start]]
        part = initial if gaps[start] < 0 else A @ _divided(last, known, eye) @ A.mT + Q
        part, last, known = part.unsqueeze(0), part, G
        while len(part) < stop - start:
            part = torch.cat([part, A @ _divided(part, G, eye) @ A.mT + Q])
            if len(part) >= stop - start:
                break
            change = (part[-1] - part[-2]).abs()
            size = (usual + part[-1].diagonal(dim1=-2, dim2=-1)).sqrt()
            if (change <= STEADY * size.unsqueeze(-1) * size.unsqueeze(-2)).all():
                break
            new = _divided(Q, G, eye)
            inner = eye - new @ G
            A, Q, G = A @ inner @ A, A @ new @ A.mT + Q, A.mT @ G @ inner @ A + G
        if stop - start > 1:
            part = part[: stop - start]
            last = part[-1]
        place[start:stop] = len(first) + np.minimum(np.arange(stop - start), len(part) - 1)
        parts.append(part)
        first += range(start, start + len(part))
    predicted = torch.cat(parts).reshape(-1, *model.initial.shape)
    return predicted, place, np.array(first)


def _divided(P: Tensor, G: Tensor, eye: Tensor) -> Tensor:
    r"""Return :math:`(P^{-1} + G)^{-1}`."""
    total = eye + P @ G
    return P / total if len(eye) == 1 else torch.linalg.solve(total, P)


def _product(A: Tensor, B: Tensor) -> Tensor:
    """Return the matrix product, of rows and columns of one entry without its overhead."""
    return A * B if A.shape[-1] == 1 else A @ B


def _recursion(F: Tensor, moved: Tensor) -> Tensor:
    """Return the states :math:`x_t = F_t x_{t - 1} + u_t`, from zero.

    Those of many models go in pieces of about the square root of their number: all pieces at once
    from zero, then the state at the start of each, and what remains of that.

    Args:
        F: ``T x b x s x s``.
        moved: ``T x b x s x r``, u.
    """
    (T, b), size = F.shape[:2], math.isqrt(len(F))
    count = -(-T // size)
    short = (0,) * 7 + (count * size - T,)
    # Of all pieces and models together: matrices, and what is new.
    parts = (pad(each, short).unflatten(0, (count, size)).transpose(0, 1) for each in (F, moved))
    steps, news = (each.flatten(1, 2).unbind() for each in parts)
    moved_on = torch.addcmul if F.shape[-1] == 1 else torch.baddbmm
    states, products = [news[0]], [steps[0]]
    for step, new in zip(steps[1:], news[1:], strict=True):
        states.append(moved_on(new, step, states[-1]))
        products.append(_product(step, products[-1]))
    state, starts = torch.zeros_like(moved[0]), []
    for product, end in zip(products[-1].split(b), states[-1].split(b), strict=True):
        starts.append(state)
        state = moved_on(end, product, state)
    rest = _product(torch.stack(products), torch.cat(starts))
    found: Tensor = (torch.stack(states) + rest).unflatten(1, (count, b)).transpose(0, 1)
    return found.flatten(0, 1)[:T]
