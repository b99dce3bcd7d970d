"""Covariances of late observations with the innovations held."""

from __future__ import annotations

import torch
from torch import Tensor

from tvbo.models.streaming.evicted_summary import EvictedSummary
from tvbo.models.streaming.prior import MarkovPrior
from tvbo.models.streaming.rows import Rows, lag_since


def late_cross_covariance(
    prior: MarkovPrior,
    rows: Rows,
    evicted: EvictedSummary,
    covar: Tensor,
    cross: Tensor,
    index: Tensor,
    time: Tensor,
) -> Tensor:
    r"""Return :math:`c` of new events, some of them before the time of the newest row.

    Rows computed after an event are of its future: their :math:`c` follows from the definition.

    Args:
        prior: The prior.
        rows: The ``k`` rows held.
        evicted: Summary of the evicted rows.
        covar: Covariances with the outcomes of the last ``p`` rows given the evicted ones,
            ``b x q x p``, right but for outcomes of events before the summary's time. Among these
            are all rows computed after one of the events.
        cross: :math:`c` as if no event were late, ``b x q x k``.
        index: Indices of the new actions, ``b x q``.
        time: Times of the new events, ``b x q``.
    """
    first = cross.shape[-1] - covar.shape[-1]
    if evicted.early is not None and evicted.early.shape[1] > first:
        early = evicted.early[:, first:]
        count = early.shape[1]
        known = prior.read(
            early, index, lag_since(evicted.time, time).unsqueeze(-1).expand(-1, -1, count)
        )
        is_early = rows.time[:, None, first : first + count] < evicted.time[:, None, None]
        known = torch.where(is_early, known, covar[..., :count])
        covar = torch.cat([known, covar[..., count:]], dim=-1)
    covar = covar - cross[..., :first] @ rows.factor[:, first:, :first].mT
    own = torch.linalg.solve_triangular(rows.factor[:, first:, first:], covar.mT, upper=False)
    return torch.cat([cross[..., :first], own.mT], dim=-1)
