"""Exponential decay in time, the temporal kernel of TV-GP-UCB."""

from __future__ import annotations

from typing import Any

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from gpytorch.priors import Prior
from torch import Tensor
from torch.nn import Parameter

from tvbo.kernels.column import part_of_batch
from tvbo.observations import check_finite

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


class TemporalDecayKernel(Kernel):
    r"""Exponential decay in time (Bogunovic et al., 2016, Section 2).

    .. math:: k(t, t') = (1 - \varepsilon)^{|t - t'| / 2}

    The kernel of the Markov model :math:`f_{t+1} = \sqrt{1-\varepsilon} f_t +
    \sqrt{\varepsilon} g_{t+1}` (equations (3)-(4) of the paper), for any real times. Multiply it
    by a kernel over the other columns, as :class:`tvbo.models.TimeVaryingGP` does.

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
        self.register_parameter("raw_forgetting_rate", Parameter(torch.zeros(*self.batch_shape, 1)))
        if forgetting_rate_prior is not None:
            if not isinstance(forgetting_rate_prior, Prior):
                raise TypeError(
                    f"Expected gpytorch.priors.Prior. Got {type(forgetting_rate_prior).__name__}."
                )
            self.register_prior(
                "forgetting_rate_prior",
                forgetting_rate_prior,
                TemporalDecayKernel._get_forgetting_rate,
                TemporalDecayKernel._set_forgetting_rate,
            )
        self.register_constraint("raw_forgetting_rate", forgetting_rate_constraint)

    @property
    def is_stationary(self) -> bool:
        """True, since it depends on the lag alone."""
        return True

    @property
    def forgetting_rate(self) -> Tensor:
        """ε per unit of time, ``batch_shape x 1``."""
        return self._get_forgetting_rate()

    @forgetting_rate.setter
    def forgetting_rate(self, value: Tensor | float) -> None:
        self._set_forgetting_rate(value)

    def _get_forgetting_rate(self) -> Tensor:
        rate: Tensor = self.raw_forgetting_rate_constraint.transform(self.raw_forgetting_rate)
        return rate

    def _set_forgetting_rate(self, value: Tensor | float) -> None:
        value = check_forgetting_rate(value).to(self.raw_forgetting_rate)
        self.initialize(
            raw_forgetting_rate=self.raw_forgetting_rate_constraint.inverse_transform(value)
        )

    def __getitem__(self, index: Any) -> TemporalDecayKernel:
        """Return the kernel of a part of the batch."""
        return part_of_batch(self, index)

    def forward(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool = False,
        last_dim_is_batch: bool = False,
        **params: Any,
    ) -> Tensor:
        """Return the covariances of times ``x1`` and ``x2``, ``batch_shape x n x n'``."""
        for x in (x1, x2):
            if x.shape[-1] != 1:
                raise BotorchTensorDimensionError(
                    "TemporalDecayKernel acts on one column, time; set active_dims. "
                    f"Got {x.shape[-1]} columns."
                )
            check_finite("times", x)
        rate = self.forgetting_rate
        if diag:
            covar = temporal_correlation((x1 - x2).abs().squeeze(-1), rate)
        else:
            covar = temporal_correlation((x1 - x2.mT).abs(), rate.unsqueeze(-1))
        return covar.unsqueeze(-2 if diag else -3) if last_dim_is_batch else covar
