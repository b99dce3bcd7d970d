"""The posterior of a contextual model by parts of its kernel: action, context, interaction."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, ProductKernel, ScaleKernel
from linear_operator import to_dense
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from tvbo.kernels import ContextActionKernel
from tvbo.kernels.batch import ColumnKernel
from tvbo.models.ensemble_gp import EnsembleGP
from tvbo.models.raw import ScaledKernel, check_one_output, transformed
from tvbo.models.scale import outcome_scale
from tvbo.spaces.observations import check_last_dimension

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class KernelParts:
    r"""How much of the variance of the outcomes each part of the kernel explains.

    With :math:`K = \sum_p K_p` the parts' covariances at the ``n`` observations, the posterior mean
    of the outcomes less the prior mean, :math:`y - m`, is a sum of one vector for each part,

    .. math:: y - m = \sum_p \hat f_p + r, \quad \hat f_p = K_p (K + \Sigma)^{-1} (y - m),

    and a residual. The attributes are the variances of these vectors over the observations, as
    shares of that of :math:`y - m`. Posterior parts are correlated, so that the shares need not sum
    to one, and a single one may exceed one: ``covariance`` is the rest, twice the sum of all
    covariances of two of the vectors, and may be negative. Where it is large, the data do not
    determine the parts.

    A product of kernels also contains functions of the action alone, or of the context alone: where
    it is the only part (``structure="product"``), all that is explained counts as interaction.

    Args:
        shares: Share of each part that the kernel has: ``action``, ``context``, ``interaction``.
        residual: Share of the residual, which is attributed to noise.
        covariance: One less the sum of all shares.
        variance: The variance of :math:`y - m`, in squared units of the outcome.
        num_observations: ``n``.
    """

    shares: dict[str, float]
    residual: float
    covariance: float
    variance: float
    num_observations: int

    def to_frame(self) -> pd.DataFrame:
        """Return a table of name, share and variance: the parts, then residual and covariance."""
        import pandas as pd

        every = {**self.shares, "residual": self.residual, "covariance": self.covariance}
        return pd.DataFrame(
            {
                "part": list(every),
                "share": list(every.values()),
                "variance": [share * self.variance for share in every.values()],
            }
        )


def explained_variance(model: SingleTaskGP | EnsembleGP) -> KernelParts:
    """Return how much of the variance of the outcomes each part of the kernel explains.

    Args:
        model: A model whose kernel is one :class:`tvbo.kernels.ContextActionKernel`, times any
            temporal kernel: a :class:`tvbo.models.ContextualGP`, a
            :class:`tvbo.models.TimeVaryingGP`, or a :class:`tvbo.models.EnsembleGP` with
            the hyperparameters of one, such as the ``model`` of an optimizer.

    Raises:
        UnsupportedError: if its kernel is another one, or it has a batch, more outputs than one, or
            an outcome transform other than ``Standardize``; or it is a
            :class:`tvbo.models.StreamingGP`, which does not keep its observations.
        InputDataError: if it has fewer than two observations, or all outcomes differ from the prior
            mean by the same constant.
    """
    seen = _Observed(model)
    variance = seen.residual.var(correction=0).item() if len(seen.residual) > 1 else 0.0
    if variance == 0:
        raise InputDataError(
            "Expected at least two outcomes that differ. "
            f"Got {len(seen.residual)} with variance {variance}."
        )
    fitted = {name: seen.covar(name, seen.rows) @ seen.weights for name in seen.parts}
    residual = seen.residual - torch.stack(list(fitted.values())).sum(0)
    shares = {name: f.var(correction=0).item() / variance for name, f in fitted.items()}
    left = residual.var(correction=0).item() / variance
    return KernelParts(
        shares=shares,
        residual=left,
        covariance=1.0 - sum(shares.values()) - left,
        variance=variance * seen.scale**2,
        num_observations=len(seen.residual),
    )


@torch.no_grad()
def part_posterior(
    model: SingleTaskGP | EnsembleGP, part: str, X: Tensor, *, centered: bool = False
) -> tuple[Tensor, Tensor]:
    r"""Return posterior mean and variance of one part of the function.

    .. math:: \mu_p(x) = k_p(x)^\top (K + \Sigma)^{-1} (y - m), \quad
        \sigma_p^2(x) = k_p(x, x) - k_p(x)^\top (K + \Sigma)^{-1} k_p(x)

    The means of all parts and the prior mean add to the posterior mean; the variances do not add,
    since posterior parts are correlated. Columns on which a part does not depend may have any
    value: the ``action`` part is the same in every context.

    A constant added to one part and subtracted from another changes no outcome. So if there is
    another part, the level of each is uncertain by about its prior scale, however well its shape is
    known; ``centered`` gives the shape.

    Args:
        model: A model that :func:`explained_variance` takes.
        part: ``"action"``, ``"context"`` or ``"interaction"``, one that the kernel has.
        X: Rows, ``n x d``, with the columns of the model.
        centered: Whether to subtract the average of the part over these rows, in :math:`O(n^2)`
            memory.

    Returns:
        Mean, ``n``, in units of the outcome, without the prior mean; and variance, ``n``.

    Raises:
        ValueError: if the kernel has no such part.
        BotorchTensorDimensionError: if the rows have another number of columns.
        InputDataError: if the model has no observations.
        UnsupportedError: if its kernel is another one, or it has a batch, more outputs than one, or
            an outcome transform other than ``Standardize``; or it is a
            :class:`tvbo.models.StreamingGP`, which does not keep its observations.
    """
    seen = _Observed(model)
    if part not in seen.parts:
        raise ValueError(f"Expected a part of the kernel, one of {list(seen.parts)}. Got {part!r}.")
    check_last_dimension("X", X, seen.rows.shape[-1])
    rows = transformed(seen.input_transform, X)
    cross = seen.covar(part, rows)
    whitened = torch.linalg.solve_triangular(seen.root, cross.mT, upper=False)
    mean, prior = cross @ seen.weights, seen.parts[part]
    if centered:
        covar = to_dense(prior(rows)) - whitened.mT @ whitened
        covar = covar - covar.mean(0) - covar.mean(1, keepdim=True) + covar.mean()
        mean, variance = mean - mean.mean(), covar.diagonal()
    else:
        variance = prior(rows, diag=True) - whitened.square().sum(0)
    return seen.scale * mean, seen.scale**2 * variance.clamp_min(0.0)


def split_kernel(kernel: Kernel) -> dict[str, Kernel]:
    """Return kernels whose sum is ``kernel``, one for each component of its ContextActionKernel.

    They are copies. Scales, temporal kernels and selections of columns are applied to every part.

    Raises:
        UnsupportedError: if ``kernel`` is not one ContextActionKernel, alone or times others.
    """
    if isinstance(kernel, ContextActionKernel):
        return _components(kernel)
    if isinstance(kernel, ScaleKernel):
        base = kernel.base_kernel
        if base.active_dims is None and kernel.active_dims is not None:
            base = ColumnKernel(base, kernel.active_dims.tolist())
        # Not copied, since a ScaleKernel selects the columns of its base kernel.
        return {name: _scaled(part, kernel) for name, part in split_kernel(base).items()}
    if isinstance(kernel, ColumnKernel):
        return _replacing(kernel, "base_kernel")
    if isinstance(kernel, ScaledKernel):
        return _replacing(kernel, "base_kernel")
    if isinstance(kernel, ProductKernel):
        holders = [factor for factor in kernel.kernels if _contains_parts(factor)]
        if len(holders) == 1:
            others = [deepcopy(factor) for factor in kernel.kernels if factor is not holders[0]]
            return {
                name: ProductKernel(part, *others)
                for name, part in split_kernel(holders[0]).items()
            }
    raise UnsupportedError(
        "Expected a kernel with one ContextActionKernel, alone or times others. "
        f"Got {type(kernel).__name__}."
    )


def _components(kernel: ContextActionKernel) -> dict[str, Kernel]:
    """Return the terms of a kernel by name, as copies with the present parameters."""
    action, context = deepcopy(kernel.action_kernel), deepcopy(kernel.context_kernel)
    if kernel.structure == "product":
        return {"interaction": ContextActionKernel(action, context)}
    if kernel.structure == "additive":
        return {"action": action, "context": context}
    interaction = ContextActionKernel(deepcopy(action), deepcopy(context))
    parts = {"action": action, "context": context, "interaction": interaction}
    components: dict[str, Kernel] = {}
    for (name, part), scale in zip(parts.items(), kernel.outputscales.detach(), strict=True):
        # A scale may be zero.
        scaled = ScaleKernel(part, outputscale_constraint=GreaterThan(0.0, transform=None))
        components[name] = scaled.to(scale)
        scaled.outputscale = scale
    return components


class _Observed:
    """The observations of a model and the parts of its kernel, in the units of the kernel.

    Args:
        model: A model that :func:`explained_variance` takes.
    """

    rows: Tensor
    residual: Tensor
    root: Tensor

    @torch.no_grad()
    def __init__(self, model: Model):
        if isinstance(model, SingleTaskGP):
            check_one_output(model)
            was_training = model.training
            model.eval()
            [self.rows] = model.train_inputs
            prior = model.forward(self.rows)
            self.residual = model.train_targets - prior.mean
            self.scale = outcome_scale(model)[1]
            self.input_transform = getattr(model, "input_transform", None)
            self.root = psd_safe_cholesky(model.likelihood(prior, [self.rows]).covariance_matrix)
            model.train(was_training)
        elif isinstance(model, EnsembleGP) and model.sets is None and not model.batch_shape:
            (noise,), (self.rows,) = model.factors[0].noise, model.train_inputs
            self.residual = model.train_targets
            if model.mean_module is not None:
                self.residual = self.residual - model.mean_module(self.rows)
            covar = model.prior_covariance(self.rows, self.rows)
            self.root = psd_safe_cholesky(covar + noise.diag())
            self.input_transform, self.scale = None, 1.0
        else:
            raise UnsupportedError(
                "Expected a model that keeps its observations: ContextualGP, TimeVaryingGP or "
                f"EnsembleGP. Got {type(model).__name__}."
            )
        if len(self.rows) == 0:
            raise InputDataError("Expected a model with observations. Got none.")
        self.parts = split_kernel(model.covar_module)
        self.weights = torch.cholesky_solve(self.residual.unsqueeze(-1), self.root).squeeze(-1)

    @torch.no_grad()
    def covar(self, part: str, rows: Tensor) -> Tensor:
        """Return the covariances of a part at some rows with itself at the observations."""
        covar: Tensor = to_dense(self.parts[part](rows, self.rows))
        return covar


def _contains_parts(kernel: Kernel) -> bool:
    """Return whether a kernel is or contains a ContextActionKernel."""
    return any(isinstance(module, ContextActionKernel) for module in kernel.modules())


def _replacing(kernel: Kernel, name: str) -> dict[str, Kernel]:
    """Return copies of a kernel whose inner kernel, at an attribute, is replaced by its parts."""
    copies = {}
    for part_name, part in split_kernel(getattr(kernel, name)).items():
        copies[part_name] = deepcopy(kernel)
        setattr(copies[part_name], name, part)
    return copies


def _scaled(part: Kernel, like: ScaleKernel) -> ScaleKernel:
    """Return a part times the scale of a ScaleKernel."""
    scaled = ScaleKernel(part, outputscale_constraint=deepcopy(like.raw_outputscale_constraint))
    scaled = scaled.to(like.outputscale)
    scaled.outputscale = like.outputscale.detach()
    return scaled
