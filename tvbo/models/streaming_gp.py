"""The exact posterior on a finite set of choices, at constant cost per round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
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
from linear_operator.operators import DenseLinearOperator, KernelLinearOperator, LinearOperator
from linear_operator.operators.linear_operator_representation_tree import (
    LinearOperatorRepresentationTree,
)
from torch import Generator, Size, Tensor
from torch.nn import Module, ModuleList, Parameter

from tvbo.kernels import ConstantTemporalKernel, TemporalDecayKernel, TemporalKernel
from tvbo.kernels.temporal import check_forgetting_rate, decay_exponent
from tvbo.kernels.temporal_base import check_markov
from tvbo.models.joint_draw import joint_draw
from tvbo.models.one_output import OneOutputModel, normal_posterior
from tvbo.models.raw import RawMean, has_zero_mean, raw_noise_variance
from tvbo.models.raw_action_kernel import raw_kernels, with_time
from tvbo.models.time_varying_gp import TimeVaryingGP
from tvbo.rounding import LEAST_VARIANCE, innovation_root
from tvbo.spaces.observations import check_finite, check_last_dimension
from tvbo.spaces.row_index import RowIndex

MAX_CACHED = 25_000_000
"""Entries of a covariance matrix up to which it is stored (200 MB): those of 5,000 choices. The
rows of a larger one are computed when they are needed."""

FEW_ENTRIES = 2**17
"""Entries of rows that are not merged: to read them costs less than the rest of a round. More than
1,024 rows are."""

MIN_ROWS = 64
"""Least number of rows for which there is room."""

BLOCK_EVENTS = 256
"""Events of which the rows are made at once: a Cholesky factorization of this size costs little."""

MAX_EVALUATED = 32
"""Rows up to which a joint covariance is evaluated at once: a lazy one costs as much."""

TRUNCATION = 1e-13
"""Largest variance that a draw may lack, as a share of the largest prior variance."""

PATH_JITTER = 1e-10
"""Share of its variance added to the path of a draw, whose covariance over time may be singular."""

SHARED_OR_BATCHED = ("transitions", "_prior_variance")
BATCHED = (
    "rows",
    "mean",
    "reduction",
    "merged",
    "given_back",
    "sensitivity",
    "expected",
    "pending_covariance",
    "events",
    "_noise",
)


class ChoiceCovariance(Module):
    """Covariances of choices by their indices, for independent batch elements.

    Args:
        choices: ``n x d`` inputs of the kernel.
        covar_module: The kernel, evaluated without gradients.
        batch_shape: Batch shape of the model. The kernel has this batch shape, or none.
    """

    diagonal: Tensor
    matrix: Tensor | None
    choices: Tensor
    _factor: Tensor | None

    def __init__(self, choices: Tensor, covar_module: Kernel, batch_shape: Size):
        super().__init__()
        with torch.no_grad():
            # With the batch: for n = b, GPyTorch would take b x n variances for a matrix.
            batch = choices.expand(*covar_module.batch_shape, *choices.shape)
            diagonal = covar_module(batch, diag=True)
        if not (torch.isfinite(diagonal) & (diagonal >= 0)).all():
            raise ValueError(
                "Expected a kernel with finite variances >= 0 on the choices. "
                f"Got variances from {diagonal.min():.3g} to {diagonal.max():.3g}."
            )
        n, shared = len(choices), diagonal.shape[:-1].numel() == 1
        lead = Size([1]) if shared else batch_shape
        diagonal = diagonal.expand(*lead, n).reshape(-1, n)
        matrix = None
        if diagonal.numel() * n <= MAX_CACHED:
            with torch.no_grad():
                matrix = covar_module(choices).to_dense().expand(*lead, n, n).reshape(-1, n, n)
        elif not shared:
            raise ValueError(
                f"Expected at most {MAX_CACHED} covariances where batch elements have their own "
                f"kernels. Got {len(diagonal)} batch elements with {n} choices."
            )
        for name, value in (("diagonal", diagonal), ("matrix", matrix), ("_factor", None)):
            self.register_buffer(name, value, persistent=False)
        self.register_buffer("choices", choices if matrix is None else None, persistent=False)
        # Acquisitions visit all modules of their model, so that an unneeded one costs time.
        self.covar_module = covar_module if matrix is None else None

    def rows(self, element: Tensor, index: Tensor) -> Tensor:
        """Return the covariances of choices ``M x q`` with all choices, ``M x q x n``."""
        if self.matrix is None:
            return self._evaluate(index, self.choices)
        if self.matrix.shape[0] == 1:
            return self.matrix[0, index]
        return self.matrix[element[:, None], index]

    def between(self, element: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return the covariances of choices ``M x q`` and ``M x p``, ``M x q x p``."""
        if self.matrix is None:
            return self._evaluate(first, self.choices[second])
        each = self._lead(element)[:, None, None]
        return self.matrix[each, first.unsqueeze(-1), second.unsqueeze(-2)]

    def take(self, element: Tensor) -> ChoiceCovariance:
        """Return the covariance of some batch elements; a shared one is not copied."""
        if len(self.diagonal) == 1:
            return self
        new = copy(self)
        new._buffers = {
            name: None if value is None else value[element] for name, value in self._buffers.items()
        }
        return new

    def factor(self) -> Tensor:
        """Return a factor ``n x r`` of the matrix of the first batch element, for draws.

        It is a pivoted Cholesky factor, which for smooth kernels has few columns.
        """
        if self._factor is None:
            first = torch.zeros(1, dtype=torch.long, device=self.diagonal.device)
            rest = self.diagonal[0].clone()
            limit, columns = TRUNCATION * rest.max(), rest.new_empty(0, len(rest))
            while len(columns) < len(rest) and rest.max() > limit:
                pivot = rest.argmax()
                column = self.rows(first, pivot[None, None]).flatten()
                column = (column - columns[:, pivot] @ columns) / rest[pivot].sqrt()
                columns = torch.cat([columns, column.unsqueeze(0)])
                rest = (rest - column.square()).clamp_min(0.0)
                rest[pivot] = 0.0
            self._factor = columns.mT
        return self._factor

    def _lead(self, element: Tensor) -> Tensor:
        return element if len(self.diagonal) > 1 else torch.zeros_like(element)

    def _evaluate(self, index: Tensor, others: Tensor) -> Tensor:
        assert self.covar_module is not None  # since the matrix is not stored
        with torch.no_grad():
            covar: Tensor = self.covar_module(self.choices[index], others).to_dense()
            return covar


