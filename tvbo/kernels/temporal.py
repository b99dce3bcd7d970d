"""Temporal kernels: exponential decay, a constant, smooth drift, season."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from gpytorch.constraints import Interval, Positive
from gpytorch.kernels import Kernel
from gpytorch.priors import Prior
from torch import Size, Tensor
from torch.nn import Parameter

from tvbo.kernels.batch import BatchKernel
from tvbo.spaces.observations import check_finite

MIN_FORGETTING_RATE = 1e-6
MAX_FORGETTING_RATE = 1 - 1e-4
DEFAULT_FORGETTING_RATE = 0.05
DEFAULT_LENGTHSCALE = 10.0
"""Lengthscale of smooth drift before it is learned, in units of time."""

LONGEST_MEMORY = 1e15

HOW_TO = "a Markov tvbo.kernels.TemporalKernel (docs/models.md, 'A drift of your own')"

MARKOV_TOLERANCE = 1e-4
"""Difference of correlations up to which a kernel is taken for Markov, however it rounds."""


class TemporalKernel(BatchKernel):
    r"""Kernel over one column, time, of unit variance and Markov with a state of small size.

    The process is :math:`f(t) = h^\top s(t)`, and its state at a later time is

    .. math:: s(t + \Delta) = A(\Delta)\, s(t) + w, \quad w \sim
        \mathcal{N}\big(0, P - A(\Delta) P A(\Delta)^\top\big),

    with ``w`` independent of the past, so that the correlation of two times is
    :math:`h^\top A(|t - t'|) P h` (Hartikainen, Särkkä, 2010). A subclass gives
    :meth:`correlation`, and unless the state is the process itself ``num_states`` and
    :meth:`transition`. Multiply it by a kernel over the other columns, as
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
        >>>     def correlation(self, lag):
        >>>         return torch.exp(-lag / 20)
    """

    is_stationary = True

    @property
    def num_states(self) -> int:
        """Size ``s`` of the state: one, where it is the process itself."""
        return 1

    @abstractmethod
    def correlation(self, lag: Tensor) -> Tensor:
        """Return the correlation of two times.

        Args:
            lag: Non-negative time differences, any shape; with a batch, ``... x batch_shape x m``.

        Returns:
            Correlations in the shape of ``lag``, broadcast with ``batch_shape x 1``.
        """

    def transition(self, lag: Tensor) -> Tensor:
        """Return the matrices :math:`A` that lead from a state to a later one.

        Where the state is the process itself, they are the correlations.

        Args:
            lag: Non-negative time differences, as in :meth:`correlation`.

        Returns:
            The shape of ``correlation(lag)``, followed by ``s x s``.
        """
        return self.correlation(lag)[..., None, None]

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
            if self.num_states == 1:
                return self.correlation(lag).square()
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

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
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
            return self.correlation(lag)
        return self.correlation(lag.flatten(-2)).unflatten(-1, lag.shape[-2:])

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
        return constraint.transform(getattr(self, f"raw_{name}"))

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


def check_forgetting_rate(forgetting_rate: Tensor | float) -> Tensor:
    """Return ε as a float64 tensor; raise unless it lies in [0, 1]."""
    rate = torch.as_tensor(forgetting_rate, dtype=torch.float64)
    if not ((rate >= 0) & (rate <= 1)).all():
        raise ValueError(f"Expected forgetting_rate in [0, 1]. Got {forgetting_rate}.")
    return rate


def decay_exponent(forgetting_rate: Tensor) -> Tensor:
    r"""Return :math:`e` such that the correlation of two times is :math:`\exp(e \cdot \text{lag})`.

    At ε = 1 it is finite, so that a zero lag has correlation one, and so large that no other lag
    has any.

    Args:
        forgetting_rate: ε in [0, 1], any shape.
    """
    # A branch, because the logarithm has gradient -inf at ε = 1.
    no_memory = forgetting_rate == 1
    exponent = 0.5 * torch.log1p(-torch.where(no_memory, 0.0, forgetting_rate))
    return torch.where(no_memory, -1e-8 * torch.finfo(exponent.dtype).max, exponent)


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
        box = Interval(
            MIN_FORGETTING_RATE,
            MAX_FORGETTING_RATE,
            transform=None,
            initial_value=DEFAULT_FORGETTING_RATE,
        )
        constraint = forgetting_rate_constraint or box
        self._register("forgetting_rate", forgetting_rate_prior, constraint)

    @property
    def forgetting_rate(self) -> Tensor:
        """ε per unit of time, ``batch_shape x 1``."""
        return self._get("forgetting_rate")

    @forgetting_rate.setter
    def forgetting_rate(self, value: Tensor | float) -> None:
        self._set(check_forgetting_rate(value), "forgetting_rate")

    def correlation(self, lag: Tensor) -> Tensor:
        """Return the correlation of two times, in the shape of ``lag``."""
        return torch.exp(lag * decay_exponent(self._over_lags(self.forgetting_rate)))

    @property
    def is_static(self) -> bool:
        """Whether ε = 0."""
        return not self.forgetting_rate.any()


class ConstantTemporalKernel(TemporalKernel):
    """Correlation one between all times: a part of the function that does not drift.

    It has no parameters. Beside another temporal kernel it is the level about which the other
    part moves.

    Args:
        **kwargs: ``active_dims`` and ``batch_shape``, passed to :class:`gpytorch.kernels.Kernel`.
    """

    is_static = True

    def correlation(self, lag: Tensor) -> Tensor:
        """Return ones in the shape of ``lag``."""
        return torch.ones_like(lag).expand(self._shape(lag))


class TemporalMaternKernel(TemporalKernel):
    r"""Smooth drift: Matérn in time, with ν = 3/2 or 5/2.

    .. math::
        k_{3/2} = (1 + \lambda \Delta)\, e^{-\lambda \Delta}, \quad
        k_{5/2} = \big(1 + \lambda \Delta + \tfrac13 \lambda^2 \Delta^2\big)\,
        e^{-\lambda \Delta}, \quad \Delta = |t - t'|, \; \lambda = \sqrt{2 \nu} / \ell

    The state is the process and its first ν - 1/2 derivatives, each divided by λ once more than
    the one before (Hartikainen, Särkkä, 2010, Section 3). For ν = 1/2 see
    :class:`TemporalDecayKernel`.

    Args:
        nu: ν, 1.5 or 2.5.
        lengthscale_prior: Prior over ℓ. None, the default, gives maximum likelihood.
        lengthscale_constraint: Constraint on ℓ; default ``Positive``, beginning at 10.
        **kwargs: ``active_dims`` and ``batch_shape``, passed to :class:`gpytorch.kernels.Kernel`.

    Attributes:
        lengthscale: ℓ in units of time, ``batch_shape x 1 x 1``.

    Raises:
        ValueError: if ``nu`` is another number.

    Example:
        >>> kernel = RBFKernel(active_dims=[0, 1]) * TemporalMaternKernel(active_dims=[2])
    """

    has_lengthscale = True

    def __init__(
        self,
        nu: float = 1.5,
        lengthscale_prior: Prior | None = None,
        lengthscale_constraint: Interval | None = None,
        **kwargs: Any,
    ):
        if nu not in (1.5, 2.5):
            raise ValueError(f"Expected nu 1.5 or 2.5. Got {nu}.")
        start = Positive(initial_value=DEFAULT_LENGTHSCALE)
        super().__init__(
            lengthscale_prior=lengthscale_prior,
            lengthscale_constraint=lengthscale_constraint or start,
            **kwargs,
        )
        self.nu = nu

    @property
    def num_states(self) -> int:
        """2 for ν = 3/2, 3 for ν = 5/2."""
        return int(self.nu + 0.5)

    def correlation(self, lag: Tensor) -> Tensor:
        """Return the correlation of two times, in the shape of ``lag``."""
        x = self._scaled(lag)
        series = 1 + x if self.nu == 1.5 else 1 + x + x.square() / 3
        return series * torch.exp(-x)

    def transition(self, lag: Tensor) -> Tensor:
        """Return the matrices that lead from a state to a later one."""
        x = self._scaled(lag)[..., None, None]
        # The differential equation in units of 1 / λ, plus one: a nilpotent matrix, whose
        # exponential series ends.
        rows = [[1, 1], [-1, -1]] if self.nu == 1.5 else [[1, 1, 0], [0, 1, 1], [-1, -3, -2]]
        nilpotent = torch.tensor(rows).to(x)
        series = torch.eye(self.num_states).to(x) + x * nilpotent
        if self.nu == 2.5:
            series = series + x.square() / 2 * (nilpotent @ nilpotent)
        return series * torch.exp(-x)

    def stationary_covariance(self) -> Tensor:
        """Return the prior covariance of the state, ``s x s``, after any ``batch_shape``."""
        if self.nu == 1.5:
            return super().stationary_covariance()
        covar = torch.tensor([[1, 0, -1 / 3], [0, 1 / 3, 0], [-1 / 3, 0, 1]], dtype=torch.float64)
        return covar.to(self._one).expand(*self.batch_shape, -1, -1)

    def _scaled(self, lag: Tensor) -> Tensor:
        return math.sqrt(2 * self.nu) * lag / self._over_lags(self.lengthscale.squeeze(-1))


class SeasonalKernel(TemporalKernel):
    r"""A strict season: a function of time that repeats itself for ever.

    .. math:: k(t, t') = \sum_{j=1}^J w_j \cos(2 \pi j |t - t'| / p), \quad
        w_j \propto I_j(\ell^{-2})

    These are the first harmonics of the periodic kernel
    :math:`\exp(-2 \sin^2(\pi \Delta / p) / \ell^2)` (Solin, Särkkä, 2014, equation (25)),
    whose lengthscale in GPyTorch's :class:`~gpytorch.kernels.PeriodicKernel` is :math:`\ell^2`.
    The constant term is left out, so that season and level
    (:class:`ConstantTemporalKernel`) are separate, and the weights add to one. The state holds each
    harmonic and the same a quarter of its period earlier.

    Args:
        period: ``p`` in units of time, a number or a tensor that broadcasts with
            ``batch_shape x 1``. It is learned only if a prior or a constraint for it is given.
        num_harmonics: ``J``, at least 1; one is a sine wave.
        lengthscale_prior: Prior over ℓ. None, the default, gives maximum likelihood.
        lengthscale_constraint: Constraint on ℓ, which has no unit: the larger, the more of the
            variance is in the first harmonic. Default ``Positive``, beginning at 1.
        period_prior: Prior over the period.
        period_constraint: Constraint on the period; default ``Positive``.
        **kwargs: ``active_dims`` and ``batch_shape``, passed to :class:`gpytorch.kernels.Kernel`.

    Attributes:
        lengthscale: ℓ, ``batch_shape x 1 x 1``.

    Raises:
        ValueError: if ``period`` is not positive and finite, or ``num_harmonics`` is below 1.
    """

    has_lengthscale = True

    def __init__(
        self,
        period: float | Tensor,
        num_harmonics: int = 3,
        lengthscale_prior: Prior | None = None,
        lengthscale_constraint: Interval | None = None,
        period_prior: Prior | None = None,
        period_constraint: Interval | None = None,
        **kwargs: Any,
    ):
        if num_harmonics < 1:
            raise ValueError(f"Expected num_harmonics >= 1. Got {num_harmonics}.")
        super().__init__(
            lengthscale_prior=lengthscale_prior,
            lengthscale_constraint=lengthscale_constraint or Positive(initial_value=1.0),
            **kwargs,
        )
        self.num_harmonics = num_harmonics
        value = torch.as_tensor(period, dtype=torch.float64)
        if not ((value > 0) & (value < math.inf)).all():
            raise ValueError(f"Expected period > 0, finite. Got {period}.")
        # The likelihood has a maximum near each multiple and fraction of the true period, so that a
        # search finds it only from nearby; and a day or a week is known.
        is_learned = period_prior is not None or period_constraint is not None
        self._register("period", period_prior, period_constraint or Positive())
        self.period = value
        self.raw_period.requires_grad_(is_learned)
        if num_harmonics == 1:
            # Its weight is one, whatever the lengthscale.
            self.raw_lengthscale.requires_grad_(False)

    @property
    def period(self) -> Tensor:
        """Period in units of time, ``batch_shape x 1``."""
        return self._get("period")

    @period.setter
    def period(self, value: Tensor | float) -> None:
        self._set(value, "period")

    @property
    def num_states(self) -> int:
        """Two for each harmonic."""
        return 2 * self.num_harmonics

    @property
    def weights(self) -> Tensor:
        """Shares of the variance in the harmonics, ``batch_shape x J``."""
        z = self.lengthscale.squeeze(-1).pow(-2)
        # Ratios I_j / I_{j-1} from the continued fraction; errors of the first shrink with each
        # step by the square of a ratio.
        ratio = torch.zeros_like(z)
        ratios = []
        order = self.num_harmonics + 20 + math.ceil(math.sqrt(50 * z.max().item()))
        for j in range(order, 1, -1):
            ratio = 1 / (2 * j / z + ratio)
            if j <= self.num_harmonics:
                ratios.append(ratio)
        weights = torch.cat([torch.ones_like(z), *reversed(ratios)], dim=-1).cumprod(dim=-1)
        return weights / weights.sum(dim=-1, keepdim=True)

    @property
    def observation(self) -> Tensor:
        """Vector whose product with the state is the sum of the harmonics, ``s``."""
        return torch.tensor([1.0, 0.0]).to(self._one).repeat(self.num_harmonics)

    def correlation(self, lag: Tensor) -> Tensor:
        """Return the correlation of two times, in the shape of ``lag``."""
        angle = self._angle(lag)
        covar = torch.zeros_like(angle)
        for j, weight in enumerate(self.weights.split(1, dim=-1), start=1):
            covar = covar + self._over_lags(weight) * torch.cos(j * angle)
        return covar

    def transition(self, lag: Tensor) -> Tensor:
        """Return the matrices that lead from a state to a later one: rotations."""
        harmonics = torch.arange(1, self.num_harmonics + 1).to(self._one)
        angle = self._angle(lag).unsqueeze(-1) * harmonics
        cos, sin = torch.cos(angle), torch.sin(angle)
        # Rotations, ``... x J x 2 x 2``.
        blocks = torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], dim=-2)
        unit = torch.eye(self.num_harmonics).to(blocks)[:, None, :, None]
        return (unit * blocks.unsqueeze(-2)).flatten(-2).flatten(-3, -2)

    def weight(self, lag: Tensor) -> Tensor:
        """Return ones: nothing is forgotten."""
        return torch.ones_like(lag).expand(self._shape(lag))

    def stationary_covariance(self) -> Tensor:
        """Return the weights on the diagonal, ``s x s``, after any ``batch_shape``."""
        return torch.diag_embed(self.weights.repeat_interleave(2, dim=-1))

    def _angle(self, lag: Tensor) -> Tensor:
        return 2 * math.pi * lag / self._over_lags(self.period)


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
