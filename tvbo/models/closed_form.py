"""Kernels and functions of rows with gradients in closed form, in NumPy, for PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import Kernel, MaternKernel, ProductKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean, ZeroMean
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from tvbo.kernels import (
    ContextActionKernel,
    TemporalDecayKernel,
    TemporalKernel,
    TemporalMaternKernel,
)
from tvbo.kernels.batch import ColumnKernel
from tvbo.kernels.temporal import decay_exponent
from tvbo.models.scale import outcome_scale
from tvbo.models.time_varying_gp import make_temporal_kernel

Array = NDArray[np.float64]

Pullback = Callable[[Array], Array]
"""Takes derivatives by the values, ``k x b``, to derivatives by the rows, ``b x d``."""

Evaluate = Callable[[Array, bool], tuple[Array, Pullback | None]]
"""Takes rows ``b x d``, and whether derivatives are needed, to values ``k x b`` and a pullback."""

Correlation = Callable[[Array, bool], tuple[Array, Array | None]]
r"""Takes squared distances :math:`s` in units of lengthscales, and whether the slope is needed, to
the correlation :math:`\kappa` and the slope :math:`-2\, d\kappa / ds`, or None."""

MAX_ENTRIES = 2**15
"""Covariances without gradients that are evaluated at once, so that they stay in the cache."""

LEAST_SQUARE = 1e-12
"""Least squared distance of Matérn-1/2, which has no gradient at 0."""

LARGEST_RATE = 1e150
"""That of ε = 1 times a lag would overflow."""

LARGEST_LAG = 1e3
"""In units of the memory of a kernel, of which nothing is left long before."""


class ClosedForm(torch.autograd.Function):
    """Give a function in NumPy, with its gradient, to PyTorch.

    For some hundred numbers, PyTorch's graph takes ten times as long as they do in NumPy.
    """

    @staticmethod
    def forward(ctx: Any, X: Tensor, evaluate: Evaluate) -> Tensor:
        """Return values ``k x ...`` at rows ``... x d``.

        Args:
            ctx: PyTorch's context.
            X: The rows.
            evaluate: The function.
        """
        rows = X.detach().reshape(-1, X.shape[-1]).numpy(force=True)
        values, ctx.pullback = evaluate(rows, ctx.needs_input_grad[0])
        return torch.from_numpy(values).to(X.device).view(-1, *X.shape[:-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_values: Tensor) -> tuple[Tensor, None]:
        """Return the gradient by the rows, ``... x d``."""
        by_rows = torch.from_numpy(ctx.pullback(by_values.flatten(1).numpy(force=True)))
        return by_rows.to(by_values.device).view(*by_values.shape[1:], -1), None


def rbf(squares: Array, with_slope: bool) -> tuple[Array, Array | None]:
    """Return the correlation of an RBF kernel."""
    values = exp_(-0.5 * squares)
    return values, values if with_slope else None


def matern(squares: Array, with_slope: bool) -> tuple[Array, Array | None]:
    """Return the correlation of Matérn-5/2."""
    # In place, since memory for a thousand rows takes longer than the arithmetic.
    x = 5 * squares
    np.sqrt(x, out=x)
    decay = exp_(-x)
    linear = 1 + x
    linear *= decay
    values = np.square(x, out=x)
    values *= decay
    values /= 3
    values += linear
    if not with_slope:
        return values, None
    # The derivative by x is -x (1 + x) / 3 exp(-x), and that of x by s is 5 / (2 x).
    linear *= 5 / 3
    return values, linear


def exponential(squares: Array, with_slope: bool) -> tuple[Array, Array | None]:
    """Return the correlation of Matérn-1/2."""
    distances = np.sqrt(np.maximum(squares, LEAST_SQUARE))
    values = exp_(-distances)
    return values, values / distances if with_slope else None


def exp_(values: Array) -> Array:
    """Return exponentials, in place, in less than half of NumPy's time."""
    torch.from_numpy(values).exp_()
    return values


