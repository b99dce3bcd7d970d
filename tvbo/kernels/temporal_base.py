"""What all temporal kernels have in common."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from gpytorch.priors import Prior
from torch import Size, Tensor
from torch.nn import Parameter

from tvbo.kernels.batch import BatchKernel
from tvbo.spaces.observations import check_finite

LONGEST_MEMORY = 1e15

HOW_TO = (
    "a tvbo.kernels.TemporalKernel, which is Markov: its transition(a + b) is transition(b) @ "
    "transition(a). How to write one: help(tvbo.kernels.TemporalKernel), and docs/models.md, "
    "'A drift of your own'"
)

MARKOV_TOLERANCE = 1e-4
"""Difference of correlations up to which a kernel is taken for Markov, however it rounds."""


class TemporalKernel(BatchKernel):
    r"""Kernel over one column, time, of unit variance and Markov with a state of small size.

    The process is :math:`f(t) = h^\top s(t)`, and its state at a later time is

    .. math:: s(t + \Delta) = A(\Delta)\, s(t) + w, \quad w \sim
        \mathcal{N}\big(0, P - A(\Delta) P A(\Delta)^\top\big),

    with ``w`` independent of the past, so that the correlation of two times is
    :math:`h^\top A(|t - t'|) P h` (Hartikainen, Särkkä, 2010). A subclass gives ``num_states``,
    :meth:`transition` and :meth:`correlation`. Multiply it by a kernel over the other columns, as
    :class:`tvbo.models.TimeVaryingGP` does.

    Args:
        **kwargs: ``active_dims`` and ``batch_shape``, passed to :class:`gpytorch.kernels.Kernel`.

    Shape:
        ``batch_shape x n x 1`` and ``batch_shape x n' x 1`` give ``batch_shape x n x n'``.
        Time is in the user's unit.

    Raises:
        InputDataError: if a time is NaN or infinite.
        BotorchTensorDimensionError: if there is more than one column.

    Example:
        >>> class Decay(TemporalKernel):
        >>>     num_states = 1
        >>>
        >>>     def correlation(self, lag):
        >>>         return torch.exp(-lag / 20)
        >>>
        >>>     def transition(self, lag):
        >>>         return self.correlation(lag)[..., None, None]
    """

    @property
    @abstractmethod
    def num_states(self) -> int:
        """Size ``s`` of the state."""

    @abstractmethod
    def correlation(self, lag: Tensor) -> Tensor:
        """Return the correlation of two times.

        Args:
            lag: Non-negative time differences, any shape; with a batch, ``... x batch_shape x m``.

        Returns:
            Correlations in the shape of ``lag``, broadcast with ``batch_shape x 1``.
        """

    @abstractmethod
    def transition(self, lag: Tensor) -> Tensor:
        """Return the matrices :math:`A` that lead from a state to a later one.

        Args:
            lag: Non-negative time differences, as in :meth:`correlation`.

        Returns:
            The shape of ``correlation(lag)``, followed by ``s x s``.
        """

    def weight(self, lag: Tensor) -> Tensor:
        r"""Return the largest share of a prior variance that is still explained after a lag.

        It is the squared norm of :math:`P^{-1/2} A P^{1/2}`, which never grows with the lag: the
        squared correlation where the state is the process itself.

        Args:
            lag: Non-negative time differences, as in :meth:`correlation`.

        Returns:
            The shape of ``correlation(lag)``, without gradients.
        """
        with torch.no_grad():
            values, vectors = torch.linalg.eigh(self.stationary_covariance())
            A = self.transition(torch.atleast_1d(lag))
            # Lags may be of another type than the kernel.
            root = (vectors * values.sqrt().unsqueeze(-2)).unsqueeze(-3).to(A)
            A = torch.linalg.solve(root, A @ root)
            norm: Tensor = torch.linalg.matrix_norm(A, ord=2)
            return norm.square().reshape(self._shape(lag))

    @property
    def is_static(self) -> bool:
        """Whether all times are perfectly correlated, with the present parameters."""
        return False

    @property
    def observation(self) -> Tensor:
        """Vector ``h``, ``s``, whose product with the state is the process: its first entry."""
        return torch.eye(self.num_states).to(self._one)[0]

    def stationary_covariance(self) -> Tensor:
        """Return the prior covariance ``P`` of the state, ``s x s``, after any ``batch_shape``."""
        identity = torch.eye(self.num_states).to(self._one)
        return identity.expand(*self.batch_shape, -1, -1)

    @property
    def is_stationary(self) -> bool:
        """True, since it depends on the lag alone."""
        return True

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
                    f"{type(self).__name__} acts on one column, time; set active_dims. "
                    f"Got {x.shape[-1]} columns."
                )
            check_finite("times", x)
        lag = (x1 - x2).abs().squeeze(-1) if diag else (x1 - x2.mT).abs()
        if diag or not self.batch_shape:
            covar = self.correlation(lag)
        else:
            covar = self.correlation(lag.flatten(-2)).unflatten(-1, lag.shape[-2:])
        return covar.unsqueeze(-2 if diag else -3) if last_dim_is_batch else covar

    def _register(self, name: str, prior: Prior | None, constraint: Interval) -> None:
        """Register a parameter ``raw_<name>`` of shape ``batch_shape x 1``."""
        self.register_parameter(f"raw_{name}", Parameter(torch.zeros(*self.batch_shape, 1)))
        if prior is not None:
            self.set_prior(name, prior)
        self.register_constraint(f"raw_{name}", constraint)

    def set_prior(self, name: str, prior: Prior) -> None:
        """Give a parameter a prior.

        Args:
            name: Name of the parameter, such as ``"lengthscale"``.
            prior: The prior.

        Raises:
            TypeError: if ``prior`` is not a :class:`gpytorch.priors.Prior`.
        """
        if not isinstance(prior, Prior):
            raise TypeError(f"Expected gpytorch.priors.Prior. Got {type(prior).__name__}.")
        # Not lambdas, which cannot be pickled.
        get, put = (partial(f, name=name) for f in (TemporalKernel._get, TemporalKernel._set))
        self.register_prior(f"{name}_prior", prior, get, put)

    def _get(self, name: str) -> Tensor:
        constraint = getattr(self, f"raw_{name}_constraint")
        value: Tensor = constraint.transform(getattr(self, f"raw_{name}"))
        return value

    def _set(self, value: Tensor | float, name: str) -> None:
        value = torch.as_tensor(value).to(getattr(self, f"raw_{name}"))
        constraint = getattr(self, f"raw_{name}_constraint")
        self.initialize(**{f"raw_{name}": constraint.inverse_transform(value)})

    def _shape(self, lag: Tensor) -> Size:
        """Return the shape of the correlations at lags."""
        own = (*self.batch_shape, 1) if self.batch_shape else ()
        return Size(torch.broadcast_shapes(lag.shape, own))

    def _over_lags(self, value: Tensor) -> Tensor:
        """Return a parameter ``batch_shape x 1`` as a number where there is no batch."""
        return value if self.batch_shape else value.squeeze(-1)


def check_temporal_kernel(kernel: Kernel) -> TemporalKernel:
    """Return a kernel if it is a temporal kernel without columns of its own.

    Raises:
        TypeError: if it is another kernel.
        ValueError: if it has ``active_dims``.
    """
    if not isinstance(kernel, TemporalKernel):
        raise TypeError(f"Expected {HOW_TO}. Got {type(kernel).__name__}.")
    if kernel.active_dims is not None:
        raise ValueError(
            "Expected a temporal kernel without active_dims, which the model sets. "
            f"Got active_dims={kernel.active_dims.tolist()}."
        )
    return kernel


def check_markov(kernel: Kernel) -> TemporalKernel:
    """Return a kernel if it is a temporal kernel, and Markov with its present parameters.

    Raises:
        TypeError: if it is another kernel.
        ValueError: if it has ``active_dims``, or its correlation is not that of two transitions,
            one after the other.
    """
    checked = check_temporal_kernel(kernel)
    lags = torch.cat([torch.zeros(1), 2.0 ** torch.arange(-20, 21, 2)]).double()
    a, b = torch.cartesian_prod(lags, lags).T
    with torch.no_grad():
        exact = deepcopy(checked).double()
        right, A, B = exact.correlation(a + b), exact.transition(a), exact.transition(b)
        h, P = exact.observation.to(A), exact.stationary_covariance().to(A)
        found = (B @ A @ (P @ h)[..., None, :, None]).squeeze(-1) @ h
    error = (found - right).abs().nan_to_num(nan=math.inf)
    if (error > MARKOV_TOLERANCE).any():
        at = tuple((error == error.max()).nonzero()[0].tolist())
        raise ValueError(
            f"Expected {HOW_TO}. Got {type(kernel).__name__}, whose correlation at lag "
            f"{a[at[-1]]:g} + {b[at[-1]]:g} is {right[at]:.4g}, where its transitions over these "
            f"give {found[at]:.4g}."
        )
    return checked


def memory_length(kernels: Sequence[TemporalKernel], tol: float) -> float:
    """Return an age at which no temporal kernel gives an observation more than a weight.

    It is the least such age to about nine digits, and infinite if there is none.

    Args:
        kernels: Temporal kernels without a batch.
        tol: The weight, in (0, 1).
    """

    def weighs(age: float) -> bool:
        lag = torch.tensor([age], dtype=torch.float64)
        return any(bool((kernel.weight(lag) > tol).any()) for kernel in kernels)

    low, high = 0.0, 1.0
    while weighs(high):
        low, high = high, 2 * high
        if high > LONGEST_MEMORY:
            return math.inf
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if weighs(middle) else (low, middle)
    return high
