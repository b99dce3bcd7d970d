"""Covariances of late observations with the innovations held."""

from __future__ import annotations

import torch
from torch import Tensor

from tvbo.models.streaming.rows import EvictedSummary, Rows, columns


def late_cross_covariance(
    rows: Rows, evicted: EvictedSummary, covar: Tensor, cross: Tensor, index: Tensor, time: Tensor
) -> Tensor:
    r"""Return :math:`c` of new events, some of them before the time of the newest row.

    Rows computed after an event are of its future: their :math:`c` follows from the definition.

    Args:
        rows: The ``k`` rows held.
        evicted: Summary of the evicted rows.
        covar: Covariances with the outcomes of the last ``p`` rows given the evicted ones,
            ``b x q x p``. Among these are all rows computed after one of the events.
        cross: :math:`c` as if no event were late, ``b x q x k``.
        index: Indices of the new actions, ``b x q``.
        time: Times of the new events, ``b x q``.
    """
    first = cross.shape[-1] - covar.shape[-1]
    if evicted.merged is not None:
        covar = _correct_early_events(rows, evicted, covar, index, time)
    covar = covar - cross[..., :first] @ rows.factor[:, first:, :first].mT
    own = torch.linalg.solve_triangular(rows.factor[:, first:, first:], covar.mT, upper=False)
    return torch.cat([cross[..., :first], own.mT], dim=-1)


def _correct_early_events(
    rows: Rows, evicted: EvictedSummary, covar: Tensor, index: Tensor, time: Tensor
) -> Tensor:
    """Return covariances with the outcomes of the last rows, corrected for early events.

    A row computed late may belong to an event before the time of the summary of evicted rows, which
    does not know the covariance with that event. There it follows from the rows: the new event at
    ``t`` lies between that event and the time ``r`` when its row was computed, so that the Markov
    property leads from ``r`` back to ``t``.
    """
    first = rows.time.shape[-1] - covar.shape[-1]
    early = rows.time[:, first:] < evicted.time.unsqueeze(-1)
    if not early.any():
        return covar
    lag = rows.made_at[:, first:].unsqueeze(-1) - rows.made_at.unsqueeze(-2)
    root = rows.factor[:, first:] * evicted.decay(lag.clamp_min(0.0))
    known = (root @ columns(rows.V, index)).mT
    back = evicted.decay(rows.made_at[:, first:].unsqueeze(-2) - time.unsqueeze(-1))
    # Where the decay is below rounding, nothing of the event reaches the present.
    known = torch.where(back > torch.finfo(back.dtype).eps, known / back, 0.0)
    return torch.where(early.unsqueeze(-2), known, covar)