CORRELATIONS: dict[str, Correlation] = {
    "RBFKernel": rbf,
    "MaternKernel": matern,
    "Exponential": exponential,
}
"""Correlation by the name of a kernel of GPyTorch, of Matérn with ν = 5/2, or of ν = 1/2."""


def correlation_of(kernel: Kernel) -> Correlation | None:
    """Return the correlation of an ``RBFKernel``, or a ``MaternKernel`` with ν = 2.5, else None."""
    return CORRELATIONS.get(type(kernel).__name__) if getattr(kernel, "nu", 2.5) == 2.5 else None


class InSpace(NamedTuple):
    """Correlations over the columns other than time.

    Args:
        values: The correlations.
        slopes: Their slopes by the squared distances of each part, as that of a ``Correlation``.
        parts: Those of each part.
    """

    values: Array
    slopes: list[Any]
    parts: list[Array]


def in_space(kernel: str, squares: Sequence[Array], shares: Any, with_slopes: bool) -> InSpace:
    r"""Return the correlations of one kernel, or of its main effects and interaction.

    Of two parts, actions and contexts, they are :math:`a \kappa_S + b \kappa_Z + c \kappa_S
    \kappa_Z`, as of :class:`tvbo.kernels.ContextActionKernel`.

    Args:
        kernel: Name of the kernel of each part, one of ``CORRELATIONS``.
        squares: Squared distances in units of lengthscales, of one part or of two.
        shares: Numbers or arrays a, b and c, of two parts.
        with_slopes: Whether slopes are needed.
    """
    found = [CORRELATIONS[kernel](each, with_slopes) for each in squares]
    if len(found) == 1:
        return InSpace(found[0][0], [found[0][1]], [found[0][0]])
    ((first, slope), (second, other_slope)), (a, b, c) = found, shares
    by_first, by_second = a + c * second, b + c * first
    slopes = [None, None]
    if slope is not None and other_slope is not None:
        slopes = [slope * by_first, other_slope * by_second]
    return InSpace(by_first * first + b * second, slopes, [first, second])


