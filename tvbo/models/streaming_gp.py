"""The exact posterior on a finite set of choices, at constant cost per round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from torch import Size, Tensor

from tvbo.kernels.temporal import check_forgetting_rate
from tvbo.models.raw import RawMean, has_zero_mean, raw_noise_variance
from tvbo.models.streaming.draws import Draws
from tvbo.models.streaming.eviction_policy import EvictionPolicy
from tvbo.models.streaming.innovations import Innovations
from tvbo.models.streaming.make_prior import make_prior
from tvbo.models.streaming.raw_action_kernel import raw_kernels
from tvbo.models.streaming.revision import Revisions
from tvbo.models.time_varying_gp import TimeVaryingGP
from tvbo.spaces.row_index import RowIndex


class StreamingGP(Revisions, Draws):
    r"""A drifting GP on a finite set whose cost per observation does not grow.

    The posterior (7)-(8) of TV-GP-UCB (Bogunovic et al., 2016), the same as that of
    :class:`tvbo.models.TimeVaryingGP` with the same hyperparameters. Because
    :math:`(1-\varepsilon)^{|\Delta t|/2}` is Markov in time, no growing data set is needed: an
    observation costs :math:`O(W n)` with

    .. math:: W = \lceil \ln(\text{tol}) / \ln(1 - \varepsilon) \rceil

    rows for unit steps, or, where more rows have weight than there are choices, about
    :math:`O(n^2)` for any ε. With ε = 0 no row loses its weight: then old rows are merged into an
    ``n x n`` matrix, which is exact, or dropped beyond ``max_rows``, and :attr:`neglected` bounds
    the error.

    All of this holds for other temporal kernels and their sums as well: with ``S`` numbers of
    state in all, a row is ``S`` times as long, and such a matrix ``S n x S n``. The weight of a row
    is that for the temporal kernel that forgets least, :meth:`tvbo.kernels.TemporalKernel.weight`.

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
        batch_shape: Shape of the batch of independent models, each with its own observations;
            broadcast with the batch shapes of kernel, ``forgetting_rate`` and ``noise_variance``.
        tol: A row is dropped once its weight :math:`(1-\varepsilon)^{\text{age}}` is at most this.
            Then the mean does not change, and no posterior covariance by more than this share of
            the prior variance; later observations are weighted by these covariances, which changes
            means slightly, too. For an observation late by ℓ the error is
            :math:`(1-\varepsilon)^{-\ell}` times as large, unless ``max_lateness`` is at least ℓ.
        max_rows: Maximum number of rows held; None for as many as exactness needs. Once it has
            caused rows with weight to be dropped, observations may no longer be late.
        max_lateness: Lateness, in units of time, up to which late observations are as exact as
            others. None holds at least the last 256 observations, and accepts any later than these.
            0 accepts no late observation, which saves memory.

    Raises:
        BotorchTensorDimensionError: if ``choices`` is not ``n x d``.
        InputDataError: if a choice is not finite, or the choices contain duplicates.
        TypeError: if a temporal kernel is none.
        ValueError: if a parameter is out of range, batch shapes do not broadcast, not exactly one
            of ``forgetting_rate`` and ``temporal_kernel`` is given, or there are neither one nor as
            many kernels in ``covar_module`` as temporal kernels.

    Example:
        >>> model = StreamingGP(choices, RBFKernel(), forgetting_rate=0.03, noise_variance=0.01)
        >>> model.observe(torch.tensor([[0.2, 0.4, 1.0]]), torch.tensor([[0.7]]))  # [x1, x2, t]
        >>> model.posterior(torch.tensor([[0.2, 0.4, 2.0]])).mean
    """

    remembers_rows: ClassVar[bool] = True
    """The last rows are cached, so that all are evaluated at once."""

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
        max_rows: int | None = None,
        max_lateness: float | None = None,
    ):
        super().__init__()
        if not 0 < tol < 1:
            raise ValueError(f"Expected tol in (0, 1). Got {tol}.")
        if max_rows is not None and max_rows < 1:
            raise ValueError(f"Expected max_rows >= 1. Got {max_rows}.")
        if max_lateness is not None and not max_lateness >= 0:
            raise ValueError(f"Expected max_lateness >= 0. Got {max_lateness}.")
        self.row_index = RowIndex(choices)
        like = self.row_index.choices
        if (forgetting_rate is None) == (temporal_kernel is None):
            raise ValueError(
                "Expected exactly one of forgetting_rate and temporal_kernel. "
                f"Got {'neither' if temporal_kernel is None else 'both'}."
            )
        time: Tensor | Kernel | Sequence[Kernel]
        if forgetting_rate is not None:
            time = check_forgetting_rate(forgetting_rate).to(like)
        else:
            assert temporal_kernel is not None
            time = temporal_kernel
        if noise_variance is None:
            raise ValueError("Expected noise_variance >= 0, finite. Got None.")
        noise = torch.as_tensor(noise_variance, dtype=torch.float64).to(like)
        if not ((noise >= 0) & (noise < math.inf)).all():
            raise ValueError(f"Expected noise_variance >= 0, finite. Got {noise_variance}.")
        self.mean_module = deepcopy(mean_module)
        prior, self._batch_shape = make_prior(
            like, covar_module, time, batch_shape or Size(), noise.shape
        )
        self.register_buffer("_noise", noise.expand(self._batch_shape).reshape(-1).clone())
        self.eviction_policy = EvictionPolicy(tol, max_lateness, max_rows)
        self.innovations = Innovations(prior, self._noise, self.eviction_policy)

    @classmethod
    def from_model(
        cls,
        model: TimeVaryingGP,
        choices: Tensor,
        *,
        noise_variance: float | None = None,
        tol: float = 1e-12,
        max_rows: int | None = None,
        max_lateness: float | None = None,
    ) -> StreamingGP:
        """Build a model with the hyperparameters of a fitted one, without its observations.

        Args:
            model: A model of one output whose rows are ``[action | time]``; its transforms of
                actions and outcomes are applied with their present parameters.
            choices: ``n x d`` raw actions.
            noise_variance: σ² in raw units; None takes the model's, or the mean of its
                fixed ones.
            tol: Weight at which a row is dropped.
            max_rows: Maximum number of rows held; None for as many as exactness needs.
            max_lateness: Lateness, in units of time, up to which late observations are exact; None
                holds at least the last 256 observations.

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
            max_rows=max_rows,
            max_lateness=max_lateness,
        )

    @property
    def log_likelihood(self) -> Tensor:
        """Log density of the outcomes observed, given the hyperparameters, ``batch_shape``.

        It is the sum over the innovations, which are independent: the log marginal likelihood of a
        dense model of the same observations. Rows that ``max_rows`` has dropped make it inexact.

        Raises:
            InputDataError: if the Cholesky factor is not kept (``max_lateness=0``).
        """
        return self.innovations.log_likelihood.reshape(self._batch_shape)

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """Rows of the observations held, ``batch_shape x k x (d + 1)``, in order of arrival."""
        held = self.innovations.store.held
        X = torch.cat([self.choices[held.index], held.time.unsqueeze(-1)], dim=-1)
        return (X.reshape(*self._batch_shape, *X.shape[1:]),)

    @property
    def train_targets(self) -> Tensor:
        """Outcomes of the observations held, ``batch_shape x k``.

        Raises:
            InputDataError: if the Cholesky factor is not kept (``max_lateness=0``).
            UnsupportedError: if an observation held is earlier than one that was evicted.
        """
        residual = self.innovations.residual.reshape(*self._batch_shape, self.num_rows)
        return residual + self._prior_mean(self.train_inputs[0])

    def blank(self) -> StreamingGP:
        """Return the same model without observations, sharing the prior covariance."""
        new = copy(self)
        new._modules = dict(self._modules)
        new.innovations = Innovations(self.innovations.prior, self._noise, self.eviction_policy)
        return new

    def get_extra_state(self) -> dict[str, float | None]:
        """Return ``tol``, ``max_lateness`` and ``max_rows``, for ``state_dict``."""
        return asdict(self.eviction_policy)

    def set_extra_state(self, state: Mapping[str, float | None]) -> None:
        """Do nothing: :meth:`load_state_dict` has checked that the state equals this model's."""

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Restore a saved state in a model built with the same arguments.

        Raises:
            ValueError: if the choices, ``tol``, ``max_rows`` or ``max_lateness`` differ. Nothing is
                loaded then.
            RuntimeError: if the number of choices or the batch shape differs.
        """
        mine = asdict(self.eviction_policy)
        saved = state_dict.get("_extra_state", mine)
        if saved != mine:
            raise ValueError(f"Expected a state saved with {mine}. Got one saved with {saved}.")
        choices = state_dict.get("row_index.choices", self.choices)
        if choices.shape == self.choices.shape and not torch.equal(
            choices.to(self.choices), self.choices
        ):
            raise ValueError("Expected a state saved with the same choices. Got one with others.")
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    def reset(self) -> None:
        """Discard all observations; the memory is reused for the next ones."""
        self.innovations.reset()

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
        new = copy(self)
        new._buffers = {
            name: None if buffer is None else buffer[element]
            for name, buffer in self._buffers.items()
        }
        new._modules = dict(self._modules)
        new.innovations = self.innovations.take(element)
        new._batch_shape = shape
        Y = Y.expand(*shape, *Y.shape[-2:])
        new.observe(X, Y, None if noise is None else noise.expand_as(Y))
        return new
