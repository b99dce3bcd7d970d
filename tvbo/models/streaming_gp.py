"""The exact posterior on a finite set of choices, at constant cost per round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.means import Mean
from scipy.linalg.blas import dgemm
from scipy.linalg.lapack import dpotrf, dpstrf, dtrtri
from torch import Generator, Size, Tensor

from tvbo.kernels import TemporalDecayKernel, TemporalKernel
from tvbo.kernels.temporal import check_markov, memory_length
from tvbo.models.choice_covariance import ChoiceCovariance, Places
from tvbo.models.closed_form import Array
from tvbo.models.one_output import OneOutputModel, check_rows, one_noise_variance
from tvbo.models.raw import raw_kernels, raw_mean, raw_noise_variance, with_time
from tvbo.models.time_varying_gp import TimeVaryingGP, make_temporal_kernel
from tvbo.rounding import LEAST_VARIANCE, check_uncertain
from tvbo.spaces.search_space import FiniteSpace
from tvbo.values import as_number, check_probability

CHUNK = 256
"""Most rows that are put together in one part. Once a part has half as many, or as many as there
are states of all choices, it is looked whether fewer explain the same, unless half of them will
soon have faded."""

BLOCK_EVENTS = 1_024
"""Events of which the rows are made at once: a Cholesky factorization of this size costs little."""

MANY_LAGS = 100
"""Number of lags of which it is remembered what leads over them: most rounds are equally long."""

NEGLIGIBLE = 1e-3
"""Share of ``tol`` up to which what a row explains is dropped: there may be many rows."""

SINGLE = 1e6
"""Multiple of ``tol`` to which the weight of a row has fallen that is left in single precision,
which changes no covariance by more than a share ``tol``: to read the rows is what takes time."""

TRUNCATION = 1e-12
"""Largest variance that a draw may lack, as a share of the largest prior variance."""

JITTER = 1e-12
"""Added to the variances of what a draw has beyond its prior one, which may be zero."""


@dataclass(frozen=True, eq=False)
class KroneckerTerm:
    """One term of the prior: a kernel over the choices times a temporal kernel.

    Args:
        over_choices: The kernel over the choices.
        over_time: The temporal kernel.
        amplitude: Variance by which the product is multiplied.
        states: Which of the states of all terms are those of this one.
    """

    over_choices: ChoiceCovariance
    over_time: TemporalKernel
    amplitude: float
    states: slice


class Stream:
    """What one element of the batch knows as of its newest event, in NumPy.

    Copies share what it holds, which is replaced and never changed. An event is index, time,
    outcome less the prior mean, or NaN while it is pending, and noise variance.

    Args:
        S: Number of states.
        prior: Prior variances of the choices, ``n``.

    Attributes:
        events: The outcomes that came, ``4 x k``.
        pending: The pending trials, ``4 x p``.
        now: Time of the newest event.
        rows: Rows as of when they were made, ``m x S x n``, in parts.
        made: Times that the rows know of, ``m``.
        transitions: What leads each row from then to now, ``S x m S``.
        rank: Rows that were needed when it was looked.
        mean: Mean of the states by the outcomes that came, ``S x n``.
        reduction: Covariances of the states of each choice that are explained, ``S² x n``.
        cross: Covariances of the states with the pending outcomes, given those that came,
            ``p x S x n``.
        covar: Covariances of the pending outcomes, given those that came, ``p x p``.
        expected: Means of the pending outcomes by those that came, ``p``.
    """

    def __init__(self, S: int, prior: Array):
        self.prior, n = prior, len(prior)
        self.events, self.pending, self.now = np.empty((4, 0)), np.empty((4, 0)), -math.inf
        self.rows: tuple[Array, ...] = (np.empty((0, S, n)),)
        self.made, self.transitions = np.empty(0), np.empty((S, 0))
        self.rank, self.identity = 0, np.eye(S)
        self.mean, self.reduction = np.zeros((S, n)), np.zeros((S * S, n))
        self.cross, self.covar, self.expected = np.empty((0, S, n)), np.empty((0, 0)), np.empty(0)

    def explained(self, h: Array, index: Places) -> Array:
        """Return covariances of events with the innovations of the rows, ``... x m``.

        Args:
            h: What they see of the states as of now, ``... x S``.
            index: Their choices, ``...``.
        """
        rows = np.concatenate([rows.transpose(2, 0, 1)[index] for rows in self.rows], axis=-2)
        weights = (h @ self.transitions).reshape(*h.shape[:-1], len(self.made), h.shape[-1])
        return (weights * rows).sum(axis=-1)

    def combined(self, coefficients: Array) -> Array:
        """Return sums, as of now, of the rows times ``c x m``, ``c x S x n``."""
        (c, m), (S, n) = coefficients.shape, self.mean.shape
        weights = coefficients[:, None, :, None] * self.transitions.reshape(S, m, S)
        weights, total, first = weights.reshape(c * S, m * S), np.zeros((c * S, n)), 0
        for rows in self.rows:
            last = first + len(rows) * S
            total += weights[:, first:last].astype(rows.dtype, copy=False) @ rows.reshape(-1, n)
            first = last
        return total.reshape(c, S, n)

    def match(self, events: Array) -> Places:
        """Return the place of each event among the pending trials, or -1.

        Of trials that ask the same, any may be meant.
        """
        free: dict[tuple[float, ...], list[int]] = {}
        for place, asked in enumerate(self.pending[:2].T.tolist()):
            free.setdefault(tuple(asked), []).append(place)
        places = [free.get(tuple(event)) for event in events[:2].T.tolist()]
        return np.array([each.pop(0) if each else -1 for each in places], dtype=np.int64)

    def keep(self, places: Places | slice) -> None:
        """Forget all pending trials but some, which are left in this order."""
        self.pending, self.expected = self.pending[:, places], self.expected[places]
        self.cross, self.covar = self.cross[places], self.covar[places][:, places]

    def root(self, places: Places | slice) -> Array:
        """Return the Cholesky factor of the covariance of pending outcomes, ``q x q``.

        Raises:
            InputDataError: if the variance of one is numerically zero.
        """
        root: Array
        root, info = dpotrf(self.covar[places][:, places], lower=1)
        prior = self.prior[self.pending[0, places].astype(np.int64)]
        check_uncertain(np.square(root.diagonal()) * (info == 0), prior)
        return root

    def tell(self, places: Places | slice, events: Array) -> None:
        """Take in what came of pending trials, ``4 x q``, in place of these.

        Each becomes a row: covariances of the states with its innovation.
        """
        if events.size == 0:
            return
        root, p = self.root(places), len(self.expected)
        V, z = _solved(root, self.cross[places]), _solved(root, events[2] - self.expected[places])
        self.mean = self.mean + (z @ V.reshape(len(V), -1)).reshape(self.mean.shape)
        explained = np.einsum("qsn,qtn->stn", V, V)
        self.reduction = self.reduction + explained.reshape(self.reduction.shape)
        if len(V) == p:
            self.keep(slice(0))
        else:
            rest = np.delete(np.arange(p), places)
            between = _solved(root, self.covar[places][:, rest])
            self.keep(rest)
            self.expected = self.expected + z @ between
            self.covar -= between.T @ between
            cross = self.cross.reshape(len(rest), -1).T
            dgemm(-1.0, V.reshape(len(V), -1).T, between, 1.0, cross, overwrite_c=1)
        self.events = np.concatenate([self.events, events], axis=-1)
        self.rows = *self.rows, V
        # Innovations know of all outcomes that came before, also of those at later times.
        self.made = np.maximum.accumulate(np.concatenate([self.made, events[1]]))
        new = (self.identity,) * len(V)
        self.transitions = np.concatenate([self.transitions, *new], axis=1)

    def drop(self, m: int) -> None:
        """Drop the oldest rows."""
        self.made, self.transitions = self.made[m:], self.transitions[:, m * len(self.mean) :]
        parts = []
        for rows in self.rows:
            parts.append(rows[m:])
            m = max(m - len(rows), 0)
        self.rows = tuple(rows for rows in parts if len(rows) > 0) or (parts[-1],)

    def merge(self, least: float) -> None:
        """Rotate the rows, which changes no covariance, so that no more are left than it takes.

        Args:
            least: What a row explains at least.
        """
        m, (S, n) = len(self.made), self.mean.shape
        # As of now, so that all rows fade together.
        transitions = self.transitions.reshape(S, m, S).swapaxes(0, 1)
        V = _lead(transitions, np.concatenate(self.rows)).reshape(m, S * n)
        # A pivoted Cholesky factor of their inner products tells how many explain anything.
        values, pivots, rank, _ = dpstrf(V @ V.T, tol=least, lower=1)
        root = np.zeros((m, rank))
        root[pivots - 1] = np.tril(values)[:, :rank]
        self.rows, self.rank = ((np.linalg.qr(root).Q.T @ V).reshape(rank, S, n),), rank
        self.made, self.transitions = np.full(rank, self.now), np.tile(self.identity, rank)


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
    than the states of all choices, for a smooth kernel far fewer. At times before the newest of
    ``k`` events a posterior costs :math:`O(k^3)`. Of a pending trial
    the covariances of all states with its outcome are held, given the outcomes that came, and make
    its row when it comes, in any order.

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
        BotorchTensorDimensionError: if ``choices`` is not ``n x d``, or ``forgetting_rate`` not one
            number.
        InputDataError: if a choice is not finite, or the choices contain duplicates.
        TypeError: if a temporal kernel is none.
        ValueError: if a parameter is out of range, a kernel has a batch, not exactly one of
            ``forgetting_rate`` and ``temporal_kernel`` is given, or there are neither one nor as
            many kernels in ``covar_module`` as temporal kernels.

    Attributes:
        choice_set: The choices, and the index of each row among them.
        choices: The choices, ``n x d``.
        mean_module: Prior mean over rows ``[action | time]``; None is zero.
        tol: Weight at which an observation is forgotten.
        is_static: Whether time makes no difference.
        memory: Age at which an observation is forgotten, infinite where none is.

    Example:
        >>> model = StreamingGP(choices, RBFKernel(), forgetting_rate=0.03, noise_variance=0.01)
        >>> model.observe(torch.tensor([[0.2, 0.4, 1.0]]), torch.tensor([[0.7]]))  # [x1, x2, t]
        >>> model.posterior(torch.tensor([[0.2, 0.4, 2.0]])).mean
    """

    remembers_rows: ClassVar[bool] = True
    """All choices are found at once, without a search for each: they are evaluated at once."""

    choices: Tensor
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
        check_probability(tol=tol)
        if (forgetting_rate is None) == (temporal_kernel is None):
            raise ValueError(
                "Expected either forgetting_rate or temporal_kernel. "
                f"Got {forgetting_rate} and {temporal_kernel}."
            )
        self.tol = tol
        self.choice_set = FiniteSpace(choices)
        self.mean_module = deepcopy(mean_module)
        self._batch_shape = batch_shape or Size()
        choices = self.choice_set.rows
        self.register_buffer("choices", choices, persistent=False)
        noise = one_noise_variance(noise_variance).to(choices)
        if temporal_kernel is None:
            temporal_kernel = make_temporal_kernel(as_number("forgetting_rate", forgetting_rate))
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
        self._terms: list[KroneckerTerm] = []
        observation, gain = torch.empty(0), torch.empty(0)
        for one, scaled in zip(over_choices * (len(given) // len(kernels)), given, strict=True):
            is_scaled = isinstance(scaled, ScaleKernel)
            over_time = check_markov(scaled.base_kernel if is_scaled else scaled)
            over_time = deepcopy(over_time).requires_grad_(False).double().cpu().eval()
            amplitude, h = scaled.outputscale.item() if is_scaled else 1.0, over_time.observation
            states = slice(len(gain), len(gain) + len(h))
            self._terms.append(KroneckerTerm(one, over_time, amplitude, states))
            observation = torch.cat([observation, h])
            gain = torch.cat([gain, amplitude * (over_time.stationary_covariance() @ h)])
        # Vector whose product with the states is the process, and their covariance with it, ``S``.
        self._observation: Array = observation.double().numpy()
        self._gain: Array = gain.double().numpy()
        self._prior_variance: Array = np.sum(
            [term.amplitude * term.over_choices.variances for term in self._terms], axis=0
        )
        kernels_in_time = [term.over_time for term in self._terms]
        self.is_static = all(kernel.is_static for kernel in kernels_in_time)
        # Outcomes are known for longer: the mean fades as the root of the weight.
        self.memory, self._longest = (memory_length(kernels_in_time, w) for w in (tol, tol**1.5))
        self._single = memory_length(kernels_in_time, min(SINGLE * tol, 0.5))
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
        self._streams = [self._empty()] * self._batch_shape.numel()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy has, which does not change with this one."""
        return {**vars(self), "_streams": [*self._streams]}

    @property
    def num_rows(self) -> int:
        """Number of rows held."""
        return len(self._streams[0].made)

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
        return (self._rows_at(self._of_batch([each.events for each in self._streams])),)

    @property
    def train_targets(self) -> Tensor:
        """These outcomes, ``batch_shape x k``."""
        residuals = self._of_batch([stream.events[2] for stream in self._streams])
        return residuals + self._prior_mean(self.train_inputs[0])

    @property
    def X_pending(self) -> Tensor:
        """Rows of the pending trials, ``batch_shape x p x (d + 1)``."""
        return self._rows_at(self._of_batch([each.pending for each in self._streams]))

    @property
    def now(self) -> float:
        """Time of the newest event, minus infinity before the first and where time is nothing."""
        return -math.inf if self.is_static else self._streams[0].now

    @property
    def num_pending(self) -> int:
        """Number of pending trials."""
        return len(self._streams[0].expected)

    @property
    def expected_outcomes(self) -> Tensor:
        """Means of the pending outcomes by those that came, ``batch_shape x p``."""
        expected = self._of_batch([stream.expected for stream in self._streams])
        return expected + self._prior_mean(self.X_pending)

    def observe(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> None:
        """Add observations; at the rows of pending trials, these have their outcomes then.

        In the order of time each costs a row, and so does a pending trial in any order; another one
        that is late has all rows made again.

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
        streams = []
        for stream, events in zip(self._streams, self._events(X, Y, Yvar), strict=True):
            stream, places = copy(stream), stream.match(events)
            known = places >= 0
            told, places = events[:, known], places[known]
            # Noise may be other than was expected.
            noise = told[3] - stream.pending[3, places]
            if noise.any():
                stream.covar = stream.covar.copy()
                stream.covar[places, places] += noise
            stream.tell(places, told)
            streams.append(self._after(stream, events[:, ~known]))
        self._streams[:] = streams

    def set_X_pending(self, X: Tensor, Yvar: Tensor | None = None) -> None:
        """Set the trials whose outcomes are pending.

        Then their outcomes may come in any order, each at the cost of a row. The posterior is that
        by the outcomes that came; for one by what stands in for the others, let a copy observe
        that. A trial that is no longer given is forgotten.

        Args:
            X: Rows ``[action | time]``, as in :meth:`observe`; none where ``q`` is 0.
            Yvar: Noise variances of the outcomes of those that are new, ``batch_shape x q x 1``;
                None for ``noise_variance``.

        Raises:
            BotorchTensorDimensionError: if shapes do not agree.
            InputDataError: as in :meth:`observe`.
        """
        streams = []
        for stream, events in zip(self._streams, self._events(X, None, Yvar), strict=True):
            stream, places = copy(stream), stream.match(events)
            known = places[places >= 0]
            if len(known) < len(stream.expected):
                stream.keep(known)
            streams.append(self._after(stream, events[:, places < 0]))
        self._streams[:] = streams

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
        if not (math.isfinite(t) and self.now <= t):
            raise InputDataError(
                f"Expected a time at or after the newest event, t={self.now:g}. Got t={t:g}."
            )
        moments = [self._marginals(stream, t) for stream in self._streams]
        mean, variance = (self._of_batch(each) for each in zip(*moments, strict=True))
        if self.mean_module is not None:
            mean = mean + self._prior_mean(with_time(self.choices, t))
        return mean, variance

    def _joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        if X.requires_grad and torch.is_grad_enabled():
            raise UnsupportedError(
                "Expected rows without gradients, since the choices are a finite set: maximize "
                "over them, as optimize_acqf_discrete does. Got X with requires_grad=True."
            )
        with torch.no_grad():
            index, time = self._split(X)
            lead, q = index.shape[: index.ndim - len(self._batch_shape) - 1], index.shape[-1]
            shape = (math.prod(lead), len(self._streams), q)
            index, time = index.reshape(shape).swapaxes(0, 1), time.reshape(shape).swapaxes(0, 1)
            moments = map(self._moments, self._streams, index, time)
            means, covars = (np.stack(each, axis=1) for each in zip(*moments, strict=True))
            shape = (*lead, *self._batch_shape, q)
            mean = self._as_tensor(means.reshape(shape))
            covar = self._as_tensor(covars.reshape(*shape, q))
        return mean + self._prior_mean(X), covar

    def draw(self, t: float, generator: Generator) -> Tensor:
        r"""Draw one function from the joint posterior over all choices at one time.

        The model has no batch.

        With a factor of the prior covariance :math:`F F^\top`, rows ``V`` and
        :math:`W = V F^{-\top}`, the covariance is :math:`F (I - W^\top W) F^\top`, of whose middle
        the symmetric root is taken: a draw does not depend on the order of the rows. It is
        :math:`\mu + F z - V^\top (I + (I - W W^\top)^{1/2})^{-1} W z`.

        Args:
            t: Time of the draw, not before the newest event.
            generator: Source of randomness.

        Returns:
            ``n`` values.

        Raises:
            InputDataError: if ``t`` is not finite or lies before the newest event.
        """
        mean, _ = self.marginals(t)
        stream, (F, pivots) = self._streams[0], self._prior_factor()
        _, _, h, _ = self._over(stream, t)
        V = stream.explained(h, pivots)
        W = _solved(F[pivots], V).T
        values, vectors = np.linalg.eigh((1 + JITTER) * np.eye(len(W)) - W @ W.T)
        z = torch.randn(len(pivots), dtype=torch.float64, generator=generator).numpy()
        by_row = vectors @ (vectors.T @ (W @ z) / (1 + np.sqrt(values.clip(0.0))))
        explained = h @ stream.combined(by_row[None])[0]
        return mean + self._as_tensor(F @ z - explained[0])

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
        new, streams = copy(self), np.array(self._streams).reshape(self._batch_shape)
        new._streams = [*np.broadcast_to(streams, shape).ravel()]
        new._batch_shape = shape
        Y = Y.expand(*shape, *Y.shape[-2:])
        new.observe(X, Y, None if noise is None else noise.expand_as(Y))
        return new

    def _events(self, X: Tensor, Y: Tensor | None, Yvar: Tensor | None) -> Array:
        """Return events of each batch element, ``b x 4 x q``; without outcomes they are pending."""
        index, time = self._split(X)
        b, q = len(self._streams), index.shape[-1]
        values, shape = [index, time], (*self._batch_shape, q)
        for name, each, default in ("Y", Y, math.nan), ("Yvar", Yvar, self._noise.item()):
            if each is None:
                values.append(np.full(shape, default))
            else:
                values.append(self._read(name, each, q).numpy(force=True)[..., 0])
        if [each.shape for each in values] != [shape] * 4:
            raise BotorchTensorDimensionError(
                f"Expected the batch shape {tuple(self._batch_shape)}, and of X that or none. "
                f"Got {[tuple(each.shape) for each in (X, Y, Yvar) if each is not None]}."
            )
        new: Array = np.array(values, dtype=np.float64).reshape(4, b, q).swapaxes(0, 1)
        if self.mean_module is not None:
            mean = torch.as_tensor(self._prior_mean(self._rows_at(self._as_tensor(new))))
            new[:, 2] -= mean.numpy(force=True)
        if b > 1 and (new[:, 1] != new[:1, 1]).any():
            raise InputDataError(
                "Expected the same times in all batch elements, which move in step. Got others."
            )
        return new

    def _empty(self) -> Stream:
        """Return what is known before the first event."""
        return Stream(len(self._gain), self._prior_variance)

    def _after(self, stream: Stream, events: Array) -> Stream:
        """Return what is known after more events, ``4 x k``."""
        k = events.shape[-1]
        if k > 1:
            events = events[:, events[1].argsort(kind="stable")]
        if k > 0 and events[1, 0] < stream.now and not self.is_static:
            # One is late: all rows are made again.
            events = np.concatenate([stream.events, stream.pending, events], axis=-1)
            return self._after(self._empty(), events)
        for start in range(0, k, BLOCK_EVENTS):
            part = events[:, start : start + BLOCK_EVENTS]
            self._tidy(stream)
            p, (told,) = len(stream.expected), (part[2] == part[2]).nonzero()
            self._open(stream, part)
            all_came = len(told) == len(stream.expected)
            stream.tell(slice(None) if all_came else p + told, part[:, told])
        if k > 0 and len(stream.expected) > 0:
            stream.root(slice(None))
        return stream

    def _open(self, stream: Stream, events: Array) -> None:
        """Add events as pending, ``4 x q``, in the order of time and none before now."""
        index, time, p = events[0].astype(np.int64), events[1], len(stream.expected)
        t, gain, covar = max(time[-1].item(), stream.now), self._gain, stream.prior[index][:, None]
        A, squares, h, _ = self._over(stream, t)
        # What events see of the states as of now, and their covariances with those as of t.
        if len(index) > 1:
            h = self._observation @ self._transition(self._lag(stream, time))
            gain = self._transition(t - time) @ self._gain
            covar = self._prior(index, time, index, time)
        weights = stream.explained(h, index)
        covar = covar - weights @ weights.T
        covar.reshape(-1)[:: len(index) + 1] += events[3]
        expected = (h * stream.mean[:, index].T).sum(axis=-1)
        stream.transitions = _lead(A, stream.transitions)
        cross = self._states(index, gain)
        cross -= stream.combined(weights)
        stream.mean = _lead(A, stream.mean)
        stream.reduction = _lead(squares, stream.reduction)
        if p > 0:
            between = np.einsum("qs,psq->pq", h, stream.cross[..., index])
            events = np.concatenate([stream.pending, events], axis=-1)
            expected = np.concatenate([stream.expected, expected])
            covar = np.block([[stream.covar, between], [between.T, covar]])
            cross = np.concatenate([_lead(A, stream.cross), cross])
        stream.pending, stream.expected, stream.now = events, expected, t
        stream.covar, stream.cross = covar, cross

    def _tidy(self, stream: Stream) -> None:
        """Drop rows that have faded; of many new ones, look what else is not needed."""
        *parts, last = stream.rows
        # So that there are few parts, and a row is copied a few times.
        while parts and len(parts[-1]) <= min(8 * len(last), CHUNK - len(last)):
            last = np.concatenate([parts.pop(), last])
        stream.rows = *parts, last
        m, oldest = len(stream.made), stream.now - self.memory
        if m > 0 and stream.made[m // 32] <= oldest:
            stream.drop(int(np.searchsorted(stream.made, oldest, side="right")))
        m, many = len(stream.made), min(CHUNK // 2, stream.mean.size)
        if len(stream.rows[-1]) < many:
            return
        fades = m > 0 and stream.now - stream.made[0] > self.memory / 2
        if m > max(2 * stream.rank, many) and not fades:
            stream.merge(NEGLIGIBLE * self.tol * self._prior_variance.max())
        stream.events = stream.events[:, stream.now - stream.events[1] < self._longest]
        num_old = np.searchsorted(stream.made, stream.now - self._single)
        kinds = np.where(np.cumsum([len(rows) for rows in stream.rows]) <= num_old, "f4", "f8")
        pairs = zip(stream.rows, kinds, strict=True)
        stream.rows = tuple(rows.astype(kind, copy=False) for rows, kind in pairs)

    def _marginals(self, stream: Stream, t: float) -> tuple[Array, Array]:
        """Return means, less the prior mean, and variances of all choices, ``n`` each."""
        _, _, h, squares = self._over(stream, t)
        mean, explained = _lead(h, stream.mean), _lead(squares, stream.reduction)
        variance = stream.prior - explained[0]
        return mean[0], np.maximum(variance, 0.0, out=variance)

    def _moments(self, stream: Stream, index: Places, time: Array) -> tuple[Array, Array]:
        """Return means of events ``M x q``, less the prior mean, and their covariances."""
        oldest = time.min(initial=math.inf)
        if not self.is_static and oldest < stream.now:
            mean, covar = self._smoothed(stream, index, time)
        elif index.shape[-1] == 1 and oldest == time.max(initial=-math.inf):
            mean, variance = self._marginals(stream, oldest.item())
            mean, covar = mean[index], variance[index[..., None]]
        else:
            h = self._observation @ self._transition(self._lag(stream, time))
            mean = (h * np.moveaxis(stream.mean[:, index], 0, -1)).sum(axis=-1)
            V = stream.explained(h, index)
            covar = self._prior(index, time, index, time) - V @ V.mT
        variances = np.einsum("...qq->...q", covar)
        np.maximum(variances, LEAST_VARIANCE, out=variances)
        return mean, covar

    def _smoothed(self, stream: Stream, index: Places, time: Array) -> tuple[Array, Array]:
        """Return means and covariances of events ``M x q`` at any times."""
        known, (times, outcomes, noise) = stream.events[0].astype(np.int64), stream.events[1:4]
        precision = np.linalg.inv(self._prior(known, times, known, times) + np.diag(noise))
        cross = self._prior(known, times, index, time)
        V = precision @ cross
        return V.mT @ outcomes, self._prior(index, time, index, time) - V.mT @ cross

    def _prior(self, first: Places, t1: Array, second: Places, t2: Array) -> Array:
        """Return prior covariances of choices ``... x q`` and ``... x p`` at times."""
        lag = torch.from_numpy(abs(t1[..., :, None] - t2[..., None, :]))
        covar: Array = np.sum(
            [
                term.over_time.correlation(lag).numpy()
                * (term.amplitude * term.over_choices.between(first, second))
                for term in self._terms
            ],
            axis=0,
        )
        return covar

    def _prior_factor(self) -> list[Any]:
        """Return a factor ``n x r`` of the prior covariance at one time, and its ``r`` pivots.

        It is a pivoted Cholesky factor, which for smooth kernels has few columns.
        """
        if not self._factor:
            left, rows = self._prior_variance, np.empty((0, len(self.choices)))
            pivots: list[int] = []
            while left.max() > TRUNCATION * self._prior_variance.max():
                pivot = int(left.argmax())
                row = self._observation @ self._states(np.array(pivot), self._gain)
                row = (row - rows[:, pivot] @ rows) / math.sqrt(left[pivot])
                row[pivots] = 0.0
                rows, pivots = np.concatenate([rows, row[None]]), [*pivots, pivot]
                left = (left - np.square(row)).clip(0.0)
                left[pivots] = 0.0
            self._factor += [rows.T, np.array(pivots)]
        return self._factor

    def _states(self, index: Places, gain: Array) -> Array:
        """Return prior covariances of events with states, ``... x S x n``.

        Args:
            index: Their choices, ``...``.
            gain: Covariances of states and process, over time, ``... x S``.
        """
        covar = np.empty((*index.shape, len(self._gain), len(self._prior_variance)))
        for term in self._terms:
            rows = term.over_choices.rows(index)
            covar[..., term.states, :] = gain[..., term.states, None] * rows[..., None, :]
        return covar

    def _lag(self, stream: Stream, time: Any) -> Any:
        """Return times less that of the newest event; zeros where that makes no difference."""
        return 0.0 * time if self.is_static or stream.now == -math.inf else time - stream.now

    def _over(self, stream: Stream, t: float) -> tuple[Any, ...]:
        """Return what leads states to a time, its square, what is seen then, and its square."""
        lag = self._lag(stream, t)
        if lag not in self._lags:
            if len(self._lags) == MANY_LAGS:
                self._lags.clear()
            A = self._transition(np.array(lag))
            h = self._observation[None] @ A
            self._lags[lag] = A, np.kron(A, A), h, np.kron(h, h)
        return self._lags[lag]

    def _transition(self, lag: Array) -> Array:
        """Return the matrices of all terms that lead to a later state, ``... x S x S``."""
        A = np.zeros((*lag.shape, len(self._gain), len(self._gain)))
        for term in self._terms:
            A[..., term.states, term.states] = term.over_time.transition(
                torch.from_numpy(lag)
            ).numpy()
        return A

    def _prior_mean(self, X: Tensor) -> Tensor | float:
        """Return prior means of rows ``... x (d + 1)``, ``...``; zero where there is none."""
        if self.mean_module is None:
            return 0.0
        with torch.no_grad():
            return self.mean_module(X.to(self._noise))

    def _rows_at(self, events: Tensor) -> Tensor:
        """Return the rows of events ``... x 4 x k``, ``... x k x (d + 1)``."""
        index, time, *_ = events.unbind(dim=-2)
        return torch.cat([self.choices[index.long()], time[..., None]], dim=-1)

    def _of_batch(self, values: Sequence[Array]) -> Tensor:
        """Return what was read of each batch element, ``batch_shape x ...``."""
        together = np.stack(values) if len(values) > 1 else values[0]
        return self._as_tensor(together.reshape(*self._batch_shape, *values[0].shape))

    def _as_tensor(self, values: Array) -> Tensor:
        return torch.from_numpy(values).to(self._noise.device)

    def _split(self, X: Tensor) -> tuple[Places, Array]:
        """Return indices and times of rows, ``... x q`` each, broadcast with the batch."""
        check_rows(X, self.choice_set.dim + 1)
        rows = X.numpy(force=True).astype(np.float64, copy=False)
        index, time = self.choice_set.places(rows[..., :-1]), rows[..., -1]
        if self._batch_shape:
            shape = (*self._broadcast({"X": X.shape[:-2]}), X.shape[-2])
            index, time = np.broadcast_to(index, shape), np.broadcast_to(time, shape)
        return index, time

    def get_extra_state(self) -> dict[str, Tensor]:
        """Return what a state has beside the noise variance: the choices, and what was observed."""
        return {
            "choices": self.choices,
            "events": self._of_batch(
                [np.concatenate([each.events, each.pending], axis=-1) for each in self._streams]
            ),
        }

    def set_extra_state(self, state: Mapping[str, Tensor]) -> None:
        """Take in what was observed, ``get_extra_state()`` of a model with the same choices.

        Raises:
            ValueError: if it has others.
        """
        if not torch.equal(state["choices"].to(self.choices), self.choices):
            raise ValueError("Expected a state saved with the same choices. Got one with others.")
        events = state["events"].numpy(force=True)
        events = events.reshape(-1, *events.shape[-2:])
        self._streams = [self._after(self._empty(), each) for each in events]


def _lead(A: Array, states: Array) -> Array:
    """Return states ``... x S x n`` led by matrices ``... x S x S``."""
    return A * states if A.shape[-1] == 1 else A @ states


def _solved(root: Array, values: Array) -> Array:
    """Return the inverse of a lower triangular matrix ``q x q``, times ``q x ...``."""
    # A product is several times as fast as a triangular solve of many columns.
    inverse, _ = dtrtri(root, lower=1)
    solved: Array = inverse @ values.reshape(len(root), -1)
    return solved.reshape(values.shape)
