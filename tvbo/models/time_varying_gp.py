"""A GP over actions and time that learns how fast its objective drifts."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import DEFAULT
from botorch.utils.types import _DefaultType as DefaultType
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from gpytorch.mlls import MarginalLogLikelihood
from torch import Tensor

from tvbo.kernels.batch import BatchKernel, ColumnKernel
from tvbo.kernels.temporal import (
    TemporalDecayKernel,
    TemporalKernel,
    check_forgetting_rate,
    check_temporal_kernel,
)
from tvbo.models.at_bounds import log_bounds, parameters_at_bounds
from tvbo.spaces.observations import check_finite, split_columns


class TimeVaryingGP(SingleTaskGP):
    r"""A :class:`botorch.models.SingleTaskGP` whose function drifts (Bogunovic et al., 2016).

    The kernel is the product of a kernel over the other columns and exponential forgetting in time,

    .. math:: k\big((x, t), (x', t')\big) = k(x, x')\,(1 - \varepsilon)^{|t - t'| / 2},

    so that the posterior is equations (7)-(8) of the paper, for any times: unequal steps, many
    observations at one time, and predictions before the newest observation as well as after it.
    Without observations (``n = 0``) the model is its prior. Another ``temporal_kernel`` takes the
    place of forgetting, and several make a sum of products, such as a slow and a fast part.

    Args:
        train_X: ``batch_shape x n x d`` rows, one column of them time.
        train_Y: ``batch_shape x n x m`` outcomes.
        train_Yvar: ``batch_shape x n x m`` known noise variances; None learns one.
        time_feature: Index of the time column; None if the function does not drift. An
            ``input_transform`` must not change this column, or ε is per another unit of time.
        forgetting_rate: ε per unit of time, in [0, 1], a number or a tensor that broadcasts with
            ``batch_shape x 1``. None learns it with ``fit_gpytorch_mll``.
        covar_module: Kernel over the other columns, which are its columns ``0, 1, ...``; with a
            list of temporal kernels, also a list of as many. Default: BoTorch's RBF with
            dimension-scaled priors.
        likelihood: As in :class:`SingleTaskGP`, whose default carries a prior for low noise. On
            noisy data that prior makes a learned ε too large, because drift then has to explain the
            scatter: give ``train_Yvar``, or a ``GaussianLikelihood()`` without a prior.
        mean_module: As in :class:`SingleTaskGP`.
        outcome_transform: As in :class:`SingleTaskGP`: ``Standardize`` unless None is given.
        input_transform: As in :class:`SingleTaskGP`.
        temporal_kernel: Kernel over time in place of forgetting with ε, such as
            :class:`tvbo.kernels.TemporalMaternKernel`, or a decay with a prior or a constraint of
            its own, without ``active_dims``; or a list of them,
            whose products with ``covar_module`` are added: with one ``covar_module``, each has a
            learned amplitude, and with a list of as many, each has its own.

    Raises:
        InputDataError: if X or Y holds a NaN or an infinity.
        BotorchTensorDimensionError: if there is no column besides time, or shapes disagree.
        TypeError: if ``temporal_kernel`` holds another kernel.
        ValueError: if ``forgetting_rate`` lies outside [0, 1]; if it and ``temporal_kernel`` are
            both given, or one without a time column; if ``temporal_kernel`` has ``active_dims``, or
            does not go with ``covar_module``.

    Example:
        >>> train_X = torch.rand(20, 3, dtype=torch.float64)  # [x1, x2, t]
        >>> model = TimeVaryingGP(train_X, train_Y)
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> model.forgetting_rate
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        time_feature: int | None = -1,
        forgetting_rate: float | Tensor | None = None,
        covar_module: Kernel | Sequence[Kernel] | None = None,
        likelihood: Likelihood | None = None,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        temporal_kernel: TemporalKernel | Sequence[TemporalKernel] | None = None,
    ):
        if train_X.shape[:-1] != train_Y.shape[:-1]:
            raise BotorchTensorDimensionError(
                "Expected as many rows in train_Y as in train_X. Got "
                f"train_X.shape={tuple(train_X.shape)}, train_Y.shape={tuple(train_Y.shape)}."
            )
        check_finite("train_X", train_X)
        check_finite("train_Y", train_Y)
        other_columns, _, time_column = split_columns(train_X.shape[-1], time_feature)
        given = [each for each in (forgetting_rate, temporal_kernel) if each is not None]
        if len(given) > (time_feature is not None):
            raise ValueError(
                "Expected forgetting_rate or temporal_kernel, and a time_feature beside it. Got "
                f"time_feature={time_feature}, forgetting_rate={forgetting_rate}, "
                f"temporal_kernel={temporal_kernel}."
            )
        if temporal_kernel is None and not isinstance(covar_module, Kernel | None):
            raise ValueError(
                "Expected one kernel in covar_module without a list of temporal kernels. "
                f"Got {len(covar_module)}."
            )
        _, batch_shape = self.get_batch_dimensions(train_X=train_X, train_Y=train_Y)
        if covar_module is None:
            covar_module = get_covar_module_with_dim_scaled_prior(
                ard_num_dims=len(other_columns), batch_shape=batch_shape
            )
        if time_column is None:
            covar_module = ColumnKernel(covar_module, other_columns)
        else:
            if temporal_kernel is None:
                temporal_kernel = make_temporal_kernel(forgetting_rate, batch_shape)
            covar_module = make_drifting_kernel(
                covar_module, temporal_kernel, other_columns, time_column, batch_shape
            )
        super().__init__(
            train_X=train_X,
            train_Y=train_Y,
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            covar_module=covar_module,
            mean_module=mean_module,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
        )
        self.time_feature = time_column
        self._subset_batch_dict = {}
        if self.num_outputs > 1:
            self._subset_batch_dict = output_dimensions(self, self._aug_batch_shape)

    @property
    def temporal_kernels(self) -> tuple[TemporalKernel, ...]:
        """The temporal kernels, one for each product of the sum; none without a time column."""
        if self.time_feature is None:
            return ()
        covar = self.covar_module
        products = covar.kernels if isinstance(covar, AdditiveKernel) else [covar]
        over_time = [part for product in products for part in product.kernels[1].modules()]
        return tuple(part for part in over_time if isinstance(part, TemporalKernel))

    @property
    def temporal_kernel(self) -> TemporalKernel | None:
        """The temporal kernel; None without a time column, or if there are several."""
        return self.temporal_kernels[0] if len(self.temporal_kernels) == 1 else None

    @property
    def forgetting_rate(self) -> Tensor | None:
        """ε per unit of time, ``batch_shape x 1``, or ``batch_shape x m x 1`` for m > 1 outputs.

        None unless the temporal kernel is one :class:`tvbo.kernels.TemporalDecayKernel`.
        """
        kernel = self.temporal_kernel
        return kernel.forgetting_rate if isinstance(kernel, TemporalDecayKernel) else None

    def custom_fit(self, mll: MarginalLogLikelihood, **kwargs: Any) -> MarginalLogLikelihood:
        """Fit as BoTorch does, and log parameters that end at a bound of their constraint.

        ``fit_gpytorch_mll`` calls it. The logger is ``"tvbo.fit.fitted_forms"``, the level that of
        ``ModelFitter``.
        """
        from botorch.fit import _fit_fallback  # SciPy's optimizers come with it.

        fitted = _fit_fallback(mll, **kwargs)
        log_bounds(parameters_at_bounds(self), len(self.train_targets))
        return fitted

    @classmethod
    def construct_inputs(cls, training_data: SupervisedDataset, **options: Any) -> dict[str, Any]:
        """Return constructor arguments from a data set, as Ax needs them to build models.

        Args:
            training_data: A :class:`SupervisedDataset` with time and contexts among the features.
            **options: Other arguments of the constructor; kernels are copied, since Ax builds
                several models.
        """
        return {**super().construct_inputs(training_data=training_data), **deepcopy(options)}


