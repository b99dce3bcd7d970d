"""The exact posterior on a finite set of choices, at constant cost per round."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

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
from torch import Generator, Size, Tensor

from tvbo.kernels import TemporalDecayKernel, TemporalKernel
from tvbo.kernels.temporal import check_markov, decay_exponent, memory_length
from tvbo.models.one_output import OneOutputModel, check_rows, one_noise_variance
from tvbo.models.raw import raw_kernels, raw_mean, raw_noise_variance, with_time
from tvbo.models.time_varying_gp import TimeVaryingGP, make_temporal_kernel
from tvbo.rounding import LEAST_VARIANCE, innovation_deviation, innovation_root
from tvbo.spaces.observations import check_finite
from tvbo.spaces.row_index import RowIndex

MAX_STORED_CHOICES = 5_000
"""Choices up to which their covariance matrix is stored (200 MB). The rows of a larger one are
computed when they are needed."""

MIN_ROWS = 64
"""Least number of rows for which there is room."""

MERGE_FROM = 300
"""Rows from which it is looked whether fewer explain the same. The look costs more than it saves
where there are few."""

MAX_RANK = 1024
"""Rows up to which it is looked whether fewer explain the same."""

BLOCK_EVENTS = 1024
"""Events of which the rows are made at once: a Cholesky factorization of this size costs little."""

MANY_LAGS = 100
"""Number of lags of which it is remembered what leads over them: most rounds are equally long."""

NEGLIGIBLE = 1e-3
"""Share of ``tol`` up to which what a row explains is dropped: there may be many rows."""

TRUNCATION = 1e-12
"""Largest variance that a draw may lack, as a share of the largest prior variance."""

JITTER = 1e-12
"""Added to the variances of what a draw has beyond its prior one, which may be zero."""


class Tensors:
    """A frozen dataclass of tensors and other things."""

    def of(self, change: Callable[[Tensor], Tensor], *but: str) -> Self:
        """Return the same with each tensor changed but some."""
        held = {name: x for name, x in vars(self).items() if name not in but}
        changed: Any = {name: change(x) for name, x in held.items() if isinstance(x, Tensor)}
        new: Self = replace(cast(Any, self), **changed)
        return new


@dataclass(frozen=True, eq=False)
class KroneckerTerm(Tensors):
    """One term of the prior: a kernel over the choices times a temporal kernel.

    Args:
        covar_module: The kernel over the choices, evaluated without gradients.
        choices: ``n x d`` inputs of the kernel.
        matrix: Its covariances of the choices, ``n x n``; None computes them when they are needed.
        variance: Variances of the choices, ``n``, those of the product.
        kernel: The temporal kernel.
        amplitude: Variance by which the product is multiplied, one number.
        observation: Vector whose product with the state is the process, ``s``.
        gain: Covariance of state and process times the amplitude, ``s``.
        exponent: Of a decay, by which a lag is multiplied; the constraint of ε takes longer.
    """

    covar_module: Kernel
    choices: Tensor
    matrix: Tensor | None
    variance: Tensor
    kernel: TemporalKernel
    amplitude: Tensor
    observation: Tensor
    gain: Tensor
    exponent: Tensor | None

    def transition(self, lag: Tensor) -> Tensor:
        """Return the matrices that lead to a later state."""
        if self.exponent is None:
            return self.kernel.transition(lag)
        return (lag * self.exponent).exp()[..., None, None]

    def rows(self, index: Tensor) -> Tensor:
        """Return the covariances of choices ``...`` with all choices, ``... x n``."""
        if self.matrix is not None:
            return self.matrix[index]
        covar: Tensor = self.covar_module(self.choices[index], self.choices).to_dense()
        return covar

    def covariances(self, first: Tensor, second: Tensor, lag: Tensor) -> Tensor:
        """Return prior covariances of choices ``... x q`` and ``... x p``, ``lag`` apart."""
        over_time = self.kernel.correlation(lag) * self.amplitude
        if self.matrix is not None:
            return over_time * self.matrix[first.unsqueeze(-1), second.unsqueeze(-2)]
        covar: Tensor = self.covar_module(self.choices[first], self.choices[second]).to_dense()
        return over_time * covar


@dataclass(frozen=True, eq=False)
class Stream(Tensors):
    """What a model knows as of its newest event; replaced as a whole, so that copies may share it.

    Args:
        events: Index, time, outcome or what stands in for it, noise variance, and whether it is
            pending, ``b x 5 x k``.
        rows: Room for rows as of when they were made, ``b x capacity x S x n``.
        transitions: What leads each row that counts from then to now.
        mean: Mean of the states by the outcomes that came, ``b x S x n``.
        reduction: Covariances of the states of each choice that the rows explain, ``b x S² x n``.
        sensitivity: Derivatives of the mean by the pending outcomes, ``b x p x S x n``.
        expected: Means of the pending outcomes by those that came, ``b x p``.
        pending_covariance: Their covariances by those that came, ``b x p x p``.
        given_back: Rows of pending trials that a copy without these leaves out.
        now: Time of the newest event.
        made: Times of the rows that count, the last ones before ``end``.
        end: Number of rows for which there is no room any more.
        rank: Rows that were needed when it was looked.
    """

    events: Tensor
    rows: Tensor
    transitions: Tensor
    mean: Tensor
    reduction: Tensor
    sensitivity: Tensor
    expected: Tensor
    pending_covariance: Tensor
    given_back: Tensor
    now: float = -math.inf
    made: tuple[float, ...] = ()
    end: int = 0
    rank: int = 0

    @property
    def held(self) -> Tensor:
        """The rows that count, ``b x k x S x n``, as of when they were made."""
        return self.rows[:, self.end - len(self.made) : self.end]

    @property
    def is_pending(self) -> Tensor:
        """Mask of the events whose outcomes are pending."""
        return self.events[0, 4] > 0

    @property
    def told(self) -> Tensor:
        """Events whose outcomes came."""
        return self.events[..., ~self.is_pending] if self.expected.shape[-1] > 0 else self.events


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
    while its outcome is pending: :meth:`open`. With a vector :math:`\partial \text{mean} /
    \partial y` for each pending trial, outcomes may then come in any order.

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
    _prior_variance: Tensor
    _observation: Tensor

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
                "Expected exactly one of forgetting_rate and temporal_kernel. "
                f"Got {'neither' if temporal_kernel is None else 'both'}."
            )
        self.tol = tol
        self.row_index = RowIndex(choices)
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
        first = [_over_choices(kernel, choices) for kernel in kernels]
        if len(kernels) == 1:
            first = first * len(given)
        self._terms = [_term(choices, *pair) for pair in zip(first, given, strict=True)]
        self.is_static = all(term.kernel.is_static for term in self._terms)
        self.num_states = sum(term.kernel.num_states for term in self._terms)
        self._memory = memory_length([term.kernel for term in self._terms], tol)
        variance = torch.stack([term.variance for term in self._terms]).sum(dim=0)
        observation = torch.cat([term.observation for term in self._terms])
        self.register_buffer("_prior_variance", variance, persistent=False)
        self.register_buffer("_observation", observation, persistent=False)
        self.register_buffer("_noise", noise)
        # What is computed of the prior when it is first needed, for all copies: what leads over
        # lags, and a factor.
        self._lags: dict[float, tuple[Tensor, ...]] = {}
        self._factor: list[Tensor] = []
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
        b, n, S = self._batch_shape.numel(), len(self.choices), self.num_states
        new = self._noise.new_zeros
        self._stream = Stream(
            events=new(b, 5, 0),
            rows=new(b, 0, S, n),
            transitions=new(0, S, S),
            mean=new(b, S, n),
            reduction=new(b, S * S, n),
            sensitivity=new(b, 0, S, n),
            expected=new(b, 0),
            pending_covariance=new(b, 0, 0),
            given_back=new(b, 0, S, n),
        )

    def clone_without_data(self) -> StreamingGP:
        """Return the same model without observations, sharing the prior covariance."""
        new = copy(self)
        new.reset()
        return new

    def snapshot(self) -> StreamingGP:
        """Return a copy with the present observations; neither changes with the other."""
        new, stream = copy(self), self._stream
        # Without room for more rows, so that the copy makes its own.
        new._stream = replace(stream, rows=stream.rows[:, : stream.end])
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
        kernel = self._terms[0].kernel
        is_decay = len(self._terms) == 1 and isinstance(kernel, TemporalDecayKernel)
        return kernel.forgetting_rate.detach() if is_decay else None

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """Rows of the outcomes that are not forgotten, ``batch_shape x k x (d + 1)``."""
        return (self._rows_of(self._stream.told),)

    @property
    def train_targets(self) -> Tensor:
        """These outcomes, ``batch_shape x k``."""
        return self._stream.told[:, 2].reshape(*self._batch_shape, -1)

    @property
    def X_pending(self) -> Tensor:
        """Rows of the pending trials, ``batch_shape x p x (d + 1)``."""
        return self._rows_of(self._stream.events[..., self._stream.is_pending])

    @property
    def expected_outcomes(self) -> Tensor:
        """Means of the pending outcomes by those that came, ``batch_shape x p``."""
        expected = self._stream.expected.reshape(*self._batch_shape, -1)
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
        stream, q = self._stream, len(position)
        place = stream.is_pending.nonzero().squeeze(-1)[position]
        events = stream.events.clone()
        b = len(events)
        events[:, 2, place] = self._values("Y", Y, q).reshape(b, q)
        events[:, 4, place] = 0.0
        if Yvar is not None:
            events[:, 3, place] = self._values("Yvar", Yvar, q).reshape(b, q)
            if not torch.equal(events[:, 3, place], stream.events[:, 3, place]):
                self._make_again(events)
                return
        told = torch.zeros_like(stream.expected[0], dtype=torch.bool).index_fill(0, position, True)
        residual = self._residuals(events[..., stream.is_pending][..., told])
        with torch.no_grad():
            self._stream = _learned(replace(stream, events=events), told, residual)

    def discard(self, position: Tensor) -> None:
        """Take pending trials back, as if they had never been opened.

        Args:
            position: Positions among :attr:`X_pending`, ``q``.
        """
        events = self._stream.events
        place = self._stream.is_pending.nonzero().squeeze(-1)[position]
        if (self._stream.now - events[0, 1, place] >= self._memory).all():
            # Outcomes that change nothing, and are forgotten with the others of their time.
            self.tell(position, self.expected_outcomes[..., position].unsqueeze(-1))
            return
        keep = torch.ones_like(events[0, 1], dtype=torch.bool).index_fill(0, place, False)
        self._make_again(events[..., keep])

    def stand_in(self, Y: Tensor) -> None:
        """Set what stands in for all pending outcomes.

        Args:
            Y: Values, ``batch_shape x p``; NaN for the mean by the outcomes that came.
        """
        events = self._stream.events.clone()
        events[:, 2, self._stream.is_pending] = Y.to(events).reshape(len(events), -1)
        self._stream = replace(self._stream, events=events)

    def without_pending(self) -> StreamingGP:
        """Return a copy that knows the outcomes that came, and of no pending trial."""
        new, stream = self.snapshot(), self._stream
        if stream.expected.shape[-1] == 0:
            return new
        root = torch.linalg.cholesky(stream.pending_covariance)
        back = (root.mT @ stream.sensitivity.flatten(2)).view_as(stream.sensitivity)
        new._stream = replace(
            new._stream,
            events=stream.told,
            reduction=stream.reduction - _explained(back),
            sensitivity=stream.sensitivity[:, :0],
            expected=stream.expected[:, :0],
            pending_covariance=stream.pending_covariance[:, :0, :0],
            given_back=back,
        )
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
        shape = (*self._batch_shape, len(self.choices))
        mean, variance = mean.view(shape), variance.clamp_min_(0.0).view(shape)
        if self.mean_module is not None:
            mean = mean + self._prior_mean(with_time(self.choices, t))
        return mean, variance

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
            mean, covar = self._moments(*self._split(X))
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
        h = self._over(t)[2]
        V = (self._by_row(h)[..., None] * self._stream.held[0]).sum(-2)
        back = (h[:, None] * self._stream.given_back[0]).sum(-2)
        F, pivots = self._prior_factor()
        W = torch.linalg.solve_triangular(F[pivots], V[:, pivots].mT, upper=False).mT
        rest = (1 + JITTER) * torch.eye(len(V)).to(V) - W @ W.mT
        values, vectors = torch.linalg.eigh(rest)
        R = vectors * values.clamp_min(0.0).sqrt()
        z, w, b = (
            torch.randn(size, dtype=mean.dtype, generator=generator).to(mean)
            for size in (F.shape[1], len(V), len(back))
        )
        drawn: Tensor = mean + F @ z - (W @ z + R @ w) @ V + b @ back
        return drawn

    def weight(self, age: Tensor) -> Tensor:
        """Return what observations of some ages weigh, of all terms the most."""
        return torch.stack([term.kernel.weight(age) for term in self._terms]).amax(dim=0)

    def prior_covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Return prior covariances of rows ``n x (d + 1)`` and ``m x (d + 1)``, ``n x m``."""
        first, second = (self.row_index.index(X[:, :-1]) for X in (X1, X2))
        return self._prior(first, second, (X1[:, -1:] - X2[:, -1]).abs())

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
            element = self._elements(shape).reshape(-1)
            new._stream = new._stream.of(lambda x: x[element], "transitions")
            new._batch_shape = shape
        Y = Y.expand(*shape, *Y.shape[-2:])
        new.observe(X, Y, None if noise is None else noise.expand_as(Y))
        return new

    def _add(self, X: Tensor, Y: Tensor | None, Yvar: Tensor | None) -> None:
        """Add events at rows ``... x q x (d + 1)``; without outcomes they are pending."""
        index, time, shape = self._split(X)
        q = shape[-1]
        if shape[:-1] != self._batch_shape:
            raise BotorchTensorDimensionError(
                f"Expected X of batch shape {tuple(self._batch_shape)} or none. "
                f"Got X.shape={tuple(X.shape)}."
            )
        outcomes = self._noise.new_tensor(math.nan) if Y is None else self._values("Y", Y, q)
        noise = self._noise if Yvar is None else self._values("Yvar", Yvar, q)
        parts = index.to(time), time, outcomes, noise, self._noise.new_tensor(float(Y is None))
        new = torch.stack(torch.broadcast_tensors(*parts), dim=-2)
        new = new.expand(*self._batch_shape, 5, q).reshape(len(self._stream.events), 5, q)
        if len(new) > 1 and (new[:, 1] != new[:1, 1]).any():
            raise InputDataError(
                "Expected the same times in all batch elements, which move in step. Got others."
            )
        stream = self._stream
        late = not self.is_static and q > 0 and new[0, 1].min().item() < stream.now
        if late or stream.end == 0 or stream.given_back.shape[1] > 0:
            self._make_again(torch.cat([stream.events, new], dim=-1))
        else:
            self._stream = self._after(stream, new)

    def _make_again(self, events: Tensor) -> None:
        """Replace all events, and make their rows; on an error nothing is changed."""
        new, events = self.clone_without_data(), self._in_order(events)
        before_pending = int((events[0, 4] == 0).cumprod(0).sum())
        k = min(before_pending, BLOCK_EVENTS)
        if k > 0:
            new._stream = new._of_block(events[..., :k])
        self._stream = new._after(new._stream, events[..., k:])

    @torch.no_grad()
    def _of_block(self, events: Tensor) -> Stream:
        """Return what outcomes ``b x 5 x k`` tell, in the order of time, with nothing before."""
        index, time, k = events[:, 0].long(), events[0, 1], events.shape[-1]
        covar = self._prior(index, index, (time.unsqueeze(-1) - time).abs())
        root = innovation_root(covar, events[:, 3], self._prior_variance[index])
        states = self._states_after(index, time[-1] - time)
        V = torch.linalg.solve_triangular(root, states.flatten(2), upper=False)
        z = torch.linalg.solve_triangular(root, self._residuals(events)[..., None], upper=False)
        return replace(
            self._stream,
            events=events,
            rows=V.view_as(states),
            transitions=torch.eye(self.num_states).to(V).expand(k, -1, -1),
            mean=(z.mT @ V).view_as(self._stream.mean),
            reduction=_explained(V.view_as(states)),
            now=time.max().item(),
            made=tuple(time.tolist()),
            end=k,
        )

    @torch.no_grad()
    def _after(self, stream: Stream, events: Tensor) -> Stream:
        """Return what is known after more events ``b x 5 x q``, none before now."""
        events = self._in_order(events)
        for j in range(events.shape[-1]):
            stream = self._with_event(self._with_room(stream), events[..., j : j + 1])
        return stream

    def _with_event(self, stream: Stream, event: Tensor) -> Stream:
        """Return what is known after one event ``b x 5 x 1``."""
        t, index, noise = event[0, 1].item(), event[:, 0, 0].long(), event[:, 3, 0]
        A, squares, _, _ = self._over(t, stream.now)
        h, rows, S, k = self._observation, stream.held, self.num_states, len(stream.made)
        transitions, mean = _lead(A, stream.transitions), _lead(A, stream.mean)
        # Covariances with the innovations of the rows held, b x k, and with all states, b x S x n.
        cross = ((h @ transitions) * _column(rows, index)).sum(-1)
        weights = (
            (cross[..., None, None] * transitions).transpose(1, 2).reshape(len(index), S, k * S)
        )
        V = torch.baddbmm(self._states(index), weights, rows.flatten(1, 2), alpha=-1)
        root = innovation_deviation(cross, noise, self._prior_variance[index])
        V = V / root[:, None, None]
        gain = V / root[:, None, None]
        stream.rows[:, stream.end] = V
        expected = (h * _column(mean, index)).sum(-1)
        changed: dict[str, Any] = {}
        is_pending, p = bool(event[0, 4] > 0), stream.expected.shape[-1]
        residual = self._residuals(event)[:, 0]
        if p == 0 and not is_pending:
            mean = mean + (residual - expected)[:, None, None] * gain
        else:
            # As pending; what it says of the others is by the outcomes that came.
            C, sensitivity = stream.pending_covariance, _lead(A, stream.sensitivity)
            shown = (h * _column(sensitivity, index)).sum(-1, keepdim=True)
            between = C @ shown
            variance = root.square()[:, None, None] + shown.mT @ between
            below = torch.cat([between.mT, variance], dim=-1)
            own = gain.view(len(index), 1, -1)
            left = torch.baddbmm(sensitivity.flatten(2), shown, own, alpha=-1)
            changed = {
                "sensitivity": torch.cat([left, own], dim=1).unflatten(-1, mean.shape[1:]),
                "expected": torch.cat([stream.expected, expected.unsqueeze(-1)], dim=-1),
                "pending_covariance": torch.cat([torch.cat([C, between], dim=-1), below], dim=-2),
            }
        stream = replace(
            stream,
            events=torch.cat([stream.events, event], dim=-1),
            transitions=torch.cat([transitions, self._over(t, t)[0].expand(1, S, S)]),
            mean=mean,
            reduction=_lead(squares, stream.reduction) + _explained(V.unsqueeze(1)),
            now=max(t, stream.now),
            made=(*stream.made, t),
            end=stream.end + 1,
            **changed,
        )
        if p > 0 and not is_pending:
            told = torch.arange(p + 1, device=mean.device) == p
            stream = _learned(stream, told, residual.unsqueeze(-1))
        return stream

    def _with_room(self, stream: Stream) -> Stream:
        """Return what is known, less rows that have faded, and with room for one more."""
        faded = bisect_right(stream.made, stream.now - self._memory)
        transitions, made = stream.transitions[faded:], stream.made[faded:]
        stream = replace(stream, transitions=transitions, made=made)
        if stream.end < stream.rows.shape[1]:
            return stream
        V, rank, S = stream.held, stream.rank, self.num_states
        if len(made) >= max(2 * rank, min(MERGE_FROM, 2 * S * V.shape[-1])):
            # A rotation changes no covariance. As of now, so that all rows fade together.
            V = _lead(transitions, V).flatten(2)
            if V.shape[1] > V.shape[2]:
                V = torch.linalg.qr(V, mode="r").R
            if V.shape[1] <= MAX_RANK:
                explained, directions = torch.linalg.eigh(V @ V.mT)
                least = NEGLIGIBLE * self.tol * self._prior_variance.max()
                V = directions[..., explained.amax(dim=0) > least].mT @ V
            V = V.unflatten(-1, (S, -1))
            rank, made = V.shape[1], (stream.now,) * V.shape[1]
            transitions = torch.eye(S).to(V).expand(rank, S, S)
        # Outcomes are known for longer: the mean fades as the root of the weight.
        weighs = (self.weight(stream.now - stream.events[0, 1]) > self.tol**2) | stream.is_pending
        held = V.shape[1]
        rows = V.new_empty(len(V), max(MIN_ROWS, 2 * held), S, V.shape[-1])
        rows[:, :held] = V
        events = stream.events[..., int((weighs.cumsum(0) == 0).sum()) :]
        return replace(
            stream,
            events=events,
            rows=rows,
            transitions=transitions,
            made=made,
            end=held,
            rank=rank,
        )

    def _offset(self) -> Tensor:
        """Return what stands in for the pending outcomes less their means, ``b x p``."""
        stand_ins = self._residuals(self._stream.events[..., self._stream.is_pending])
        return (stand_ins - self._stream.expected).nan_to_num(0.0)

    def _mean(self) -> Tensor:
        """Return the mean of the states, with what stands in for the pending outcomes."""
        stream = self._stream
        if stream.expected.shape[-1] == 0 or not (offset := self._offset()).any():
            return stream.mean
        shift = offset.unsqueeze(1) @ stream.sensitivity.flatten(2)
        return stream.mean + shift.view_as(stream.mean)

    def _marginals(self, t: float) -> tuple[Tensor, Tensor]:
        """Return means, less the prior mean, and variances of all choices, ``b x n`` each."""
        _, _, h, squares = self._over(t, self._stream.now)
        return h @ self._mean(), self._prior_variance - squares @ self._stream.reduction

    def _moments(self, index: Tensor, time: Tensor, shape: Size) -> tuple[Tensor, Tensor]:
        """Return means ``shape`` of events, less the prior mean, and their covariances."""
        stream, q = self._stream, shape[-1]
        late = not self.is_static and bool((time < stream.now).any())
        if q == 1 and not late and time.numel() > 0 and bool((time == time.flatten()[0]).all()):
            mean, variance = self._marginals(time.flatten()[0].item())
            place: Any = (0, index)
            if self._batch_shape:
                place = self._elements(shape[:-1]).unsqueeze(-1), index.expand(shape)
            return mean[place], variance.clamp_min_(LEAST_VARIANCE)[place].unsqueeze(-1)
        element = self._elements(shape[:-1]).reshape(-1)
        index, time = (x.expand(shape).reshape(len(element), q) for x in (index, time))
        if late:
            mean, covar = self._smoothed(element, index, time)
        else:
            lag = time - stream.now if stream.end > 0 else torch.zeros_like(time)
            h = self._observation @ self._transition(lag)
            place = element.unsqueeze(-1), index
            mean = (h * self._mean().movedim(-1, 1)[place]).sum(-1)
            V = (self._by_row(h) * stream.held.permute(0, 3, 1, 2)[place]).sum(-1)
            back = (h.unsqueeze(-2) * stream.given_back.permute(0, 3, 1, 2)[place]).sum(-1)
            covar = self._prior(index, index, (time.unsqueeze(-1) - time.unsqueeze(-2)).abs())
            covar = covar - V @ V.mT + back @ back.mT
        covar.diagonal(dim1=-2, dim2=-1).clamp_min_(LEAST_VARIANCE)
        return mean.view(shape), covar.view(*shape, q)

    def _smoothed(self, element: Tensor, index: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and covariances of batch elements' events ``M x q`` at any times."""
        stream = self._stream
        known, times = stream.events[:, 0].long(), stream.events[0, 1]
        residual = self._residuals(stream.events).clone()
        if stream.expected.shape[-1] > 0:
            residual[:, stream.is_pending] = stream.expected + self._offset()
        covar = self._prior(known, known, (times.unsqueeze(-1) - times).abs())
        root = torch.linalg.cholesky(covar + torch.diag_embed(stream.events[:, 3]))
        a = torch.linalg.solve_triangular(root, residual.unsqueeze(-1), upper=False)
        cross = self._prior(known[element], index, (times.unsqueeze(-1) - time.unsqueeze(-2)).abs())
        V = torch.linalg.solve_triangular(root[element], cross, upper=False)
        covar = self._prior(index, index, (time.unsqueeze(-1) - time.unsqueeze(-2)).abs())
        return (V.mT @ a[element]).squeeze(-1), covar - V.mT @ V

    def _prior(self, first: Tensor, second: Tensor, lag: Tensor) -> Tensor:
        """Return prior covariances of choices ``... x q`` and ``... x p``, ``lag`` apart."""
        one, *others = (term.covariances(first, second, lag) for term in self._terms)
        return sum(others, start=one)

    def _prior_factor(self) -> list[Tensor]:
        """Return a factor ``n x r`` of the prior covariance at one time, and its ``r`` pivots.

        It is a pivoted Cholesky factor, which for smooth kernels has few columns.
        """
        if not self._factor:
            left, h = self._prior_variance.clone(), self._observation[:, None]
            pivots = left.new_empty(0).long()
            limit, columns = TRUNCATION * left.max(), left.new_empty(0, len(left))
            while len(pivots) < len(left) and left.max() > limit:
                pivot = left.argmax()[None]
                column = (h * self._states(pivot)[0]).sum(0) - columns[:, pivot[0]] @ columns
                column[pivots] = 0.0
                columns = torch.cat([columns, (column / left[pivot].sqrt())[None]])
                left = (left - columns[-1].square()).clamp_min(0.0)
                left[pivot] = 0.0
                pivots = torch.cat([pivots, pivot])
            self._factor += [columns.mT, pivots]
        return self._factor

    def _states_after(self, index: Tensor, lag: Tensor) -> Tensor:
        """Return prior covariances of events ``b x k`` with states later, ``b x k x S x n``."""
        parts = []
        for term in self._terms:
            gain = term.transition(lag) @ term.gain.unsqueeze(-1)
            parts.append(gain * term.rows(index).unsqueeze(-2))
        return torch.cat(parts, dim=-2)

    def _states(self, index: Tensor) -> Tensor:
        """Return prior covariances of choices ``b`` with states at the same time, ``b x S x n``."""
        parts = [term.gain[:, None] * term.rows(index).unsqueeze(1) for term in self._terms]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _over(self, t: float, now: float | None = None) -> tuple[Tensor, ...]:
        """Return what leads states to a time, their squares, what is seen then, and its square."""
        now = self._stream.now if now is None else now
        lag = t - now if now > -math.inf and not self.is_static else 0.0
        if lag not in self._lags:
            if len(self._lags) == MANY_LAGS:
                self._lags.clear()
            A = self._transition(self._noise.new_tensor(lag))
            h = self._observation @ A
            self._lags[lag] = A, _squares(A), h, (h.unsqueeze(-1) * h).flatten()
        return self._lags[lag]

    def _elements(self, shape: Sequence[int]) -> Tensor:
        """Return the numbers of the batch elements, expanded to a shape."""
        b = self._batch_shape.numel()
        return torch.arange(b, device=self._noise.device).reshape(self._batch_shape).expand(shape)

    def _transition(self, lag: Tensor) -> Tensor:
        """Return the matrices of all terms that lead to a later state, ``... x S x S``."""
        parts = [term.transition(lag) for term in self._terms]
        if len(parts) == 1:
            return parts[0]
        A, first = lag.new_zeros(*lag.shape, self.num_states, self.num_states), 0
        for part in parts:
            last = first + part.shape[-1]
            A[..., first:last, first:last] = part
            first = last
        return A

    def _by_row(self, h: Tensor) -> Tensor:
        """Return the vectors whose products with the rows events see, ``... x k x S``."""
        transitions = self._stream.transitions
        by_row: Tensor = h @ transitions.transpose(0, 1).flatten(1)
        by_row = by_row.unflatten(-1, transitions.shape[:2])
        return by_row

    def _prior_mean(self, X: Tensor) -> Tensor:
        assert self.mean_module is not None
        with torch.no_grad():
            mean: Tensor = self.mean_module(X.to(self._noise))
            return mean

    def _residuals(self, events: Tensor) -> Tensor:
        """Return outcomes, or what stands in for them, less the prior mean, ``b x k``."""
        if self.mean_module is None:
            return events[:, 2]
        return events[:, 2] - self._prior_mean(self._rows_of(events)).view_as(events[:, 2])

    def _rows_of(self, events: Tensor) -> Tensor:
        """Return the rows of events, ``batch_shape x k x (d + 1)``."""
        X = torch.cat([self.choices[events[:, 0].long()], events[:, 1].unsqueeze(-1)], dim=-1)
        return X.reshape(*self._batch_shape, *X.shape[1:])

    def _in_order(self, events: Tensor) -> Tensor:
        """Return events in the order of time, where that makes a difference."""
        if self.is_static or events.shape[-1] == 1:
            return events
        return events[..., events[0, 1].argsort(stable=True)]

    def _split(self, X: Tensor) -> tuple[Tensor, Tensor, Size]:
        """Return indices and times of rows, ``... x q`` each, and what they broadcast to."""
        check_rows(X, self.row_index.dim + 1)
        shape = X.shape[:-1]
        if self._batch_shape:
            shape = Size((*self._broadcast({"X": X.shape[:-2]}), X.shape[-2]))
        return self.row_index.index(X[..., :-1]), X[..., -1].to(self._noise), shape

    def _values(self, name: str, values: Tensor, q: int) -> Tensor:
        """Return outcomes or noise variances of ``q`` events, ``batch_shape x q``."""
        shape = (*self._batch_shape, q, 1)
        if values.shape != shape:
            raise BotorchTensorDimensionError(
                f"Expected {name} of shape batch_shape x q x 1 = {shape}. "
                f"Got {name}.shape={tuple(values.shape)}."
            )
        check_finite(name, values)
        if name == "Yvar" and (values < 0).any():
            raise InputDataError(f"Expected Yvar >= 0. Got {values.min().item()}.")
        return self._transformed(values.to(self._noise), name == "Yvar").squeeze(-1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        device = self._noise.device
        super()._apply(fn, recurse)
        if self._noise.device != device:
            self._terms = [term.of(fn) for term in self._terms]
            self._stream, self._lags, self._factor = self._stream.of(fn), {}, []
        return self

    def get_extra_state(self) -> dict[str, Tensor]:
        """Return what a state has beside the noise variance: the choices, and what was observed."""
        return {"choices": self.choices, "events": self._stream.events}

    def set_extra_state(self, state: Mapping[str, Tensor]) -> None:
        """Take in what was observed, ``get_extra_state()`` of a model with the same choices.

        Raises:
            ValueError: if it has others.
        """
        if not torch.equal(state["choices"].to(self.choices), self.choices):
            raise ValueError("Expected a state saved with the same choices. Got one with others.")
        self._make_again(state["events"].to(self.choices))


def _over_choices(kernel: Kernel, choices: Tensor) -> tuple[Kernel, Tensor, Tensor | None]:
    """Return a copy of a kernel, its variances, and its covariances where they are stored."""
    kernel, matrix = deepcopy(kernel).to(choices).eval(), None
    with torch.no_grad():
        variances = kernel(choices, diag=True)
        if len(choices) <= MAX_STORED_CHOICES:
            matrix = kernel(choices).to_dense()
    if not (torch.isfinite(variances) & (variances >= 0)).all():
        raise ValueError(
            "Expected a kernel with finite variances >= 0 on the choices. "
            f"Got variances from {variances.min():.3g} to {variances.max():.3g}."
        )
    return kernel, variances, matrix


def _term(
    choices: Tensor, over_choices: tuple[Kernel, Tensor, Tensor | None], over_time: Kernel
) -> KroneckerTerm:
    """Return the product of a kernel over the choices and a temporal one, scaled or not."""
    covar_module, variances, matrix = over_choices
    amplitude = choices.new_ones(())
    if isinstance(over_time, ScaleKernel):
        amplitude, over_time = over_time.outputscale.detach().to(choices), over_time.base_kernel
    kernel = deepcopy(check_markov(over_time)).requires_grad_(False).to(choices).eval()
    h, exponent = kernel.observation.to(choices), None
    if isinstance(kernel, TemporalDecayKernel):
        exponent = decay_exponent(kernel.forgetting_rate).squeeze(-1)
    gain = amplitude * (kernel.stationary_covariance().to(choices) @ h)
    over_actions = covar_module, choices, matrix, amplitude * variances
    return KroneckerTerm(*over_actions, kernel, amplitude, h, gain, exponent)


def _learned(stream: Stream, told: Tensor, residual: Tensor) -> Stream:
    """Take in outcomes less the prior mean, ``b x t``, of some of the pending trials, ``p``."""
    C, S, rest = stream.pending_covariance, stream.sensitivity, ~told
    error = (residual - stream.expected[:, told]).unsqueeze(-1)
    root = torch.linalg.cholesky(C[:, told][:, :, told])
    whitened = torch.linalg.solve_triangular(root, C[:, told], upper=False)
    error = torch.linalg.solve_triangular(root, error, upper=False)
    change = whitened.mT @ error
    return replace(
        stream,
        mean=stream.mean + (change.mT @ S.flatten(2)).view_as(stream.mean),
        expected=(stream.expected + change.squeeze(-1))[:, rest],
        sensitivity=S[:, rest],
        pending_covariance=(C - whitened.mT @ whitened)[:, rest][:, :, rest],
    )


def _column(values: Tensor, index: Tensor) -> Tensor:
    """Return the entries of choices ``b`` in values ``b x ... x n``, ``b x ...``."""
    if len(index) == 1:
        return values[..., int(index)]
    here = index.view(-1, *[1] * (values.ndim - 1)).expand(*values.shape[:-1], 1)
    return values.gather(-1, here).squeeze(-1)


def _lead(A: Tensor, states: Tensor) -> Tensor:
    """Return states ``... x S x n`` led by matrices ``... x S x S``."""
    return A * states if A.shape[-1] == 1 else A @ states


def _explained(rows: Tensor) -> Tensor:
    """Return covariances of the states of each choice that rows explain, ``b x S² x n``."""
    if rows.shape[-2] == 1:
        return rows.square().sum(dim=1)
    return (rows.unsqueeze(-2) * rows.unsqueeze(-3)).sum(dim=1).flatten(1, 2)


def _squares(A: Tensor) -> Tensor:
    """Return the Kronecker products of matrices with themselves, ``... x p² x q²``."""
    return (A[..., :, None, :, None] * A[..., None, :, None, :]).flatten(-2).flatten(-3, -2)
