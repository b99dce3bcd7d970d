"""A GP over actions and contexts, which may drift in time as well."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import DEFAULT
from botorch.utils.types import _DefaultType as DefaultType
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from gpytorch.priors import Prior
from torch import Size, Tensor

from tvbo.kernels import ColumnKernel, ContextActionKernel, Structure, TemporalDecayKernel
from tvbo.models.construction import (
    check_training_data,
    make_temporal_kernel,
    output_dimensions,
)
from tvbo.search_space.input_layout import split_context


class ContextualGP(SingleTaskGP):
    r"""A :class:`botorch.models.SingleTaskGP` over actions, contexts and, if there is one, time.

    Its kernel is a :class:`tvbo.kernels.ContextActionKernel` (Krause, Ong, 2011, Section 5.1),
    multiplied, where time is a column, with exponential forgetting (Bogunovic et al., 2016):

    .. math:: k\big((s, z, t), (s', z', t')\big) =
        k_{SZ}\big((s, z), (s', z')\big)\,(1 - \varepsilon)^{|t - t'| / 2},

    so that one model has action, context and drift, and ``fit_gpytorch_mll`` learns the parameters
    of both kernels, ε and the noise together. Without observations (``n = 0``), for
    which ``outcome_transform=None`` is needed, it is its prior.

    Args:
        train_X: ``batch_shape x n x d`` rows; any order of columns.
        train_Y: ``batch_shape x n x m`` outcomes.
        train_Yvar: ``batch_shape x n x m`` known noise variances; None learns one.
        likelihood: As in :class:`tvbo.models.TimeVaryingGP`.
        mean_module: As in :class:`SingleTaskGP`.
        outcome_transform: As in :class:`SingleTaskGP`: ``Standardize`` unless None is given.
        input_transform: As in :class:`SingleTaskGP`; it should leave time and task columns alone.
        context_features: Indices of the context columns.
        time_feature: Index of the time column, used raw; None where nothing drifts. All the
            other columns are actions.
        structure: ``"product"``, ``"additive"`` or ``"both"``.
        action_kernel: Kernel over the action columns, which it sees as columns ``0, 1, ...``.
            Default: BoTorch's RBF with dimension-scaled priors, with a learned scale where
            ``structure`` is ``"additive"``.
        context_kernel: The same for the context columns. For contexts that are tasks by number:
            :class:`tvbo.kernels.CovarianceMatrixKernel` (known covariance) or
            :class:`tvbo.kernels.TaskKernel` (learned).
        forgetting_rate: ε per unit of time, in [0, 1]; None learns it.
        forgetting_rate_prior: Prior over a learned ε.
        forgetting_rate_constraint: Constraint on a learned ε; default [1e-6, 1 - 1e-4].

    Raises:
        InputDataError: if X or Y holds a NaN or an infinity, or a task does not exist.
        BotorchTensorDimensionError: if no column is left for actions, or shapes disagree.
        ValueError: if columns overlap, ε lies outside [0, 1], ``structure`` is unknown, or an
            argument about forgetting is given without a ``time_feature``.

    Example:
        >>> train_X = torch.rand(40, 4, dtype=torch.float64)  # [s1, s2, z, t]
        >>> model = ContextualGP(train_X, train_Y, context_features=[2], time_feature=3)
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> model.forgetting_rate
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        *,
        context_features: Sequence[int],
        time_feature: int | None = None,
        structure: Structure = "product",
        action_kernel: Kernel | None = None,
        context_kernel: Kernel | None = None,
        forgetting_rate: float | Tensor | None = None,
        forgetting_rate_prior: Prior | None = None,
        forgetting_rate_constraint: Interval | None = None,
    ):
        check_training_data(train_X, train_Y, train_Yvar)
        action, context, time = split_context(context_features, time_feature, train_X.shape[-1])
        _, batch_shape = self.get_batch_dimensions(train_X=train_X, train_Y=train_Y)
        about_time = (forgetting_rate, forgetting_rate_prior, forgetting_rate_constraint)
        if time is None and any(given is not None for given in about_time):
            raise ValueError(
                "Expected a time_feature beside forgetting_rate, its prior or its constraint. "
                f"Got time_feature=None, forgetting_rate={forgetting_rate}."
            )
        # The kernel sees what is not time, in its order, as in a TimeVaryingGP.
        others = [i for i in range(train_X.shape[-1]) if i != time]
        kernel = ContextActionKernel(
            action_kernel or default_kernel(len(action), structure, batch_shape),
            context_kernel or default_kernel(len(context), structure, batch_shape),
            structure,
            action_features=[others.index(i) for i in action],
            context_features=[others.index(i) for i in context],
        )
        if structure == "both" and action_kernel is None and context_kernel is None:
            kernel.outputscales = [1 / 3] * 3
        covar_module: Kernel = ColumnKernel(kernel, others)
        if time is not None:
            covar_module = covar_module * make_temporal_kernel(
                forgetting_rate,
                forgetting_rate_prior=forgetting_rate_prior,
                forgetting_rate_constraint=forgetting_rate_constraint,
                batch_shape=batch_shape,
                active_dims=[time],
            )
        super().__init__(
            train_X=train_X,
            train_Y=train_Y,
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            covar_module=covar_module,
            mean_module=mean_module,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
        )
        self._subset_batch_dict = output_dimensions(self, self._aug_batch_shape)
        self.to(train_X)
        with torch.no_grad():
            # A task that does not exist is refused here, not at the first prediction.
            self.covar_module(self.train_inputs[0], diag=True)

    @property
    def context_action_kernel(self) -> ContextActionKernel:
        """The kernel over actions and contexts; it sees the columns that are not time."""
        drifts = self.temporal_kernel is not None
        return (self.covar_module.kernels[0] if drifts else self.covar_module).base_kernel

    @property
    def temporal_kernel(self) -> TemporalDecayKernel | None:
        """The factor of the kernel that forgets; None without a time column."""
        return None if isinstance(self.covar_module, ColumnKernel) else self.covar_module.kernels[1]

    @property
    def forgetting_rate(self) -> Tensor | None:
        """ε per unit of time, as in :class:`tvbo.models.TimeVaryingGP`; None without time."""
        return None if self.temporal_kernel is None else self.temporal_kernel.forgetting_rate

    @classmethod
    def construct_inputs(
        cls,
        training_data: SupervisedDataset,
        context_features: Sequence[int] = (),
        time_feature: int | None = None,
        structure: Structure = "product",
        action_kernel: Kernel | None = None,
        context_kernel: Kernel | None = None,
        forgetting_rate: float | Tensor | None = None,
    ) -> dict[str, Any]:
        """Constructor arguments from a data set, the form in which Ax builds models.

        Args:
            training_data: A :class:`SupervisedDataset` with contexts among the features.
            context_features: Indices of the context columns.
            time_feature: Index of the time column, or None.
            structure: As in the class.
            action_kernel: As in the class; each model gets a copy, since Ax builds several.
            context_kernel: The same.
            forgetting_rate: A fixed ε, or None to learn it.
        """
        return {
            **super().construct_inputs(training_data=training_data),
            "context_features": context_features,
            "time_feature": time_feature,
            "structure": structure,
            "action_kernel": deepcopy(action_kernel),
            "context_kernel": deepcopy(context_kernel),
            "forgetting_rate": forgetting_rate,
        }


def default_kernel(num_columns: int, structure: Structure, batch_shape: Size) -> Kernel:
    """BoTorch's default kernel; in a sum, where relative scales matter, with a scale to learn."""
    kernel = get_covar_module_with_dim_scaled_prior(
        ard_num_dims=num_columns, batch_shape=batch_shape
    )
    if structure != "additive":
        return kernel
    constraint = GreaterThan(0.0, transform=None, initial_value=torch.tensor(0.5))
    return ScaleKernel(kernel, batch_shape=batch_shape, outputscale_constraint=constraint)