def make_temporal_kernel(
    forgetting_rate: float | Tensor | None, batch_shape: torch.Size | None = None
) -> TemporalDecayKernel:
    """Build a temporal kernel whose ε is learned, or fixed if it is given.

    Args:
        forgetting_rate: A fixed ε in [0, 1]; None learns it.
        batch_shape: Batch shape of the kernel.

    Raises:
        ValueError: if a fixed ε lies outside [0, 1].
    """
    constraint = None if forgetting_rate is None else Interval(0.0, 1.0, transform=None)
    kernel: TemporalDecayKernel = TemporalDecayKernel(
        forgetting_rate_constraint=constraint, batch_shape=batch_shape
    ).double()
    if forgetting_rate is not None:
        rate = check_forgetting_rate(forgetting_rate)
        kernel.forgetting_rate = rate.expand_as(kernel.raw_forgetting_rate)
        kernel.requires_grad_(False)
    return kernel


def as_temporal_kernels(
    temporal_kernel: TemporalKernel | Sequence[TemporalKernel] | None,
    forgetting_rate: float | Tensor | None = None,
) -> list[TemporalKernel]:
    """Return one or several temporal kernels as a list, empty for None.

    Raises:
        TypeError: if one is no temporal kernel.
        ValueError: if a list is empty, one has ``active_dims``, or a rate is given as well.
    """
    if temporal_kernel is None:
        return []
    if forgetting_rate is not None:
        raise ValueError(
            "Expected either temporal_kernel or forgetting_rate, whose place it takes. "
            f"Got both, with forgetting_rate={forgetting_rate}."
        )
    given = [temporal_kernel] if isinstance(temporal_kernel, Kernel) else list(temporal_kernel)
    if not given:
        raise ValueError("Expected at least one temporal kernel. Got none.")
    return [check_temporal_kernel(kernel) for kernel in given]


