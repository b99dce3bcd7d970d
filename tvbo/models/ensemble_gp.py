"""The exact posterior on any rows, by one or several sets of hyperparameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from typing import Any, Self, cast

import numpy as np
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Normalize
from gpytorch.kernels import Kernel
from gpytorch.means import ConstantMean, Mean
from linear_operator import to_dense
from torch import Size, Tensor

from tvbo.kernels import TemporalDecayKernel, TemporalKernel
from tvbo.models.closed_form import (
    Array,
    ClosedForm,
    Covariances,
    Evaluate,
    HyperparameterSets,
    Pullback,
)
from tvbo.models.factor import BLOCK, Block, Factor
from tvbo.models.one_output import OneOutputModel, check_rows, one_noise_variance
from tvbo.models.raw import raw_mean, raw_noise_variance, raw_row_kernel
from tvbo.rounding import LEAST_VARIANCE, check_uncertain


class EnsembleGP(OneOutputModel):
    r"""An exact GP with given hyperparameters, or the average over several sets of them.

    By each set it has the posterior of :class:`tvbo.models.TimeVaryingGP` and
    :class:`tvbo.models.ContextualGP`, for any rows: actions in a box, continuous contexts, times in
    any order. With ``n`` observations, :math:`L L^\top = K + \Sigma` their covariance,

    .. math:: \mu(x) = m(x) + a^\top V(x), \quad
        \mathrm{Cov}(x, x') = k(x, x') - V(x)^\top V(x'), \quad V(x) = L^{-1} k(X, x), \quad
        a = L^{-1}(y - m(X)),

    equations (7)-(8) of Bogunovic et al. (2016). With weights :math:`w_s`, and :math:`\mu_s` and
    :math:`\Sigma_s` the posterior by the s-th set,

    .. math:: \mu = \sum_s w_s \mu_s, \quad
        \Sigma = \sum_s w_s \big(\Sigma_s + (\mu_s - \mu)(\mu_s - \mu)^\top\big)

    are those of their mixture, which :class:`botorch.posteriors.GaussianMixturePosterior` has for
    equal weights. The posterior here is a Gaussian with these moments, so that any acquisition
    takes it.

    A model is never changed: :meth:`condition_on_observations` returns another one, which shares
    what it can. An additional observation costs :math:`O(n^2)` instead of the
    :math:`O(n^3)` of a new factor; ``N`` rows cost :math:`O(n^2 N)`. Memory grows as :math:`n^2`.
    On a finite set, the cost of :class:`tvbo.models.StreamingGP` does not grow at all.

    Args:
        covar_module: Kernel over whole rows; a copy with its present parameters is used.
        noise_variance: σ², at least 0.
        mean_module: Prior mean over rows, copied as well; None is zero.

    Raises:
        ValueError: if ``noise_variance`` is out of range, or the kernel has a batch shape.

    Attributes:
        mean_module: Prior mean over rows; None is zero. Of several sets there is none.
        sets: The sets, where the kernel has a closed form; else None.
        weights: Weights of the sets, ``s``, which sum to one.
        factors: The observations and their factors; of a batch those that all its members share,
            and then the others, of which each tensor has the dimensions of the batch that it needs.

    Example:
        >>> model = EnsembleGP(kernel, noise_variance=0.01)
        >>> X, Y = torch.tensor([[0.2, 0.4, 1.0]]), torch.tensor([[0.7]])  # [x, z, t]
        >>> model = model.condition_on_observations(X, Y)
        >>> model.posterior(torch.tensor([[0.3, 0.4, 2.0]])).mean
    """

    mean_module: Mean | None
    sets: HyperparameterSets | None
    weights: Tensor
    factors: tuple[Factor, ...]
    _set_noise: Tensor
    _set_mean: Tensor

    def __init__(
        self, covar_module: Kernel, noise_variance: float, *, mean_module: Mean | None = None
    ):
        super().__init__()
        noise = one_noise_variance(noise_variance).reshape(1)
        if len(covar_module.batch_shape) > 0:
            raise ValueError(
                "Expected a kernel without a batch. "
                f"Got batch_shape={tuple(covar_module.batch_shape)}."
            )
        self.sets = None
        for name, module in (("covar_module", covar_module), ("mean_module", mean_module)):
            if module is not None:
                module = deepcopy(module).to(torch.float64).eval().requires_grad_(False)
            setattr(self, name, module)
        self._start(torch.ones_like(noise), noise, torch.zeros_like(noise), width=0)

    @classmethod
    def from_model(cls, model: SingleTaskGP, noise_variance: float | None = None) -> Self:
        """Build a model with the hyperparameters of a fitted one, in raw units, without its data.

        Args:
            model: A model of one output; its transforms of inputs and outcomes are applied with
                their present parameters.
            noise_variance: σ² in raw units; None takes the model's, or the mean of its fixed ones.

        Raises:
            UnsupportedError: if the model has a batch or more than one output, an outcome transform
                other than ``Standardize``, or an input transform other than ``Normalize``.
        """
        transform = getattr(model, "input_transform", None)
        if not isinstance(transform, Normalize | None):
            raise UnsupportedError(
                f"Expected Normalize or no input transform. Got {type(transform).__name__}."
            )
        kernel, noise = raw_row_kernel(model), noise_variance
        if noise is None:
            noise = raw_noise_variance(model)
        X = model.train_inputs[0].detach().reshape(-1, model.train_inputs[0].shape[-1])[:0].double()
        if (sets := HyperparameterSets.of(model, noise)) is not None:
            return cls.from_sets(sets, X, X[:, :1]).to(X.device)
        new = cls(kernel, noise, mean_module=raw_mean(model))
        new.factors = (new.factors[0]._replace(X=X),)
        return new.to(X.device)

    @classmethod
    def from_sets(
        cls,
        sets: HyperparameterSets,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
    ) -> Self:
        """Build the average over sets of hyperparameters.

        Args:
            sets: The sets, the most probable one first.
            train_X: Rows ``[... | time]``, ``n x d``.
            train_Y: Outcomes, ``n x 1``.
            train_Yvar: Their noise variances, ``n x 1``; None for those of the sets.
        """
        new = cls.__new__(cls)
        OneOutputModel.__init__(new)
        new.sets, new.mean_module = sets, None
        weights = sets.log_weights.softmax(dim=0)
        new._start(weights, sets.noise, sets.mean, train_X.shape[-1])
        noise = sets.noise.unsqueeze(-1) if train_Yvar is None else train_Yvar.double().mT
        noise = noise.expand(len(weights), len(train_X))
        return new._take_in(train_X.double(), train_Y.double().mT, noise)

    @torch.no_grad()
    def weighed_by_likelihood(self) -> Self:
        """Return the average with each set's most likely prior mean, and weights times likelihood.

        With as many sets as points of a posterior, weighed by its prior, that is an integral.
        """
        (factor,) = self.factors
        if len(factor.X) == 0:
            return self
        ones = factor.whiten(torch.ones_like(factor.noise).unsqueeze(-2)).squeeze(-2)
        outcomes = factor.innovations + self._set_mean.unsqueeze(-1) * ones
        mean = (ones * outcomes).sum(dim=-1) / ones.square().sum(dim=-1)
        innovations = outcomes - mean.unsqueeze(-1) * ones
        log_likelihood = -0.5 * innovations.square().sum(dim=-1)
        for _, inverse in factor.blocks:
            log_likelihood = log_likelihood + inverse.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
        new = self._copy()
        new.weights = (self.weights.log() + log_likelihood).softmax(dim=0)
        new._set_mean = mean
        new.factors = (factor._replace(innovations=innovations),)
        return new

    def _start(self, weights: Tensor, noise: Tensor, mean: Tensor, width: int) -> None:
        """Set what each set has beside its kernel, with nothing observed."""
        for name, value in (("weights", weights), ("_set_noise", noise), ("_set_mean", mean)):
            self.register_buffer(name, value)
        row = noise.new_empty(len(noise), 0)
        self.factors = (Factor(noise.new_empty(0, width), row[:1], row, row, ()),)

    @property
    def covar_module(self) -> Kernel:
        """Kernel over rows; of several sets, that with the most probable hyperparameters."""
        given = self._modules.get("covar_module")
        return cast(Kernel, given) if self.sets is None else self.sets.member(0)

    @property
    def batch_shape(self) -> Size:
        """Empty, unless the model was conditioned on a batch."""
        return self.factors[-1].innovations.shape[:-2]

    @property
    def noise_variance(self) -> Tensor:
        """σ², the noise variance of outcomes without their own; of several sets, the average."""
        return self.weights @ self._set_noise

    @property
    def width(self) -> int:
        """Number of columns of a row; 0 while it is not known."""
        return self.factors[0].X.shape[-1]

    @torch.no_grad()
    def prior_covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Return prior covariances by ``covar_module`` of rows ``n x d``, ``m x d``, ``n x m``."""
        return self._covar(X1, X2)[0]

    @property
    def is_closed_form(self) -> bool:
        """Whether it has :meth:`moments`: by ``sets``, and without a batch."""
        return self.sets is not None and len(self.factors) == 1

    @property
    def forgetting_rate(self) -> Tensor | None:
        """ε per unit of time, ``1``; None unless one decay in time is the temporal kernel."""
        parts = [each for each in self.covar_module.modules() if isinstance(each, TemporalKernel)]
        if len(parts) == 1 and isinstance(parts[0], TemporalDecayKernel):
            return parts[0].forgetting_rate
        return None

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """Rows of all observations, ``batch_shape x n x d``."""
        X = _joined([each.X for each in self.factors], dim=-2)
        return (X.expand(*self.batch_shape, *X.shape[-2:]),)

    @property
    def train_targets(self) -> Tensor:
        """All outcomes, ``batch_shape x n``."""
        Y = _joined([each.Y for each in self.factors], dim=-1)
        return Y.squeeze(-2).expand(*self.batch_shape, -1)

    def moments(self) -> Evaluate:
        """Return means and variances of single rows as a function in NumPy.

        Where ``is_closed_form``. They are most of the time of a search for the next action, and
        PyTorch's graph takes ten times as long for some hundred numbers.

        Returns:
            What takes rows ``b x d``, and whether derivatives are needed, to means and variances,
            ``2 x b``, and to what takes derivatives by these to derivatives by the rows, or None.
        """
        assert self.sets is not None
        factor = self.factors[0].mapped(lambda tensor: tensor.numpy(force=True))
        held = (self._set_mean, self.sets.variance, self.weights, self.factors[0].innovations)
        prior_mean, prior_variance, weights, innovations = (
            each.unsqueeze(-1).numpy(force=True) for each in held
        )
        covar_with = self.sets.with_rows(factor.X)

        def evaluate(X: Array, with_gradients: bool) -> tuple[Array, Pullback | None]:
            covar, from_covar = covar_with(X, with_gradients)
            V = factor.whiten(covar)
            means = (V @ innovations)[..., 0] + prior_mean
            mean = (weights * means).sum(axis=0)
            deviations = means - mean
            reduction = np.einsum("sbn,sbn->sb", V, V)
            variances = prior_variance - reduction + np.square(deviations)
            variance = (weights * variances).sum(axis=0)
            moments = np.array([mean, variance.clip(LEAST_VARIANCE)])
            if from_covar is None:
                return moments, None

            def pullback(by_moments: Array) -> Array:
                by_mean, by_variance = weights * by_moments[:, None]
                by_variance = 2 * by_variance * (variance >= LEAST_VARIANCE)
                by_means = by_mean + by_variance * deviations
                by_V = by_means[..., None] * innovations.mT - by_variance[..., None] * V
                by_rows: Array = from_covar(factor.whiten(by_V, transposed=True)).sum(axis=-1)
                return by_rows.T

            return moments, pullback

        return evaluate

    # BoTorch's method takes any keyword; this one refuses those that it would ignore.
    def condition_on_observations(  # type: ignore[override]
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None
    ) -> Self:
        """Return a model with additional observations.

        Each set takes the outcomes as they are, and keeps its weight: an outcome at the average
        mean moves that a little.

        Args:
            X: Rows, ``... x q x d``, times in any order.
            Y: Outcomes, ``... x q x 1``. The first dimensions of both broadcast with
                ``batch_shape``; together they are the batch shape of the new model.
            noise: Noise variances that broadcast with ``Y``; None for that of each set.

        Raises:
            BotorchTensorDimensionError: if shapes do not agree.
            InputDataError: if a value is not finite, a noise variance negative, or the predictive
                variance of an outcome numerically zero.
        """
        # What the caller gave may change afterwards.
        X, q = self._checked(X).clone(), X.shape[-2]
        Y = self._read("Y", Y.to(X, copy=True), q).mT
        if noise is None:
            noise = self._set_noise.unsqueeze(-1).expand(-1, q)
        else:
            noise = self._read("noise", noise.to(X, copy=True), q).mT
            noise = noise.expand(*noise.shape[:-2], len(self.weights), -1)
        shape = self._broadcast({"X": X.shape[:-2], "Y": Y.shape[:-2], "noise": noise.shape[:-2]})
        new, (first, *batch) = self._copy(), self.factors
        if self.width == 0:
            first = first._replace(X=X.new_empty(0, X.shape[-1]))
        new.factors = (first,)
        if not (batch or shape or X.requires_grad or Y.requires_grad):
            return new._take_in(X, Y, noise)
        X = _joined([*(each.X for each in batch), X], dim=-2)
        Y = _joined([*(each.Y for each in batch), Y], dim=-1)
        noise = _joined([*(each.noise for each in batch), noise], dim=-1)
        new.factors = first, new._given(X, Y, noise)
        return new

    def member(self, i: int) -> EnsembleGP:
        """Return the posterior by the i-th of several sets alone, without a batch."""
        assert self.sets is not None
        mean = ConstantMean().double()
        mean.constant = self._set_mean[i]
        new = EnsembleGP(self.sets.member(i), self._set_noise[i].item(), mean_module=mean)
        factor = self.factors[0]
        new.factors = (
            factor.mapped(lambda each: each[i : i + 1])._replace(X=factor.X, Y=factor.Y),
        )
        return new

    def get_extra_state(self) -> dict[str, Any]:
        """Return the sets, the observations and the factors, for ``state_dict``."""
        # Plain tuples are the only ones that PyTorch loads.
        factors = [(*each[:4], tuple(map(tuple, each.blocks))) for each in self.factors]
        return {"sets": self.sets and vars(self.sets), "factors": factors}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore the sets, the observations and the factors.

        Raises:
            RuntimeError: if it is the state of another kind of model, or of rows of another width.
        """
        sets = state.get("sets")
        if set(state) != {"sets", "factors"} or (sets is None) != (self.sets is None):
            raise RuntimeError(f"Expected the state of an EnsembleGP of this kind. Got {state}.")
        width = state["factors"][0][0].shape[-1]
        if self.width not in (0, width):
            raise RuntimeError(f"Expected rows of {self.width} columns. Got {width}.")
        self.sets = None if sets is None else HyperparameterSets(**sets)
        self.factors = tuple(
            Factor(X, Y, noise, innovations, tuple(Block(*each) for each in blocks))
            for X, Y, noise, innovations, blocks in state["factors"]
        )

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Restore a saved state, observations included, in a model built with the same arguments.

        A state survives ``torch.save`` and ``torch.load(weights_only=True)``.

        Args:
            state_dict: A state that :meth:`state_dict` returned.
            strict: As in PyTorch.
            assign: As in PyTorch.

        Raises:
            RuntimeError: if it is the state of another kind of model, or of rows or parameters of
                another shape. Nothing is loaded then.
        """
        # Into a copy, since PyTorch raises after it has loaded what fits, and models share parts.
        loaded = deepcopy(self)
        found = Model.load_state_dict(loaded, state_dict, strict=strict, assign=assign)
        self.__dict__.update(loaded.__dict__)
        return found

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        Y = self.factors[0].Y
        if fn(Y[:0]).device != Y.device:
            self.__dict__.update(deepcopy(self).__dict__)  # Since models share parts.
        super()._apply(fn, recurse)
        self.factors = tuple(each.mapped(fn) for each in self.factors)
        return self

    def _copy(self) -> Self:
        new = copy(self)
        new._modules, new._buffers = dict(self._modules), dict(self._buffers)
        return new

    def _take_in(self, X: Tensor, Y: Tensor, noise: Tensor) -> Self:
        """Add checked observations without a batch to this model, a new one, and return it."""
        size = BLOCK // min(4, len(self.weights))
        parts = X.split(size), Y.split(size, dim=-1), noise.split(size, dim=-1)
        for part in zip(*parts, strict=True):
            self.factors = (self.factors[0].joined(self._given(*part)),)
        return self

    def _given(self, X: Tensor, Y: Tensor, noise: Tensor) -> Factor:
        """Return the factor of checked observations given those that are shared by a batch.

        Raises:
            InputDataError: if the predictive variance of an outcome is numerically zero.
        """
        (link,), expected = self._cross(X)
        covar = self._covar(X, X).movedim(0, -3)
        prior = covar.diagonal(dim1=-2, dim2=-1)
        covar_of_Y = covar - link @ link.mT + torch.diag_embed(noise)
        root, info = torch.linalg.cholesky_ex(covar_of_Y)
        is_definite = (info == 0).unsqueeze(-1)
        check_uncertain(root.diagonal(dim1=-2, dim2=-1).square() * is_definite, prior)
        identity = torch.eye(root.shape[-1]).to(root)
        inverse = torch.linalg.solve_triangular(root, identity, upper=False)
        innovations = (inverse @ (Y - expected).unsqueeze(-1)).squeeze(-1)
        return Factor(X, Y, noise, innovations, (Block(link, inverse),))

    def _covar(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Return prior covariances of ``... x q x d`` and ``... x p x d``, ``s x ... x q x p``."""
        if X1.shape[:-2] != X2.shape[:-2]:
            shape = torch.broadcast_shapes(X1.shape[:-2], X2.shape[:-2])
            X1, X2 = (X.expand(*shape, *X.shape[-2:]) for X in (X1, X2))
        covar: Tensor
        if self.sets is not None:
            covar = Covariances.apply(X1, X2, self.sets)
        elif 0 in (X1.shape[-2], X2.shape[-2]):
            # Not every kernel takes an input without rows.
            covar = X1.new_zeros(1, *X1.shape[:-1], X2.shape[-2])
        elif X1 is X2 and X1.shape[-2] == 1:
            covar = to_dense(self.covar_module(X1, diag=True)).unsqueeze(-1).unsqueeze(0)
        else:
            covar = to_dense(self.covar_module(X1, None if X1 is X2 else X2)).unsqueeze(0)
        return covar

    def _cross(self, X: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return how the function at rows ``... x q x d`` depends on what was observed.

        The posterior covariance of the rows is the prior one less the products of their
        covariances with the innovations, which are the whitened outcomes.

        Returns:
            These covariances, ``... x s x q x n``, with the innovations that all members of a batch
            share, and with the others if there are any; and the posterior mean, ``... x s x q``.
        """
        factor, *batch = self.factors
        shape = (len(self.weights), *X.shape[:-1])
        V = factor.whiten(self._covar(X.reshape(-1, X.shape[-1]), factor.X))
        mean = (V @ factor.innovations.unsqueeze(-1)).view(shape).movedim(0, -2)
        if self.mean_module is None:
            mean = mean + self._set_mean.unsqueeze(-1)
        else:
            mean = mean + self.mean_module(X).unsqueeze(-2)
        found = [V.view(*shape, len(factor.X)).movedim(0, -3)]
        for added in batch:
            ((link, inverse),) = added.blocks
            covar = self._covar(X, added.X).movedim(0, -3)
            found.append((covar - found[0] @ link.mT) @ inverse.mT)
            mean = mean + (found[-1] @ added.innovations.unsqueeze(-1)).squeeze(-1)
        return found, mean

    def _joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        X = self._checked(X)
        if X.shape[-2] == 1 and self.is_closed_form:
            mean, variance = ClosedForm.apply(X, self.moments())
            return mean, variance.unsqueeze(-1)
        V, means = self._cross(X)
        mean = torch.tensordot(means, self.weights, ([-2], [0]))
        deviations = means - mean.unsqueeze(-2)
        covars = self._covar(X, X).movedim(0, -3) - sum(each @ each.mT for each in V)
        covars = covars + deviations.unsqueeze(-1) * deviations.unsqueeze(-2)
        covar = torch.tensordot(covars, self.weights, ([-3], [0]))
        covar.diagonal(dim1=-2, dim2=-1).clamp_min_(LEAST_VARIANCE)
        return mean, covar.expand(*mean.shape, mean.shape[-1])

    def _checked(self, X: Tensor) -> Tensor:
        """Return rows in float64; raise unless their shape fits and they are finite."""
        check_rows(X, self.width)
        if self.batch_shape:
            self._broadcast({"X": X.shape[:-2]})
        return X.to(torch.float64)


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Return matrices ``... x a x b`` of several batches, broadcast, and concatenated."""
    shape = torch.broadcast_shapes(*(each.shape[:-2] for each in parts))
    return torch.cat([each.expand(*shape, *each.shape[-2:]) for each in parts], dim=dim)
