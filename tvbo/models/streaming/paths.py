"""Posterior draws of a Markov-in-time GP on a finite set by Matheron's rule."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from tvbo.models.streaming.innovations import Innovations
from tvbo.models.streaming.prior import ChoiceCovariance, Part, symmetric_root
from tvbo.rounding import first_largest

TRUNCATION = 1e-13
"""Largest variance that a draw may lack, as a share of the largest prior variance."""


def covariance_modes(covariance: ChoiceCovariance, element: int = 0) -> tuple[Tensor, Tensor]:
    r"""Return ``U``, ``n x r``, and ``s``, ``r``, with :math:`K = U \,\mathrm{diag}(s^2)\, U^\top`.

    No variance lacks more than the share :data:`TRUNCATION` of the largest. The modes are those of
    a pivoted Cholesky factor; smooth kernels have few. Of all factors of ``K``,
    :math:`U \mathrm{diag}(s) U^\top` is the one that is unique and continuous in ``K``: a draw made
    with it does not depend on the pivots, or on the basis that rounding picks.

    Args:
        covariance: The prior covariance.
        element: Index of the batch element.
    """
    which = torch.tensor([element])
    rest = covariance.diagonal[element % len(covariance.diagonal)].clone()
    limit = TRUNCATION * rest.max()
    n = len(rest)
    columns = rest.new_empty(min(n, 64), n)
    rank = 0
    while rank < n and rest.max() > limit:
        if rank == len(columns):
            columns = torch.cat([columns, torch.empty_like(columns)])[:n]
        pivot = int(first_largest(rest))
        column = covariance.rows(which, torch.tensor([[pivot]])).flatten()
        column = column - columns[:rank, pivot] @ columns[:rank]
        column = column / rest[pivot].sqrt()
        columns[rank] = column
        rest = (rest - column.square()).clamp_min_(0.0)
        rest[pivot] = 0.0
        rank += 1
    modes, deviations, _ = torch.linalg.svd(columns[:rank].T, full_matrices=False)
    return modes, deviations


def draw(
    innovations: Innovations,
    modes: Sequence[tuple[Tensor, Tensor]],
    time: float,
    generator: Generator,
) -> Tensor | None:
    r"""Draw one function from the joint posterior, less the prior mean, at one time.

    By Matheron's rule: a draw :math:`f^*` of the prior and its noisy outcomes :math:`y^*` at the
    events held give the posterior draw :math:`f^* + \sum_j (a_j - a^*_j) V_j`, with
    :math:`a^* = L^{-1} y^*`. The prior is Markov in time, so :math:`f^*` is drawn backwards from
    the present. No covariance of all choices is factorized.

    Args:
        innovations: The posterior, of one batch element.
        modes: ``U`` and ``s`` of :func:`covariance_modes` for each part of the prior.
        time: Time of the draw, not before the newest event.
        generator: Source of randomness.

    Returns:
        The draw, ``n``; None if rows with weight were merged or dropped, because then their events
        are no longer known.
    """
    rows, prior = innovations.store.held, innovations.prior
    lost = innovations.neglected.max() > TRUNCATION
    if rows.root is None or innovations.evicted.merged is not None or lost:
        return None
    paths = [_Path(part, *each, generator) for part, each in zip(prior.parts(), modes, strict=True)]
    function = _total([path.values() for path in paths])
    k = innovations.store.count
    if k == 0:
        return function
    times, event = rows.time[0].unique(return_inverse=True)
    noise = torch.randn(k, dtype=function.dtype, generator=generator).to(function)
    outcomes = noise * rows.noise[0].sqrt()
    lags = torch.cat([times[1:], times.new_tensor([time])]) - times
    steps = [path.part.backwards(lags) for path in paths]
    for i in range(len(times) - 1, -1, -1):
        here = (event == i).nonzero().squeeze(-1)
        for path, (transition, root) in zip(paths, steps, strict=True):
            path.step(transition[i], root[i])
            outcomes[here] += path.values(rows.index[0, here])
    innovation = torch.linalg.solve_triangular(rows.factor[0], outcomes.unsqueeze(-1), upper=False)
    now = innovations.now
    mean = innovations.mean.unsqueeze(-2)
    weights, lag = innovation.mT.unsqueeze(0), now.unsqueeze(-1) - rows.made_at
    mean = prior.combine(mean, weights, rows.V, lag, alpha=-1)
    drawn: Tensor = function + prior.read_all(mean.squeeze(-2), time - now).squeeze(0)
    return drawn


class _Path:
    """A path of one part of the prior, drawn backwards.

    Args:
        part: The part.
        modes: ``U`` of :func:`covariance_modes`, ``n x r``.
        deviations: ``s`` of :func:`covariance_modes`, ``r``.
        generator: Source of randomness.
    """

    def __init__(self, part: Part, modes: Tensor, deviations: Tensor, generator: Generator):
        self.part = part
        self._modes = modes
        self._factor = modes * deviations
        self._generator = generator
        self._state = self._normal() @ symmetric_root(part.stationary_covariance)

    def values(self, index: Tensor | None = None) -> Tensor:
        """Return the values of choices; of all for None."""
        factor = self._factor if index is None else self._factor[index]
        return factor @ (self._state @ self.part.observation)

    def step(self, transition: Tensor, root: Tensor) -> None:
        """Go to an earlier time."""
        self._state = self._state @ transition.mT
        if root.any():
            self._state = self._state + self._normal() @ root.mT

    def _normal(self) -> Tensor:
        # Drawn over the choices, since signs and order of the modes are arbitrary.
        n, s = len(self._modes), len(self.part.observation)
        normal = torch.randn(n * s, dtype=self._modes.dtype, generator=self._generator)
        return self._modes.mT @ normal.to(self._modes).view(n, s)


def _total(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(dim=0) if len(parts) > 1 else parts[0]
