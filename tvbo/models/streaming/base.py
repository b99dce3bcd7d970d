"""What is left of the rows that are no longer held."""

from __future__ import annotations

import torch
from torch import Tensor

from tvbo.kernels import decay_exponent
from tvbo.models.streaming.state import GrowingModule


class Base(GrowingModule):
    r"""Mean and variance reduction that old rows left behind, as of a time :math:`t_0`.

    Rows go in one of two ways. *Merged*, their products are kept in an ``n x n`` matrix ``shared``,
    and nothing is lost. *Dropped*, only the mean keeps what they told: the posterior covariance
    grows by what they explained, at most the share ``neglected`` of the prior variance then, and
    later observations weigh that much more.

    Attributes:
        exponent: :math:`\tfrac12 \ln(1 - \varepsilon)`, ``b``.
        time: :math:`t_0`, ``b``; minus infinity while nothing has gone.
        mean: ``b x n`` at :math:`t_0`.
        reduction: ``b x n``, of the variance by what was merged, at :math:`t_0`.
        neglected: ``b``, of the prior variance at :math:`t_0`.
        shared: ``b x n x n`` at :math:`t_0`, or None while nothing was merged.

    Args:
        variance: Prior variances, ``b x n``.
        forgetting_rate: ε, ``b``.
    """

    may_be_absent = ("shared",)

    def __init__(self, variance: Tensor, forgetting_rate: Tensor):
        super().__init__()
        self.register_buffer("_variance", variance, persistent=False)
        self.register_buffer("exponent", decay_exponent(forgetting_rate))
        self.register_buffer("time", torch.full_like(forgetting_rate, -torch.inf))
        self.register_buffer("mean", torch.zeros_like(variance))
        self.register_buffer("reduction", torch.zeros_like(variance))
        self.register_buffer("neglected", torch.zeros_like(forgetting_rate))
        self.register_buffer("shared", None)

    def reset(self) -> None:
        """Nothing left behind."""
        self.time.fill_(-torch.inf)
        for sums in (self.mean, self.reduction, self.neglected):
            sums.zero_()
        self.shared = None

    def decay(self, lag: Tensor) -> Tensor:
        r""":math:`(1 - \varepsilon)^{\text{lag} / 2}` for ``b x ...`` lags."""
        return self.decay_of(self.exponent, lag)

    @staticmethod
    def decay_of(exponent: Tensor, lag: Tensor) -> Tensor:
        """The same for ``N x ...`` lags of ``N`` trials, of which the exponents are given."""
        return (lag * _leading(exponent, lag)).exp_()

    def since(self, time: Tensor) -> Tensor:
        """Decay from the base to times, ``b x ...``; 0 where nothing has gone yet."""
        lag = time - _leading(self.time, time)
        # With ε = 0 an infinite lag makes a NaN.
        return self.decay(lag).nan_to_num_(nan=0.0)

    def absorb(self, V: Tensor, gains: Tensor, made_at: Tensor, merge: bool) -> Tensor | None:
        """Take over the oldest rows: ``b x m x n``, ``b x m``, ``b x m``.

        Returns:
            The variance reduction that is lost by that, as of the new time, ``b x n``, or None.
        """
        # A copy: the rows are overwritten by those that follow.
        time = made_at[:, -1].clone()
        fade = self.since(time).unsqueeze(-1)
        V = V * self.decay(time.unsqueeze(-1) - made_at).unsqueeze(-1)
        reduction = V.square().sum(dim=1)
        self.mean = fade * self.mean + (gains.unsqueeze(1) @ V).squeeze(1)
        self.neglected = fade.squeeze(-1).square() * self.neglected
        self.reduction *= fade.square()
        self.time = time
        if self.shared is not None:
            self.shared *= fade.unsqueeze(-1).square()
        if not merge:
            share = reduction / self._variance.clamp_min(torch.finfo(V.dtype).tiny)
            self.neglected += share.amax(dim=-1)
            return reduction
        if self.shared is None:
            self.shared = V.mT @ V
        else:
            # In place: a second matrix of this size costs more time than the product.
            self.shared.baddbmm_(V.mT, V)
        self.reduction += reduction
        return None


def _leading(values: Tensor, like: Tensor) -> Tensor:
    """``b`` values, to broadcast with ``b x ...``."""
    return values.reshape(-1, *[1] * (like.ndim - 1))
