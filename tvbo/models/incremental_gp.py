"""The exact posterior on any rows, at the cost of a row of its Cholesky factor per observation."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

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
from torch import Size, Tensor

from tvbo.models.incremental import Candidates, Factor, RowPosterior, Whitened
from tvbo.models.incremental.whitened import innovation_root
from tvbo.models.raw import RawMean, RawRowKernel, has_zero_mean, raw_noise_variance


class IncrementalGP(RowPosterior):
    r"""An exact GP whose Cholesky factor grows by a row with each observation.

    The posterior of :class:`tvbo.models.TimeVaryingGP` and :class:`tvbo.models.ContextualGP` with
    the same hyperparameters, for any rows: actions in a box, continuous contexts, times in any
    order. With ``n`` observations, :math:`L L^\top = K + \Sigma` their covariance,

    .. math:: \mu(x) = m(x) + a^\top V(x), \quad
        \mathrm{Cov}(x, x') = k(x, x') - V(x)^\top V(x'), \quad V(x) = L^{-1} k(X, x), \quad
        a = L^{-1}(y - m(X)),

    equations (7)-(8) of Bogunovic et al. (2016). An observation costs :math:`O(n^2)` instead of
    the :math:`O(n^3)` of a new factor; ``N`` new rows cost :math:`O(n^2 N)`. The newest set of
    rows evaluated without gradients is remembered with its ``V``: asked about again, the same
    rows at the same time and context, or at any time where nothing is forgotten, cost
    :math:`O(N)`, and :math:`O(n N)` for each observation made since; and observing one of them
    costs no more. Memory grows as :math:`n^2`.

    On a finite set, :class:`tvbo.models.StreamingGP` does not slow down at all.

    Args:
        covar_module: Kernel over whole rows, held fixed, used as it stands now.
        noise_variance: σ², at least 0.
        mean_module: Prior mean over rows, held fixed; None is zero.

    Raises:
        ValueError: if ``noise_variance`` is out of range, or the kernel has a batch shape.

    Example:
        >>> model = IncrementalGP(kernel, noise_variance=0.01)
        >>> model.observe(torch.tensor([[0.2, 0.4, 1.0]]), torch.tensor([[0.7]]))  # [x, z, t]
        >>> model.posterior(torch.tensor([[0.3, 0.4, 2.0]])).mean
    """

    def __init__(
        self, covar_module: Kernel, noise_variance: float, *, mean_module: Mean | None = None
    ):
        super().__init__()
        self._hold(covar_module, noise_variance, mean_module)
        self.factor = Factor()
        self._candidates: Candidates | None = None
        # A column that the kernel does not depend on: time, where nothing is forgotten.
        self._idle_column: int | None = None

    @classmethod
    def from_model(cls, model: SingleTaskGP, noise_variance: float | None = None) -> IncrementalGP:
        """With the hyperparameters of a fitted model, in raw units, without its observations.

        Args:
            model: A model of one output; its transforms of inputs and outcomes are taken into
                account as they stand.
            noise_variance: σ² in raw units; None takes the model's (the mean one, if fixed).

        Raises:
            UnsupportedError: if the model has a batch or more than one output, an outcome transform
                other than ``Standardize``, or an input transform other than ``Normalize``.
        """
        transform = getattr(model, "input_transform", None)
        if transform is not None and not isinstance(transform, Normalize):
            raise UnsupportedError(
                f"Expected Normalize or no input transform. Got {type(transform).__name__}."
            )
        new = cls(
            RawRowKernel(model),
            raw_noise_variance(model) if noise_variance is None else noise_variance,
            mean_module=None if has_zero_mean(model) else RawMean(model),
        )
        new.factor = Factor(model.train_inputs[0].shape[-1])
        temporal = getattr(model, "temporal_kernel", None)
        if temporal is not None and (temporal.forgetting_rate == 0).all():
            new._idle_column = int(temporal.active_dims)
        return new.to(model.train_inputs[0].device)

    @property
    def batch_shape(self) -> Size:
        """None."""
        return Size()

    @property
    def noise_variance(self) -> Tensor:
        """σ²."""
        return self._noise

    @property
    def num_observations(self) -> int:
        """Observations held."""
        return self.factor.count

    @property
    def width(self) -> int:
        """Columns of a row; 0 until a row was observed."""
        return self.factor.X.shape[-1]

    def get_extra_state(self) -> dict[str, Any]:
        """What is remembered of the newest rows asked about, for ``state_dict``."""
        known = self._candidates
        return {
            "idle_column": self._idle_column,
            # In other portions their covariances would round otherwise.
            "candidates": None if known is None else known.state(),
        }

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore what was remembered.

        Raises:
            RuntimeError: if it is the state of another kind of model.
        """
        if set(state) != {"idle_column", "candidates"}:
            raise RuntimeError(f"Expected the state of an IncrementalGP. Got one with {state}.")
        self._idle_column = state["idle_column"]
        known, device = state["candidates"], self._noise.device
        self._candidates = (
            None if known is None else Candidates(**known).moved(lambda part: part.to(device))
        )

    def observe(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> None:
        """Take in observations.

        Args:
            X: Rows, ``q x d``; times in any order.
            Y: Outcomes, ``q x 1``.
            Yvar: Their noise variances, ``q x 1``; None for ``noise_variance``.

        Raises:
            BotorchTensorDimensionError: if shapes do not agree.
            InputDataError: if a value is not finite, a noise variance negative, or an outcome was
                certain already. Nothing is taken in then.
        """
        X = self._checked(X)
        for name, value in (("X", X), ("Y", Y), ("Yvar", Yvar)):
            if value is not None and value.ndim != 2:
                raise BotorchTensorDimensionError(
                    "Expected X of shape q x d, Y and Yvar of shape q x 1. "
                    f"Got {name}.shape={tuple(value.shape)}."
                )
        with torch.no_grad():
            residual, noise = self._outcomes(X, Y, Yvar, "Yvar")
            noise = noise.expand_as(residual)
            self._take_in(X, residual, noise)

    def drop(self, keep: Tensor) -> None:
        """Forget observations, exactly.

        The factor of those before the first that goes stays; the rest is made again. Where the
        oldest go, that is a new factor: :math:`O(n^3)` in the number ``n`` that stay.

        Args:
            keep: Which stay, ``num_observations`` truth values in the order of observation.

        Raises:
            BotorchTensorDimensionError: if it is another number of them.
            InputDataError: if without the others an outcome is certain to rounding. Nothing is
                forgotten then.
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
                self._take_in(old.X[rest], old.residual[rest], old.noise[rest])
        except InputDataError:
            self.factor = old
            raise

    def reset(self) -> None:
        """Forget every observation."""
        self.factor = Factor(self.width).to(self._noise.device)
        self._candidates = None

    def as_it_is(self) -> IncrementalGP:
        """A copy of its own, which shares the factor: nothing that is asked of it shows here."""
        new = self._settled()
        new._candidates = None
        return new

    def _settled(self) -> IncrementalGP:
        new = copy(self)
        new._modules = {**self._modules, "factor": self.factor.head(self.factor.count)}
        return new

    def _take_in(self, X: Tensor, residual: Tensor, noise: Tensor) -> None:
        if len(X) == 0:
            return
        cross = self._known(self._told_apart(X)) or self._learned(Candidates.unseen(X))
        prior = to_dense(self.covar_module(X))
        root = innovation_root(prior - cross.V.mT @ cross.V, noise, prior)
        self.factor.append(X, residual, noise, cross.V.mT, root)

    def _whiten(self, X: Tensor) -> Whitened:
        rows = X.reshape(-1, X.shape[-1])
        if torch.is_grad_enabled() and rows.requires_grad:
            of_rows = self._learned(Candidates.unseen(rows))
        else:
            rows = self._told_apart(rows)
            of_rows = self._known(rows)
            if of_rows is None:
                prior = to_dense(self.covar_module(rows, diag=True))
                of_rows = self._learned(Candidates.unseen(rows.clone(), prior))
                # One row alone is not worth forgetting a set for.
                if len(rows) > 1:
                    self._candidates = of_rows
        shape = X.shape[:-1]
        return Whitened(
            (of_rows.V.mT.reshape(*shape, len(of_rows.V)),),
            of_rows.mean.reshape(shape),
            of_rows.reduction.reshape(shape),
            None if of_rows.prior is None else of_rows.prior.reshape(shape),
        )

    def _told_apart(self, rows: Tensor) -> Tensor:
        """Rows that differ only if the kernel does: a later time alone is no new question."""
        if self._idle_column is None:
            return rows
        rows = rows.clone()
        rows[:, self._idle_column] = 0.0
        return rows

    def _known(self, rows: Tensor) -> Candidates | None:
        """What is known of rows that are among the newest candidates, brought up to date."""
        found = None if self._candidates is None else self._candidates.among(rows)
        if found is None:
            return None
        self._candidates = self._learned(self._candidates)
        return self._candidates.among(rows)

    def _learned(self, candidates: Candidates) -> Candidates:
        """Candidates with what was observed since they were last asked about."""
        first = candidates.count
        if first == self.num_observations:
            return candidates
        covar = to_dense(self.covar_module(self.factor.X[first:], candidates.rows))
        return candidates.learn(self.factor.solve(covar, candidates.V), self.factor.gains[first:])

    def _apply(self, fn, recurse: bool = True):
        # Acquisition functions move their model to the device of X in each evaluation.
        if self._candidates is not None:
            self._candidates = self._candidates.moved(fn)
        return super()._apply(fn, recurse)
