"""The exact posterior on a finite set of choices, at constant cost per round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from functools import partial
from typing import Any, ClassVar, cast

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
from torch.nn import Module, ModuleList

from tvbo.kernels import TemporalDecayKernel, TemporalKernel
from tvbo.kernels.temporal import check_markov, decay_exponent
from tvbo.models.one_output import OneOutputModel, check_rows, one_noise_variance
from tvbo.models.raw import RawMean, has_zero_mean, raw_kernels, raw_noise_variance, with_time
from tvbo.models.time_varying_gp import TimeVaryingGP, make_temporal_kernel
from tvbo.rounding import LEAST_VARIANCE, innovation_root
from tvbo.spaces.observations import check_finite
from tvbo.spaces.row_index import RowIndex

MAX_STORED_CHOICES = 5_000
"""Choices up to which their covariance matrix is stored (200 MB). The rows of a larger one are
computed when they are needed."""

MIN_ROWS = 64
"""Least number of rows for which there is room."""

MAX_RANK = 1024
"""Rows up to which it is looked whether fewer explain the same."""

BLOCK_EVENTS = 256
"""Events of which the rows are made at once: a Cholesky factorization of this size costs little."""

NEGLIGIBLE = 1e-3
"""Share of ``tol`` up to which what a row explains is dropped: there may be many rows."""

TRUNCATION = 1e-13
"""Largest variance that a draw may lack, as a share of the largest prior variance."""

PATH_JITTER = 1e-10
"""Share of its variance added to the path of a draw, whose covariance over time may be singular."""

UNBATCHED = ("transitions", "_noise", "_prior_variance", "_observation")
"""What all models of a batch have in common."""


class KroneckerTerm(Module):
    """One term of the prior: a kernel over the choices times a temporal kernel.

    Args:
        choices: ``n x d`` inputs of the kernel.
        covar_module: The kernel over the choices, evaluated without gradients.
        variances: Its variances of the choices, ``n``.
        matrix: Its covariances of the choices, ``n x n``; None computes them when they are needed.
        kernel: The temporal kernel.
        amplitude: Variance by which the product is multiplied, one number.
    """

    choices: Tensor
    variances: Tensor
    matrix: Tensor | None
    amplitude: Tensor
    observation: Tensor
    gain: Tensor
    exponent: Tensor | None
    _factor: Tensor | None

    def __init__(
        self,
        choices: Tensor,
        covar_module: Kernel,
        variances: Tensor,
        matrix: Tensor | None,
        kernel: TemporalKernel,
        amplitude: Tensor,
    ):
        super().__init__()
        # Acquisitions visit all modules of their model, so that an unneeded one costs time.
        self.covar_module = covar_module if matrix is None else None
        self.kernel = kernel
        observation = kernel.observation.detach().to(choices)
        gain = amplitude * (kernel.stationary_covariance().detach().to(choices) @ observation)
        exponent = None
        if isinstance(kernel, TemporalDecayKernel):
            exponent = decay_exponent(kernel.forgetting_rate.detach())
        for name, value in (
            ("choices", choices),
            ("variances", variances),
            ("matrix", matrix),
            ("amplitude", amplitude),
            ("observation", observation),
            ("gain", gain),
            ("exponent", exponent),
            ("_factor", None),
        ):
            self.register_buffer(name, value, persistent=False)

    def correlation(self, lag: Tensor) -> Tensor:
        """Return the correlation of two times; with a parameter's constraint it takes longer."""
        return (
            self.kernel.correlation(lag) if self.exponent is None else (lag * self.exponent).exp()
        )

    def transition(self, lag: Tensor) -> Tensor:
        """Return the matrices that lead to a later state."""
        if self.exponent is None:
            return self.kernel.transition(lag)
        return (lag * self.exponent).exp()[..., None, None]

    def rows(self, index: Tensor) -> Tensor:
        """Return the covariances of choices ``...`` with all choices, ``... x n``."""
        if self.matrix is not None:
            return self.matrix[index]
        return self._evaluate(index, torch.arange(len(self.choices)).to(index))

    def covariances(self, first: Tensor, second: Tensor, lag: Tensor) -> Tensor:
        """Return prior covariances of choices ``... x q`` and ``... x p``, ``lag`` apart."""
        over_time = self.amplitude * self.correlation(lag)
        if self.matrix is not None:
            return over_time * self.matrix[first.unsqueeze(-1), second.unsqueeze(-2)]
        return over_time * self._evaluate(first, second)

    def factor(self) -> Tensor:
        """Return a factor ``n x r`` of the covariance matrix of the choices, for draws.

        It is a pivoted Cholesky factor, which for smooth kernels has few columns.
        """
        if self._factor is None:
            rest = self.variances.clone()
            limit, columns = TRUNCATION * rest.max(), rest.new_empty(0, len(rest))
            while len(columns) < len(rest) and rest.max() > limit:
                pivot = rest.argmax()
                column = self.rows(pivot[None]).flatten() - columns[:, pivot] @ columns
                columns = torch.cat([columns, (column / rest[pivot].sqrt()).unsqueeze(0)])
                rest = (rest - columns[-1].square()).clamp_min(0.0)
                rest[pivot] = 0.0
            self._factor = columns.mT
        return self._factor

    def _evaluate(self, first: Tensor, second: Tensor) -> Tensor:
        assert self.covar_module is not None  # since the matrix is not stored
        with torch.no_grad():
            covar: Tensor = self.covar_module(self.choices[first], self.choices[second]).to_dense()
            return covar


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
        num_rows: Number of rows held.

    Example:
        >>> model = StreamingGP(choices, RBFKernel(), forgetting_rate=0.03, noise_variance=0.01)
        >>> model.observe(torch.tensor([[0.2, 0.4, 1.0]]), torch.tensor([[0.7]]))  # [x1, x2, t]
        >>> model.posterior(torch.tensor([[0.2, 0.4, 2.0]])).mean
    """

    remembers_rows: ClassVar[bool] = True
    """All choices are found at once, without a search for each: they are evaluated at once."""

    rows: Tensor
    transitions: Tensor
    mean: Tensor
    reduction: Tensor
    given_back: Tensor
    sensitivity: Tensor
    expected: Tensor
    pending_covariance: Tensor
    events: Tensor
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
        over_choices = [_over_choices(kernel, choices) for kernel in kernels]
        if len(kernels) == 1:
            over_choices = over_choices * len(given)
        terms = []
        for over_actions, over_time in zip(over_choices, given, strict=True):
            amplitude, temporal = choices.new_ones(()), over_time
            if isinstance(over_time, ScaleKernel):
                amplitude = over_time.outputscale.detach().to(choices)
                temporal = over_time.base_kernel
            temporal = deepcopy(check_markov(temporal)).requires_grad_(False).to(choices).eval()
            terms.append(KroneckerTerm(choices, *over_actions, temporal, amplitude))
        self.terms = ModuleList(terms)
        self.is_static = all(term.kernel.is_static for term in terms)
        self.num_states = sum(term.kernel.num_states for term in terms)
        variance = torch.stack([term.amplitude * term.variances for term in terms]).sum(dim=0)
        observation = torch.cat([term.observation for term in terms])
        self.register_buffer("_prior_variance", variance, persistent=False)
        self.register_buffer("_observation", observation, persistent=False)
        self.register_buffer("_noise", noise)
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
            mean_module=None if has_zero_mean(model) else RawMean(model),
            tol=tol,
        )

    def reset(self) -> None:
        """Discard all observations."""
        b, n, S = self._batch_shape.numel(), len(self.choices), self.num_states
        none = self._noise.new_empty(b, 0)
        empty = {
            "rows": none.new_empty(b, 0, S, n),
            # What leads each row from the time when it was made to now.
            "transitions": none.new_empty(0, S, S),
            # Sums over the rows, as of now: of the outcomes that came, and of all rows.
            "mean": none.new_zeros(b, S, n),
            "reduction": none.new_zeros(b, S * S, n),
            # Rows of pending trials that a copy without these leaves out.
            "given_back": none.new_empty(b, 0, S, n),
            # Of the pending outcomes: derivatives of the mean; means and covariances by those told.
            "sensitivity": none.new_empty(b, 0, S, n),
            "expected": none,
            "pending_covariance": none.new_empty(b, 0, 0),
        }
        for name, value in empty.items():
            self.register_buffer(name, value, persistent=False)
        # Index, time, outcome or what stands in for it, noise variance, whether it is pending.
        self.register_buffer("events", none.new_empty(b, 5, 0))
        # Number of rows, time of the newest event, rows that were needed when it was looked.
        self.num_rows, self._now, self._rank = 0, -math.inf, 2 * MIN_ROWS

    def clone_without_data(self) -> StreamingGP:
        """Return the same model without observations, sharing the prior covariance."""
        new = self.snapshot()
        new.reset()
        return new

    def snapshot(self) -> StreamingGP:
        """Return a copy with the present observations; neither changes with the other."""
        new = copy(self)
        new._modules = dict(self._modules)
        new._buffers = dict(self._buffers)
        # Without room for more rows, so that the copy makes its own.
        new.rows = self.rows[:, : self.num_rows]
        return new

    @property
    def choices(self) -> Tensor:
        """The choices, ``n x d``."""
        return self.row_index.choices

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
        is_decay = len(self.terms) == 1 and isinstance(kernel, TemporalDecayKernel)
        return kernel.forgetting_rate.detach() if is_decay else None

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """Rows of the outcomes that are not forgotten, ``batch_shape x k x (d + 1)``."""
        return (self._rows_of(self._told),)

    @property
    def train_targets(self) -> Tensor:
        """These outcomes, ``batch_shape x k``."""
        return self._told[:, 2].reshape(*self._batch_shape, -1)

    @property
    def X_pending(self) -> Tensor:
        """Rows of the pending trials, ``batch_shape x p x (d + 1)``."""
        return self._rows_of(self.events[..., self._is_pending])

    @property
    def expected_outcomes(self) -> Tensor:
        """Means of the pending outcomes by those that came, ``batch_shape x p``."""
        expected = self.expected.reshape(*self._batch_shape, -1)
        return expected + self._prior_mean(self.X_pending)

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
        self._add(X, self._values("Y", Y, X), Yvar, is_pending=0.0)

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
        self._add(X, self._noise.new_tensor(math.nan), Yvar, is_pending=1.0)

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
        place = self._is_pending.nonzero().squeeze(-1)[position]
        X, shape = self.X_pending[..., position, :], (len(self.events), len(position))
        events = self.events.clone()
        events[:, 2, place] = self._values("Y", Y, X).reshape(shape)
        events[:, 4, place] = 0.0
        if Yvar is not None:
            events[:, 3, place] = self._values("Yvar", Yvar, X).reshape(shape)
        if not torch.equal(events[:, 3], self.events[:, 3]):
            self._make_again(events)
            return
        told = torch.zeros_like(self.expected[0], dtype=torch.bool).index_fill(0, position, True)
        residual = self._residuals(events)[:, self._is_pending][:, told]
        self.events = events
        with torch.no_grad():
            self._learn(told, residual)

    def discard(self, position: Tensor) -> None:
        """Take pending trials back, as if they had never been opened.

        Args:
            position: Positions among :attr:`X_pending`, ``q``.
        """
        place = self._is_pending.nonzero().squeeze(-1)[position]
        if (self.weight(self._now - self.events[0, 1, place]) <= self.tol).all():
            # Outcomes that change nothing, and are forgotten with the others of their time.
            self.tell(position, self.expected_outcomes[..., position].unsqueeze(-1))
            return
        keep = torch.ones_like(self._is_pending).index_fill(0, place, False)
        self._make_again(self.events[..., keep])

    def stand_in(self, Y: Tensor) -> None:
        """Set what stands in for all pending outcomes.

        Args:
            Y: Values, ``batch_shape x p``; NaN for the mean by the outcomes that came.
        """
        self.events = self.events.clone()
        self.events[:, 2, self._is_pending] = Y.to(self._noise).reshape(len(self.events), -1)

    def without_pending(self) -> StreamingGP:
        """Return a copy that knows the outcomes that came, and of no pending trial."""
        new = self.snapshot()
        if self.expected.shape[-1] == 0:
            return new
        root = torch.linalg.cholesky(self.pending_covariance)
        new.given_back = (root.mT @ self.sensitivity.flatten(2)).view_as(self.sensitivity)
        new.reduction = self.reduction - _explained(new.given_back)
        new.sensitivity, new.expected = self.sensitivity[:, :0], self.expected[:, :0]
        new.pending_covariance = self.pending_covariance[:, :0, :0]
        new.events = self._told
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
        if not math.isfinite(t) or (t < self._now and not self.is_static):
            raise InputDataError(
                f"Expected a time at or after the newest event, t={self._now:g}. Got t={t:g}."
            )
        h = self._observation_row(self._lag(self._noise.new_tensor([t])))
        mean = (h @ self._mean()).reshape(*self._batch_shape, -1)
        if self.mean_module is not None:
            mean = mean + self._prior_mean(with_time(self.choices, t))
        variance = self._prior_variance - (_squares(h) @ self.reduction).squeeze(1)
        return mean, variance.clamp_min(0.0).reshape(*self._batch_shape, -1)

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
        index, time, shape = self._split(X)
        element = self._elements.expand(shape[:-1]).reshape(-1)
        flat = len(element), shape[-1]
        index, time = (x.expand(shape).reshape(flat) for x in (index, time))
        with torch.no_grad():
            late = not self.is_static and bool((time < self._now).any())
            mean, covar = (self._smooth if late else self._predict)(element, index, time)
        mean = mean.reshape(shape) + self._prior_mean(X)
        covar = covar.reshape(*shape, shape[-1])
        return self._posterior(mean, covar, X, observation_noise, posterior_transform)

    def draw(self, t: float, generator: Generator) -> Tensor:
        r"""Draw one function from the joint posterior over all choices at one time.

        The model has no batch.

        By Matheron's rule: a draw :math:`f^*` of the prior and its noisy outcomes :math:`y^*` at
        the events give :math:`f^* + k(\cdot, X) K_y^{-1} (y - y^*)`, in :math:`O(k^3)` for ``k``
        events that are not forgotten.

        Args:
            t: Time of the draw, not before the newest event.
            generator: Source of randomness.

        Returns:
            ``n`` values.

        Raises:
            InputDataError: if ``t`` is not finite or lies before the newest event.
        """
        mean, _ = self.marginals(t)
        events = self.events[..., self.weight(self._now - self.events[0, 1]) > self.tol]
        k = events.shape[-1]
        index, times = events[0, 0].long(), torch.cat([events[0, 1], mean.new_tensor([t])])
        randn = partial(torch.randn, dtype=mean.dtype, generator=generator)
        function, shown = torch.zeros_like(mean), mean.new_zeros(k, len(mean))
        outcomes = randn(k).to(mean) * events[0, 3].sqrt()
        for term in self._terms:
            factor = term.factor()
            known = torch.zeros_like(times) if term.kernel.is_static else times
            distinct, place = known.unique(return_inverse=True)
            apart = (distinct.unsqueeze(-1) - distinct).abs()
            over_time = term.correlation(apart)
            over_time = over_time + PATH_JITTER * torch.eye(len(distinct)).to(apart)
            normal = randn(len(distinct) * factor.shape[-1]).to(mean)
            path = torch.linalg.cholesky(term.amplitude * over_time) @ normal.view(
                len(distinct), -1
            )
            function = function + factor @ path[place[-1]]
            outcomes = outcomes + (factor[index] * path[place[:-1]]).sum(-1)
            correlation = term.amplitude * term.correlation((t - events[0, 1]).abs())
            shown = shown + correlation.unsqueeze(-1) * term.rows(index)
        if k > 0:
            root = self._event_root(events)[0]
            weights = torch.cholesky_solve(outcomes.unsqueeze(-1), root).squeeze(-1)
            function = function - weights @ shown
        return mean + function

    def weight(self, age: Tensor) -> Tensor:
        """Return what observations of some ages weigh, of all terms the most."""
        return torch.stack([term.kernel.weight(age) for term in self._terms]).amax(dim=0)

    def prior_covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Return prior covariances of rows ``n x (d + 1)`` and ``m x (d + 1)``, ``n x m``.

        With checks, :func:`tvbo.models.covariance.prior_covariance`.
        """
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
            element = self._elements.expand(shape).reshape(-1)
            for name in new._buffers.keys() - set(UNBATCHED):
                new._buffers[name] = getattr(new, name)[element]
            new._batch_shape = shape
        Y = Y.expand(*shape, *Y.shape[-2:])
        new.observe(X, Y, None if noise is None else noise.expand_as(Y))
        return new

    def _add(self, X: Tensor, Y: Tensor, Yvar: Tensor | None, is_pending: float) -> None:
        """Add events at rows ``... x q x (d + 1)``."""
        index, time, shape = self._split(X)
        if shape[:-1] != self._batch_shape:
            raise BotorchTensorDimensionError(
                f"Expected X of batch shape {tuple(self._batch_shape)} or none. "
                f"Got X.shape={tuple(X.shape)}."
            )
        noise = self._noise if Yvar is None else self._values("Yvar", Yvar, X)
        parts = (index.to(time), time, Y, noise, self._noise.new_tensor(is_pending))
        flat = len(self.events), shape[-1]
        new = torch.stack([part.expand(shape).reshape(flat) for part in parts], dim=1)
        if flat[0] > 1 and (new[:, 1] != new[:1, 1]).any():
            raise InputDataError(
                "Expected the same times in all batch elements, which move in step. Got others."
            )
        if shape[-1] == 0:
            return
        late = not self.is_static and bool(new[0, 1].min() < self._now)
        if late or shape[-1] > BLOCK_EVENTS or self.given_back.shape[1] > 0:
            self._make_again(torch.cat([self.events, new], dim=-1))
        else:
            with torch.no_grad():
                self._take_in(self._in_order(new))

    def _make_again(self, events: Tensor) -> None:
        """Replace all events, and make their rows; on an error nothing is changed."""
        new = self.clone_without_data()
        with torch.no_grad():
            for block in self._in_order(events).split(BLOCK_EVENTS, dim=-1):
                if block.shape[-1] > 0:
                    new._take_in(block)
        self._buffers = new._buffers
        self.num_rows, self._now, self._rank = new.num_rows, new._now, new._rank

    def _take_in(self, new: Tensor) -> None:
        """Add events ``b x 5 x q`` in the order of time, none before now."""
        b, _, q = new.shape
        self._make_room(q)
        index, time = new[:, 0].long(), new[0, 1]
        newest = max(self._now, time[-1].item())
        k, n, S = self.num_rows, len(self.choices), self.num_states
        rows = self.rows[:, :k]
        A = self._transition(self._lag(time))
        h, A = self._observation @ A, A[-1]
        # Covariances with the innovations of the rows held, b x q x k, and with one another.
        cross = (self._by_row(h) * _columns(rows, index)).sum(-1)
        variance = self._prior_variance[index]
        covar = variance.unsqueeze(-1)
        if q > 1:
            covar = self._prior(index, index, (time.unsqueeze(-1) - time).abs())
        root = innovation_root(covar - cross @ cross.mT, new[:, 3], variance)
        # Covariances with all states as of the newest, b x q x S x n.
        transitions = _lead(A, self.transitions)
        weights = cross[:, :, None, :, None] * transitions.transpose(0, 1)
        states = torch.baddbmm(
            self._states_after(index, newest - time).flatten(1, 2),
            weights.reshape(b, q * S, k * S),
            rows.flatten(1, 2),
            alpha=-1,
        )
        V = states.view(b, q, S * n)
        if q == 1:
            V = V / root
            gain = V / root
        else:
            V = torch.linalg.solve_triangular(root, V, upper=False)
            gain = torch.linalg.solve_triangular(root.mT, V, upper=True)
        V = V.view(b, q, S, n)
        self.rows[:, k : k + q] = V
        predicted = (_columns(self.mean.unsqueeze(1), index).squeeze(2) * h).sum(-1)
        mean, residual, pending = _lead(A, self.mean), self._residuals(new), new[0, 4] > 0
        p = self.expected.shape[-1]
        all_came = p == 0 and not pending.any()
        if all_came:
            error = (residual - predicted).unsqueeze(1)
            mean = torch.baddbmm(mean.view(b, 1, -1), error, gain).view_as(mean)
        else:
            self._extend(index, root, predicted, gain, h, A)
        # At once, since a module sets its buffers one by one slowly.
        self._buffers.update(
            transitions=torch.cat([transitions, torch.eye(S).to(A).expand(q, S, S)]),
            mean=mean,
            reduction=_lead(_squares(A), self.reduction) + _explained(V),
            events=torch.cat([self.events, new], dim=-1),
        )
        self.num_rows, self._now = k + q, newest
        if not all_came and not pending.all():
            told = torch.cat([pending.new_zeros(p), ~pending])
            self._learn(told, residual[:, ~pending])

    def _extend(
        self, index: Tensor, root: Tensor, predicted: Tensor, gain: Tensor, h: Tensor, A: Tensor
    ) -> None:
        """Count new events as pending; what they say of the others is by the outcomes that came."""
        shown = (_columns(self.sensitivity, index) * h.unsqueeze(1)).sum(-1).mT
        between = self.pending_covariance @ shown
        faded = _lead(A, self.sensitivity).flatten(2) - shown @ gain
        above = torch.cat([self.pending_covariance, between], dim=-1)
        below = torch.cat([between.mT, root @ root.mT + shown.mT @ between], dim=-1)
        self.pending_covariance = torch.cat([above, below], dim=-2)
        sensitivity = torch.cat([faded, gain], dim=1)
        self.sensitivity = sensitivity.unflatten(-1, self.mean.shape[1:])
        self.expected = torch.cat([self.expected, predicted], dim=-1)

    def _learn(self, told: Tensor, residual: Tensor) -> None:
        """Take in outcomes less the prior mean, ``b x t``, of some of the pending trials."""
        C, S, rest = self.pending_covariance, self.sensitivity, ~told
        error = (residual - self.expected[:, told]).unsqueeze(-1)
        root = torch.linalg.cholesky(C[:, told][:, :, told])
        whitened = torch.linalg.solve_triangular(root, C[:, told], upper=False)
        error = torch.linalg.solve_triangular(root, error, upper=False)
        change = whitened.mT @ error
        self.mean = self.mean + (change.mT @ S.flatten(2)).view_as(self.mean)
        self.expected = (self.expected + change.squeeze(-1))[:, rest]
        self.sensitivity = S[:, rest]
        self.pending_covariance = (C - whitened.mT @ whitened)[:, rest][:, :, rest]

    def _make_room(self, q: int) -> None:
        """Make room for ``q`` rows: drop those that have faded, keep no more than it takes."""
        if self.num_rows + q <= self.rows.shape[1]:
            return
        # Outcomes are known for longer: the mean fades as the root of the weight.
        weighs = (self.weight(self._now - self.events[0, 1]) > self.tol**2) | self._is_pending
        self.events = self.events[..., int((weighs.cumsum(0) == 0).sum()) :]
        V = _lead(self.transitions, self.rows[:, : self.num_rows]).flatten(2)
        least = NEGLIGIBLE * self.tol * self._prior_variance.max()
        V = V[:, V.square().amax(dim=(0, 2)) > least]
        if V.shape[1] > max(MIN_ROWS, V.shape[2]):
            # A triangular factor explains the same.
            V = torch.linalg.qr(V, mode="r").R
        if 2 * self._rank < V.shape[1] <= MAX_RANK:
            explained, directions = torch.linalg.eigh(V @ V.mT)
            V = directions[..., explained.amax(dim=0) > least].mT @ V
            self._rank = V.shape[1]
        held = self.num_rows = V.shape[1]
        self.transitions = torch.eye(self.num_states).to(V).expand(held, -1, -1)
        self.rows = V.new_empty(
            len(V), max(MIN_ROWS, held + held // 2, held + q), *self.mean.shape[1:]
        )
        self.rows[:, :held] = V.unflatten(-1, self.mean.shape[1:])

    def _mean(self) -> Tensor:
        """Return the mean of the states, with what stands in for the pending outcomes."""
        if self.expected.shape[-1] == 0:
            return self.mean
        offset = self._residuals(self.events)[:, self._is_pending] - self.expected
        shift = offset.nan_to_num(0.0).unsqueeze(1) @ self.sensitivity.flatten(2)
        return self.mean + shift.view_as(self.mean)

    def _predict(self, element: Tensor, index: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and covariances of batch elements' events ``M x q``, none before now."""
        h = self._observation_row(self._lag(time))
        place = element.unsqueeze(-1), slice(None), index
        mean = (h * self._mean()[place]).sum(-1)
        prior = self._prior_variance[index]
        if index.shape[-1] == 1:
            squares = (h.unsqueeze(-1) * h.unsqueeze(-2)).flatten(2)
            variance = prior - (squares * self.reduction[place]).sum(-1)
            return mean, variance.clamp_min(LEAST_VARIANCE)
        covar = self._prior(index, index, (time.unsqueeze(-1) - time.unsqueeze(-2)).abs())
        rows = self.rows[:, : self.num_rows].permute(0, 3, 1, 2)[element.unsqueeze(-1), index]
        back = self.given_back.permute(0, 3, 1, 2)[element.unsqueeze(-1), index]
        V, back = (self._by_row(h) * rows).sum(-1), (h.unsqueeze(-2) * back).sum(-1)
        covar = covar - V @ V.mT + back @ back.mT
        covar.diagonal(dim1=-2, dim2=-1).clamp_min_(LEAST_VARIANCE)
        return mean, covar

    def _smooth(self, element: Tensor, index: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and covariances of batch elements' events ``M x q`` at any times."""
        root, residual = self._event_root(self.events), self._residuals(self.events)
        pending = residual[:, self._is_pending]
        residual[:, self._is_pending] = torch.where(pending.isnan(), self.expected, pending)
        a = torch.linalg.solve_triangular(root, residual.unsqueeze(-1), upper=False)
        lag = (self.events[0, 1].unsqueeze(-1) - time.unsqueeze(-2)).abs()
        cross = self._prior(self.events[element, 0].long(), index, lag)
        V = torch.linalg.solve_triangular(root[element], cross, upper=False)
        covar = self._prior(index, index, (time.unsqueeze(-1) - time.unsqueeze(-2)).abs())
        covar = covar - V.mT @ V
        covar.diagonal(dim1=-2, dim2=-1).clamp_min_(LEAST_VARIANCE)
        return (V.mT @ a[element]).squeeze(-1), covar

    def _event_root(self, events: Tensor) -> Tensor:
        """Return the Cholesky factor of the covariance of events' outcomes, ``b x k x k``."""
        index, time = events[:, 0].long(), events[0, 1]
        covar = self._prior(index, index, (time.unsqueeze(-1) - time).abs())
        root: Tensor = torch.linalg.cholesky(covar + torch.diag_embed(events[:, 3]))
        return root

    def _prior(self, first: Tensor, second: Tensor, lag: Tensor) -> Tensor:
        """Return prior covariances of choices ``... x q`` and ``... x p``, ``lag`` apart."""
        one, *others = (term.covariances(first, second, lag) for term in self._terms)
        return sum(others, start=one)

    def _states_after(self, index: Tensor, lag: Tensor) -> Tensor:
        """Return prior covariances of events with states later by ``q`` lags, ``b x q x S x n``."""
        parts = []
        for term in self._terms:
            gain = term.transition(lag) @ term.gain.unsqueeze(-1)
            parts.append(gain * term.rows(index).unsqueeze(-2))
        return torch.cat(parts, dim=-2) if len(parts) > 1 else parts[0]

    @property
    def _terms(self) -> list[KroneckerTerm]:
        return cast(list[KroneckerTerm], self.terms)

    @property
    def _elements(self) -> Tensor:
        """Numbers of the batch elements, ``batch_shape``."""
        b = self._batch_shape.numel()
        return torch.arange(b, device=self._noise.device).reshape(self._batch_shape)

    @property
    def _is_pending(self) -> Tensor:
        """Mask of the events whose outcomes are pending."""
        return self.events[0, 4] > 0

    @property
    def _told(self) -> Tensor:
        """Events whose outcomes came."""
        has_pending = self.expected.shape[-1] > 0
        return self.events[..., ~self._is_pending] if has_pending else self.events

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

    def _observation_row(self, lag: Tensor) -> Tensor:
        """Return the vectors whose product with a state is the function later, ``... x S``."""
        row: Tensor = self._observation @ self._transition(lag)
        return row

    def _by_row(self, h: Tensor) -> Tensor:
        """Return the vectors whose products with the rows events see, ``... x k x S``."""
        by_row: Tensor = h @ self.transitions.transpose(0, 1).flatten(1)
        by_row = by_row.unflatten(-1, self.transitions.shape[:2])
        return by_row

    def _prior_mean(self, X: Tensor) -> Tensor | float:
        if self.mean_module is None:
            return 0.0
        with torch.no_grad():
            mean: Tensor = self.mean_module(X.to(self._noise))
            return mean

    def _residuals(self, events: Tensor) -> Tensor:
        """Return outcomes, or what stands in for them, less the prior mean, ``b x k``."""
        if self.mean_module is None:
            return events[:, 2].clone()
        return events[:, 2] - cast(Tensor, self._prior_mean(self._rows_of(events))).view_as(
            events[:, 2]
        )

    def _rows_of(self, events: Tensor) -> Tensor:
        """Return the rows of events, ``batch_shape x k x (d + 1)``."""
        X = torch.cat([self.choices[events[:, 0].long()], events[:, 1].unsqueeze(-1)], dim=-1)
        return X.reshape(*self._batch_shape, *X.shape[1:])

    def _lag(self, time: Tensor) -> Tensor:
        """Return lags from now to times; 0 before any event."""
        return time - self._now if self._now > -math.inf else torch.zeros_like(time)

    def _in_order(self, events: Tensor) -> Tensor:
        """Return events in the order of time, where that makes a difference."""
        if self.is_static or events.shape[-1] == 1:
            return events
        return events[..., events[0, 1].argsort(stable=True)]

    def _split(self, X: Tensor) -> tuple[Tensor, Tensor, Size]:
        """Return indices and times of rows, ``... x q`` each, and what they broadcast to."""
        check_rows(X, self.row_index.dim + 1)
        shape = Size((*self._broadcast({"X": X.shape[:-2]}), X.shape[-2]))
        return self.row_index.index(X[..., :-1]), X[..., -1].to(self._noise), shape

    def _values(self, name: str, values: Tensor, X: Tensor) -> Tensor:
        """Return outcomes or noise variances of events at rows, ``batch_shape x q``."""
        shape = (*self._batch_shape, *X.shape[-2:-1], 1)
        if values.shape != shape:
            raise BotorchTensorDimensionError(
                f"Expected {name} of shape batch_shape x q x 1 = {shape}. "
                f"Got {name}.shape={tuple(values.shape)}."
            )
        check_finite(name, values)
        if name == "Yvar" and (values < 0).any():
            raise InputDataError(f"Expected Yvar >= 0. Got {values.min().item()}.")
        return self._transformed(values.to(self._noise), name == "Yvar").squeeze(-1)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        choices = state_dict.get(f"{prefix}row_index.choices", self.choices)
        if choices.shape != self.choices.shape or (choices.to(self.choices) != self.choices).any():
            raise ValueError("Expected a state saved with the same choices. Got one with others.")
        saved = state_dict.get(f"{prefix}events")
        if saved is not None:
            # In the shape in which they were saved, and into new memory.
            self.events = self.events.new_empty(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._make_again(self.events)


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


def _columns(rows: Tensor, index: Tensor) -> Tensor:
    """Return the states of choices ``b x q`` in rows ``b x k x S x n``, ``b x q x k x S``."""
    if rows.shape[0] == 1:
        return rows[0, ..., index[0]].movedim(-1, 0).unsqueeze(0)
    here = index[:, None, None].expand(*rows.shape[:-1], index.shape[-1])
    return rows.gather(-1, here).movedim(-1, 1)


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
