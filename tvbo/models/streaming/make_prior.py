"""From kernels to the prior of a streaming posterior."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from torch import Size, Tensor
from torch.nn import Parameter

from tvbo.kernels import ConstantTemporalKernel, TemporalDecayKernel, TemporalKernel
from tvbo.kernels.temporal_base import check_markov
from tvbo.models.streaming.component import Component
from tvbo.models.streaming.finite_prior import DecayPrior, FiniteCovariance
from tvbo.models.streaming.prior import MarkovPrior
from tvbo.models.streaming.state_prior import StatePrior


def make_prior(
    choices: Tensor,
    covar_module: Kernel | Sequence[Kernel],
    time: Tensor | Kernel | Sequence[Kernel],
    batch_shape: Size,
    noise_shape: Size,
) -> tuple[MarkovPrior, Size]:
    """Return the prior, and the batch shape of the model.

    Args:
        choices: ``n x d``.
        covar_module: Kernel over the choices, or one for each temporal kernel.
        time: Forgetting rate, or temporal kernels.
        batch_shape: Batch shape asked for.
        noise_shape: Shape of the noise variances.

    Raises:
        TypeError: if a temporal kernel is none.
        ValueError: if batch shapes do not broadcast, a temporal kernel has ``active_dims`` or is
            not Markov, or the numbers of kernels differ.
    """
    given = [time] if isinstance(time, Tensor | Kernel) else list(time)
    parts = [_parts(each) for each in given]
    kernels = [covar_module] if isinstance(covar_module, Kernel) else list(covar_module)
    if not given or len(kernels) not in {1, len(given)}:
        raise ValueError(
            "Expected one kernel in covar_module, or as many as temporal kernels. "
            f"Got {len(kernels)} and {len(given)} temporal kernels."
        )
    kernels = [deepcopy(kernel).to(choices).eval() for kernel in kernels]
    shapes = [
        batch_shape,
        *(kernel.batch_shape for kernel in kernels),
        *(amplitude.shape for _, amplitude in parts if amplitude.ndim > 0),
        *(x.shape if isinstance(x, Tensor) else x.batch_shape for x, _ in parts),
        noise_shape,
    ]
    try:
        shape = Size(torch.broadcast_shapes(*shapes))
    except RuntimeError as error:
        raise ValueError(
            "Expected batch_shape and batches of kernel, forgetting_rate and noise_variance "
            f"that broadcast. Got {', '.join(str(tuple(shape)) for shape in shapes)}."
        ) from error
    covariances = [FiniteCovariance(choices, kernel, shape) for kernel in kernels]
    rate = _rate(*parts[0]) if len(parts) == 1 else None
    if rate is not None:
        rate = rate.detach().to(choices).expand(shape).reshape(-1)
        return DecayPrior(covariances[0], rate), shape
    if len(covariances) == 1:
        covariances = covariances * len(parts)
    components = [
        Component(
            covariance,
            _flat(kernel, shape).to(choices).eval(),
            amplitude.detach().to(choices).expand(shape).reshape(-1),
        )
        for covariance, (kernel, amplitude) in zip(covariances, parts, strict=True)
    ]
    return StatePrior(components), shape


def _parts(time: Tensor | Kernel) -> tuple[Tensor | TemporalKernel, Tensor]:
    """Return a rate or a temporal kernel, and its amplitude."""
    amplitude = torch.ones(())
    if isinstance(time, ScaleKernel):
        amplitude, time = time.outputscale, time.base_kernel
    return time if isinstance(time, Tensor) else check_markov(time), amplitude


def _rate(time: Tensor | TemporalKernel, amplitude: Tensor) -> Tensor | None:
    """Return the rate of exponential decay, or None: for it the state is the function itself."""
    if isinstance(time, Tensor):
        return time
    if (amplitude != 1).any():
        return None
    if isinstance(time, TemporalDecayKernel):
        return time.forgetting_rate.squeeze(-1)
    if isinstance(time, ConstantTemporalKernel):
        return torch.zeros(time.batch_shape)
    return None


def _flat(time: Tensor | TemporalKernel, batch_shape: Size) -> TemporalKernel:
    """Return a fixed copy of a temporal kernel with one dimension of batch, or none."""
    assert isinstance(time, TemporalKernel)  # since a rate stands alone
    kernel: TemporalKernel = deepcopy(time).requires_grad_(False)
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
