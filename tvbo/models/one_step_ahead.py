"""Predictions of each outcome by those before it, with the hyperparameters of one model."""

from __future__ import annotations

import torch
from torch import Tensor

from tvbo.models.averaged_gp import AveragedGP
from tvbo.models.incremental_gp import IncrementalGP
from tvbo.models.scale import outcome_scale


def one_step_ahead(model: AveragedGP | IncrementalGP) -> tuple[Tensor, Tensor]:
    r"""Return what a model predicts of each of its outcomes by those before it.

    With :math:`L L^\top` the covariance of the outcomes, noise included, and :math:`m` their prior
    mean, the i-th prediction has variance :math:`L_{ii}^2` and differs from the outcome by
    :math:`L_{ii} (L^{-1} (y - m))_i`. The hyperparameters are those of the model, which may have
    been fitted to the very outcomes: these are not the predictions made at the time.

    Args:
        model: The model.

    Returns:
        Means and variances, noise included, ``n``, in the order of its observations.
    """
    shift, scale = outcome_scale(model)
    if isinstance(model, AveragedGP):
        mean, variance = model.one_step_ahead()
    else:
        _, residual, _, root = model.observed()
        innovations = torch.linalg.solve_triangular(root, residual.unsqueeze(-1), upper=False)
        deviations = root.diagonal()
        mean = model.train_targets - deviations * innovations.squeeze(-1)
        variance = deviations.square()
    return shift + scale * mean, scale**2 * variance
