"""A GP over actions and contexts whose function may drift in time as well."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.utils.types import DEFAULT
from botorch.utils.types import _DefaultType as DefaultType
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from torch import Size, Tensor

from tvbo.kernels import ContextActionKernel, TemporalKernel
from tvbo.kernels.context_action import Structure
from tvbo.models.time_varying_gp import TimeVaryingGP
from tvbo.spaces.observations import split_columns


class ContextualGP(TimeVaryingGP):
    r"""A :class:`tvbo.models.TimeVaryingGP` over actions and contexts, with or without time.

    The kernel is a :class:`tvbo.kernels.ContextActionKernel` (Krause, Ong, 2011, Section 5.1),
    times exponential forgetting (Bogunovic et al., 2016) if there is a time column:

    .. math:: k\big((s, z, t), (s', z', t')\big) =
        k_{SZ}\big((s, z), (s', z')\big)\,(1 - \varepsilon)^{|t - t'| / 2},

    so that ``fit_gpytorch_mll`` learns the parameters of both kernels, ε and the noise together.
    Without observations (``n = 0``), which need ``outcome_transform=None``, the model is its prior.

    Args:
        train_X: ``batch_shape x n x d`` rows; any order of columns.
        train_Y: ``batch_shape x n x m`` outcomes.
        train_Yvar: ``batch_shape x n x m`` known noise variances; None learns one.
        likelihood: As in :class:`tvbo.models.TimeVaryingGP`, for a learned noise.
        mean_module: As in :class:`SingleTaskGP`.
        outcome_transform: As in :class:`SingleTaskGP`: ``Standardize`` unless None is given.
        input_transform: As in :class:`SingleTaskGP`; it must not change time and task columns.
        context_features: Indices of the context columns.
        time_feature: Index of the time column; None if the function does not drift. All
            other columns are actions.
        structure: ``"product"``, ``"additive"`` or ``"both"``.
        action_kernel: Kernel over the action columns, which are its columns ``0, 1, ...``.
            Default: BoTorch's RBF with dimension-scaled priors, with a learned scale where
            ``structure`` is ``"additive"``.
        context_kernel: The same for the context columns. For contexts that are numbered tasks:
            :class:`tvbo.kernels.CovarianceMatrixKernel` (known covariance) or
            :class:`tvbo.kernels.TaskKernel` (learned).
        forgetting_rate: ε per unit of time, in [0, 1]; None learns it.
        temporal_kernel: Kernel over time in place of forgetting with ε, without ``active_dims``;
            or a list of them, whose sum with learned amplitudes takes that place. For parts with
            kernels of their own, give a :class:`tvbo.models.TimeVaryingGP` a list of
            :class:`tvbo.kernels.ContextActionKernel`.

    Raises:
        InputDataError: if X or Y holds a NaN or an infinity, or a task does not exist.
        BotorchTensorDimensionError: if no column is left for actions, or shapes disagree.
        ValueError: if columns overlap, ε lies outside [0, 1], ``structure`` is unknown, or an
            forgetting or a temporal kernel is given without a ``time_feature``; and as in
            :class:`tvbo.models.TimeVaryingGP`.

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
        temporal_kernel: TemporalKernel | Sequence[TemporalKernel] | None = None,
    ):
        action, context, time = split_columns(train_X.shape[-1], time_feature, context_features)
        _, batch_shape = self.get_batch_dimensions(train_X=train_X, train_Y=train_Y)
        # Indices among the columns that are not time, which a TimeVaryingGP passes to the kernel.
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
        super().__init__(
            train_X,
            train_Y,
            train_Yvar,
            time_feature=time,
            forgetting_rate=forgetting_rate,
            covar_module=kernel,
            likelihood=likelihood,
            mean_module=mean_module,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
            temporal_kernel=temporal_kernel,
        )
        with torch.no_grad():
            # So that an unknown task raises here, not at the first prediction.
            self.covar_module(self.train_inputs[0], diag=True)

    @property
    def context_action_kernel(self) -> ContextActionKernel:
        """The kernel over actions and contexts; its input are the columns other than time."""
        columns = self.covar_module
        if self.time_feature is not None:
            columns = columns.kernels[0]
        return columns.base_kernel


def default_kernel(num_columns: int, structure: Structure, batch_shape: Size) -> Kernel:
    """Return BoTorch's default kernel, with a learned scale for a sum, whose parts need one."""
    kernel = get_covar_module_with_dim_scaled_prior(
        ard_num_dims=num_columns, batch_shape=batch_shape
    )
    if structure != "additive":
        return kernel
    constraint = GreaterThan(0.0, transform=None, initial_value=torch.tensor(0.5))
    return ScaleKernel(kernel, batch_shape=batch_shape, outputscale_constraint=constraint)
