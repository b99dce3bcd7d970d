"""Summary statistics of evicted rows."""

from __future__ import annotations

import torch
from torch import Tensor

from tvbo.models.resizable_module import BatchedModule
from tvbo.models.streaming.prior import MarkovPrior
from tvbo.models.streaming.rows import Rows, lag_since, log_density


class EvictedSummary(BatchedModule):
    r"""Mean and variance reduction due to evicted rows, as of a time :math:`t_0`.

    A row is evicted in one of two ways. If it is *merged*, its outer product is added to an
    ``N x N`` matrix, and nothing is lost. If it is *dropped*, only its share of the mean is kept:
    the posterior covariance grows by what the row explained, at most the share ``neglected`` of the
    prior variance at that time, and later observations get that much more weight.

    A row that is held may have been computed late, for an event before :math:`t_0`. A late event
    needs its covariance with that outcome given the merged rows, which the matrix does not tell;
    nor can it be computed backwards from the row, since what was forgotten does not come back. So
    it is noted at the merge, as of :math:`t_0`.

    Attributes:
        time: :math:`t_0`, ``b``; minus infinity before the first eviction.
        mean: Mean of the states due to evicted rows, ``b x N``, at :math:`t_0`.
        reduction: What merged rows explain for each choice, ``b x R``, at :math:`t_0`.
        neglected: Share of the prior variance that dropped rows explained, ``b``, at :math:`t_0`.
        log_likelihood: Log density of the outcomes of evicted rows, ``b``.
        merged: Covariance that merged rows explain, ``b x N x N``, at :math:`t_0`; None before the
            first merge.
        early: Covariances of the states at :math:`t_0` with the outcomes of the first rows held
            given the merged ones, ``b x p x N``, right for events before :math:`t_0`; None if there
            are none.

        shared: Whether a posterior refers to ``merged``, which must not change then.

    Args:
        mean: ``b x N``, for shape, dtype and device.
        reduction: ``b x R``.
        time: Minus infinity, ``b``.
    """

    optional_buffers = ("merged", "early")
    shared = False

    time: Tensor
    mean: Tensor
    reduction: Tensor
    neglected: Tensor
    log_likelihood: Tensor
    merged: Tensor | None
    early: Tensor | None

    def __init__(self, mean: Tensor, reduction: Tensor, time: Tensor):
        super().__init__()
        self.register_buffer("time", torch.full_like(time, -torch.inf))
        self.register_buffer("mean", torch.zeros_like(mean))
        self.register_buffer("reduction", torch.zeros_like(reduction))
        self.register_buffer("neglected", torch.zeros_like(time))
        self.register_buffer("log_likelihood", torch.zeros_like(time))
        self.register_buffer("merged", None)
        self.register_buffer("early", None)

    def reset(self) -> None:
        """Forget all evicted rows."""
        self.time.fill_(-torch.inf)
        for total in (self.mean, self.reduction, self.neglected, self.log_likelihood):
            total.zero_()
        self.merged = self.early = None

    def absorb(self, prior: MarkovPrior, rows: Rows, count: int, merge: bool) -> Tensor | None:
        """Add the oldest rows to the summary.

        Args:
            prior: The prior.
            rows: All rows held.
            count: How many of them to add, at least one.
            merge: Whether to merge the rows; otherwise they are dropped.

        Returns:
            What was explained and is lost by dropping, as of the new time, ``b x R``; None if the
            rows were merged.
        """
        # A copy, because the memory of the rows is reused for later ones.
        time = rows.made_at[:, count - 1].clone()
        lag = lag_since(self.time, time)
        early = self._early(prior, rows, count, time) if merge else None
        V = prior.advance(rows.V[:, :count], time.unsqueeze(-1) - rows.made_at[:, :count])
        explained = prior.explain(V)
        mean = prior.advance(self.mean.unsqueeze(1), lag.unsqueeze(-1))
        self.mean = (mean + rows.innovation[:, :count].unsqueeze(1) @ V).squeeze(1)
        self.neglected = self.neglected * prior.weight(lag.unsqueeze(-1)).squeeze(-1)
        self.reduction = prior.advance_explained(self.reduction, lag)
        self.time = time
        if rows.root is not None:
            self.log_likelihood = self.log_likelihood + log_density(rows, count)
        if self.merged is not None:
            if self.shared:
                self.merged, self.shared = self.merged.clone(), False
            self.merged = prior.advance_merged_(self.merged, lag)
        if not merge:
            self.neglected += prior.share(explained)
            return explained
        self.early = early
        if self.merged is None:
            self.merged = V.mT @ V
        else:
            # In place: a second matrix of this size costs more time than the product.
            self.merged.baddbmm_(V.mT, V)
        self.reduction += explained
        return None

    def _early(self, prior: MarkovPrior, rows: Rows, count: int, time: Tensor) -> Tensor | None:
        """Return ``early`` as it will be once ``count`` rows are merged, ``b x p x N``."""
        is_early = rows.time[:, count:] < time.unsqueeze(-1)
        if rows.root is None or not is_early.any():
            return None
        last = count + int(is_early.any(dim=0).nonzero().max()) + 1
        index, event = rows.index[:, count:last], rows.time[:, count:last]
        covar = prior.rows(index, (time.unsqueeze(-1) - event).clamp_min(0.0))
        if self.merged is not None:
            since, later = lag_since(self.time, event), lag_since(self.time, time)
            covar = covar - prior.merged_rows(self.merged, index, since.clamp_min(0.0), later)
            if self.early is not None and self.early.shape[1] > count:
                known = self.early[:, count:]
                held = known.shape[1]
                known = prior.advance(known, later.unsqueeze(-1).expand(-1, held))
                was_early = (since[:, :held] < 0).unsqueeze(-1)
                known = torch.where(was_early, known, covar[:, :held])
                covar = torch.cat([known, covar[:, held:]], dim=1)
        lag = time.unsqueeze(-1) - rows.made_at[:, :count]
        weights = rows.root[:, count:last, :count]
        return prior.combine(covar, weights, rows.V[:, :count], lag, alpha=-1)
