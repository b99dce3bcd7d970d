"""Summary statistics of evicted rows."""

from __future__ import annotations

import torch
from torch import Tensor

from tvbo.kernels import decay_exponent
from tvbo.models.resizable_module import BatchedModule


class EvictedSummary(BatchedModule):
    r"""Mean and variance reduction due to evicted rows, as of a time :math:`t_0`.

    A row is evicted in one of two ways. If it is *merged*, its outer product is added to an
    ``n x n`` matrix, and nothing is lost. If it is *dropped*, only its share of the mean is kept:
    the posterior covariance grows by what the row explained, at most the share ``neglected`` of the
    prior variance at that time, and later observations get that much more weight.

    Attributes:
        exponent: :math:`\tfrac12 \ln(1 - \varepsilon)`, ``b``.
        time: :math:`t_0`, ``b``; minus infinity before the first eviction.
        mean: Mean due to evicted rows, ``b x n``, at :math:`t_0`.
        reduction: Variance reduction due to merged rows, ``b x n``, at :math:`t_0`.
        neglected: Share of the prior variance that dropped rows explained, ``b``, at :math:`t_0`.
        merged: Covariance that merged rows explain, ``b x n x n``, at :math:`t_0`; None before the
            first merge.

    Args:
        variance: Prior variances, ``b x n``.
        forgetting_rate: ε, ``b``.
    """

    optional_buffers = ("merged",)

    _variance: Tensor
    exponent: Tensor
    time: Tensor
    mean: Tensor
    reduction: Tensor
    neglected: Tensor
    merged: Tensor | None

    def __init__(self, variance: Tensor, forgetting_rate: Tensor):
        super().__init__()
        self.register_buffer("_variance", variance, persistent=False)
        self.register_buffer("exponent", decay_exponent(forgetting_rate))
        self.register_buffer("time", torch.full_like(forgetting_rate, -torch.inf))
        self.register_buffer("mean", torch.zeros_like(variance))
        self.register_buffer("reduction", torch.zeros_like(variance))
        self.register_buffer("neglected", torch.zeros_like(forgetting_rate))
        self.register_buffer("merged", None)

    def reset(self) -> None:
        """Forget all evicted rows."""
        self.time.fill_(-torch.inf)
        for total in (self.mean, self.reduction, self.neglected):
            total.zero_()
        self.merged = None

    def decay(self, lag: Tensor) -> Tensor:
        r"""Return :math:`(1 - \varepsilon)^{\text{lag} / 2}` for lags ``b x ...``."""
        return self.decay_of(self.exponent, lag)

    @staticmethod
    def decay_of(exponent: Tensor, lag: Tensor) -> Tensor:
        """Return the decay for lags ``N x ...`` of ``N`` batch elements with given exponents."""
        return (lag * _leading(exponent, lag)).exp_()

    def decay_since(self, time: Tensor) -> Tensor:
        """Return the decay from :math:`t_0` to times ``b x ...``; 0 before the first eviction."""
        lag = time - _leading(self.time, time)
        # With ε = 0 an infinite lag gives NaN.
        return self.decay(lag).nan_to_num_(nan=0.0)

    def absorb(self, V: Tensor, innovation: Tensor, made_at: Tensor, merge: bool) -> Tensor | None:
        """Add the ``m`` oldest rows to the summary.

        Args:
            V: Covariances with the choices, ``b x m x n``.
            innovation: Values of the innovations, ``b x m``.
            made_at: Times as of which the rows are stated, ``b x m``.
            merge: Whether to merge the rows; otherwise they are dropped.

        Returns:
            The variance reduction lost by dropping, as of the new time, ``b x n``; None if the rows
            were merged.
        """
        # A copy, because the memory of the rows is reused for later ones.
        time = made_at[:, -1].clone()
        fade = self.decay_since(time).unsqueeze(-1)
        V = V * self.decay(time.unsqueeze(-1) - made_at).unsqueeze(-1)
        reduction = V.square().sum(dim=1)
        self.mean = fade * self.mean + (innovation.unsqueeze(1) @ V).squeeze(1)
        self.neglected = fade.squeeze(-1).square() * self.neglected
        self.reduction *= fade.square()
        self.time = time
        if self.merged is not None:
            self.merged *= fade.unsqueeze(-1).square()
        if not merge:
            share = reduction / self._variance.clamp_min(torch.finfo(V.dtype).tiny)
            self.neglected += share.amax(dim=-1)
            return reduction
        if self.merged is None:
            self.merged = V.mT @ V
        else:
            # In place: a second matrix of this size costs more time than the product.
            self.merged.baddbmm_(V.mT, V)
        self.reduction += reduction
        return None


def _leading(values: Tensor, like: Tensor) -> Tensor:
    """Return ``b`` values in a shape that broadcasts with ``b x ...``."""
    return values.reshape(-1, *[1] * (like.ndim - 1))
