"""Posteriors over any rows: their BoTorch interface, and conditioning on more observations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, ClassVar, NamedTuple

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.models.model import Model
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Size, Tensor

from tvbo.models.incremental.row_model import RowModel
from tvbo.models.incremental.whitened import Whitened, explained
from tvbo.rounding import innovation_root


class Observed(NamedTuple):
    """Observations, and the Cholesky factor of their covariance.

    Args:
        X: Rows, ``n x d``.
        residual: Outcomes less the prior mean, ``n``.
        noise: Noise variances, ``n``.
        root: The factor, ``n x n``, lower triangular.
    """

    X: Tensor
    residual: Tensor
    noise: Tensor
    root: Tensor


class RowPosterior(RowModel):
    """The posterior of a model over whole rows, by how it depends on the observations."""

    @abstractmethod
    def _whiten(self, X: Tensor) -> Whitened:
        """Return how the function at rows ``... x q x d`` depends on the observations."""

    def observed(self) -> Observed | None:
        """Return what the posterior is given; None if it is not exact, or there is a batch."""
        return None

    # BoTorch's method takes any keyword; this one refuses those that it would ignore.
    def condition_on_observations(  # type: ignore[override]
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None
    ) -> ConditionedGP:
        """Return a model with additional observations, independent of later changes of this one.

        Args:
            X: Rows, ``... x q x d``.
            Y: Outcomes, ``... x q x 1``. The first dimensions of both broadcast with
                ``batch_shape``; together they are the batch shape of the new model.
            noise: Noise variances that broadcast with ``Y``; None for ``noise_variance``.

        Raises:
            BotorchTensorDimensionError: if shapes do not agree.
            InputDataError: if a value is not finite, a noise variance negative, or the predictive
                variance of an outcome numerically zero.
        """
        X = self._checked(X)
        residual, noise = self._residuals(X, Y, noise)
        return ConditionedGP(self._frozen(), X, residual, noise)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Restore a saved state, observations included, in a model built with the same arguments.

        Predictions, also after further observations, are then bit for bit those of the saved model.
        A state survives ``torch.save`` and ``torch.load(weights_only=True)``.

        Args:
            state_dict: A state that :meth:`state_dict` returned.
            strict: As in PyTorch.
            assign: As in PyTorch.

        Raises:
            RuntimeError: if it is the state of another kind of model, or of rows or parameters of
                another shape. Nothing is loaded then.
        """
        # First into a copy, because PyTorch raises only after it has loaded whatever fits.
        Model.load_state_dict(deepcopy(self), state_dict, strict=strict)
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    def _prior_covar(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Return prior covariances of rows ``... x q x d`` and ``... x p x d``, ``... x q x p``."""
        if 0 in (X1.shape[-2], X2.shape[-2]):
            # Not every kernel takes an input without rows.
            shape = torch.broadcast_shapes(X1.shape[:-2], X2.shape[:-2])
            return X1.new_zeros(*shape, X1.shape[-2], X2.shape[-2])
        covar: Tensor = to_dense(self.covar_module(X1, None if X1 is X2 else X2))
        return covar

    def _frozen(self) -> RowPosterior:
        """Return a model that further observations of this one do not change."""
        return self

    def _joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return means ``... x q`` and covariances ``... x q x q``."""
        white = self._whiten(X)
        if X.shape[-2] == 1:
            prior = white.prior
            if prior is None:
                prior = to_dense(self.covar_module(X, diag=True))
            covar = (prior - white.reduction).unsqueeze(-1)
        else:
            covar = self._prior_covar(X, X) - white.explained(white)
        return white.mean + self._prior_mean(X), covar


class ConditionedGP(RowPosterior):
    """A posterior with a few more observations, or a batch of them.

    The observations of the model it comes from, and their factor, are shared by the whole batch.
    So are its kernel and its mean. Its state contains that of the model it comes from, and can be
    loaded into one made with observations of the same shapes.

    Args:
        given: The model it comes from, which must not change.
        X: Rows, ``... x q x d``; ``q`` may be 0.
        residual: Outcomes less the prior mean, ``... x q``.
        noise: Noise variances, ``... x q``.

    Raises:
        BotorchTensorDimensionError: if the batches do not broadcast.
        InputDataError: if the predictive variance of an outcome is numerically zero.
    """

    remembers_rows: ClassVar[bool] = True
    """The last rows are cached, so that all are evaluated at once."""

    _X: Tensor
    _residual: Tensor
    _observed_noise: Tensor
    _root: Tensor
    _innovations: Tensor

    def __init__(self, given: RowPosterior, X: Tensor, residual: Tensor, noise: Tensor):
        super().__init__()
        shapes = (given.batch_shape, X.shape[:-2], residual.shape[:-1], noise.shape[:-1])
        try:
            self._batch_shape = Size(torch.broadcast_shapes(*shapes))
        except RuntimeError as error:
            raise BotorchTensorDimensionError(
                "Expected batches of X, Y and noise that broadcast with batch_shape="
                f"{tuple(given.batch_shape)}. Got {[tuple(shape) for shape in shapes[1:]]}."
            ) from error
        self.given = given
        self.mean_module = given.mean_module
        X = X.clone()
        white = given._whiten(X)
        prior = given._prior_covar(X, X)
        covar = prior - white.explained(white)
        root = innovation_root(covar, noise, prior.diagonal(dim1=-2, dim2=-1))
        unexplained = (residual - white.mean).unsqueeze(-1)
        innovations = torch.linalg.solve_triangular(root, unexplained, upper=False)
        own = {"_X": X, "_residual": residual, "_observed_noise": noise.clone()}
        own |= {"_root": root, "_innovations": innovations}
        own |= {f"_V{i}": V for i, V in enumerate(white.V)}
        for name, value in own.items():
            self.register_buffer(name, value)
        self._num_groups = len(white.V)

    @property
    def covar_module(self) -> Kernel:
        """Kernel over rows."""
        return self.given.covar_module

    @property
    def batch_shape(self) -> Size:
        """Broadcast batch shape of outcomes, rows and the model that was conditioned."""
        return self._batch_shape

    @property
    def noise_variance(self) -> Tensor:
        """σ², the noise variance of outcomes without their own."""
        return self.given.noise_variance

    @property
    def width(self) -> int:
        """Number of columns of a row."""
        return self._X.shape[-1]

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """Rows of all observations, ``batch_shape x n x d``."""
        parts = (*self.given.train_inputs, self._X)
        return (torch.cat([x.expand(*self.batch_shape, *x.shape[-2:]) for x in parts], dim=-2),)

    @property
    def train_targets(self) -> Tensor:
        """All outcomes, ``batch_shape x n``."""
        parts = (self.given.train_targets, self._residual + self._prior_mean(self._X))
        return torch.cat([y.expand(*self.batch_shape, y.shape[-1]) for y in parts], dim=-1)

    def observed(self) -> Observed | None:
        """Return what the posterior is given; None if it is not exact, or there is a batch."""
        given = self.given.observed()
        if given is None or self.batch_shape:
            return None
        n, q = len(given.X), len(self._X)
        root = given.root.new_zeros(n + q, n + q)
        root[:n, :n] = given.root
        root[n:, :n] = torch.cat(self._V, dim=-1)
        root[n:, n:] = self._root
        return Observed(
            torch.cat([given.X, self._X]),
            torch.cat([given.residual, self._residual]),
            torch.cat([given.noise, self._observed_noise]),
            root,
        )

    @property
    def _V(self) -> tuple[Tensor, ...]:
        """Covariances of the own rows with the innovations of each group of earlier ones."""
        return tuple(getattr(self, f"_V{i}") for i in range(self._num_groups))

    def _prior_covar(self, X1: Tensor, X2: Tensor) -> Tensor:
        return self.given._prior_covar(X1, X2)

    def _whiten(self, X: Tensor) -> Whitened:
        white = self.given._whiten(X)
        # Kernels broadcast the batches of their two inputs only if both have as many dimensions.
        shape = torch.broadcast_shapes(self._X.shape[:-2], X.shape[:-2])
        one, two = (x.expand(*shape, *x.shape[-2:]) for x in (self._X, X))
        covar = self._prior_covar(one, two) - explained(self._V, white.V)
        V = torch.linalg.solve_triangular(self._root, covar, upper=False).mT
        mean = white.mean + (V @ self._innovations).squeeze(-1)
        reduction = white.reduction + V.square().sum(dim=-1)
        return Whitened((*white.V, V), mean, reduction, white.prior)