class KroneckerTerm(Module):
    """One term of the prior: a kernel over the choices times a temporal kernel.

    Args:
        covariance: Covariances of the choices.
        kernel: The temporal kernel, without a batch or with ``b`` elements.
        amplitude: Variance by which the product is multiplied, ``1`` or ``b``.
    """

    amplitude: Tensor
    observation: Tensor
    gain: Tensor
    exponent: Tensor | None

    def __init__(self, covariance: ChoiceCovariance, kernel: TemporalKernel, amplitude: Tensor):
        super().__init__()
        self.covariance = covariance
        self.kernel = kernel
        observation = kernel.observation.detach().to(amplitude)
        P = kernel.stationary_covariance().detach().to(amplitude)
        gain = (amplitude[:, None, None] * P) @ observation
        exponent = None
        if isinstance(kernel, TemporalDecayKernel):
            exponent = decay_exponent(kernel.forgetting_rate.detach()).reshape(-1, 1).to(amplitude)
        elif isinstance(kernel, ConstantTemporalKernel):
            exponent = amplitude.new_zeros(1, 1)
        for name, value in (
            ("amplitude", amplitude),
            ("observation", observation),
            ("gain", gain),
            ("exponent", exponent),
        ):
            self.register_buffer(name, value, persistent=False)

    def transition(self, lag: Tensor, element: Tensor | None = None) -> Tensor:
        """Return the matrices that lead over lags to later states.

        Args:
            lag: ``m`` lags for all batch elements, or ``M x m`` for some of them.
            element: Indices of these, ``M``; None for all.

        Returns:
            ``1 x m x s x s``, ``b x m x s x s`` or ``M x m x s x s``.
        """
        if self.exponent is not None:
            return (lag * self._of(self.exponent, element)).exp()[..., None, None]
        if self.kernel.batch_shape:
            A = (self.kernel if element is None else self.kernel[element]).transition(lag)
        else:
            A = self.kernel.transition(lag.flatten()).unflatten(0, lag.shape)
        return A.unsqueeze(0) if A.ndim == 3 else A

    def covariances(self, element: Tensor, first: Tensor, second: Tensor, lag: Tensor) -> Tensor:
        """Return prior covariances of choices ``M x q`` and ``M x p``, ``lag`` apart."""
        flat = lag.flatten(1)
        if self.exponent is not None:
            over_time = (flat * self._of(self.exponent, element)).exp()
        else:
            kernel = self.kernel[element] if self.kernel.batch_shape else self.kernel
            over_time = kernel.correlation(flat)
        over_time = (over_time * self._of(self.amplitude, element).unsqueeze(-1)).view_as(lag)
        return over_time * self.covariance.between(element, first, second)

    def weight(self, lag: Tensor) -> Tensor:
        """Return the largest share of a variance that is still explained after lags ``m``."""
        if self.exponent is not None:
            return (2 * lag * self.exponent).exp().amax(dim=0)
        weight = self.kernel.weight(lag)
        return weight.amax(dim=0) if weight.ndim > 1 else weight

    def take(self, element: Tensor) -> KroneckerTerm:
        """Return the term of some batch elements."""
        new = copy(self)
        kernel = self.kernel[element] if self.kernel.batch_shape else self.kernel
        new._modules = {"covariance": self.covariance.take(element), "kernel": kernel}
        new._buffers = {
            name: value if value is None or name == "observation" else self._of(value, element)
            for name, value in self._buffers.items()
        }
        return new

    @staticmethod
    def _of(values: Tensor, element: Tensor | None) -> Tensor:
        """Return the values of some batch elements; those that all share have one."""
        return values if element is None or values.shape[0] == 1 else values[element]


