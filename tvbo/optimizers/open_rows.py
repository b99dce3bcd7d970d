"""A posterior that counts open trials."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from botorch.models.model import Model
from linear_operator import to_dense
from torch import Tensor

from tvbo.models.incremental import RowPosterior
from tvbo.observations import Observations
from tvbo.optimizers.noise import least_noise
from tvbo.optimizers.pending import Pending

if TYPE_CHECKING:
    from tvbo.optimizers.surrogate import GPSurrogate


def with_open_rows(
    model: RowPosterior,
    observations: Observations,
    rows: Tensor,
    pending: Pending,
    dense: GPSurrogate,
) -> Model:
    """A posterior conditioned on open trials.

    Args:
        model: The posterior by the outcomes that have come.
        observations: These outcomes.
        rows: ``[action | context | time]`` of the open trials, ``q x d``.
        pending: What stands in for their outcomes.
        dense: Knows the hyperparameters, and with them the noise to expect. As long as nothing is
            known of it, open trials count as if their outcomes had the least noise.
    """
    noise_variance = dense.outcome_noise(observations)

    def expected() -> Tensor:
        return model.posterior(rows.unsqueeze(-2)).mean.squeeze(-1)

    with torch.no_grad():
        least = least_noise(dense.last_model, to_dense(model.covar_module(rows, diag=True)))
        noise = least if noise_variance is None else least.clamp_min(noise_variance)
        noise = noise.unsqueeze(-1)
        return model.condition_on_observations(rows, pending.outcomes(rows, expected), noise)
