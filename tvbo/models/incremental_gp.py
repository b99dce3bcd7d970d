"""The exact posterior on any rows, with a Cholesky factor that grows by a row per observation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, ClassVar, Self

import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from linear_operator import to_dense
from torch import Tensor

from tvbo.models.incremental.candidate_cache import CandidateCache
from tvbo.models.incremental.growing_cholesky import GrowingCholesky
from tvbo.models.incremental.row_posterior import Observed, RowPosterior
from tvbo.models.incremental.whitened import Whitened
from tvbo.models.raw import RawMean, RawRowKernel, has_zero_mean, raw_noise_variance
from tvbo.models.scale import UnitCube
from tvbo.rounding import innovation_root


class IncrementalGP(RowPosterior):
    r"""An exact GP whose Cholesky factor grows by a row with each observation.

    The posterior of :class:`tvbo.models.TimeVaryingGP` and :class:`tvbo.models.ContextualGP` with
    the same hyperparameters, for any rows: actions in a box, continuous contexts, times in any
    order. With ``n`` observations, :math:`L L^\top = K + \Sigma` their covariance,

    .. math:: \mu(x) = m(x) + a^\top V(x), \quad
        \mathrm{Cov}(x, x') = k(x, x') - V(x)^\top V(x'), \quad V(x) = L^{-1} k(X, x), \quad
        a = L^{-1}(y - m(X)),

    equations (7)-(8) of Bogunovic et al. (2016). An observation costs :math:`O(n^2)` instead of
    the :math:`O(n^3)` of a new factor; ``N`` new rows cost :math:`O(n^2 N)`. The last set of rows
    that was predicted without gradients is cached with its ``V``: the same rows at the same time
    and context, or at any time if ε = 0, then cost :math:`O(N)`, and :math:`O(n N)` for each
    observation made since; and observing one of them costs no more. Memory grows as :math:`n^2`.

    On a finite set, the cost of :class:`tvbo.models.StreamingGP` does not grow at all.

    Args:
        covar_module: Kernel over whole rows; a copy with its present parameters is used.
        noise_variance: σ², at least 0.
        mean_module: Prior mean over rows, copied as well; None is zero.

    Raises:
        ValueError: if ``noise_variance`` is out of range, or the kernel has a batch shape.

    Example:
        >>> model = IncrementalGP(kernel, noise_variance=0.01)
        >>> model.observe(torch.tensor([[0.2, 0.4, 1.0]]), torch.tensor([[0.7]]))  # [x, z, t]
        >>> model.posterior(torch.tensor([[0.3, 0.4, 2.0]])).mean
    """

    factor: GrowingCholesky

    remembers_rows: ClassVar[bool] = True
    """The last rows are cached, so that all are evaluated at once."""

    def __init__(
        self, covar_module: Kernel, noise_variance: float, *, mean_module: Mean | None = None
    ):
        super().__init__()
        self._set_hyperparameters(covar_module, noise_variance, mean_module)
        self.factor = GrowingCholesky()
        self._candidates: CandidateCache | None = None
        # A column on which the kernel does not depend: time, if ε = 0.
        self._inactive_column: int | None = None

    @classmethod
    def from_model(cls, model: SingleTaskGP, noise_variance: float | None = None) -> IncrementalGP:
        """Build a model with the hyperparameters of a fitted one, in raw units, without its data.

        Args:
            model: A model of one output; its transforms of inputs and outcomes are applied with
                their present parameters.
            noise_variance: σ² in raw units; None takes the model's, or the mean of its fixed ones.

        Raises:
            UnsupportedError: if the model has a batch or more than one output, an outcome transform
                other than ``Standardize``, or an input transform other than ``Normalize`` and
                :class:`tvbo.models.scale.UnitCube`.
        """
        transform = getattr(model, "input_transform", None)
        if not isinstance(transform, Normalize | UnitCube | None):
            raise UnsupportedError(
                "Expected UnitCube, Normalize or no input transform. "
                f"Got {type(transform).__name__}."
            )
        new = cls(
            RawRowKernel(model),
            raw_noise_variance(model) if noise_variance is None else noise_variance,
            mean_module=None if has_zero_mean(model) else RawMean(model),
        )
        new.factor = GrowingCholesky(model.train_inputs[0].shape[-1])
        time_column = getattr(model, "time_feature", None)
        if time_column is not None and model.is_static:
            new._inactive_column = time_column
        return new.to(model.train_inputs[0].device)

    @property
    def num_observations(self) -> int:
        """Number of observations."""
        return self.factor.count

    @property
    def width(self) -> int:
        """Number of columns of a row; 0 before the first observation."""
        return self.factor.X.shape[-1]

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """Rows of the observations, ``n x d``."""
        return (self.factor.X,)

    @property
    def train_targets(self) -> Tensor:
        """Outcomes, ``n``."""
        X = self.factor.X
        return self.factor.residual + (self._prior_mean(X) if len(X) > 0 else 0.0)

    def get_extra_state(self) -> dict[str, Any]:
        """Return the cache of the last rows that were predicted, for ``state_dict``."""
        cache = self._candidates
        return {
            "inactive_column": self._inactive_column,
            # Computed again, all at once, the covariances would be rounded differently.
            "candidates": None if cache is None else cache.state(),
        }

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore the cache.

        Raises:
            RuntimeError: if it is the state of another kind of model.
        """
        if set(state) != {"inactive_column", "candidates"}:
            raise RuntimeError(f"Expected the state of an IncrementalGP. Got one with {state}.")
        self._inactive_column = state["inactive_column"]
        cache, device = state["candidates"], self._noise.device
        if cache is not None:
            cache = CandidateCache(**cache).mapped(lambda part: part.to(device))
        self._candidates = cache

    def observe(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> None:
        """Add observations.

        Args:
            X: Rows, ``q x d``; times in any order.
            Y: Outcomes, ``q x 1``.
            Yvar: Their noise variances, ``q x 1``; None for ``noise_variance``.

        Raises:
            BotorchTensorDimensionError: if shapes do not agree.
            InputDataError: if a value is not finite, a noise variance negative, or the predictive
                variance of an outcome numerically zero. Nothing is changed then.
        """
        X = self._checked(X)
        for name, value in (("X", X), ("Y", Y), ("Yvar", Yvar)):
            if value is not None and value.ndim != 2:
                raise BotorchTensorDimensionError(
                    "Expected X of shape q x d, Y and Yvar of shape q x 1. "
                    f"Got {name}.shape={tuple(value.shape)}."
                )
        with torch.no_grad():
            residual, noise = self._residuals(X, Y, Yvar, "Yvar")
            noise = noise.expand_as(residual)
            self._append(X, residual, noise)

    def drop(self, keep: Tensor) -> None:
        """Discard observations.

        The factor of those before the first discarded one is reused, the rest is computed again. If
        the oldest are discarded, this costs :math:`O(n^3)` in the number ``n`` of remaining ones.

        Args:
            keep: Which observations remain, ``num_observations`` truth values in the order of
                observation.

        Raises:
            BotorchTensorDimensionError: if ``keep`` has another shape or type.
            InputDataError: if without the others the predictive variance of an outcome is
                numerically zero. Nothing is changed then.
        """
        if keep.shape != (self.num_observations,) or keep.dtype != torch.bool:
            raise BotorchTensorDimensionError(
                f"Expected keep of {self.num_observations} truth values. "
                f"Got keep.shape={tuple(keep.shape)}, {keep.dtype}."
            )
        keep = keep.to(self._noise.device)
        if keep.all():
            return
        old = self.factor
        self.reset()
        first = int(keep.to(torch.uint8).argmin())
        rest = keep.nonzero().squeeze(-1)[first:]
        if first + len(rest) == 0:
            return
        try:
            with torch.no_grad():
                self.factor = old.head(first)
                self._append(old.X[rest], old.residual[rest], old.noise[rest])
        except InputDataError:
            self.factor = old
            raise

    def reset(self) -> None:
        """Discard all observations."""
        self.factor = GrowingCholesky(self.width).to(self._noise.device)
        self._candidates = None

    def snapshot(self) -> IncrementalGP:
        """Return a copy whose predictions and observations do not affect this model.

        It shares the factor, so that nothing large is copied.
        """
        new = self._frozen()
        new._candidates = None
        return new

    def observed(self) -> Observed:
        """Return what the posterior is given."""
        factor = self.factor
        return Observed(factor.X, factor.residual, factor.noise, factor.root.tril())

    def _frozen(self) -> IncrementalGP:
        """Return a model that further observations of this one do not change."""
        new = copy(self)
        new._modules = {**self._modules, "factor": self.factor.head(self.factor.count)}
        return new

    def _append(self, X: Tensor, residual: Tensor, noise: Tensor) -> None:
        """Append checked observations to the factor."""
        if len(X) == 0:
            return
        cross = self._cached(self._mask_inactive_time(X))
        if cross is None:
            cross = self._updated(CandidateCache.without_observations(X))
        prior = to_dense(self.covar_module(X))
        root = innovation_root(prior - cross.V.mT @ cross.V, noise, prior.diagonal())
        self.factor.append(X, residual, noise, cross.V.mT, root)

    def _whiten(self, X: Tensor) -> Whitened:
        rows = X.reshape(-1, X.shape[-1])
        if torch.is_grad_enabled() and rows.requires_grad:
            cache = self._updated(CandidateCache.without_observations(rows))
        else:
            rows = self._mask_inactive_time(rows)
            known = self._cached(rows)
            if known is None:
                prior = to_dense(self.covar_module(rows, diag=True))
                known = self._updated(CandidateCache.without_observations(rows.clone(), prior))
                # A single row does not replace a set of candidates.
                if len(rows) > 1:
                    self._candidates = known
            cache = known
        shape = X.shape[:-1]
        return Whitened(
            (cache.V.mT.reshape(*shape, len(cache.V)),),
            cache.mean.reshape(shape),
            cache.reduction.reshape(shape),
            None if cache.prior is None else cache.prior.reshape(shape),
        )

    def _mask_inactive_time(self, rows: Tensor) -> Tensor:
        """Return rows whose time is zero if the kernel does not depend on it (ε = 0).

        Then the same actions at a later time are found in the cache.
        """
        if self._inactive_column is None:
            return rows
        rows = rows.clone()
        rows[:, self._inactive_column] = 0.0
        return rows

    def _cached(self, rows: Tensor) -> CandidateCache | None:
        """Return the updated cache of rows that are among the candidates; None if they are not."""
        if self._candidates is None or self._candidates.subset(rows) is None:
            return None
        self._candidates = self._updated(self._candidates)
        return self._candidates.subset(rows)

    def _updated(self, candidates: CandidateCache) -> CandidateCache:
        """Return the cache with the observations made since it was last updated."""
        first = candidates.count
        if first == self.num_observations:
            return candidates
        covar = to_dense(self.covar_module(self.factor.X[first:], candidates.rows))
        new = self.factor.solve(covar, candidates.V)
        return candidates.with_observations(new, self.factor.innovations[first:])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Acquisition functions move their model to the device of X in each evaluation.
        applied: Self = super()._apply(fn, recurse)
        if self._candidates is not None:
            self._candidates = self._candidates.mapped(fn)
        return applied
