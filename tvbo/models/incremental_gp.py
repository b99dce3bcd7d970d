"""The exact posterior on any rows, with a Cholesky factor that grows by a row per observation."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy, deepcopy
from typing import Any, ClassVar, NamedTuple

import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    UnsupportedError,
)
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from linear_operator import to_dense
from torch import Tensor

from tvbo.models.ensemble_gp import CrossCovarianceFactor, EnsembleGP, Observed
from tvbo.models.one_output import one_noise_variance
from tvbo.models.raw import RawMean, RawRowKernel, has_zero_mean, raw_noise_variance
from tvbo.models.scale import UnitCube
from tvbo.rounding import innovation_root

MIN_CAPACITY = 64
"""Least number of observations for which there is room."""

BLOCK = 128
"""Rows of a forward substitution done at once. A triangular solve with a view of a larger buffer
would first copy the view, at many times the cost of the solve; a product with one does not."""

HELD = ("X", "Y", "noise", "innovations", "root")
"""What is held of the observations: rows, outcomes, noise variances, innovations, the factor."""


class Candidates(NamedTuple):
    """Rows ``M x d``, and how the function there depends on the first ``n`` observations.

    Args:
        rows: ``M x d``.
        prior: Prior variance, ``M``.
        V: Covariances with the innovations, ``n x M``.
        mean: Posterior mean less the prior mean, ``M``.
        reduction: Prior variance less posterior variance, ``M``.
    """

    rows: Tensor
    prior: Tensor
    V: Tensor
    mean: Tensor
    reduction: Tensor


class IncrementalGP(EnsembleGP):
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
    observation made since. Memory grows as :math:`n^2`.

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

    mean_module: Mean | None
    _Y: Tensor
    _noise: Tensor
    _innovations: Tensor
    _root: Tensor

    remembers_rows: ClassVar[bool] = True
    """The last rows are cached, so that all are evaluated at once."""

    def __init__(
        self, covar_module: Kernel, noise_variance: float, *, mean_module: Mean | None = None
    ):
        super().__init__()
        noise = one_noise_variance(noise_variance)
        if len(covar_module.batch_shape) > 0:
            raise ValueError(
                "Expected a kernel without a batch. "
                f"Got batch_shape={tuple(covar_module.batch_shape)}."
            )
        for name, module in (("covar_module", covar_module), ("mean_module", mean_module)):
            if module is not None:
                module = deepcopy(module).to(torch.float64).eval().requires_grad_(False)
            setattr(self, name, module)
        self.register_buffer("_noise_variance", noise)
        self.register_buffer("weights", torch.ones(1, dtype=torch.float64), persistent=False)
        # A column on which the kernel does not depend: time, if ε = 0.
        self._inactive_column: int | None = None
        self.num_observations = 0
        self._candidates: Candidates | None = None
        for name in HELD:
            shape = (0, 0) if name in ("X", "root") else (0,)
            self.register_buffer(f"_{name}", noise.new_empty(shape), persistent=False)

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
        new._reserve(0, model.train_inputs[0].shape[-1])
        time_column = getattr(model, "time_feature", None)
        if time_column is not None and model.is_static:
            new._inactive_column = time_column
        return new.to(model.train_inputs[0].device)

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """Rows of the observations, ``n x d``."""
        return (self._held("X"),)

    @property
    def train_targets(self) -> Tensor:
        """Outcomes, ``n``."""
        return self._held("Y")

    def one_step_ahead(self) -> tuple[Tensor, Tensor]:
        r"""Return what is predicted of each outcome by those before it.

        With :math:`L L^\top` the covariance of the outcomes, noise included, and :math:`a` the
        innovations, the i-th prediction has variance :math:`L_{ii}^2` and differs from the outcome
        by :math:`L_{ii} a_i`. The hyperparameters may have been fitted to the very outcomes: these
        are not the predictions made at the time.

        Returns:
            Means and variances, noise included, ``n``, before ``outcome_transform`` is undone.
        """
        deviations = self._held("root").diagonal()
        return self._held("Y") - deviations * self._held("innovations"), deviations.square()

    def get_extra_state(self) -> dict[str, Any]:
        """Return the observations and the factor, for ``state_dict``."""
        held = {name: self._held(name).clone() for name in HELD}
        return {"inactive_column": self._inactive_column, **held}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore the observations and the factor.

        Raises:
            RuntimeError: if it is the state of another kind of model, or of rows of another width.
        """
        if set(state) != {"inactive_column", *HELD} or self.width not in (0, state["X"].shape[-1]):
            raise RuntimeError(
                f"Expected the state of an IncrementalGP of {self.width} columns. "
                f"Got one with {', '.join(state)}."
            )
        self._inactive_column = state["inactive_column"]
        self.num_observations, self._candidates = len(state["X"]), None
        for name in HELD:
            setattr(self, f"_{name}", state[name].to(self._noise, copy=True))

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
        Y, noise = self._outcomes(X, Y, Yvar)
        self._append(X, Y, noise[0])

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
        first = int(keep.to(torch.uint8).argmin())
        rest = keep.nonzero().squeeze(-1)[first:]
        new = self._head(first)
        new._append(self._X[rest], self._Y[rest], self._noise[rest])
        self._buffers, self.num_observations = new._buffers, new.num_observations
        self._candidates = None

    def reset(self) -> None:
        """Discard all observations."""
        self.drop(torch.zeros(self.num_observations, dtype=torch.bool))

    def snapshot(self) -> IncrementalGP:
        """Return a copy whose predictions and observations do not affect this model.

        It shares the factor, so that nothing large is copied.
        """
        return self._head(self.num_observations)

    def observed(self) -> Observed:
        """Return what the posterior is given."""
        X, Y, noise, _, root = (self._held(name) for name in HELD)
        residual = Y - self._prior_mean(X)[0] if len(X) > 0 else Y
        return Observed(X, residual, noise, root.tril())

    @property
    def _set_noise(self) -> Tensor:
        return self._noise_variance.reshape(1)

    def _prior_mean(self, X: Tensor) -> Tensor:
        if self.mean_module is None:
            return X.new_zeros(*X.shape[:-2], 1, X.shape[-2])
        mean: Tensor = self.mean_module(X)
        return mean.unsqueeze(-2)

    def _prior_covar(self, X1: Tensor, X2: Tensor) -> Tensor:
        if 0 in (X1.shape[-2], X2.shape[-2]):
            # Not every kernel takes an input without rows.
            shape = torch.broadcast_shapes(X1.shape[:-2], X2.shape[:-2])
            return X1.new_zeros(*shape, 1, X1.shape[-2], X2.shape[-2])
        covar: Tensor = to_dense(self.covar_module(X1, None if X1 is X2 else X2))
        return covar.unsqueeze(-3)

    def _factor(self, X: Tensor) -> CrossCovarianceFactor:
        rows, known = X.reshape(-1, X.shape[-1]), self._candidates
        if torch.is_grad_enabled() and rows.requires_grad:
            known = self._updated(self._without_observations(rows))
        else:
            if self._inactive_column is not None:
                # The same actions at a later time are then found in the cache.
                rows = rows.clone()
                rows[:, self._inactive_column] = 0.0
            is_known = known is not None and known.rows.device == rows.device
            if known is None or not is_known or not torch.equal(known.rows, rows):
                known = self._without_observations(rows.clone())
            known = self._updated(known)
            # A single row does not replace a set of candidates.
            if len(rows) > 1:
                self._candidates = known
        shape = (*X.shape[:-2], 1, X.shape[-2])
        return CrossCovarianceFactor(
            (known.V.mT.reshape(*shape, len(known.V)),),
            known.mean.reshape(shape),
            known.reduction.reshape(shape),
            known.prior.reshape(shape),
        )

    def _without_observations(self, rows: Tensor) -> Candidates:
        """Return what is known of rows before any observation."""
        zero = rows.new_zeros(len(rows))
        prior = to_dense(self.covar_module(rows, diag=True)) if len(rows) > 0 else zero
        return Candidates(rows, prior, rows.new_empty(0, len(rows)), zero, zero)

    def _updated(self, known: Candidates) -> Candidates:
        """Return what is known of rows after all observations."""
        first, n = len(known.V), self.num_observations
        if first == n:
            return known
        if len(known.rows) == 0:
            # Not every kernel takes an input without rows.
            return known._replace(V=known.rows.new_empty(n, 0))
        covar = to_dense(self.covar_module(self._X[first:n], known.rows))
        V, root = known.rows.new_empty(n, len(known.rows)), self._root
        V[:first] = known.V
        for start in range(first, n, BLOCK):
            stop = min(start + BLOCK, n)
            part = covar[start - first : stop - first] - root[start:stop, :start] @ V[:start]
            own = root[start:stop, start:stop]
            V[start:stop] = torch.linalg.solve_triangular(own, part, upper=False)
        new = V[first:]
        mean = known.mean + self._innovations[first:n] @ new
        return Candidates(
            known.rows, known.prior, V, mean, known.reduction + new.square().sum(dim=0)
        )

    @torch.no_grad()
    def _append(self, X: Tensor, Y: Tensor, noise: Tensor) -> None:
        """Append checked observations to the factor."""
        if len(X) == 0:
            return
        known = self._updated(self._without_observations(X))
        prior = self._prior_covar(X, X)[0]
        root = innovation_root(prior - known.V.mT @ known.V, noise, prior.diagonal())
        unexplained = (Y - self._prior_mean(X)[0] - known.mean).unsqueeze(-1)
        first, last = self.num_observations, self.num_observations + len(X)
        self._reserve(last, X.shape[-1])
        self._X[first:last], self._Y[first:last], self._noise[first:last] = X, Y, noise
        innovations = torch.linalg.solve_triangular(root, unexplained, upper=False)
        self._innovations[first:last] = innovations.squeeze(-1)
        self._root[first:last, :first] = known.V.mT
        self._root[first:last, first:last] = root
        self.num_observations = last

    def _held(self, name: str) -> Tensor:
        """Return one of :data:`HELD` without the room for more observations."""
        n, buffer = self.num_observations, getattr(self, f"_{name}")
        held: Tensor = buffer[:n, :n] if name == "root" else buffer[:n]
        return held

    def _head(self, count: int) -> IncrementalGP:
        """Return a copy with the first observations, which shares memory until it grows."""
        new = copy(self)
        new.num_observations = count
        # Without room for more, so that it copies before it writes.
        new._buffers = self._buffers | {f"_{name}": new._held(name) for name in HELD}
        return new

    def _reserve(self, needed: int, width: int) -> None:
        """Make room for observations; by half as many again, so that a loop copies rarely."""
        capacity = len(self._Y)
        if needed <= capacity and width == self.width:
            return
        if needed > capacity:
            capacity = max(MIN_CAPACITY, needed, capacity + capacity // 2)
        shapes = {"X": (capacity, width), "root": (capacity, capacity)}
        for name in HELD:
            held = self._held(name)
            new = held.new_empty(shapes.get(name, (capacity,)))
            new[tuple(slice(size) for size in held.shape)] = held
            setattr(self, f"_{name}", new)
