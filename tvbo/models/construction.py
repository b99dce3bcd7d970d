"""Input checks and kernels of the dense models' constructors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.models import SingleTaskGP
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel
from gpytorch.priors import Prior
from torch import Tensor

from tvbo.kernels.batch import BatchKernel
from tvbo.kernels.column import ColumnKernel
from tvbo.kernels.temporal import TemporalDecayKernel, check_forgetting_rate
from tvbo.kernels.temporal_base import TemporalKernel, check_temporal_kernel
from tvbo.spaces.observations import check_finite


def check_training_data(train_X: Tensor, train_Y: Tensor, train_Yvar: Tensor | None) -> None:
    """Raise unless the shapes and types of training data agree and all values are finite.

    Raises:
        InputDataError: if a value is NaN or infinite, or types are mixed.
        BotorchTensorDimensionError: if shapes disagree.
    """
    SingleTaskGP._validate_tensor_args(X=train_X, Y=train_Y, Yvar=train_Yvar)
    if train_X.shape[:-1] != train_Y.shape[:-1]:
        raise BotorchTensorDimensionError(
            "Expected as many rows in train_Y as in train_X. Got "
            f"train_X.shape={tuple(train_X.shape)}, train_Y.shape={tuple(train_Y.shape)}."
        )
    check_finite("train_X", train_X)
    check_finite("train_Y", train_Y)


def make_temporal_kernel(
    forgetting_rate: float | Tensor | None,
    forgetting_rate_prior: Prior | None = None,
    forgetting_rate_constraint: Interval | None = None,
    batch_shape: torch.Size | None = None,
    active_dims: list[int] | None = None,
) -> TemporalDecayKernel:
    """Build a temporal kernel whose ε is learned, or fixed if it is given.

    Args:
        forgetting_rate: A fixed ε in [0, 1]; None learns it.
        forgetting_rate_prior: Prior over a learned ε.
        forgetting_rate_constraint: Constraint on a learned ε.
        batch_shape: Batch shape of the kernel.
        active_dims: The time column.

    Raises:
        ValueError: if a fixed ε is given with a prior or a constraint, or lies outside [0, 1].
    """
    fixed = forgetting_rate is not None
    if fixed and not (forgetting_rate_prior is None and forgetting_rate_constraint is None):
        raise ValueError(
            "A fixed forgetting_rate takes no prior and no constraint. "
            f"Got forgetting_rate={forgetting_rate} with one; pass None to learn it."
        )
    kernel: TemporalDecayKernel = TemporalDecayKernel(
        forgetting_rate_prior=forgetting_rate_prior,
        forgetting_rate_constraint=(
            Interval(0.0, 1.0, transform=None) if fixed else forgetting_rate_constraint
        ),
        batch_shape=batch_shape,
        active_dims=active_dims,
    ).to(torch.float64)
    if forgetting_rate is not None:
        rate = check_forgetting_rate(forgetting_rate)
        kernel.forgetting_rate = rate.expand_as(kernel.raw_forgetting_rate)
        kernel.raw_forgetting_rate.requires_grad_(False)
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
        scaled = [_with_amplitude(kernel, 1 / len(given), batch_shape) for kernel in in_time]
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


def _with_amplitude(kernel: Kernel, amplitude: float, batch_shape: torch.Size) -> ScaleKernel:
    # A component that the data do not show ends at zero, which no transform reaches.
    constraint = GreaterThan(0.0, transform=None, initial_value=amplitude)
    return ScaleKernel(kernel, batch_shape=batch_shape, outputscale_constraint=constraint)


def temporal_kernels_of(covar_module: Kernel) -> tuple[TemporalKernel, ...]:
    """Return the temporal kernels of a kernel from :func:`make_drifting_kernel`, in their order."""
    if isinstance(covar_module, TemporalKernel):
        return (covar_module,)
    if isinstance(covar_module, (ColumnKernel, ScaleKernel)):
        return temporal_kernels_of(covar_module.base_kernel)
    if isinstance(covar_module, ProductKernel):
        return temporal_kernels_of(covar_module.kernels[1])
    if isinstance(covar_module, AdditiveKernel):
        return tuple(k for part in covar_module.kernels for k in temporal_kernels_of(part))
    return ()


def output_dimensions(model: SingleTaskGP, aug_batch_shape: torch.Size) -> dict[str, int]:
    """Return the dimension of each parameter that indexes the outputs, for ``subset_output``.

    These are the parameters and covariance matrices whose shape begins with the whole augmented
    batch shape; one that a user's kernel shares between outputs does not, and is kept whole.

    Args:
        model: The model.
        aug_batch_shape: Batch shape of the model, followed by the number of outputs.
    """
    if model.num_outputs == 1:
        return {}
    depth = len(aug_batch_shape)
    dimensions = {}
    for prefix, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if isinstance(module, Kernel):
            # A kernel without outputs may have m rows by coincidence, such as an m x m covariance.
            if module.batch_shape[:depth] != aug_batch_shape:
                continue
            if isinstance(module, BatchKernel):
                held = module.named_buffers(recurse=False)
                own |= {name: each for name, each in held if name != "active_dims"}
        for name, tensor in own.items():
            if tensor.shape[:depth] == aug_batch_shape:
                dimensions[f"{prefix}.{name}"] = depth - 1 - tensor.ndim
    return dimensions