@dataclass(frozen=True, eq=False)
class HyperparameterSets:
    r"""``s`` sets of hyperparameters of a kernel over space times one over time.

    Args:
        kernel: Name of the kernel over the columns other than time, one of ``CORRELATIONS``.
        num_actions: Number of columns that one kernel is over, such as those of actions; a second
            one is over the others, if there are any.
        lengthscales: Lengthscales, ``s x d``.
        rates: What time differences are multiplied by, ``s``: :math:`-\ln(1 - \varepsilon) / 2` of
            exponential decay, :math:`\sqrt 5 / \ell` of Matérn-5/2.
        is_smooth: 1 where the kernel over time is Matérn-5/2, 0 for decay, ``s``.
        variance: Variance of the function, ``s``.
        mean: Prior mean, ``s``.
        noise: Variance of the noise, ``s``.
        log_weights: Logarithms of what each counts, up to a constant, ``s``.
        shares: Shares of each of two kernels and of their product in the variance, ``s x 3``; of
            one kernel 1, ``s x 1``.
    """

    kernel: str
    num_actions: int
    lengthscales: Tensor
    rates: Tensor
    is_smooth: Tensor
    variance: Tensor
    mean: Tensor
    noise: Tensor
    log_weights: Tensor
    shares: Tensor

    @classmethod
    def of(cls, model: SingleTaskGP, noise_variance: float) -> HyperparameterSets | None:
        """Return the hyperparameters of a model in raw units; None if it has another form.

        Args:
            model: A model of one output without a batch, whose transforms are linear.
            noise_variance: Variance of the noise in raw units.
        """
        kernel, mean = model.covar_module, model.mean_module
        is_product = isinstance(kernel, ProductKernel) and len(kernel.kernels) == 2
        if not is_product or not isinstance(mean, ZeroMean | ConstantMean):
            return None
        over_space, over_time = (getattr(each, "base_kernel", each) for each in kernel.kernels)
        d, (shift, scale) = kernel.kernels[0].active_dims.numel(), outcome_scale(model)
        variance = torch.full((1,), scale**2, dtype=torch.float64)
        while isinstance(over_space, ScaleKernel) and over_space.active_dims is None:
            variance = variance * over_space.outputscale.detach()
            over_space = over_space.base_kernel
        if correlation_of(over_space) is None or over_space.active_dims is not None:
            return None
        if isinstance(over_time, TemporalDecayKernel):
            rates = -decay_exponent(over_time.forgetting_rate.detach()).view(1)
        elif isinstance(over_time, TemporalMaternKernel) and over_time.nu == 2.5:
            rates = 5**0.5 / over_time.lengthscale.detach().view(1)
        else:
            return None
        # One unit of each raw column in units of the model.
        rows = torch.stack([torch.zeros(d + 1), torch.ones(d + 1)]).to(variance)
        units = model.transform_inputs(rows).diff(dim=0)
        constant = getattr(mean, "constant", variance.new_zeros(1)).detach().view(1)
        return cls(
            kernel=type(over_space).__name__,
            num_actions=d,
            lengthscales=over_space.lengthscale.detach() / units[:, :-1],
            rates=rates * units[:, -1],
            is_smooth=torch.full_like(rates, isinstance(over_time, TemporalMaternKernel)),
            variance=variance,
            mean=shift + scale * constant,
            noise=torch.full_like(variance, noise_variance),
            log_weights=torch.zeros_like(variance),
            shares=torch.ones_like(variance).unsqueeze(-1),
        )

    @classmethod
    def joined(cls, parts: Sequence[HyperparameterSets]) -> HyperparameterSets:
        """Return the sets of several forms with one kernel over space."""
        first = parts[0]
        columns = zip(*(list(vars(each).values())[2:] for each in parts), strict=True)
        return cls(first.kernel, first.num_actions, *(torch.cat(column) for column in columns))

    @property
    def parts(self) -> list[slice]:
        """The columns of each kernel over columns other than time."""
        n, d = self.num_actions, self.lengthscales.shape[-1]
        return [slice(n), slice(n, d)] if n < d else [slice(d)]

    def with_rows(self, X2: Array) -> Callable[[Array, bool], tuple[Array, Pullback | None]]:
        """Return the covariances with some rows as a function.

        All sets are evaluated together, without GPyTorch's kernels, whose overhead is most of the
        time for up to some hundred observations.

        Args:
            X2: Rows ``[... | time]``, ``... x p x d``.

        Returns:
            What takes rows ``... x q x d``, and whether derivatives are needed, to covariances, ``s
            x ... x q x p``, and to what takes derivatives by these to those by the differences of
            the rows, ``d x ... x q x p``.
        """
        held = self.rates, self.is_smooth, self.variance, self.lengthscales, self.shares
        *of_time, lengthscales, shares = (each.numpy(force=True) for each in held)
        ones = (1,) * X2.ndim
        rates, is_smooth, variance = (each.reshape(-1, *ones) for each in of_time)
        rates = np.minimum(rates, LARGEST_RATE)
        shares = shares.T.reshape(*shares.T.shape, *ones)
        parts, inverse_squares = self.parts, np.square(1 / lengthscales)
        # Columns first, so that what is added up or multiplied lies side by side.
        second = np.ascontiguousarray(np.moveaxis(X2, -1, 0))[..., None, :]
        rows_at_once = max(1, MAX_ENTRIES // max(1, len(rates) * len(X2)))

        def evaluate(X1: Array, with_gradients: bool) -> tuple[Array, Pullback | None]:
            if X1.ndim == 2 and len(X1) > rows_at_once and not with_gradients:
                places = range(rows_at_once, len(X1), rows_at_once)
                found = [evaluate(part, False)[0] for part in np.split(X1, places)]
                return np.concatenate(found, axis=1), None
            first = X1.T if X1.ndim == 2 else np.moveaxis(X1, -1, 0)
            first = np.ascontiguousarray(first)[..., None]
            differences = first[:-1] - second[:-1]
            squared = np.square(differences)
            squares = [_combined(inverse_squares[:, part], squared[part]) for part in parts]
            space = in_space(self.kernel, squares, shares, with_gradients)
            times = first[-1]
            if times.shape[-2] > 1 and (times == times[..., :1, :]).all():
                times = times[..., :1, :]  # In a search, all rows have the same.
            lags = times - second[-1]
            x = np.minimum(rates * np.abs(lags), LARGEST_LAG)
            decay = variance * exp_(-x)
            in_time = (1 + is_smooth * (x + x * x / 3)) * decay
            covar = space.values * in_time
            if not with_gradients:
                return covar, None

            def pullback(by_covar: Array) -> Array:
                by_space, by_rows = by_covar * in_time, np.empty((len(first), *covar.shape[1:]))
                for part, slope in zip(parts, space.slopes, strict=True):
                    by_part = _combined(inverse_squares[:, part].T, slope * by_space)
                    np.multiply(by_part, -differences[part], out=by_rows[part])
                by_lag = (is_smooth - 1 - is_smooth * (x * (1 + x) / 3)) * decay * rates
                by_rows[-1] = (space.values * by_covar * by_lag).sum(axis=0) * np.sign(lags)
                return by_rows

            return covar, pullback

        return evaluate

    def kernels(self, i: int) -> tuple[Kernel, TemporalKernel]:
        """Return the kernels over space, of variance 1, and over time by the i-th set."""
        over: list[Kernel] = []
        for part in self.parts:
            made = RBFKernel if self.kernel == "RBFKernel" else MaternKernel
            columns = range(self.lengthscales.shape[-1])[part]
            over.append(made(ard_num_dims=len(columns), active_dims=[*columns]).double())
            over[-1].lengthscale = self.lengthscales[i, part]
        over_space = over[0]
        if len(over) > 1:
            over_space = ContextActionKernel(over[0], over[1], "both").double()
            over_space.outputscales = self.shares[i]
        if self.is_smooth[i]:
            over_time: TemporalKernel = TemporalMaternKernel(nu=2.5).double()
            over_time.lengthscale = 5**0.5 / self.rates[i]
        else:
            over_time = make_temporal_kernel(-torch.expm1(-2 * self.rates[i]))
        return over_space, over_time

    def member(self, i: int) -> Kernel:
        """Return the kernel by the i-th set, as one of GPyTorch."""
        over_space, over_time = self.kernels(i)
        time = self.lengthscales.shape[-1]
        kernel = ScaleKernel(over_space * ColumnKernel(over_time, [time])).double()
        kernel.outputscale = self.variance[i]
        return kernel.requires_grad_(False)


def _combined(weights: Array, values: Array) -> Array:
    """Return sums ``m x ...`` of values ``k x ...``, in a third of the time of NumPy's own."""
    shape = values.shape[1:]
    return (weights @ values.reshape(len(values), math.prod(shape))).reshape(len(weights), *shape)


class Covariances(torch.autograd.Function):
    """Covariances by :class:`HyperparameterSets`, for PyTorch."""

    @staticmethod
    def forward(ctx: Any, X1: Tensor, X2: Tensor, sets: HyperparameterSets) -> Tensor:
        """Return those of rows ``... x q x d`` and ``... x p x d``, ``s x ... x q x p``."""
        rows, others = (X.detach().numpy(force=True) for X in (X1, X2))
        covar, ctx.pullback = sets.with_rows(others)(rows, any(ctx.needs_input_grad))
        return torch.from_numpy(covar).to(X1.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_covar: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients by both."""
        by_rows = torch.from_numpy(ctx.pullback(by_covar.numpy(force=True))).to(by_covar)
        return by_rows.sum(dim=-1).movedim(0, -1), -by_rows.sum(dim=-2).movedim(0, -1), None