class JointCovariance(KernelLinearOperator):
    """The covariance of events, whose diagonal is known, evaluated when it is needed.

    An event is ``[batch element, index of the choice, time, posterior variance]``.
    """

    def _diagonal(self) -> Tensor:
        variance: Tensor = self.x1[..., 3]
        return variance if torch.equal(self.x1, self.x2) else super()._diagonal()

    def evaluate_kernel(self) -> LinearOperator:
        """Return the covariance matrix as a dense operator."""
        return DenseLinearOperator(self.covar_mat)

    def to_dense(self) -> Tensor:
        """Return the covariance matrix."""
        covar: Tensor = self.covar_mat
        return covar

    def representation(self) -> tuple[Tensor, ...]:
        """Return the covariance matrix, of which solves and roots are functions."""
        represented: tuple[Tensor, ...] = self.evaluate_kernel().representation()
        return represented

    def representation_tree(self) -> LinearOperatorRepresentationTree:
        """Return how to build the dense operator."""
        return LinearOperatorRepresentationTree(self.evaluate_kernel())


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
    costs :math:`O(W n)` for the ``W`` rows with a weight above ``tol``, or, where these are more
    than the ``N`` states of all choices, :math:`O(N^2)`: then they are merged into an ``N x N``
    matrix, without loss. The row of a trial can be made while its outcome is pending: :meth:`open`.
    With a vector :math:`\partial \text{mean} / \partial y` for each pending trial, outcomes may
    then come in any order.

    Args:
        choices: ``n x d``, the actions (or actions and contexts), without duplicates.
        covar_module: Kernel over the choices, with its present parameters, which are not learned;
            or one for each temporal kernel.
        forgetting_rate: ε per unit of time, in [0, 1]; a tensor gives each batch element its own.
        noise_variance: σ², at least 0; a tensor gives each batch element its own.
        temporal_kernel: In place of ``forgetting_rate``, a :class:`tvbo.kernels.TemporalKernel`, or
            a ``ScaleKernel`` of one, or a list of these, whose products with ``covar_module`` are
            added. They have no ``active_dims``.
        mean_module: Prior mean over rows ``[action | time]``; None is zero.
        batch_shape: Shape of the batch of independent models, which observe at the same times;
            broadcast with the batch shapes of kernel, ``forgetting_rate`` and ``noise_variance``.
        tol: An observation is forgotten once its weight :math:`(1-\varepsilon)^{\text{age}}`, or
            :meth:`tvbo.kernels.TemporalKernel.weight` by the kernel that forgets least, is at most
            this. Then the mean does not change, and no posterior covariance by more than this share
            of the prior variance.

    Raises:
        BotorchTensorDimensionError: if ``choices`` is not ``n x d``.
        InputDataError: if a choice is not finite, or the choices contain duplicates.
        TypeError: if a temporal kernel is none.
        ValueError: if a parameter is out of range, batch shapes do not broadcast, not exactly one
            of ``forgetting_rate`` and ``temporal_kernel`` is given, or there are neither one nor as
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
    merged: Tensor | None
    given_back: Tensor | None
    sensitivity: Tensor
    expected: Tensor
    pending_covariance: Tensor
    events: Tensor
    _noise: Tensor
    _elements: Tensor
    _prior_variance: Tensor
    _observation: Tensor
    _unit: Tensor

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
        if noise_variance is None:
            raise ValueError("Expected noise_variance >= 0, finite. Got None.")
        self.tol = tol
        self.row_index = RowIndex(choices)
        self.mean_module = deepcopy(mean_module)
        choices = self.row_index.choices
        noise = torch.as_tensor(noise_variance, dtype=torch.float64).to(choices)
        if not ((noise >= 0) & (noise < math.inf)).all():
            raise ValueError(f"Expected noise_variance >= 0, finite. Got {noise_variance}.")
        if temporal_kernel is None:
            temporal_kernel = _decay(
                check_forgetting_rate(cast(Tensor, forgetting_rate)).to(choices)
            )
        given = [temporal_kernel] if isinstance(temporal_kernel, Kernel) else list(temporal_kernel)
        kernels = [covar_module] if isinstance(covar_module, Kernel) else list(covar_module)
        if not given or len(kernels) not in {1, len(given)}:
            raise ValueError(
                "Expected one kernel in covar_module, or as many as temporal kernels. "
                f"Got {len(kernels)} and {len(given)} temporal kernels."
            )
        kernels = [deepcopy(kernel).to(choices).eval() for kernel in kernels]
        one = choices.new_ones(())
        scaled = [
            (check_markov(kernel.base_kernel), kernel.outputscale.detach().to(choices))
            if isinstance(kernel, ScaleKernel)
            else (check_markov(kernel), one)
            for kernel in given
        ]
        shapes = [batch_shape or Size(), noise.shape, *(kernel.batch_shape for kernel in kernels)]
        shapes += [shape for kernel, a in scaled for shape in (kernel.batch_shape, a.shape)]
        try:
            shape = Size(torch.broadcast_shapes(*shapes))
        except RuntimeError as error:
            raise ValueError(
                "Expected batch_shape and batches of kernel, forgetting_rate and noise_variance "
                f"that broadcast. Got {', '.join(str(tuple(shape)) for shape in shapes)}."
            ) from error
        self._batch_shape = shape
        covariances = [ChoiceCovariance(choices, kernel, shape) for kernel in kernels]
        if len(covariances) == 1:
            covariances = covariances * len(given)
        terms = [
            KroneckerTerm(
                covariance,
                _flat(kernel, shape).to(choices).eval(),
                (a.expand(shape) if a.ndim else a).reshape(-1),
            )
            for covariance, (kernel, a) in zip(covariances, scaled, strict=True)
        ]
        self.terms = ModuleList(terms)
        self.is_static = all(term.kernel.is_static for term in terms)
        self.num_states = sum(term.kernel.num_states for term in terms)
        variance = choices.new_zeros(1, len(choices))
        for term in terms:
            variance = variance + term.amplitude[:, None] * term.covariance.diagonal
        self.register_buffer("_prior_variance", variance, persistent=False)
        self.register_buffer(
            "_observation", torch.cat([t.observation for t in terms]), persistent=False
        )
        self.register_buffer("_unit", torch.eye(self.num_states).to(choices), persistent=False)
        self.register_buffer("_noise", noise.expand(shape).reshape(-1).clone())
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
        b, n, S = len(self._noise), len(self.choices), self.num_states
        none = self._noise.new_empty(b, 0)
        empty: dict[str, Tensor | None] = {
            "rows": none.new_empty(b, 0, S, n),
            # What leads each row from the time when it was made to now.
            "transitions": none.new_empty(1, 0, S, S),
            # Sums over the rows, as of now: of the outcomes that came, and of all rows.
            "mean": none.new_zeros(b, S, n),
            "reduction": none.new_zeros(b, S * S, n),
            # Sum of the outer products of old rows, as of a time of its own.
            "merged": None,
            # Rows of pending trials that a copy without these leaves out.
            "given_back": None,
            # Of the pending outcomes: derivatives of the mean; means and covariances by those told.
            "sensitivity": none.new_empty(b, 0, S, n),
            "expected": none,
            "pending_covariance": none.new_empty(b, 0, 0),
        }
        for name, value in empty.items():
            self.register_buffer(name, value, persistent=False)
        self.register_buffer("_elements", torch.arange(b, device=none.device), persistent=False)
        # Index, time, outcome or what stands in for it, noise variance, whether it is pending.
        self.register_buffer("events", none.new_empty(b, 5, 0))
        self.num_rows, self._now, self._merged_at = 0, -math.inf, -math.inf

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
        """Shape of the batch of independent models."""
        return self._batch_shape

    @property
    def noise_variance(self) -> Tensor:
        """σ², ``batch_shape``."""
        return self._noise.reshape(self._batch_shape)

    @property
    def now(self) -> Tensor:
        """Time of the newest event, one number; minus infinity before any."""
        return self._noise.new_tensor(self._now)

    @property
    def forgetting_rate(self) -> Tensor | None:
        """ε per unit of time, ``batch_shape``; None unless time is one exponential decay."""
        term = self._terms[0]
        if len(self.terms) > 1 or (term.amplitude != 1).any():
            return None
        if isinstance(term.kernel, TemporalDecayKernel):
            rate = term.kernel.forgetting_rate.detach().reshape(-1)
        elif isinstance(term.kernel, ConstantTemporalKernel):
            rate = term.amplitude.new_zeros(1)
        else:
            return None
        return rate.expand(self._noise.numel()).reshape(self._batch_shape)

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
        self._add(self._events(X, self._values("Y", Y, X), Yvar, 0.0))

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
        shape = (*self._batch_shape, X.shape[-2], 1)
        self._add(self._events(X, self._noise.new_full(shape, math.nan), Yvar, 1.0))

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
        X = self.X_pending[..., position, :]
        events = self.events.clone()
        events[:, 2, place] = self._values("Y", Y, X).reshape(-1, len(position))
        events[:, 4, place] = 0.0
        if Yvar is not None:
            events[:, 3, place] = self._noises(Yvar, X).reshape(-1, len(position))
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
        self.events[:, 2, self._is_pending] = Y.to(self._noise).reshape(len(self._noise), -1)

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
        t = self._check_time(t)
        h = self._observation_row(self._lags([t]))
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
        index, time = self._split(X)
        shape = self._broadcast(X, index.shape)
        element = self._elements.reshape(self._batch_shape).expand(shape[:-1]).reshape(-1)
        flat = len(element), shape[-1]
        index, time = (x.expand(shape).reshape(flat) for x in (index, time))
        with torch.no_grad():
            if not self.is_static and (time < self._now).any():
                mean, covar = self._smooth(element, index, time, shape)
            else:
                mean, covar = self._predict(element, index, time, shape)
        noise = None
        if observation_noise is True:
            noise = self.noise_variance.unsqueeze(-1)
        elif isinstance(observation_noise, Tensor):
            noise = observation_noise.squeeze(-1)
        mean = mean.reshape(shape) + self._prior_mean(X)
        posterior = normal_posterior(mean, covar, noise)
        return self._transformed(posterior, X, posterior_transform)

    def draw(self, t: float, generator: Generator) -> Tensor:
        r"""Draw one function from the joint posterior over all choices at one time.

        By Matheron's rule: a draw :math:`f^*` of the prior and its noisy outcomes :math:`y^*` at
        the events give :math:`f^* + \sum_j (a_j - a^*_j) V_j`, with :math:`a^* = L^{-1} y^*` for
        the Cholesky factor of the outcomes' covariance. Where rows were merged, it costs
        :math:`O(n^3)`.

        Args:
            t: Time of the draw, not before the newest event.
            generator: Source of randomness.

        Returns:
            ``n`` values.

        Raises:
            UnsupportedError: if the model has a batch.
            InputDataError: if ``t`` is not finite or lies before the newest event.
        """
        if len(self._batch_shape) > 0:
            raise UnsupportedError(
                f"Expected a model without a batch. Got batch_shape={tuple(self._batch_shape)}."
            )
        t = self._check_time(t)
        mean, _ = self.marginals(t)
        k = self.num_rows
        if self.merged is not None or self.given_back is not None:
            return joint_draw(self.posterior(with_time(self.choices, t)), generator)[0]
        # Those with rows; the others have no weight.
        events = self.events[..., self.events.shape[-1] - k :]
        index, times = events[0, 0].long(), torch.cat([events[0, 1], mean.new_tensor([t])])
        function = torch.zeros_like(mean)
        outcomes = self._normal(k, generator) * events[0, 3].sqrt()
        for term in self._terms:
            factor = term.covariance.factor()
            known = torch.zeros_like(times) if term.kernel.is_static else times
            distinct, place = known.unique(return_inverse=True)
            apart = (distinct.unsqueeze(-1) - distinct).abs()
            over_time = term.kernel.correlation(apart.flatten()).view_as(apart).to(mean)
            over_time = over_time + PATH_JITTER * torch.eye(len(distinct)).to(apart)
            normal = self._normal(len(distinct) * factor.shape[-1], generator)
            path = torch.linalg.cholesky(term.amplitude * over_time) @ normal.view(
                len(distinct), -1
            )
            function = function + factor @ path[place[-1]]
            outcomes = outcomes + (factor[index] * path[place[:-1]]).sum(-1)
        if k == 0:
            return mean + function
        a = torch.linalg.solve_triangular(
            self._event_root(events)[0], outcomes.unsqueeze(-1), upper=False
        )
        weights = a * self._by_row(self._observation_row(self._lags([t])), self.transitions)[0, 0]
        drawn: Tensor = mean + function - weights.flatten() @ self.rows[0, :k].flatten(0, 1)
        return drawn

    def covers(self, rows: Tensor) -> bool:
        """Return whether rows ``n x (d + 1)`` are all choices, in their order, at one time."""
        return (
            len(self._batch_shape) == 0
            and rows.shape == (len(self.choices), self.row_index.dim + 1)
            and bool((rows[:, -1] == rows[0, -1]).all())
            and torch.equal(rows[:, :-1], self.choices)
        )

    def weight(self, age: Tensor) -> Tensor:
        """Return what observations of some ages weigh, of all terms and batch elements the most."""
        return torch.stack([term.weight(age) for term in self._terms]).amax(dim=0)

    def prior_covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Return prior covariances of rows ``n x (d + 1)`` and ``m x (d + 1)``, ``n x m``.

        For a model without a batch; with checks, :func:`tvbo.models.covariance.prior_covariance`.
        """
        first, second = (self.row_index.index(X[:, :-1]).unsqueeze(0) for X in (X1, X2))
        lag = (X1[:, -1:] - X2[:, -1]).abs().unsqueeze(0)
        return self._prior(self._elements, first, second, lag).squeeze(0)

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
        element = self._elements.reshape(self._batch_shape).expand(shape).reshape(-1)
        new = self.snapshot()
        if shape != self._batch_shape:
            for name, buffer in new._buffers.items():
                own = name in SHARED_OR_BATCHED and buffer is not None and len(buffer) > 1
                if buffer is not None and (own or name in BATCHED):
                    new._buffers[name] = buffer[element]
            new._elements = torch.arange(len(element), device=element.device)
            new.terms = ModuleList(term.take(element) for term in self._terms)
            new._batch_shape = shape
        Y = Y.expand(*shape, *Y.shape[-2:])
        new.observe(X, Y, None if noise is None else noise.expand_as(Y))
        return new

    def _add(self, new: Tensor) -> None:
        """Add events ``b x 5 x q``."""
        times = new[0, 1].tolist()
        if not times:
            return
        late = not self.is_static and min(times) < self._now
        if late or len(times) > BLOCK_EVENTS or self.given_back is not None:
            self._make_again(torch.cat([self.events, new], dim=-1))
        else:
            with torch.no_grad():
                self._take_in(new if len(times) == 1 else _in_order(new))

    def _make_again(self, events: Tensor) -> None:
        """Replace all events, and make their rows; on an error nothing is changed."""
        new = self.clone_without_data()
        with torch.no_grad():
            for block in (events if self.is_static else _in_order(events)).split(BLOCK_EVENTS, -1):
                if block.shape[-1] > 0:
                    new._take_in(block)
        self._buffers, self.num_rows = new._buffers, new.num_rows
        self._now, self._merged_at = new._now, new._merged_at

    def _take_in(self, new: Tensor) -> None:
        """Add events in the order of time, none before now."""
        b, _, q = new.shape
        self._make_room(q)
        index, time, noise = new[:, 0].long(), new[0, 1], new[:, 3]
        newest = max(self._now, time[-1].item())
        k, n, S = self.num_rows, len(self.choices), self.num_states
        rows, element, mean = self.rows[:, :k], self._elements, self.mean
        # Covariances with the innovations of the rows held, b x q x k.
        A = self._transition(self._lag(time))
        h, A = self._observed(A), A[:, -1:]
        transitions = self.transitions
        cross = self._by_row(h, transitions) * _columns(rows, index)
        cross = cross.sum(-1) if S > 1 else cross.squeeze(-1)
        prior_variance = self._prior_variance_of(element, index)
        if q == 1:
            covar = prior_variance.unsqueeze(-1)
        else:
            apart = (time.unsqueeze(-1) - time).abs().expand(b, q, q)
            covar = self._prior(element, index, index, apart)
        covar = covar - cross @ cross.mT
        states = self._states_after(element, index, newest - time)
        transitions = _lead(A, transitions)
        A = A[:, 0]
        if self.merged is not None:
            known, seen = self._merged_rows(index, time)
            covar = covar - seen
            lead = self._transition(time.new_tensor([newest - self._merged_at]))
            states = states - _lead(lead, known)
        root = innovation_root(covar, noise, prior_variance)
        if S == 1:
            weights = cross * transitions.view(-1, 1, k) if k > 0 else cross
        else:
            weights = cross[:, :, None, :, None] * transitions.transpose(1, 2).unsqueeze(1)
            weights = weights.reshape(b, q * S, k * S)
        states = torch.baddbmm(states.flatten(1, 2), weights, rows.flatten(1, 2), alpha=-1)
        V = _solve(root, states.view(b, q, S * n))
        gain = _solve(root.mT, V)
        V = V.view(b, q, S, n)
        self.rows[:, k : k + q] = V
        expected = (_columns(mean.unsqueeze(1), index).squeeze(2) * h).sum(-1)
        unit = self._unit.expand(transitions.shape[0], q, S, S)
        residual = new[:, 2]
        if self.mean_module is not None:
            residual = residual - self._prior_mean_of(new)
        mean = _lead(A, mean)
        pending, p = new[0, 4] > 0, self.expected.shape[-1]
        if p == 0 and not pending.any():
            mean = torch.baddbmm(mean.view(b, 1, -1), (residual - expected).unsqueeze(1), gain)
        else:
            self._extend(index, root @ root.mT, expected, gain, h, A)
        self._buffers.update(
            transitions=torch.cat([transitions, unit], dim=1),
            mean=mean.view(b, S, n),
            reduction=_lead(_squares(A), self.reduction) + _explained(V),
            events=torch.cat([self.events, new], dim=-1),
        )
        self.num_rows, self._now = k + q, newest
        if p + q > self.expected.shape[-1]:
            return
        told = torch.cat([pending.new_zeros(p), ~pending])
        if told.any():
            self._learn(told, residual[:, ~pending])

    def _extend(
        self, index: Tensor, own: Tensor, expected: Tensor, gain: Tensor, h: Tensor, A: Tensor
    ) -> None:
        """Count events as pending; what they say of the others is by the outcomes that came."""
        between = self.pending_covariance[..., :0]
        if self.expected.shape[-1] > 0:
            shown = (_columns(self.sensitivity, index) * h.unsqueeze(2)).sum(-1).mT
            between = self.pending_covariance @ shown
            own = own + shown.mT @ between
            faded = _lead(A.unsqueeze(1), self.sensitivity).flatten(2) - shown @ gain
            gain = torch.cat([faded, gain], dim=1)
        else:
            between = own[:, :0]
        above = torch.cat([self.pending_covariance, between], dim=-1)
        below = torch.cat([between.mT, own], dim=-1)
        self.pending_covariance = torch.cat([above, below], dim=-2)
        self.sensitivity = gain.unflatten(-1, (self.num_states, -1))
        self.expected = torch.cat([self.expected, expected], dim=-1)

    def _merged_rows(self, index: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return merged covariances of events with the states of then, and with one another."""
        merged = cast(Tensor, self.merged).flatten(1, 2).unflatten(-1, (self.num_states, -1))
        h = self._observation_row(time - self._merged_at)
        known = (_columns(merged, index) * h.unsqueeze(2)).sum(-1)
        known = known.unflatten(-1, (self.num_states, -1))
        return known, (_columns(known, index) * h.unsqueeze(2)).sum(-1).mT

    def _learn(self, told: Tensor, residual: Tensor) -> None:
        """Take in outcomes less the prior mean, ``b x t``, of some of the pending trials."""
        C, S, rest = self.pending_covariance, self.sensitivity, ~told
        error = (residual - self.expected[:, told]).unsqueeze(-1)
        root = torch.linalg.cholesky(C[:, told][:, :, told])
        whitened = torch.linalg.solve_triangular(root, C[:, told], upper=False)
        error = torch.linalg.solve_triangular(root, error, upper=False)
        change = (whitened.mT @ error).squeeze(-1)
        shift = change.unsqueeze(1) @ S.flatten(2)
        self.mean = self.mean + shift.view_as(self.mean)
        self.expected = (self.expected + change)[:, rest]
        self.sensitivity = S[:, rest]
        self.pending_covariance = (C - whitened.mT @ whitened)[:, rest][:, :, rest]

    def _make_room(self, q: int) -> None:
        """Make room for ``q`` rows: forget those without weight, merge the others or copy them."""
        held, num_states = self.num_rows, self.num_states * len(self.choices)
        if held + q <= self.rows.shape[1]:
            return
        first = 0
        if not self.is_static and held > 0:
            weight = self.weight(self._now - self.events[0, 1])
            # Outcomes are known for longer: the mean fades as the root of the weight.
            weighs = (weight > self.tol**2) | self._is_pending
            gone = int((weighs.cumsum(0) == 0).sum())
            # The rows are those of the newest events.
            first = int((weight[-held:] <= self.tol).sum())
            self.events = self.events[..., gone:]
        rows = self.rows[:, first:held]
        transitions, held = self.transitions[:, first:], held - first
        capacity = max(MIN_ROWS, held + held // 2, held + q)
        if self.merged is not None or held > max(num_states, min(FEW_ENTRIES // num_states, 1024)):
            V = _lead(transitions, rows).flatten(2)
            merged = V.mT @ V
            if self.merged is not None:
                merged = merged + self._advanced(self.merged, self._now - self._merged_at)
            self.merged = merged.unflatten(1, (self.num_states, -1))
            self._merged_at = self._now
            held, capacity = 0, max(MIN_ROWS, num_states // 8, q)
        self.rows = rows.new_empty(len(rows), capacity, *rows.shape[2:])
        self.rows[:, :held] = rows[:, :held]
        self.transitions, self.num_rows = transitions[:, :held], held

    def _advanced(self, merged: Tensor, lag: float) -> Tensor:
        """Return covariances of all states as of a time later by a lag, ``b x N x N``."""
        A = self._transition(self._noise.new_tensor([lag]))[:, 0]
        merged = merged.flatten(1, 2)
        for _ in range(2):
            # A symmetric matrix: the other side is that of the transpose.
            by_state = merged.reshape(len(merged), self.num_states, -1)
            merged = _lead(A, by_state).view_as(merged).mT
        return merged

    def _mean(self) -> Tensor:
        """Return the mean of the states, with what stands in for the pending outcomes."""
        if self.expected.shape[-1] == 0:
            return self.mean
        offset = self._residuals(self.events)[:, self._is_pending] - self.expected
        shift = offset.nan_to_num(0.0).unsqueeze(1) @ self.sensitivity.flatten(2)
        return self.mean + shift.view_as(self.mean)

    def _predict(
        self, element: Tensor, index: Tensor, time: Tensor, shape: Size
    ) -> tuple[Tensor, Tensor | LinearOperator]:
        """Return means and covariances of events ``M x q``, none before now."""
        h = self._observation_row(self._lag(time), element)
        place = element.unsqueeze(-1), slice(None), index
        mean = (h * self._mean()[place]).sum(-1)
        prior = self._prior_variance_of(element, index)
        squares = (h.unsqueeze(-1) * h.unsqueeze(-2)).flatten(2)
        variance = (prior - (squares * self.reduction[place]).sum(-1)).clamp_min(LEAST_VARIANCE)
        if shape[-1] <= 1:
            return mean, variance.reshape(*shape, shape[-1])
        parts = (element.unsqueeze(-1).expand_as(time), index, time, variance)
        events = torch.stack([part.to(time) for part in parts], dim=-1).reshape(*shape, 4)
        joint = self.snapshot()._joint
        if shape[-1] <= MAX_EVALUATED:
            return mean, joint(events, events)
        return mean, JointCovariance(events, events, covar_func=joint)

    def _joint(self, first: Tensor, second: Tensor) -> Tensor:
        """Return covariances of events ``... x q x 4`` and ``... x p x 4``, none before now."""
        batch = first.shape[:-2]
        one, other = (x.reshape(batch.numel(), *x.shape[-2:]) for x in (first, second))
        element, each = one[:, 0, 0].long(), torch.arange(len(one), device=one.device)
        (index, time), (place, when) = ((x[..., 1].long(), x[..., 2]) for x in (one, other))
        apart = (time.unsqueeze(-1) - when.unsqueeze(-2)).abs()
        covar = self._prior(element, index, place, apart)
        V, W = (self._read(element, *at) for at in ((index, time), (place, when)))
        sign = torch.ones_like(V[0, 0])
        if self.given_back is not None:
            sign[self.num_rows :] = -1.0
        covar = covar - (V * sign) @ W.mT
        if self.merged is not None:
            h = self._observation_row(time - self._merged_at, element)
            known = self.merged.flatten(1, 2).unflatten(1, (self.num_states, -1))
            known = known[element.unsqueeze(-1), :, index]
            known = (h.unsqueeze(-2) @ known).view(*index.shape, self.num_states, -1)
            h = self._observation_row(when - self._merged_at, element).unsqueeze(-2)
            covar = covar - (h * known.permute(0, 3, 1, 2)[each.unsqueeze(-1), place]).sum(-1).mT
        if torch.equal(one, other):
            # Exactly the variance that a prediction of one row at a time gives.
            covar.diagonal(dim1=-2, dim2=-1).copy_(one[..., 3])
        return covar.reshape(*batch, *covar.shape[-2:])

    def _read(self, element: Tensor, index: Tensor, time: Tensor) -> Tensor:
        """Return covariances of events ``M x q`` with the rows, and those given back."""
        h = self._observation_row(self._lag(time), element)
        lead = element if len(self.transitions) > 1 else torch.zeros_like(element)
        by_row = self._by_row(h, self.transitions[lead])
        rows = self.rows[:, : self.num_rows].permute(0, 3, 1, 2)[element.unsqueeze(-1), index]
        read = (by_row * rows).sum(-1)
        if self.given_back is None:
            return read
        back = self.given_back.permute(0, 3, 1, 2)[element.unsqueeze(-1), index]
        return torch.cat([read, (h.unsqueeze(-2) * back).sum(-1)], dim=-1)

    def _smooth(
        self, element: Tensor, index: Tensor, time: Tensor, shape: Size
    ) -> tuple[Tensor, Tensor]:
        """Return means and covariances of events ``M x q`` at any times."""
        root, residual = self._event_root(self.events), self._residuals(self.events)
        if self.expected.shape[-1] > 0:
            pending = residual[:, self._is_pending]
            residual[:, self._is_pending] = torch.where(pending.isnan(), self.expected, pending)
        lead = element if len(root) > 1 else element[:1]
        place = self.events[lead, 0].long().expand(len(index), -1)
        lag = (self.events[0, 1].unsqueeze(-1) - time.unsqueeze(-2)).abs()
        cross = self._prior(element, place, index, lag)
        V = torch.linalg.solve_triangular(root[lead], cross, upper=False)
        a = torch.linalg.solve_triangular(root, residual.unsqueeze(-1), upper=False)
        apart = (time.unsqueeze(-1) - time.unsqueeze(-2)).abs()
        covar = self._prior(element, index, index, apart) - V.mT @ V
        covar.diagonal(dim1=-2, dim2=-1).clamp_min_(LEAST_VARIANCE)
        return (V.mT @ a[lead]).squeeze(-1), covar.reshape(*shape, shape[-1])

    def _event_root(self, events: Tensor) -> Tensor:
        """Return the Cholesky factor of the covariance of events' outcomes, ``b x k x k``."""
        index, time = events[:, 0].long(), events[:, 1]
        apart = (time.unsqueeze(-1) - time.unsqueeze(-2)).abs()
        covar = self._prior(self._elements, index, index, apart)
        root: Tensor = torch.linalg.cholesky(covar + torch.diag_embed(events[:, 3]))
        return root

    def _states_after(self, element: Tensor, index: Tensor, lag: Tensor) -> Tensor:
        """Return prior covariances of events with states later by ``q`` lags, ``b x q x S x n``."""
        parts = []
        for term in self._terms:
            gain = term.gain[:, None, :, None]
            if lag.shape[0] > 1:
                gain = _lead(term.transition(lag), gain)
            parts.append(gain * term.covariance.rows(element, index).unsqueeze(-2))
        return torch.cat(parts, dim=-2) if len(parts) > 1 else parts[0]

    @property
    def _terms(self) -> list[KroneckerTerm]:
        return cast(list[KroneckerTerm], self.terms)

    @property
    def _is_pending(self) -> Tensor:
        """Mask of the events whose outcomes are pending."""
        return self.events[0, 4] > 0

    def _transition(self, lag: Tensor, element: Tensor | None = None) -> Tensor:
        """Return the matrices of all terms as one, as :meth:`KroneckerTerm.transition`."""
        parts = [term.transition(lag, element) for term in self._terms]
        if len(parts) == 1:
            return parts[0]
        lead = torch.broadcast_shapes(*(A.shape[:-2] for A in parts))
        A, first = lag.new_zeros(*lead, self.num_states, self.num_states), 0
        for part in parts:
            last = first + part.shape[-1]
            A[..., first:last, first:last] = part
            first = last
        return A

    def _observation_row(self, lag: Tensor, element: Tensor | None = None) -> Tensor:
        """Return the vectors whose product with a state is the function later, ``... x S``."""
        return self._observed(self._transition(lag, element))

    def _observed(self, A: Tensor) -> Tensor:
        return A[..., 0] if self.num_states == 1 else self._observation @ A

    def _prior(self, element: Tensor, first: Tensor, second: Tensor, lag: Tensor) -> Tensor:
        """Return prior covariances of choices ``M x q`` and ``M x p``, ``lag`` apart."""
        covar = self._terms[0].covariances(element, first, second, lag)
        for term in self._terms[1:]:
            covar = covar + term.covariances(element, first, second, lag)
        return covar

    def _prior_variance_of(self, element: Tensor, index: Tensor) -> Tensor:
        variance = self._prior_variance
        if variance.shape[0] == 1:
            return variance[0, index]
        return variance[element.unsqueeze(-1), index]

    def _prior_mean(self, X: Tensor) -> Tensor | float:
        if self.mean_module is None:
            return 0.0
        with torch.no_grad():
            mean: Tensor = self.mean_module(X.to(self._noise))
            return mean

    def _prior_mean_of(self, events: Tensor) -> Tensor | float:
        """Return the prior means of events, ``b x q``."""
        if self.mean_module is None:
            return 0.0
        X = torch.cat([self.choices[events[:, 0].long()], events[:, 1].unsqueeze(-1)], dim=-1)
        return self._prior_mean(X)

    def _residuals(self, events: Tensor) -> Tensor:
        """Return outcomes, or what stands in for them, less the prior mean, ``b x k``."""
        return events[:, 2] - self._prior_mean_of(events)

    @property
    def _told(self) -> Tensor:
        """Events whose outcomes came."""
        has_pending = self.expected.shape[-1] > 0
        return self.events[..., ~self._is_pending] if has_pending else self.events

    def _rows_of(self, events: Tensor) -> Tensor:
        """Return the rows of events, ``batch_shape x k x (d + 1)``."""
        X = torch.cat([self.choices[events[:, 0].long()], events[:, 1].unsqueeze(-1)], dim=-1)
        return X.reshape(*self._batch_shape, *X.shape[1:])

    def _lag(self, time: Tensor) -> Tensor:
        """Return lags from now to times; 0 before any event."""
        return time - self._now if self._now > -math.inf else torch.zeros_like(time)

    def _lags(self, times: list[float]) -> Tensor:
        return self._lag(self._noise.new_tensor(times))

    def _by_row(self, h: Tensor, transitions: Tensor) -> Tensor:
        """Return the vectors whose products with the rows events see, ``L x q x k x S``."""
        if self.num_states == 1:
            return (h * transitions.view(transitions.shape[0], 1, -1)).unsqueeze(-1)
        each = h @ transitions.transpose(1, 2).flatten(2)
        by_row: Tensor = each.unflatten(-1, transitions.shape[1:3])
        return by_row

    def _normal(self, count: int, generator: Generator) -> Tensor:
        return torch.randn(count, dtype=self._noise.dtype, generator=generator).to(self._noise)

    def _check_time(self, t: float | Tensor) -> float:
        t = float(t)
        if not math.isfinite(t) or (t < self._now and not self.is_static):
            raise InputDataError(
                f"Expected a time at or after the newest event, t={self._now:g}. Got t={t:g}."
            )
        return t

    def _split(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the indices and the times of rows, ``... x q`` each."""
        check_last_dimension("X", X, self.row_index.dim + 1)
        if X.ndim < 2:
            raise BotorchTensorDimensionError(
                f"Expected X of shape ... x q x {self.row_index.dim + 1}. "
                f"Got X.shape={tuple(X.shape)}."
            )
        check_finite("X", X)
        return self.row_index.index(X[..., :-1]), X[..., -1].to(self._noise)

    def _broadcast(self, X: Tensor, shape: Size) -> Size:
        """Return the shape of events ``... x q`` that broadcasts with the batch of the model."""
        if not self._batch_shape:
            return shape
        try:
            return Size((*torch.broadcast_shapes(shape[:-1], self._batch_shape), shape[-1]))
        except RuntimeError as error:
            raise BotorchTensorDimensionError(
                f"Expected X of shape ... x q x {self.row_index.dim + 1} that broadcasts with "
                f"batch_shape={tuple(self._batch_shape)}. Got X.shape={tuple(X.shape)}."
            ) from error

    def _events(self, X: Tensor, Y: Tensor, Yvar: Tensor | None, is_pending: float) -> Tensor:
        """Return new events, ``b x 5 x q``."""
        index, time = self._split(X)
        shape = self._broadcast(X, index.shape)
        if shape[:-1] != self._batch_shape:
            raise BotorchTensorDimensionError(
                f"Expected X of batch shape {tuple(self._batch_shape)} or none. "
                f"Got X.shape={tuple(X.shape)}."
            )
        flat = self._noise.shape[0], shape[-1]
        noise = self._noise.unsqueeze(-1) if Yvar is None else self._noises(Yvar, X).reshape(flat)
        index, time = index.expand(shape).reshape(flat), time.expand(shape).reshape(flat)
        if flat[0] > 1 and (time != time[:1]).any():
            raise InputDataError(
                "Expected the same times in all batch elements, which move in step. Got others."
            )
        pending = torch.full_like(time, is_pending)
        parts = [index.to(time), time, Y.reshape(flat), noise.expand(flat), pending]
        return torch.stack(parts, dim=1)

    def _values(self, name: str, values: Tensor, X: Tensor) -> Tensor:
        """Return outcomes or noise variances of events, ``b x q``."""
        shape = (*self._batch_shape, *X.shape[-2:-1], 1)
        if values.shape != shape:
            raise BotorchTensorDimensionError(
                f"Expected {name} of shape batch_shape x q x 1 = {shape}. "
                f"Got {name}.shape={tuple(values.shape)}."
            )
        check_finite(name, values)
        return values.to(self._noise)

    def _noises(self, Yvar: Tensor, X: Tensor) -> Tensor:
        if (Yvar < 0).any():
            raise InputDataError(f"Expected Yvar >= 0. Got {Yvar.min().item()}.")
        return self._values("Yvar", Yvar, X)

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


def _columns(rows: Tensor, index: Tensor) -> Tensor:
    """Return the states of choices ``b x q`` in rows ``b x k x S x n``, ``b x q x k x S``."""
    if rows.shape[0] == 1:
        return rows[0, ..., index[0]].movedim(-1, 0).unsqueeze(0)
    here = index[:, None, None].expand(*rows.shape[:-1], index.shape[-1])
    return rows.gather(-1, here).movedim(-1, 1)


def _in_order(events: Tensor) -> Tensor:
    """Return events in the order of time."""
    return events[..., events[0, 1].argsort(stable=True)]


def _lead(A: Tensor, states: Tensor) -> Tensor:
    """Return states ``... x S x n`` led by matrices ``... x S x S``."""
    return A * states if A.shape[-1] == 1 else A @ states


def _solve(root: Tensor, right: Tensor) -> Tensor:
    """Return the solution for a triangular matrix."""
    if root.shape[-1] == 1:
        return right / root
    is_upper = bool(root[..., 0, -1].any())
    solution: Tensor = torch.linalg.solve_triangular(root, right, upper=is_upper)
    return solution


def _explained(rows: Tensor) -> Tensor:
    """Return covariances of the states of each choice that rows explain, ``b x S² x n``."""
    if rows.shape[-2] == 1:
        return rows.square().sum(dim=1)
    return (rows.unsqueeze(-2) * rows.unsqueeze(-3)).sum(dim=1).flatten(1, 2)


def _squares(A: Tensor) -> Tensor:
    """Return the Kronecker products of matrices with themselves, ``... x p² x q²``."""
    return (A[..., :, None, :, None] * A[..., None, :, None, :]).flatten(-2).flatten(-3, -2)


def _decay(rate: Tensor) -> TemporalDecayKernel:
    """Return a temporal kernel with any rate in [0, 1], also at the ends."""
    kernel: TemporalDecayKernel = TemporalDecayKernel(batch_shape=rate.shape).to(rate)
    kernel.raw_forgetting_rate.data = rate.unsqueeze(-1).clone()
    return kernel


def _flat(kernel: TemporalKernel, batch_shape: Size) -> TemporalKernel:
    """Return a fixed copy of a temporal kernel with one dimension of batch, or none."""
    kernel = deepcopy(kernel).requires_grad_(False)
    depth = len(kernel.batch_shape)
    if depth == 0:
        return kernel

    def flat(values: Tensor) -> Tensor:
        rest = values.shape[depth:]
        return values.expand(*batch_shape, *rest).reshape(-1, *rest).clone()

    for name, parameter in list(kernel._parameters.items()):
        if parameter is not None:
            kernel._parameters[name] = Parameter(flat(parameter.detach()), requires_grad=False)
    kernel._one = flat(kernel._one)
    return kernel
