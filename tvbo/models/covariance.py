"""The prior of any of our models, in raw units: what retention needs to weigh observations."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from linear_operator import to_dense
from torch import Tensor

from tvbo.kernels import temporal_correlation
from tvbo.models.incremental import RowPosterior
from tvbo.models.raw import RawRowKernel, raw_noise_variance
from tvbo.models.streaming_gp import StreamingGP


def prior_covariance(model: Model, X1: Tensor, X2: Tensor) -> Tensor:
    """Prior covariances of the function at rows, without noise, in squared units of raw outcomes.

    Args:
        model: A :class:`tvbo.models.StreamingGP`, a :class:`tvbo.models.IncrementalGP`, a
            :class:`tvbo.models.NystromGP`, or any :class:`botorch.models.SingleTaskGP` in eval
            mode, whose transforms are undone; of one output and no batch.
        X1: Raw rows ``[action | context | time]``, ``n x d``.
        X2: Raw rows, ``m x d``.

    Returns:
        ``n x m``, without gradients.

    Raises:
        UnsupportedError: if the model is another one, is in training mode, or has a batch, more
            than one output, or an outcome transform other than ``Standardize``.
        BotorchTensorDimensionError: if the rows do not fit together, or do not fit the model.
        InputDataError: if an action is none of the choices of a streaming model.
    """
    _check_supported(model)
    if X1.ndim != 2 or X2.ndim != 2 or X1.shape[-1] != X2.shape[-1]:
        raise BotorchTensorDimensionError(
            "Expected X1 of shape n x d and X2 of shape m x d. "
            f"Got X1.shape={tuple(X1.shape)}, X2.shape={tuple(X2.shape)}."
        )
    with torch.no_grad():
        if isinstance(model, StreamingGP):
            return _on_finite_set(model, X1, X2)
        kernel = model.covar_module if isinstance(model, RowPosterior) else RawRowKernel(model)
        return to_dense(kernel(X1, X2))


def noise_variance(model: Model) -> float:
    """Noise variance of an outcome told without its own, in squared units of raw outcomes.

    Args:
        model: As in :func:`prior_covariance`. A dense model with a fixed noise for each observation
            gives their mean, and 0 while it has none.

    Raises:
        UnsupportedError: as there.
    """
    _check_supported(model)
    if isinstance(model, SingleTaskGP):
        return raw_noise_variance(model)
    return model.noise_variance.item()


def _on_finite_set(model: StreamingGP, X1: Tensor, X2: Tensor) -> Tensor:
    index1, index2 = (model.row_index.index(X[:, :-1]).unsqueeze(0) for X in (X1, X2))
    covariance = model.innovations.covariance
    first_trial = index1.new_zeros(1)
    between = covariance.between(first_trial, index1, index2).squeeze(0)
    lag = (X1[:, -1:] - X2[:, -1]).abs()
    return between * temporal_correlation(lag, model.forgetting_rate)


def _check_supported(model: Model) -> None:
    if not isinstance(model, (StreamingGP, RowPosterior, SingleTaskGP)):
        raise UnsupportedError(
            "Expected a StreamingGP, an IncrementalGP, a NystromGP or a SingleTaskGP. "
            f"Got {type(model).__name__}."
        )
    if len(model.batch_shape) > 0 or model.num_outputs > 1:
        raise UnsupportedError(
            "Expected a model of one output and no batch. "
            f"Got {model.num_outputs} outputs, batch_shape={tuple(model.batch_shape)}."
        )
    if isinstance(model, SingleTaskGP):
        if model.training:
            # A transform would learn from the rows it is asked about.
            raise UnsupportedError("Expected a model in eval mode. Got one in training mode.")
        RawRowKernel(model)