def make_drifting_kernel(
    covar_module: Kernel | Sequence[Kernel],
    temporal_kernel: TemporalKernel | Sequence[TemporalKernel],
    columns: Sequence[int],
    time_column: int,
    batch_shape: torch.Size,
) -> Kernel:
    """Build the kernel of a function that drifts: a product, or a sum of products.

    Args:
        covar_module: Kernel over the other columns, or one for each temporal kernel.
        temporal_kernel: Temporal kernel, or several. Several with one ``covar_module`` have a
            learned amplitude each, which is the same for all to begin with and adds to one.
        columns: The other columns.
        time_column: The time column.
        batch_shape: Batch shape of the amplitudes.

    Raises:
        TypeError: if a temporal kernel is none.
        ValueError: if there is none, one has ``active_dims``, or there are as many kernels of the
            other columns as temporal kernels neither, nor one.
    """
    is_one = isinstance(temporal_kernel, Kernel)
    given = as_temporal_kernels(temporal_kernel)
    in_time = [ColumnKernel(kernel, [time_column]) for kernel in given]
    if isinstance(covar_module, Kernel):
        over_columns = ColumnKernel(covar_module, columns)
        if len(given) == 1:
            return ProductKernel(over_columns, in_time[0])
        scaled = []
        for kernel in in_time:
            # A component that the data do not show ends at zero, which no transform reaches.
            scale = GreaterThan(0.0, transform=None, initial_value=1 / len(given))
            new = ScaleKernel(kernel, batch_shape=batch_shape, outputscale_constraint=scale)
            scaled.append(new)
        return ProductKernel(over_columns, AdditiveKernel(*scaled))
    kernels = list(covar_module)
    if is_one or len(kernels) != len(given):
        raise ValueError(
            "Expected one kernel in covar_module, or as many as temporal kernels in a list. Got "
            f"{len(kernels)} kernels and {'one' if is_one else f'a list of {len(given)}'}."
        )
    products = [
        ProductKernel(ColumnKernel(kernel, columns), each)
        for kernel, each in zip(kernels, in_time, strict=True)
    ]
    return products[0] if len(products) == 1 else AdditiveKernel(*products)


def output_dimensions(model: SingleTaskGP, aug_batch_shape: torch.Size) -> dict[str, int]:
    """Return the dimension of each parameter that indexes the outputs, for ``subset_output``.

    These are the parameters and covariance matrices whose shape begins with the whole augmented
    batch shape; one that a user's kernel shares between outputs does not, and is kept whole.

    Args:
        model: The model.
        aug_batch_shape: Batch shape of the model, followed by the number of outputs.
    """
    depth = len(aug_batch_shape)
    dimensions = {}
    for prefix, module in model.named_modules():
        # A kernel without outputs may have m rows by coincidence, such as an m x m covariance.
        if isinstance(module, Kernel) and module.batch_shape[:depth] != aug_batch_shape:
            continue
        own: dict[str, Tensor] = dict(module.named_parameters(recurse=False))
        if isinstance(module, BatchKernel):
            own |= module.named_buffers(recurse=False)
        for name, tensor in own.items():
            if name != "active_dims" and tensor.shape[:depth] == aug_batch_shape:
                dimensions[f"{prefix}.{name}"] = depth - 1 - tensor.ndim
    return dimensions
