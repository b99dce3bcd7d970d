"""One path of a Markov-in-time GP on a finite set, given what was observed."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from tvbo.models.streaming.finite_covariance import FiniteCovariance
from tvbo.models.streaming.innovations import Innovations
from tvbo.ties import first_largest

LEFT_OUT = 1e-13
"""Share of the largest prior variance that a draw may lack."""


def covariance_modes(covariance: FiniteCovariance, trial: int = 0) -> tuple[Tensor, Tensor]:
    r"""Return ``U``, ``n x r``, and ``s``, ``r``, with :math:`K = U \,\mathrm{diag}(s^2)\, U^\top`.

    What is lacking is nowhere above :data:`LEFT_OUT`. The modes are those of a pivoted Cholesky
    factor; smooth kernels have few. Of all factors, :math:`U \mathrm{diag}(s) U^\top` is the one
    that is unique and continuous in ``K``: a draw made with it does not hang on the pivots or on
    the basis that rounding picks.
    """
    which = torch.tensor([trial])
    rest = covariance.diagonal[trial % len(covariance.diagonal)].clone()
    limit = LEFT_OUT * rest.max()
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
    r"""One function drawn from the joint posterior, less the prior mean, at one time: ``n``.

    By Matheron's rule: a draw :math:`f^*` of the prior and its noisy outcomes :math:`y^*` at the
    events held make the posterior draw :math:`f^* + \sum_j (a_j - a^*_j) V_j`, with
    :math:`a^* = L^{-1} y^*`. The prior is Markov in time, so :math:`f^*` is drawn backwards from
    the present. No covariance of all choices is factorized.

    Args:
        innovations: Of one trial.
        modes: From :func:`covariance_modes`, ``n x r``.
        deviations: From there, ``r``.
        time: At or after the newest event.
        generator: Source of the draw.

    Returns:
        The draw; None if rows that weigh are gone, merged or dropped: of their events no more is
        known.
    """
    rows = innovations.store.held
    base = innovations.base
    lost = (base.neglected * base.since(innovations.now).square()).max() > LEFT_OUT
    if rows.root is None or base.shared is not None or lost:
        return None

    factor = modes * deviations

    def normal(size: int) -> Tensor:
        return torch.randn(size, dtype=factor.dtype, generator=generator).to(factor)

    def new_path() -> Tensor:
        # Of the choices, then in the basis of the modes, whose signs and order are arbitrary.
        return modes.mT @ normal(len(modes))

    path = new_path()
    function = factor @ path
    k = innovations.store.count
    if k == 0:
        return function
    times, at = rows.time[0].unique(return_inverse=True)
    outcomes = normal(k) * rows.noise[0].sqrt()
    before = time
    for i in range(len(times) - 1, -1, -1):
        lag = torch.as_tensor(before, dtype=factor.dtype) - times[i]
        decay = base.decay(lag.reshape(1, 1)).item()
        if decay < 1:
            path = decay * path + (1 - decay**2) ** 0.5 * new_path()
        here = (at == i).nonzero().squeeze(-1)
        outcomes[here] += factor[rows.index[0, here]] @ path
        before = times[i]
    gains = torch.linalg.solve_triangular(rows.root[0], outcomes.unsqueeze(-1), upper=False)
    age = torch.as_tensor(time, dtype=factor.dtype) - rows.made_at
    weights = gains.squeeze(-1) * base.decay(age)[0]
    newest = innovations.since_newest(torch.tensor([0]), age.new_full((1, 1), time))
    return function + newest.squeeze() * innovations.mean[0] - weights @ rows.V[0]
