"""The units of a model: standardized outcomes, and actions in the unit cube."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from botorch.models.model import Model
from botorch.models.transforms import Standardize
from gpytorch.settings import min_fixed_noise
from torch import Tensor

from tvbo.spaces.observations import Observations

MIN_NOISE: float = min_fixed_noise.value(torch.float64)
"""Least noise variance of standardized outcomes, that of GPyTorch's dense models."""


def outcome_scale(model: Model) -> tuple[float, float]:
    """Return mean and standard deviation by which outcomes were standardized, else 0 and 1."""
    transform = getattr(model, "outcome_transform", None)
    return (0.0, 1.0) if transform is None else (transform.means.item(), transform.stdvs.item())


def standardizer(mean: float, deviation: float) -> Standardize:
    """Return BoTorch's transform of outcomes with a given mean and standard deviation."""
    transform = Standardize(m=1).double().eval()
    transform.means.fill_(mean)
    transform.stdvs.fill_(deviation)
    transform._stdvs_sq.fill_(deviation**2)
    transform._is_trained.fill_(True)
    return transform


def standardized(observations: Observations, transform: Standardize) -> Observations:
    """Return observations with standardized outcomes, and noise variances that models take."""
    Y, Yvar = transform(observations.Y, observations.Yvar)
    return replace(observations, Y=Y, Yvar=None if Yvar is None else Yvar.clamp_min(MIN_NOISE))


@dataclass(frozen=True, eq=False)
class StandardizedModel:
    """A model of standardized outcomes, as acquisitions are given it.

    Args:
        model: The model, of one output.
        transform: How its outcomes were standardized.
    """

    model: Model
    transform: Standardize

    def moments(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and variances without noise, in the user's unit, ``n``, at ``n x d``."""
        with torch.no_grad():
            mean, variance = marginals(self.model, rows.unsqueeze(-2))
        mean = self.transform.means.item() + self.scale * mean.squeeze(-1)
        return mean, self.scale**2 * variance.squeeze(-1)

    @property
    def scale(self) -> float:
        """One unit of standardized outcomes in the user's unit."""
        return self.transform.stdvs.item()

    def in_user_units(self) -> Model:
        """Return the model with the transform undone, as BoTorch's models have it."""
        if self.transform.stdvs == 1 and self.transform.means == 0:
            return self.model
        new = copy(self.model)
        new._modules = {**new._modules, "outcome_transform": self.transform}
        return new


def marginals(model: Model, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return posterior means and variances of a model of one output, ``b x 1``.

    Args:
        model: The model.
        rows: ``b x 1 x d``.
    """
    by_rows: Any = getattr(model, "row_marginals", None)
    if by_rows is not None:
        # GPyTorch's normal distribution imports SymPy, which takes a third of a second.
        mean, variance = by_rows(rows)
        return mean, variance
    # BoTorch's base class declares neither; all posteriors of these models have both.
    posterior: Any = model.posterior(rows)
    mean = posterior.mean.squeeze(-2)
    return mean, posterior.variance.view(mean.shape)
