"""The exact posterior on a finite set of choices, at constant cost per round."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.posteriors import Posterior
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.means import Mean
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpstrf
from torch import Generator, Size, Tensor

from tvbo.kernels import TemporalDecayKernel, TemporalKernel
from tvbo.kernels.temporal import check_markov, memory_length
from tvbo.models.closed_form import Array
from tvbo.models.one_output import OneOutputModel, check_rows, one_noise_variance
from tvbo.models.raw import closed_rows, raw_kernels, raw_mean, raw_noise_variance, with_time
from tvbo.models.time_varying_gp import TimeVaryingGP, make_temporal_kernel
from tvbo.rounding import LEAST_VARIANCE, check_uncertain, innovation_root
from tvbo.spaces.observations import check_finite
from tvbo.spaces.row_index import RowIndex

Places = NDArray[np.int64]

Mask = NDArray[np.bool_]

MAX_STORED_CHOICES = 5_000
"""Choices up to which their covariance matrix is stored (200 MB). The rows of a larger one are
computed when they are needed."""

CHUNK = 256
"""Rows for which room is made at once, at most twice the states of all choices. Where it ends, it
is looked whether fewer explain the same, unless half of them will soon have faded."""

BLOCK_EVENTS = 1_024
"""Events of which the rows are made at once: a Cholesky factorization of this size costs little."""

MANY_LAGS = 100
"""Number of lags of which it is remembered what leads over them: most rounds are equally long."""

NEGLIGIBLE = 1e-3
"""Share of ``tol`` up to which what a row explains is dropped: there may be many rows."""

TRUNCATION = 1e-12
"""Largest variance that a draw may lack, as a share of the largest prior variance."""

JITTER = 1e-12
"""Added to the variances of what a draw has beyond its prior one, which may be zero."""


class ChoiceCovariance:
    """A kernel over the choices, in NumPy, with its present parameters.

    Args:
        kernel: The kernel, without a batch.
        choices: ``n x d``.

    Raises:
        ValueError: if a variance is negative or not finite.

    Attributes:
        variances: Variances of the choices, ``n``.
    """

    def __init__(self, kernel: Kernel, choices: Tensor):
        self._kernel, self._choices = deepcopy(kernel).to(choices).eval(), choices
        self._matrix: Array | None = None
        self._closed = closed_rows(self._kernel, choices)
        if len(choices) <= MAX_STORED_CHOICES:
            self._matrix = self._evaluated(choices, choices)
        with torch.no_grad():
            self.variances: Array = self._kernel(choices, diag=True).numpy()
        if not (np.isfinite(self.variances) & (self.variances >= 0)).all():
            raise ValueError(
                "Expected a kernel with finite variances >= 0 on the choices. Got variances from "
                f"{self.variances.min():.3g} to {self.variances.max():.3g}."
            )

    def rows(self, index: Places) -> Array:
        """Return the covariances of choices ``...`` with all choices, ``... x n``."""
        if self._matrix is not None:
            return self._matrix[index]
        if self._closed is not None:
            return self._closed(index)
        return self._evaluated(self._choices[index], self._choices)

    def between(self, first: Places, second: Places) -> Array:
        """Return the covariances of choices ``... x q`` and ``... x p``, ``... x q x p``."""
        if self._matrix is not None:
            return self._matrix[first[..., :, None], second[..., None, :]]
        return self._evaluated(self._choices[first], self._choices[second])

    @torch.no_grad()
    def _evaluated(self, X1: Tensor, X2: Tensor) -> Array:
        covar: Array = self._kernel(X1, X2).to_dense().numpy()
        return covar


@dataclass(frozen=True, eq=False)
class KroneckerTerm:
    """One term of the prior: a kernel over the choices times a temporal kernel.

    Args:
        over_choices: The kernel over the choices.
        over_time: The temporal kernel.
        amplitude: Variance by which the product is multiplied.
    """

    over_choices: ChoiceCovariance
    over_time: TemporalKernel
    amplitude: float


class Stream:
    """What a model knows as of its newest event, in NumPy, whose calls take the least time.

    Copies share what it holds, which is replaced and never changed, but for room that is free.

    Args:
        b: Number of batch elements.
        S: Number of states.
        n: Number of choices.

    Attributes:
        log: Room for events: index, time, outcome or what stands in for it, noise variance, and
            whether it is pending, ``b x 5 x capacity``.
        num_events: Number of events.
        now: Time of the newest event.
        full: Rows as of when they were made, ``b x k x S x n``, in parts.
        room: Room for the rows after these, ``b x capacity x S x n``.
        start: Place in the room of its first row.
        end: Place in the room after its last row.
        made: Times of the rows.
        rank: Rows that were needed when it was looked.
        transitions: What leads each row from then to now, ``S x k S``.
        mean: Mean of the states by the outcomes that came, ``b x S x n``.
        reduction: Covariances of the states of each choice that the rows explain, ``b x S² x n``.
        responses: Derivatives of the innovations of the last rows by the pending outcomes,
            ``b x m x p``; those of rows before are zero.
        lost: Orthonormal combinations of the last rows that explain nothing, since their outcomes
            do not come, ``b x m' x l``.
        expected: Means of the pending outcomes by those that came, ``b x p``.
        pending_covariance: Their covariances by those that came, ``b x p x p``.
    """

    def __init__(self, b: int, S: int, n: int):
        self.log, self.num_events, self.now = np.empty((b, 5, 0)), 0, -math.inf
        self.full: tuple[Array, ...] = ()
        self.room, self.start, self.end = np.empty((b, 0, S, n)), 0, 0
        self.made: tuple[float, ...] = ()
        self.rank, self.transitions = 0, np.empty((S, 0))
        self.mean, self.reduction = np.zeros((b, S, n)), np.zeros((b, S * S, n))
        self.responses, self.lost = np.empty((b, 0, 0)), np.empty((b, 0, 0))
        self.expected, self.pending_covariance = np.empty((b, 0)), np.empty((b, 0, 0))

    def __copy__(self) -> Stream:
        new = object.__new__(Stream)
        vars(new).update(vars(self))
        return new

    @property
    def events(self) -> Array:
        """The events, ``b x 5 x k``."""
        return self.log[..., : self.num_events]

    @property
    def is_pending(self) -> Mask:
        """Mask of the events whose outcomes are pending."""
        mask: Mask = self.events[0, 4] > 0
        return mask

    @property
    def rows(self) -> tuple[Array, ...]:
        """The rows that count as of when they were made, ``b x k x S x n``, in parts."""
        return *self.full, self.room[:, self.start : self.end]

    def columns(self, element: Places, index: Places) -> Array:
        """Return the rows at choices ``...`` of batch elements ``...``, ``... x k x S``."""
        parts = [rows.transpose(0, 3, 1, 2)[element, index] for rows in self.rows]
        return np.concatenate(parts, axis=-2)

    def combined(self, coefficients: Array) -> Array:
        """Return sums, as of now, of the last rows times ``b x c x m``, ``b x c x S x n``."""
        (b, c, m), (S, n) = coefficients.shape, self.room.shape[2:]
        transitions = self.transitions[:, (len(self.made) - m) * S :].reshape(S, m, S)
        weights = (coefficients[:, :, None, :, None] * transitions).reshape(b, c * S, m * S)
        total: Any = 0.0
        for rows in reversed(self.rows):
            first = max(m - rows.shape[1], 0)
            part = rows[:, rows.shape[1] - m + first :].reshape(b, -1, n)
            total = total + weights[..., first * S : m * S] @ part
            m = first
        combined: Array = total.reshape(b, c, S, n)
        return combined

    def without_lost(self, V: Array, element: Places | slice = slice(None)) -> Array:
        """Return covariances with innovations, ``M x q x k``, less what explains nothing.

        Args:
            V: The covariances.
            element: Batch elements, ``M``.
        """
        if self.lost.size == 0:
            return V
        lost = _of_last(self.lost, V.shape[-1])[element]
        return V - V @ lost @ lost.mT

    def learn(self, told: Mask, residual: Array) -> None:
        """Take in outcomes less the prior mean, ``b x t``, of some of the pending trials, ``p``."""
        C, rest = self.pending_covariance, ~told
        error = (residual - self.expected[:, told])[..., None]
        by_told = np.linalg.solve(C[:, told][:, :, told], C[:, told])
        change = by_told.mT @ error
        self.mean = self.mean + self.combined((self.responses @ change).mT)[:, 0]
        self.expected = (self.expected + change[..., 0])[:, rest]
        self.pending_covariance = (C - C[:, :, told] @ by_told)[:, rest][:, :, rest]
        self.responses = _without_zeros(self.responses[..., rest])

    def lose(self, lost: Mask) -> None:
        """Take some of the pending trials back, ``p``."""
        rest, place = ~lost, np.flatnonzero(self.is_pending)[lost]
        self.log = np.delete(self.events, place, axis=-1)
        self.num_events -= len(place)
        away, responses = np.linalg.qr(self.responses[..., lost]).Q, self.responses[..., rest]
        self.reduction = self.reduction - _explained(self.combined(away.mT))
        self.responses = _without_zeros(responses - away @ (away.mT @ responses))
        m = max(away.shape[1], self.lost.shape[1])
        self.lost = np.concatenate([_of_last(x, m) for x in (self.lost, away)], axis=-1)
        self.expected = self.expected[:, rest]
        self.pending_covariance = self.pending_covariance[:, rest][:, :, rest]


class StreamingGP(OneOutputModel):
    r"""A drifting GP on a finite set whose cost per observation does not grow.

    The posterior (7)-(8) of TV-GP-UCB (Bogunovic et al., 2016), the same as that of
    :class:`tvbo.models.TimeVaryingGP` with the same hyperparameters. Event ``j``, an outcome with
    variance :math:`d_j^2` given those before, has a row

    .. math:: V_j = \Big(k(x_j, \cdot)\,A(t - t_j) P h - \sum_{i<j} c_i V_i\Big) / d_j, \quad
        c_i = \mathrm{Cov}(y_j, \nu_i)

    of covariances of the states of all choices with its innovation :math:`\nu_j`, with the matrices
    of :class:`tvbo.kernels.TemporalKernel`. The states have the covariance
    :math:`k P - \sum V_j V_j^\top`. Time is Markov, so that as of a later time a row is
    :math:`A V_j`, for decay :math:`(1-\varepsilon)^{\text{lag} / 2} V_j`. An observation
    costs :math:`O(W n)` for ``W`` rows. Rows that have faded are dropped. Others may be rotated,
    which changes no covariance, so that no more are left than it takes to explain as much: fewer
    than the states of all choices, for a smooth kernel far fewer. The row of a trial can be made
    while its outcome is pending: :meth:`open`. With the derivatives
    :math:`\partial \nu / \partial y` by each pending outcome, outcomes may then come in any order.

    Args:
        choices: ``n x d``, the actions (or actions and contexts), without duplicates.
        covar_module: Kernel over the choices, with its present parameters, which are not learned;
            or one for each temporal kernel.
        forgetting_rate: ε per unit of time, in [0, 1].
        noise_variance: σ², at least 0.
        temporal_kernel: In place of ``forgetting_rate``, a :class:`tvbo.kernels.TemporalKernel`, or
            a ``ScaleKernel`` of one, or a list of these, whose products with ``covar_module`` are
            added. They have no ``active_dims``.
        mean_module: Prior mean over rows ``[action | time]``; None is zero.
        batch_shape: Shape of a batch of models with these hyperparameters, which observe at the
            same times.
        tol: An observation is forgotten once its weight :math:`(1-\varepsilon)^{\text{age}}`, or
            :meth:`tvbo.kernels.TemporalKernel.weight` by the kernel that forgets least, is at most
            this. Then the mean does not change, and no posterior covariance by more than this share
            of the prior variance.

    Raises:
        BotorchTensorDimensionError: if ``choices`` is not ``n x d``.
        InputDataError: if a choice is not finite, or the choices contain duplicates.
        TypeError: if a temporal kernel is none.
        ValueError: if a parameter is out of range, a kernel has a batch, not exactly one of
            ``forgetting_rate`` and ``temporal_kernel`` is given, or there are neither one nor as
            many kernels in ``covar_module`` as temporal kernels.

    Attributes:
        row_index: The choices, and the index of each row among them.
        mean_module: Prior mean over rows ``[action | time]``; None is zero.
        tol: Weight at which an observation is forgotten.
        is_static: Whether time makes no difference.

    Example:
        >>> model = StreamingGP(choices, RBFKernel(), forgetting_rate=0.03, noise_variance=0.01)
        >>> model.observe(torch.tensor([[0.2, 0.4, 1.0]]), torch.tensor([[0.7]]))  # [x1, x2, t]
        >>> model.posterior(torch.tensor([[0.2, 0.4, 2.0]])).mean
    """

    remembers_rows: ClassVar[bool] = True
    """All choices are found at once, without a search for each: they are evaluated at once."""

    _noise: Tensor

    def __init__(
        self,
        choices: Tensor,
        covar_module: Kernel | Sequence[Kernel],
        forgetting_rate: float | Tensor | None = None,
        noise_variance: float | Tensor | None = None,
        *,
        temporal_kernel: Kernel | Sequence[Kernel] | None = None,
        mean_module: Mean | None = None,
        batch_shape: Size | None = None,
        tol: float = 1e-12,
    ):
        super().__init__()
        if not 0 < tol < 1:
            raise ValueError(f"Expected tol in (0, 1). Got {tol}.")
        if (forgetting_rate is None) == (temporal_kernel is None):
            raise ValueError(
                "Expected either forgetting_rate or temporal_kernel. "
                f"Got {forgetting_rate} and {temporal_kernel}."
            )
        self.tol = tol
        self.row_index = RowIndex(choices)
        self._num_columns = self.row_index.dim + 1
        self.mean_module = deepcopy(mean_module)
        self._batch_shape = batch_shape or Size()
        choices = self.row_index.choices
        noise = one_noise_variance(noise_variance).to(choices)
        if temporal_kernel is None:
            if torch.as_tensor(forgetting_rate).numel() != 1:
                raise ValueError(f"Expected forgetting_rate, one number. Got {forgetting_rate}.")
            temporal_kernel = make_temporal_kernel(forgetting_rate)
        given = [temporal_kernel] if isinstance(temporal_kernel, Kernel) else list(temporal_kernel)
        kernels = [covar_module] if isinstance(covar_module, Kernel) else list(covar_module)
        if not given or len(kernels) not in {1, len(given)}:
            raise ValueError(
                "Expected one kernel in covar_module, or as many as temporal kernels. "
                f"Got {len(kernels)} and {len(given)} temporal kernels."
            )
        for kernel in (*kernels, *given):
            if kernel.batch_shape:
                raise ValueError(
                    "Expected kernels without a batch. Got one with batch_shape="
                    f"{tuple(kernel.batch_shape)}."
                )
        over_choices = [ChoiceCovariance(kernel, choices.cpu()) for kernel in kernels]
        self._terms = []
        for one, scaled in zip(over_choices * (len(given) // len(kernels)), given, strict=True):
            is_scaled = isinstance(scaled, ScaleKernel)
            over_time = check_markov(scaled.base_kernel if is_scaled else scaled)
            over_time = deepcopy(over_time).requires_grad_(False).double().cpu().eval()
            amplitude = scaled.outputscale.item() if is_scaled else 1.0
            self._terms.append(KroneckerTerm(one, over_time, amplitude))
        kernels_in_time = [term.over_time for term in self._terms]
        self.is_static = all(kernel.is_static for kernel in kernels_in_time)
        self._memory = memory_length(kernels_in_time, tol)
        variances = [term.amplitude * term.over_choices.variances for term in self._terms]
        self._prior_variance: Array = np.sum(variances, axis=0)
        # Vector whose product with the states is the process, and their covariance with it, ``S``.
        observed = [kernel.observation for kernel in kernels_in_time]
        self._observation = torch.cat(observed).numpy()
        gains = [
            term.amplitude * (term.over_time.stationary_covariance() @ h)
            for term, h in zip(self._terms, observed, strict=True)
        ]
        self._gain = torch.cat(gains).numpy()
        self._identity, self._everywhere = np.eye(len(self._gain)), np.arange(len(choices))
        self.register_buffer("_noise", noise)
        # What is computed of the prior when it is first needed, for all copies: what leads over
        # lags, and a factor.
        self._lags: dict[float, tuple[Any, ...]] = {}
        self._factor: list[Any] = []
        self.reset()

    @classmethod
    def from_model(
        cls,
        model: TimeVaryingGP,
        choices: Tensor,
        *,
        noise_variance: float | None = None,
        tol: float = 1e-12,
    ) -> StreamingGP:
        """Build a model with the hyperparameters of a fitted one, without its observations.

        Args:
            model: A model of one output whose rows are ``[action | time]``; its transforms of
                actions and outcomes are applied with their present parameters.
            choices: ``n x d`` raw actions.
            noise_variance: σ² in raw units; None takes the model's, or the mean of its
                fixed ones.
            tol: Weight at which an observation is forgotten.

        Raises:
            UnsupportedError: if the model has a batch or more than one output, an outcome transform
                other than ``Standardize``, or an input transform that changes time.
        """
        model = deepcopy(model).eval()
        covar_module, temporal_kernel = raw_kernels(model)
        return cls(
            choices,
            covar_module,
            noise_variance=raw_noise_variance(model) if noise_variance is None else noise_variance,
            temporal_kernel=temporal_kernel,
            mean_module=raw_mean(model),
            tol=tol,
        )

    def reset(self) -> None:
        """Discard all observations."""
        self._stream = self._empty()

    def clone_without_data(self) -> StreamingGP:
        """Return the same model without observations, sharing the prior covariance."""
        new = copy(self)
        new.reset()
        return new

    def snapshot(self) -> StreamingGP:
        """Return a copy with the present observations; neither changes with the other."""
        new, stream = copy(self), copy(self._stream)
        # Without room for more, so that the copy makes its own.
        stream.full, stream.room, stream.log = stream.rows, stream.room[:, :0], stream.events
        stream.start = stream.end = 0
        new._stream = stream
        return new

    @property
    def choices(self) -> Tensor:
        """The choices, ``n x d``."""
        return self.row_index.choices

    @property
    def num_rows(self) -> int:
        """Number of rows held."""
        return len(self._stream.made)

    @property
    def batch_shape(self) -> Size:
        """Shape of the batch of models."""
        return self._batch_shape

    @property
    def noise_variance(self) -> Tensor:
        """σ², ``batch_shape``."""
        return self._noise.expand(self._batch_shape)

    @property
    def forgetting_rate(self) -> Tensor | None:
        """ε per unit of time, ``1``; None unless one decay in time is the temporal kernel."""
        kernel = self._terms[0].over_time
        is_decay = len(self._terms) == 1 and isinstance(kernel, TemporalDecayKernel)
        return kernel.forgetting_rate.detach() if is_decay else None

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """Rows of the outcomes that are not forgotten, ``batch_shape x k x (d + 1)``."""
        return (self._rows_of(self._stream.events[..., ~self._stream.is_pending]),)

    @property
    def train_targets(self) -> Tensor:
        """These outcomes, ``batch_shape x k``."""
        targets = self._as_tensor(self._stream.events[:, 2, ~self._stream.is_pending])
        return targets.reshape(*self._batch_shape, -1)

    @property
    def X_pending(self) -> Tensor:
        """Rows of the pending trials, ``batch_shape x p x (d + 1)``."""
        return self._rows_of(self._stream.events[..., self._stream.is_pending])

    @property
    def expected_outcomes(self) -> Tensor:
        """Means of the pending outcomes by those that came, ``batch_shape x p``."""
        expected = self._as_tensor(self._stream.expected.copy()).reshape(*self._batch_shape, -1)
        return expected if self.mean_module is None else expected + self._prior_mean(self.X_pending)

    def observe(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> None:
        """Add observations.

        In the order of time each costs a row; one that is late has all rows made again.

        Args:
            X: Rows ``[action | time]``, ``batch_shape x q x (d + 1)``, or ``q x (d + 1)`` for the
                same rows in every batch element; times in any order, the same in all elements.
            Y: Outcomes, ``batch_shape x q x 1``.
            Yvar: Their noise variances, ``batch_shape x q x 1``; None for ``noise_variance``.

        Raises:
            BotorchTensorDimensionError: if shapes do not agree.
            InputDataError: if a value is not finite, an action is none of the choices, ``Yvar`` is
                negative, times differ between batch elements, or the predictive variance of an
                outcome is numerically zero. Nothing is changed then.
        """
        self._add(X, Y, Yvar)

    def open(self, X: Tensor, Yvar: Tensor | None = None) -> None:
        """Add trials whose outcomes are pending.

        The variance is that after their outcomes, whatever these are. Until :meth:`stand_in` says
        otherwise, their means stand in for them, which leaves the mean as it was.

        Args:
            X: Rows ``[action | time]``, as in :meth:`observe`.
            Yvar: Noise variances of the outcomes, ``batch_shape x q x 1``; None for
                ``noise_variance``.

        Raises:
            BotorchTensorDimensionError: if shapes do not agree.
            InputDataError: as in :meth:`observe`.
        """
        self._add(X, None, Yvar)

    def tell(self, position: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> None:
        """Give the outcomes of pending trials, in any order.

        Args:
            position: Positions among :attr:`X_pending`, ``q``.
            Y: Outcomes, ``batch_shape x q x 1``.
            Yvar: Their noise variances; None for those with which they were opened. With others,
                all rows are made again.

        Raises:
            BotorchTensorDimensionError: if shapes do not agree.
            InputDataError: if a value is not finite, or ``Yvar`` is negative.
        """
        stream = copy(self._stream)
        told = _mask(stream.expected.shape[-1], position)
        place, order = np.flatnonzero(stream.is_pending)[told], position.argsort().numpy(force=True)
        stream.log = stream.log.copy()
        stream.events[:, 2, place] = self._values("Y", Y, len(place))[:, order]
        if Yvar is not None:
            noise = self._values("Yvar", Yvar, len(place))[:, order]
            if (noise != stream.events[:, 3, place]).any():
                stream.events[:, 3:, place] = np.stack([noise, np.zeros_like(noise)], axis=1)
                self._make_again(stream.events)
                return
        stream.learn(told, self._residuals(stream.events[..., place]))
        stream.events[:, 4, place] = 0.0
        self._stream = stream

    def discard(self, position: Tensor) -> None:
        """Take pending trials back, as if they had never been opened.

        Args:
            position: Positions among :attr:`X_pending`, ``q``.
        """
        stream = copy(self._stream)
        stream.lose(_mask(stream.expected.shape[-1], position))
        self._stream = stream

    def stand_in(self, Y: Tensor) -> None:
        """Set what stands in for all pending outcomes.

        Args:
            Y: Values, ``batch_shape x p``; NaN for the mean by the outcomes that came.
        """
        stream = copy(self._stream)
        stream.log = stream.log.copy()
        values = Y.numpy(force=True).reshape(len(stream.log), -1)
        stream.events[:, 2, stream.is_pending] = values
        self._stream = stream

    def without_pending(self) -> StreamingGP:
        """Return a copy that knows the outcomes that came, and of no pending trial."""
        new = self.snapshot()
        if (p := new._stream.expected.shape[-1]) > 0:
            new._stream.lose(np.ones(p, dtype=bool))
        return new

    def marginals(self, t: float | Tensor) -> tuple[Tensor, Tensor]:
        """Return posterior mean and variance of every choice at a time.

        Args:
            t: The time, not before the newest event.

        Returns:
            ``batch_shape x n`` each.

        Raises:
            InputDataError: if ``t`` is not finite or lies before the newest event.
        """
        t = float(t)
        now = self._stream.now
        if not math.isfinite(t) or (t < now and not self.is_static):
            raise InputDataError(
                f"Expected a time at or after the newest event, t={now:g}. Got t={t:g}."
            )
        mean, variance = self._marginals(t)
        shape = (*self._batch_shape, mean.shape[-1])
        np.maximum(variance, 0.0, out=variance)
        means, variances = (self._as_tensor(x.reshape(shape)) for x in (mean, variance))
        if self.mean_module is not None:
            means = means + self._prior_mean(with_time(self.choices, t))
        return means, variances

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """Return the joint posterior of ``q`` rows.

        At times before the newest event, it costs :math:`O(k^3)` for ``k`` events.

        Args:
            X: Rows ``[action | time]``, ``... x q x (d + 1)``, the first dimensions broadcasting
                with ``batch_shape``.
            output_indices: None or ``[0]``.
            observation_noise: Whether to add ``noise_variance``, or noise variances to add,
                ``... x q x 1``.
            posterior_transform: Applied to the posterior, as in BoTorch.

        Raises:
            BotorchTensorDimensionError: if the shape does not fit.
            InputDataError: if an action is none of the choices, or a time is not finite.
            UnsupportedError: if another output is asked for, or a gradient by ``X``.
        """
        self._check_output(output_indices)
        if X.requires_grad and torch.is_grad_enabled():
            raise UnsupportedError(
                "Expected rows without gradients, since the choices are a finite set: maximize "
                "over them, as optimize_acqf_discrete does. Got X with requires_grad=True."
            )
        with torch.no_grad():
            mean, covar = map(self._as_tensor, self._moments(*self._split(X)))
            if self.mean_module is not None:
                mean = mean + self._prior_mean(X)
        return self._posterior(mean, covar, X, observation_noise, posterior_transform)

    def draw(self, t: float, generator: Generator) -> Tensor:
        r"""Draw one function from the joint posterior over all choices at one time.

        The model has no batch.

        A draw :math:`F z` of the prior, with covariance :math:`F F^\top`, and the innovations
        :math:`\nu = W z + R w`, :math:`W = V F^{-\top}`, :math:`R R^\top = I - W W^\top`, that go
        with it give :math:`\mu + F z - V^\top \nu`, for rows ``V`` (Matheron's rule).

        Args:
            t: Time of the draw, not before the newest event.
            generator: Source of randomness.

        Returns:
            ``n`` values.

        Raises:
            InputDataError: if ``t`` is not finite or lies before the newest event.
        """
        mean, _ = self.marginals(t)
        stream, (_, _, h, _), (F, pivots) = self._stream, self._over(t), self._prior_factor()
        V = (self._by_row(h) * stream.columns(np.zeros_like(pivots), pivots)).sum(axis=-1)
        W = solve_triangular(F[pivots], stream.without_lost(V[None])[0], lower=True).mT
        values, vectors = np.linalg.eigh((1 + JITTER) * np.eye(len(W)) - W @ W.mT)
        R = vectors * np.sqrt(values.clip(0.0))
        normal = torch.randn(sum(W.shape), dtype=torch.float64, generator=generator).numpy()
        z, w = normal[: W.shape[1]], normal[W.shape[1] :]
        explained = stream.combined(stream.without_lost((W @ z + R @ w)[None, None]))
        return mean + self._as_tensor(F @ z - _lead(h, explained[0])[0, 0])

    def weight(self, age: Tensor) -> Tensor:
        """Return what observations of some ages weigh, of all terms the most."""
        return torch.stack([term.over_time.weight(age) for term in self._terms]).amax(dim=0)

    def prior_covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Return prior covariances of rows ``n x (d + 1)`` and ``m x (d + 1)``, ``n x m``."""
        return self._as_tensor(self._prior(*self._split(X1), *self._split(X2)))

    # BoTorch's method takes any keyword; this one refuses those that it would ignore.
    def condition_on_observations(  # type: ignore[override]
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None
    ) -> StreamingGP:
        """Return a copy with additional observations.

        Args:
            X: Rows ``[action | time]``, ``... x q x (d + 1)``.
            Y: Outcomes, ``... x q x 1``, whose first dimensions broadcast with ``batch_shape``;
                together they are the batch shape of the copy.
            noise: Noise variances in the shape of ``Y``; None for ``noise_variance``.

        Raises:
            BotorchTensorDimensionError: if shapes do not agree.
            InputDataError: as in :meth:`observe`.
        """
        shape = torch.broadcast_shapes(Y.shape[:-2], self._batch_shape)
        new = self.snapshot()
        if shape != self._batch_shape:
            element, stream = self._elements(shape).ravel(), new._stream
            for name, value in vars(stream).items():
                if isinstance(value, np.ndarray) and name != "transitions":
                    vars(stream)[name] = value[element]
            stream.full = tuple(rows[element] for rows in stream.full)
            new._batch_shape = shape
        Y = Y.expand(*shape, *Y.shape[-2:])
        new.observe(X, Y, None if noise is None else noise.expand_as(Y))
        return new

    def _add(self, X: Tensor, Y: Tensor | None, Yvar: Tensor | None) -> None:
        """Add events at rows ``... x q x (d + 1)``; without outcomes they are pending."""
        index, time = self._split(X)
        q = index.shape[-1]
        if index.shape[:-1] != self._batch_shape:
            raise BotorchTensorDimensionError(
                f"Expected X of batch shape {tuple(self._batch_shape)} or none. "
                f"Got X.shape={tuple(X.shape)}."
            )
        b = len(self._stream.log)
        new = np.empty((b, 5, q))
        new[:, 0], new[:, 1] = index.reshape(b, q), time.reshape(b, q)
        new[:, 2] = math.nan if Y is None else self._values("Y", Y, q)
        noise = self._noise.item() if Yvar is None else self._values("Yvar", Yvar, q)
        new[:, 3], new[:, 4] = noise, Y is None
        if len(new) > 1 and (new[:, 1] != new[:1, 1]).any():
            raise InputDataError(
                "Expected the same times in all batch elements, which move in step. Got others."
            )
        stream = self._stream
        is_first = q > 1 and not stream.made
        if is_first or (not self.is_static and (new[0, 1] < stream.now).any()):
            self._make_again(np.concatenate([stream.events, new], axis=-1))
        else:
            self._stream = self._after(copy(stream), new)

    def _empty(self) -> Stream:
        """Return what is known before the first event."""
        return Stream(self._batch_shape.numel(), len(self._gain), len(self.choices))

    def _make_again(self, events: Array) -> None:
        """Replace all events, and make their rows; on an error nothing is changed."""
        events = self._in_order(events)
        stream = self._of_block(events[..., :BLOCK_EVENTS])
        self._stream = self._after(stream, events[..., BLOCK_EVENTS:])

    def _of_block(self, events: Array) -> Stream:
        """Return what events ``b x 5 x k`` tell, in the order of time, with nothing before."""
        stream, k = self._empty(), events.shape[-1]
        if k == 0:
            return stream
        index, time = events[:, 0].astype(np.int64), events[0, 1]
        covar, pending = self._prior(index, time, index, time), events[0, 4] > 0
        states = self._states(index, self._transition(time[-1] - time) @ self._gain)
        # With the pending outcomes first at zero, then at their means by the others.
        known = np.where(pending, 0.0, self._residuals(events))[..., None]
        units = np.broadcast_to(np.eye(k)[:, pending], (len(events), k, pending.sum()))
        parts = states.reshape(len(events), k, -1), known, units
        root = innovation_root(
            *map(torch.from_numpy, (covar, events[:, 3], self._prior_variance[index]))
        )
        solved = torch.linalg.solve_triangular(
            root, torch.from_numpy(np.concatenate(parts, axis=-1)), upper=False
        ).numpy()
        V, z, responses = np.split(solved, [parts[0].shape[-1], parts[0].shape[-1] + 1], axis=-1)
        stream.pending_covariance = np.linalg.inv(responses.mT @ responses)
        expected = -stream.pending_covariance @ (responses.mT @ z)
        stream.expected, stream.responses = expected[..., 0], _without_zeros(responses)
        stream.log, stream.num_events = events, k
        stream.full = (V.reshape(states.shape),)
        stream.transitions = np.tile(self._identity, k)
        stream.mean = ((z + responses @ expected).mT @ V).reshape(stream.mean.shape)
        stream.reduction = _explained(*stream.full)
        stream.now, stream.made = time.max().item(), tuple(time.tolist())
        return stream

    def _after(self, stream: Stream, events: Array) -> Stream:
        """Return what is known after more events ``b x 5 x q``, none before now."""
        events = self._in_order(events)
        for j in range(events.shape[-1]):
            self._make_room(stream)
            self._take_in(stream, events[..., j])
        return stream

    def _take_in(self, stream: Stream, event: Array) -> None:
        """Add one event, ``b x 5``."""
        t, noise, is_pending = event[0, 1].item(), event[:, 3], event[0, 4] > 0
        index, k, h = event[:, 0].astype(np.int64), len(stream.made), self._observation
        A, squares, _, _ = self._over(t, stream.now)
        each = np.arange(len(event))
        stream.transitions, mean = _lead(A, stream.transitions), _lead(A, stream.mean)
        # Covariances with the innovations of the rows, b x k.
        cross = (h @ stream.transitions).reshape(k, len(h)) * stream.columns(each, index)
        cross = stream.without_lost(cross.sum(axis=-1)[:, None])
        prior = self._prior_variance[index]
        variance = prior + noise - np.square(cross[:, 0]).sum(axis=-1)
        check_uncertain(variance, prior)
        scale = 1 / np.sqrt(variance)[:, None]
        V = stream.combined(-cross * scale[..., None])[:, 0]
        V += self._states(index, self._gain * scale)
        stream.room[:, stream.end] = V
        explained = (V[:, :, None] * V[:, None]).reshape(stream.reduction.shape)
        stream.reduction = _lead(squares, stream.reduction) + explained
        expected = (mean[each, :, index] @ h)[:, None]
        residual, p = self._residuals(event[..., None]), stream.expected.shape[-1]
        if p == 0 and not is_pending:
            mean += ((residual - expected) * scale)[..., None] * V
        else:
            # As pending; what it says of the others is by the outcomes that came.
            responses, C = stream.responses, stream.pending_covariance
            shown = cross[..., k - responses.shape[1] :] @ responses
            between = C @ shown.mT
            own = variance[:, None, None] + shown @ between
            stream.pending_covariance = np.block([[C, between], [between.mT, own]])
            stream.expected = np.concatenate([stream.expected, expected], axis=-1)
            zero, scale = np.zeros((len(event), responses.shape[1], 1)), scale[..., None]
            stream.responses = np.block([[responses, zero], [-shown * scale, scale]])
        if stream.lost.size > 0:
            stream.lost = np.pad(stream.lost, ((0, 0), (0, 1), (0, 0)))
        stream.mean, stream.now = mean, max(t, stream.now)
        stream.transitions = np.concatenate([stream.transitions, self._identity], axis=-1)
        stream.made, stream.end = (*stream.made, t), stream.end + 1
        stream.log[..., stream.num_events] = event
        stream.num_events += 1
        if p > 0 and not is_pending:
            stream.learn(np.arange(p + 1) == p, residual)

    def _make_room(self, stream: Stream) -> None:
        """Drop rows that have faded, and make room for one more, and for one more event."""
        k, S, b = len(stream.made), len(self._gain), len(stream.log)
        # Rows by which an outcome will be taken in stay.
        faded = bisect_right(stream.made, stream.now - self._memory)
        if (faded := min(faded, k - stream.responses.shape[1])) > 0:
            stream.made, k = stream.made[faded:], k - faded
            stream.transitions = stream.transitions[:, faded * S :]
            stream.lost = _of_last(stream.lost, min(k, stream.lost.shape[1]))
            full, stream.full = stream.full, ()
            for rows in full:
                if faded < rows.shape[1]:
                    stream.full += (rows[:, faded:],)
                faded = max(faded - rows.shape[1], 0)
            stream.start += faded
        if stream.num_events == stream.log.shape[-1]:
            # Outcomes are known for longer: the mean fades as the root of the weight.
            age = torch.from_numpy(stream.now - stream.events[0, 1])
            weighs = (self.weight(age) > self.tol**1.5).numpy() | stream.is_pending
            events = stream.events[..., int((weighs.cumsum() == 0).sum()) :]
            stream.num_events = events.shape[-1]
            capacity = max(CHUNK, 2 ** int(1.25 * stream.num_events).bit_length())
            stream.log = np.zeros((b, 5, capacity))
            stream.log[..., : stream.num_events] = events
        if stream.end == stream.room.shape[1]:
            stream.full, stream.start, stream.end = stream.rows, 0, 0
            size = min(CHUNK, 2 * S * len(self._everywhere))
            is_many = k >= max(2 * stream.rank, size)
            fades = k > 0 and stream.now - stream.made[0] > self._memory / 2
            if (is_many and not fades) or stream.lost.size > 0:
                self._merge(stream)
            stream.room = np.empty((b, size, *stream.room.shape[2:]))

    def _merge(self, stream: Stream) -> None:
        """Rotate the rows, which changes no covariance, so that fewer are left."""
        b, k, S = len(stream.log), len(stream.made), len(self._gain)
        # As of now, so that all rows fade together.
        transitions = stream.transitions.reshape(S, k, S).swapaxes(0, 1)
        V = _lead(transitions, np.concatenate(stream.full, axis=1)).reshape(b, k, -1)
        V = stream.without_lost(V.mT).mT
        least = NEGLIGIBLE * self.tol * self._prior_variance.max()
        # Pivoted Cholesky factors of their inner products tell how many explain anything.
        found = [dpstrf(each, tol=least, lower=1) for each in V @ V.mT]
        rank = max(each for *_, each, _ in found)
        factors = np.zeros((b, k, rank))
        for factor, (values, pivots, *_) in zip(factors, found, strict=True):
            factor[pivots - 1] = np.tril(values)[:, :rank]
        # What a pending outcome changes stays too: it says what is left if that is lost.
        responses = _of_last(stream.responses, k)
        Q = np.linalg.qr(np.concatenate([factors, responses], axis=-1)).Q
        stream.full = ((Q.mT @ V).reshape(b, -1, *stream.room.shape[2:]),)
        stream.responses, stream.rank = _without_zeros(Q.mT @ responses), Q.shape[-1]
        stream.lost = stream.lost[:, :0, :0]
        stream.transitions, stream.made = (
            np.tile(self._identity, stream.rank),
            (stream.now,) * stream.rank,
        )

    def _offset(self) -> Array:
        """Return what stands in for the pending outcomes less their means, ``b x p``."""
        stand_ins = self._residuals(self._stream.events[..., self._stream.is_pending])
        return np.nan_to_num(stand_ins - self._stream.expected)

    def _mean(self) -> Array:
        """Return the mean of the states, with what stands in for the pending outcomes."""
        stream = self._stream
        if stream.expected.shape[-1] == 0 or not (offset := self._offset()).any():
            return stream.mean
        return stream.mean + stream.combined((stream.responses @ offset[..., None]).mT)[:, 0]

    def _marginals(self, t: float) -> tuple[Array, Array]:
        """Return means, less the prior mean, and variances of all choices, ``b x n`` each."""
        _, _, h, squares = self._over(t, self._stream.now)
        mean, explained = _lead(h, self._mean()), _lead(squares, self._stream.reduction)
        return mean[:, 0], self._prior_variance - explained[:, 0]

    def _moments(self, index: Places, time: Array) -> tuple[Array, Array]:
        """Return means of events ``... x q``, less the prior mean, and their covariances."""
        stream, shape, q = self._stream, index.shape, index.shape[-1]
        late = not self.is_static and bool((time < stream.now).any())
        if q == 1 and not late and time.size > 0 and (time == time.flat[0]).all():
            mean, variance = self._marginals(time.flat[0].item())
            place: Any = 0  # All choices in their order, as a search among them asks for.
            if len(mean) > 1 or not np.array_equal(index.ravel(), self._everywhere):
                place = self._elements(shape[:-1])[..., None], index
            mean, variance = mean[place], np.maximum(variance, LEAST_VARIANCE)[place]
            return mean.reshape(shape), variance.reshape(*shape, 1)
        element = self._elements(shape[:-1]).ravel()
        index, time = index.reshape(len(element), q), time.reshape(len(element), q)
        if late:
            mean, covar = self._smoothed(element, index, time)
        else:
            lag = time - stream.now if stream.made else np.zeros_like(time)
            h = self._observation @ self._transition(lag)
            place = element[:, None], index
            mean = (h * np.moveaxis(self._mean(), -1, 1)[place]).sum(axis=-1)
            V = (self._by_row(h) * stream.columns(*place)).sum(axis=-1)
            V = stream.without_lost(V, element)
            covar = self._prior(index, time, index, time) - V @ V.mT
        each = np.arange(q)
        covar[:, each, each] = np.maximum(covar[:, each, each], LEAST_VARIANCE)
        return mean.reshape(shape), covar.reshape(*shape, q)

    def _smoothed(self, element: Places, index: Places, time: Array) -> tuple[Array, Array]:
        """Return means and covariances of batch elements' events ``M x q`` at any times."""
        stream = self._stream
        residual = self._residuals(stream.events).copy()
        residual[:, stream.is_pending] = stream.expected + self._offset()
        known, times = stream.events[:, 0].astype(np.int64), stream.events[:, 1]
        covar = self._prior(known, times, known, times)
        precision = np.linalg.inv(covar + stream.events[:, 3, None] * np.eye(covar.shape[-1]))
        if len(precision) > 1:
            precision = precision[element]
        cross = self._prior(known[element], times[element], index, time)
        V = precision @ cross
        mean = (V.mT @ residual[element][..., None])[..., 0]
        return mean, self._prior(index, time, index, time) - V.mT @ cross

    def _prior(self, first: Places, t1: Array, second: Places, t2: Array) -> Array:
        """Return prior covariances of choices ``... x q`` and ``... x p`` at times."""
        lag = torch.from_numpy(abs(t1[..., :, None] - t2[..., None, :]))
        one, *others = (
            term.over_time.correlation(lag).numpy()
            * (term.amplitude * term.over_choices.between(first, second))
            for term in self._terms
        )
        return sum(others, start=one)

    def _prior_factor(self) -> list[Any]:
        """Return a factor ``n x r`` of the prior covariance at one time, and its ``r`` pivots.

        It is a pivoted Cholesky factor, which for smooth kernels has few columns.
        """
        if not self._factor:
            left, pivots = self._prior_variance.copy(), np.empty(0, dtype=np.int64)
            limit, columns = TRUNCATION * left.max(), np.empty((0, len(left)))
            while len(pivots) < len(left) and left.max() > limit:
                pivot = left.argmax()
                column = self._observation @ self._states(np.array(pivot), self._gain)
                column -= columns[:, pivot] @ columns
                column[pivots] = 0.0
                columns = np.concatenate([columns, column[None] / math.sqrt(left[pivot])])
                left = (left - np.square(columns[-1])).clip(0.0)
                left[pivot] = 0.0
                pivots = np.append(pivots, pivot)
            self._factor += [columns.mT, pivots]
        return self._factor

    def _states(self, index: Places, gain: Array) -> Array:
        """Return prior covariances of events with states, ``... x S x n``.

        Args:
            index: Their choices, ``...``.
            gain: Covariances of states and process, over time, ``... x S``.
        """
        parts, first = [], 0
        for term in self._terms:
            last = first + term.over_time.num_states
            rows = term.over_choices.rows(index)
            parts.append(gain[..., first:last, None] * rows[..., None, :])
            first = last
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-2)

    def _over(self, t: float, now: float | None = None) -> tuple[Any, ...]:
        """Return what leads states to a time, its square, what is seen then, and its square."""
        now = self._stream.now if now is None else now
        lag = t - now if now > -math.inf and not self.is_static else 0.0
        if lag not in self._lags:
            if len(self._lags) == MANY_LAGS:
                self._lags.clear()
            A = self._transition(np.array(lag))
            h = self._observation[None] @ A
            self._lags[lag] = A, np.kron(A, A), h, np.kron(h, h)
        return self._lags[lag]

    def _elements(self, shape: Sequence[int]) -> Places:
        """Return the numbers of the batch elements, broadcast to a shape."""
        b = self._batch_shape.numel()
        return np.broadcast_to(np.arange(b).reshape(self._batch_shape), shape)

    def _transition(self, lag: Array) -> Array:
        """Return the matrices of all terms that lead to a later state, ``... x S x S``."""
        A, first = np.zeros((*lag.shape, len(self._gain), len(self._gain))), 0
        for term in self._terms:
            last = first + term.over_time.num_states
            block = term.over_time.transition(torch.from_numpy(lag))
            A[..., first:last, first:last] = block.numpy()
            first = last
        return A

    def _by_row(self, h: Array) -> Array:
        """Return the vectors whose products with the rows events see, ``... x k x S``."""
        by_row: Array = h @ self._stream.transitions
        return by_row.reshape(*h.shape[:-1], len(self._stream.made), h.shape[-1])

    def _prior_mean(self, X: Tensor) -> Tensor:
        assert self.mean_module is not None
        with torch.no_grad():
            mean: Tensor = self.mean_module(X.to(self._noise))
            return mean

    def _residuals(self, events: Array) -> Array:
        """Return outcomes, or what stands in for them, less the prior mean, ``b x k``."""
        if self.mean_module is None:
            return events[:, 2]
        mean = self._prior_mean(self._rows_of(events)).numpy(force=True)
        residuals: Array = events[:, 2] - mean.reshape(events[:, 2].shape)
        return residuals

    def _rows_of(self, events: Array) -> Tensor:
        """Return the rows of events, ``batch_shape x k x (d + 1)``."""
        actions = self.choices[torch.from_numpy(events[:, 0]).long()]
        X = torch.cat([actions, self._as_tensor(events[:, 1])[..., None]], dim=-1)
        return X.reshape(*self._batch_shape, *X.shape[1:])

    def _as_tensor(self, values: Array) -> Tensor:
        # Not as an attribute, which takes a module longer than this.
        noise: Any = self._buffers["_noise"]
        tensor = torch.from_numpy(values)
        return tensor if noise.device.type == "cpu" else tensor.to(noise.device)

    def _in_order(self, events: Array) -> Array:
        """Return events in the order of time, where that makes a difference."""
        if self.is_static or events.shape[-1] == 1:
            return events
        return events[..., events[0, 1].argsort(kind="stable")]

    def _split(self, X: Tensor) -> tuple[Places, Array]:
        """Return indices and times of rows, ``... x q`` each, broadcast with the batch."""
        rows = X.numpy(force=True).astype(np.float64, copy=False)
        if X.ndim < 2 or rows.shape[-1] != self._num_columns or not math.isfinite(rows.sum()):
            check_rows(X, self._num_columns)
        index, time = self.row_index.places(rows[..., :-1]), rows[..., -1]
        if self._batch_shape:
            shape = (*self._broadcast({"X": X.shape[:-2]}), X.shape[-2])
            index, time = np.broadcast_to(index, shape), np.broadcast_to(time, shape)
        return index, time

    def _values(self, name: str, values: Tensor, q: int) -> Array:
        """Return outcomes or noise variances of ``q`` events, ``b x q``."""
        shape = (*self._batch_shape, q, 1)
        if values.shape != shape:
            raise BotorchTensorDimensionError(
                f"Expected {name} of shape batch_shape x q x 1 = {shape}. "
                f"Got {name}.shape={tuple(values.shape)}."
            )
        numbers: Array = self._transformed(values, name == "Yvar").numpy(force=True)
        if not math.isfinite(numbers.sum()):
            check_finite(name, values)
        if name == "Yvar" and (numbers < 0).any():
            raise InputDataError(f"Expected Yvar >= 0. Got {values.min().item()}.")
        return numbers.astype(np.float64, copy=False).reshape(len(self._stream.log), q)

    def get_extra_state(self) -> dict[str, Tensor]:
        """Return what a state has beside the noise variance: the choices, and what was observed."""
        return {"choices": self.choices, "events": self._as_tensor(self._stream.events.copy())}

    def set_extra_state(self, state: Mapping[str, Tensor]) -> None:
        """Take in what was observed, ``get_extra_state()`` of a model with the same choices.

        Raises:
            ValueError: if it has others.
        """
        if not torch.equal(state["choices"].to(self.choices), self.choices):
            raise ValueError("Expected a state saved with the same choices. Got one with others.")
        self._make_again(state["events"].numpy(force=True))


def _mask(size: int, position: Tensor) -> NDArray[np.bool_]:
    """Return a mask of some of ``size``."""
    mask = np.zeros(size, dtype=bool)
    mask[position.numpy(force=True)] = True
    return mask


def _of_last(values: Array, m: int) -> Array:
    """Return ``b x m' x p`` of the last rows for more of them, where it is zero, or for fewer."""
    missing = m - values.shape[1]
    return np.pad(values, ((0, 0), (max(missing, 0), 0), (0, 0)))[:, max(-missing, 0) :]


def _without_zeros(values: Array) -> Array:
    """Return ``b x m x p`` from the first row on that is not zero."""
    places = np.flatnonzero(values.any(axis=(0, 2)))
    return values[:, places[0] if len(places) > 0 else values.shape[1] :]


def _lead(A: Array, states: Array) -> Array:
    """Return states ``... x S x n`` led by matrices ``... x S x S``."""
    return A * states if A.shape[-1] == 1 else A @ states


def _explained(rows: Array) -> Array:
    """Return covariances of the states of each choice that rows explain, ``b x S² x n``."""
    explained: Array = (rows[:, :, :, None] * rows[:, :, None]).sum(axis=1)
    return explained.reshape(len(rows), -1, rows.shape[-1])
