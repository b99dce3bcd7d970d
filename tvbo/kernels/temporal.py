"""Temporal kernels: what they have in common, exponential decay, and a constant."""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.constraints import Interval
from gpytorch.priors import Prior
from torch import Tensor

from tvbo.kernels.temporal_base import TemporalKernel

MIN_FORGETTING_RATE = 1e-6
MAX_FORGETTING_RATE = 1 - 1e-4
DEFAULT_FORGETTING_RATE = 0.05
NO_MEMORY = 1e300


def check_forgetting_rate(forgetting_rate: Tensor | float) -> Tensor:
    """Return ε as a float64 tensor; raise unless it lies in [0, 1]."""
    rate = torch.as_tensor(forgetting_rate, dtype=torch.float64)
    if not ((rate >= 0) & (rate <= 1)).all():
        raise ValueError(f"Expected forgetting_rate in [0, 1]. Got {forgetting_rate}.")
    return rate


def temporal_correlation(lag: Tensor, forgetting_rate: Tensor) -> Tensor:
    r"""Return the correlation of two times, :math:`(1 - \varepsilon)^{\text{lag} / 2}`.

    Args:
        lag: Non-negative time differences, any shape.
        forgetting_rate: ε in [0, 1], broadcastable with ``lag``.

    Returns:
        Correlations in the broadcast shape; at ε = 1 exactly one where the lag is zero, else zero.
    """
    # A branch, because the power form has gradient -inf at ε = 1, and log1p(-1) * 0 is NaN.
    no_memory = forgetting_rate == 1
    log_keep = torch.log1p(-torch.where(no_memory, 0.0, forgetting_rate))
    smooth = torch.exp(0.5 * lag * log_keep)
    return torch.where(no_memory, (lag == 0).to(smooth), smooth)


def decay_exponent(forgetting_rate: Tensor) -> Tensor:
    r"""Return :math:`e` such that the correlation of two times is :math:`\exp(e \cdot \text{lag})`.

    It is for fixed rates. At ε = 1 the exponent is finite, so that a zero lag has correlation one,
    and so large that any other lag has none.

    Args:
        forgetting_rate: ε in [0, 1], any shape.
    """
    no_memory = forgetting_rate == 1
    exponent = 0.5 * torch.log1p(-torch.where(no_memory, 0.0, forgetting_rate))
    return torch.where(no_memory, -NO_MEMORY, exponent)


class TemporalDecayKernel(TemporalKernel):
    r"""Exponential decay in time (Bogunovic et al., 2016, Section 2).

    .. math:: k(t, t') = (1 - \varepsilon)^{|t - t'| / 2}

    The kernel of the Markov model :math:`f_{t+1} = \sqrt{1-\varepsilon} f_t +
    \sqrt{\varepsilon} g_{t+1}` (equations (3)-(4) of the paper), for any real times: that of
    Matérn with ν = 1/2. Its state is the process itself.

    Args:
        forgetting_rate_prior: Prior over ε. None, the default, gives maximum likelihood.
        forgetting_rate_constraint: Constraint on ε; default ``Interval(1e-6, 1 - 1e-4)`` without a
            transform, so that L-BFGS has a box constraint.
        **kwargs: ``active_dims`` and ``batch_shape``, passed to :class:`gpytorch.kernels.Kernel`.

    Shape:
        ``batch_shape x n x 1`` and ``batch_shape x n' x 1`` give ``batch_shape x n x n'``.
        Time is in the user's unit, and ε is per that unit.

    Raises:
        InputDataError: if a time is NaN or infinite.
        BotorchTensorDimensionError: if there is more than one column.

    Example:
        >>> kernel = RBFKernel(active_dims=[0, 1]) * TemporalDecayKernel(active_dims=[2])
    """

    def __init__(
        self,
        forgetting_rate_prior: Prior | None = None,
        forgetting_rate_constraint: Interval | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if forgetting_rate_constraint is None:
            forgetting_rate_constraint = Interval(
                MIN_FORGETTING_RATE,
                MAX_FORGETTING_RATE,
                transform=None,
                initial_value=DEFAULT_FORGETTING_RATE,
            )
        self._register("forgetting_rate", forgetting_rate_prior, forgetting_rate_constraint)

    @property
    def forgetting_rate(self) -> Tensor:
        """ε per unit of time, ``batch_shape x 1``."""
        return self._get("forgetting_rate")

    @forgetting_rate.setter
    def forgetting_rate(self, value: Tensor | float) -> None:
        self._set(check_forgetting_rate(value), "forgetting_rate")

    def weight(self, lag: Tensor) -> Tensor:
        r"""Return the share :math:`(1 - \varepsilon)^{\text{lag}}` of a prior variance."""
        with torch.no_grad():
            return self._decay(lag).square()

    @property
    def num_states(self) -> int:
        """One."""
        return 1

    def correlation(self, lag: Tensor) -> Tensor:
        """Return the correlation of two times, in the shape of ``lag``."""
        return self._decay(lag)

    def transition(self, lag: Tensor) -> Tensor:
        """Return the correlation as a ``1 x 1`` matrix."""
        return self._decay(lag)[..., None, None]

    @property
    def is_static(self) -> bool:
        """Whether ε = 0."""
        return not self.forgetting_rate.any()

    def _decay(self, lag: Tensor) -> Tensor:
        return temporal_correlation(lag, self._over_lags(self.forgetting_rate))


class ConstantTemporalKernel(TemporalKernel):
    """Correlation one between all times: a part of the function that does not drift.

    It has no parameters. Beside another temporal kernel it is the level about which the other
    part moves.

    Args:
        **kwargs: ``active_dims`` and ``batch_shape``, passed to :class:`gpytorch.kernels.Kernel`.
    """

    @property
    def num_states(self) -> int:
        """One."""
        return 1

    def correlation(self, lag: Tensor) -> Tensor:
        """Return ones in the shape of ``lag``."""
        return torch.ones_like(lag).expand(self._shape(lag))

    def transition(self, lag: Tensor) -> Tensor:
        """Return ones as ``1 x 1`` matrices."""
        return self.correlation(lag)[..., None, None]

    def weight(self, lag: Tensor) -> Tensor:
        """Return ones: nothing is forgotten."""
        return self.correlation(lag)

    @property
    def is_static(self) -> bool:
        """True."""
        return True
