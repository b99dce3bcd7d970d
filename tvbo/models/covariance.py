"""Prior covariances and noise variance of any model, in raw units, as retention rules need them."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from linear_operator import to_dense
from torch import Tensor

from tvbo.models.ensemble_gp import EnsembleGP
from tvbo.models.raw import RawRowKernel, check_one_output, raw_noise_variance
from tvbo.models.scale import outcome_scale
from tvbo.models.streaming_gp import StreamingGP


def prior_covariance(model: Model, X1: Tensor, X2: Tensor) -> Tensor:
    """Return prior covariances of the function, without noise, in squared units of raw outcomes.

    Args:
        model: A :class:`tvbo.models.StreamingGP`, a :class:`tvbo.models.EnsembleGP`, whose
            covariance is that by the most probable hyperparameters, or any
            :class:`botorch.models.SingleTaskGP` in eval mode, whose transforms are undone. It has
            one output and no batch.
        X1: Raw rows ``[action | context | time]``, ``n x d``.
        X2: Raw rows, ``m x d``.

    Returns:
        ``n x m``, without gradients.

    Raises:
        UnsupportedError: if the model is of another class, is in training mode, or has a batch,
            more than one output, or an outcome transform other than ``Standardize``.
        BotorchTensorDimensionError: if the rows do not fit each other or the model.
        InputDataError: if an action is none of the choices of a streaming model.
    """
    model = _supported(model)
    if X1.ndim != 2 or X2.ndim != 2 or X1.shape[-1] != X2.shape[-1]:
        raise BotorchTensorDimensionError(
            "Expected X1 of shape n x d and X2 of shape m x d. "
            f"Got X1.shape={tuple(X1.shape)}, X2.shape={tuple(X2.shape)}."
        )
    with torch.no_grad():
        if isinstance(model, SingleTaskGP):
            covar: Tensor = to_dense(RawRowKernel(model)(X1, X2))
            return covar
        if isinstance(model, StreamingGP):
            covar = model.prior_covariance(X1, X2)
        else:
            covar = to_dense(model.covar_module(X1, X2))
        return outcome_scale(model)[1] ** 2 * covar


def noise_variance(model: Model) -> float:
    """Return the noise variance of outcomes without their own, in squared units of raw outcomes.

    Args:
        model: A model that :func:`prior_covariance` takes. For a dense model with a fixed noise
            variance for each observation it is their mean, or 0 without observations.

    Raises:
        UnsupportedError: if the model is of another class, is in training mode, or has a batch,
            more than one output, or an outcome transform other than ``Standardize``.
    """
    model = _supported(model)
    if isinstance(model, SingleTaskGP):
        return raw_noise_variance(model)
    return float(model.noise_variance.item()) * outcome_scale(model)[1] ** 2


def _supported(model: Model) -> StreamingGP | EnsembleGP | SingleTaskGP:
    """Return the model; raise unless it is of a class of which prior and noise are known."""
    if not isinstance(model, (StreamingGP, EnsembleGP, SingleTaskGP)):
        raise UnsupportedError(
            f"Expected a StreamingGP, EnsembleGP or SingleTaskGP. Got {type(model).__name__}."
        )
    if isinstance(model, SingleTaskGP):
        if model.training:
            # In training mode a transform would learn from the rows of the prediction.
            raise UnsupportedError("Expected a model in eval mode. Got one in training mode.")
        check_one_output(model)
    elif model.batch_shape:
        raise UnsupportedError(
            f"Expected a model without a batch. Got batch_shape={tuple(model.batch_shape)}."
        )
    return model
