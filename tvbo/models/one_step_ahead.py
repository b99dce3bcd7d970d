"""Predictions of each outcome by those before it, with the hyperparameters of one model."""

from __future__ import annotations

import torch
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from linear_operator import to_dense
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from tvbo.models.averaged_gp import AveragedGP
from tvbo.models.raw import RawMean, RawRowKernel, raw_noise_variance
from tvbo.spaces.observations import Observations


def one_step_ahead(model: Model, observations: Observations) -> tuple[Tensor, Tensor]:
    r"""Return what a model predicts of each outcome by those before it.

    With :math:`L L^\top` the covariance of the outcomes, noise included, and :math:`m` their prior
    mean, the i-th prediction has variance :math:`L_{ii}^2` and differs from the outcome by
    :math:`L_{ii} (L^{-1} (y - m))_i`. The hyperparameters are those of the model, which may have
    been fitted to the very outcomes: these are not the predictions made at the time.

    Args:
        model: A :class:`AveragedGP`, or a ``SingleTaskGP`` of one output in eval mode.
        observations: Its observations, ``n``, in the order of telling.

    Returns:
        Means and variances, noise included, ``n``.
    """
    if isinstance(model, AveragedGP):
        return model.one_step_ahead()
    assert isinstance(model, SingleTaskGP)
    X, Y, noise = observations.X, observations.Y.squeeze(-1), observations.Yvar
    with torch.no_grad():
        covar = to_dense(RawRowKernel(model)(X, X))
        prior_mean: Tensor = RawMean(model)(X)
        variances = raw_noise_variance(model) if noise is None else noise.squeeze(-1)
        root = psd_safe_cholesky(covar + torch.diag_embed(torch.as_tensor(variances).expand_as(Y)))
        residuals = (Y - prior_mean).unsqueeze(-1)
        innovations = torch.linalg.solve_triangular(root, residuals, upper=False)
        deviations = root.diagonal()
    return Y - deviations * innovations.squeeze(-1), deviations.square()
