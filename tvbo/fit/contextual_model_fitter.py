"""Fit the hyperparameters of a model with contexts."""

from __future__ import annotations

from copy import deepcopy
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from torch import Tensor

from tvbo.fit.drift import Form
from tvbo.fit.model_fitter import ModelFitter, Refit, RefitNever
from tvbo.kernels.context_action import Structure
from tvbo.models import ContextualGP
from tvbo.models.scale import in_unit
from tvbo.spaces import InputLayout


class ContextualModelFitter(ModelFitter):
    """Build a :class:`tvbo.models.ContextualGP` of observations and fit its hyperparameters.

    The columns whose kernel is left out are scaled to the unit cube. Where either kernel is left
    out, outcomes are standardized, and a scale in the other kernel is in units of the standardized
    outcome. Where both are given, everything is in the user's own units, as in
    :class:`ModelFitter`.

    Args:
        layout: Layout of the rows, with contexts.
        action_bounds: ``2 x d``, the range of the actions.
        context_bounds: ``2 x c``, the range of the contexts.
        structure: How the kernels over actions and contexts are combined, ``"product"``,
            ``"additive"`` or ``"both"``, as in :class:`tvbo.models.ContextualGP`.
        action_kernel: Kernel over actions; None learns BoTorch's default, RBF.
        context_kernel: Kernel over contexts; None learns BoTorch's default, RBF.
        forgetting_rate: ε per unit of time; 0 is a static model. None learns it.
        noise_variance: Variance of the noise of outcomes told without their own. None learns it.
        mean_module: Prior mean. None: zero where nothing is learned, else a learned constant.
        likelihood: Likelihood for a learned noise, as in :class:`tvbo.models.ContextualGP`.
        refit: When to learn. None: never if both kernels, rate and noise are given, else always.
        temporal_kernel: One or several temporal kernels in place of ε, or ``"auto"``.

    Raises:
        ValueError: if a kernel or the rate must be learned but ``refit`` is never, or a rate or a
            noise variance is out of range; and if ``structure`` is ``"both"``, whose scales must be
            learned, but ``refit`` is never. Where they are known, give a :class:`ModelFitter` the
            whole :class:`tvbo.kernels.ContextActionKernel`.
    """

    def __init__(
        self,
        layout: InputLayout,
        action_bounds: Tensor,
        context_bounds: Tensor,
        structure: Structure = "product",
        action_kernel: Kernel | None = None,
        context_kernel: Kernel | None = None,
        forgetting_rate: float | None = None,
        noise_variance: float | None = None,
        mean_module: Mean | None = None,
        likelihood: Likelihood | None = None,
        refit: Refit | None = None,
        temporal_kernel: Form | Literal["auto"] = None,
    ):
        if structure not in get_args(Structure):
            raise ValueError(
                f"Expected structure 'product', 'additive' or 'both'. Got {structure!r}."
            )
        if structure == "both" and isinstance(refit, RefitNever):
            raise ValueError(
                "Expected a refit, since the scales of structure 'both' are learned; where they "
                "are known, give covar_module=ContextActionKernel(...) instead. Got refit never."
            )
        self.context_bounds = context_bounds
        self.structure = structure
        # As ModelFitter copies the other parts.
        self.action_kernel, self.context_kernel = deepcopy((action_kernel, context_kernel))
        super().__init__(
            layout,
            action_bounds,
            forgetting_rate=forgetting_rate,
            temporal_kernel=temporal_kernel,
            noise_variance=noise_variance,
            mean_module=mean_module,
            likelihood=likelihood,
            refit=refit,
        )
        self.bounds = torch.cat([action_bounds, context_bounds], dim=-1)
        self._scaled_columns = [
            *(range(layout.num_actions) if action_kernel is None else ()),
            *(layout.context_features if context_kernel is None else ()),
        ]
        # Its kernel has parts for actions and contexts.
        self.is_default = False

    def _given(self) -> dict[str, object | None]:
        given = super()._given()
        del given["covar_module"]
        if self.structure == "both":
            given["outputscales"] = None
        return {"action_kernel": self.action_kernel, "context_kernel": self.context_kernel, **given}

    @cached_property
    def unit(self) -> float:
        """As of :class:`ModelFitter`; 1 where scales are learned, which are in the user's unit."""
        return 1.0 if self.structure == "both" else super().unit

    def _make(self, unit: float, **shared: Any) -> ContextualGP:
        action_kernel, context_kernel = deepcopy((self.action_kernel, self.context_kernel))
        if unit != 1.0:
            # Both are given. A product has the unit of its factors only once.
            action_kernel = in_unit(action_kernel, unit)
            if self.structure != "product":
                context_kernel = in_unit(context_kernel, unit)
        return ContextualGP(
            context_features=self.layout.context_features,
            structure=self.structure,
            action_kernel=action_kernel,
            context_kernel=context_kernel,
            **shared,
        )
