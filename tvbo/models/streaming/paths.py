"""Posterior draws of a Markov-in-time GP on a finite set by Matheron's rule."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from tvbo.models.streaming.innovations import FiniteCovariance, Innovations
from tvbo.ties import first_largest

TRUNCATION = 1e-13
"""Largest variance that a draw may lack, as a share of the largest prior variance."""


def covariance_modes(covariance: FiniteCovariance, element: int = 0) -> tuple[Tensor, Tensor]:
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
    modes: Tensor,
    deviations: Tensor,
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
        modes: ``U`` of :func:`covariance_modes`, ``n x r``.
        deviations: ``s`` of :func:`covariance_modes`, ``r``.
        time: Time of the draw, not before the newest event.
        generator: Source of randomness.

    Returns:
        The draw, ``n``; None if rows with weight were merged or dropped, because then their events
        are no longer known.
    """
    rows = innovations.store.held
    evicted = innovations.evicted
    lost = (evicted.neglected * evicted.decay_since(innovations.now).square()).max() > TRUNCATION
    if rows.root is None or evicted.merged is not None or lost:
        return None

    factor = modes * deviations

    def normal(size: int) -> Tensor:
        return torch.randn(size, dtype=factor.dtype, generator=generator).to(factor)

    def new_path() -> Tensor:
        # Drawn over the choices, since signs and order of the modes are arbitrary.
        return modes.mT @ normal(len(modes))

    path = new_path()
    function = factor @ path
    k = innovations.store.count
    if k == 0:
        return function
    times, event = rows.time[0].unique(return_inverse=True)
    outcomes = normal(k) * rows.noise[0].sqrt()
    later = time
    for i in range(len(times) - 1, -1, -1):
        lag = torch.as_tensor(later, dtype=factor.dtype) - times[i]
        decay = evicted.decay(lag.reshape(1, 1)).item()
        if decay < 1:
            path = decay * path + (1 - decay**2) ** 0.5 * new_path()
        here = (event == i).nonzero().squeeze(-1)
        outcomes[here] += factor[rows.index[0, here]] @ path
        later = times[i].item()
    innovation = torch.linalg.solve_triangular(rows.factor[0], outcomes.unsqueeze(-1), upper=False)
    age = torch.as_tensor(time, dtype=factor.dtype) - rows.made_at
    weights = innovation.squeeze(-1) * evicted.decay(age)[0]
    newest = innovations.decay_since_newest(torch.tensor([0]), age.new_full((1, 1), time))
    drawn: Tensor = function + newest.squeeze() * innovations.mean[0] - weights @ rows.V[0]
    return drawn
