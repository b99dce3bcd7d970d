"""The default model in closed form, and the same as a model of GPyTorch."""

from copy import deepcopy

import torch
from botorch.models.transforms import Normalize
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from torch import Tensor

from tvbo.fit.drift import Drift
from tvbo.fit.log_posterior import RATE_NAME, Array, DefaultForm, LogPosterior
from tvbo.kernels import ContextActionKernel
from tvbo.kernels.temporal import check_forgetting_rate, decay_exponent
from tvbo.models import TimeVaryingGP
from tvbo.spaces.observations import Observations


def default_model(
    observations: Observations,
    box: Tensor,
    kernel: str = "RBFKernel",
    is_smooth: bool = False,
    rate: float | None = None,
    num_contexts: int = 0,
) -> tuple[TimeVaryingGP, LogPosterior]:
    """Both, of rows [action | context | time] and standardized outcomes."""
    d = box.shape[-1]
    drift = Drift(rate, "auto" if is_smooth else None)
    a = d - num_contexts
    over_space, *parts = [
        get_covar_module_with_dim_scaled_prior(
            ard_num_dims=count, use_rbf_kernel=kernel == "RBFKernel"
        )
        for count in (d, max(a, 1), max(num_contexts, 1))
    ]
    if num_contexts > 0:
        for part in parts:
            part.register_prior("lengthscale_prior", over_space.lengthscale_prior, "lengthscale")
        over_space = ContextActionKernel(*parts, "both", range(a), range(a, d)).double()
    model = TimeVaryingGP(
        observations.X,
        observations.Y,
        observations.Yvar,
        covar_module=over_space,
        input_transform=Normalize(d + 1, indices=list(range(d)), bounds=box),
        outcome_transform=None,
        forgetting_rate=rate,
        likelihood=None if observations.Yvar is not None else deepcopy(drift.likelihood),
        temporal_kernel=deepcopy(drift.forms[is_smooth]),
    )
    drift.set_prior(model, observations.X[:, -1])
    time_rate = None if rate is None else -2 * decay_exponent(check_forgetting_rate(rate)).item()
    ones = torch.ones(d, dtype=torch.long)
    form = DefaultForm(kernel, box[1] - box[0], ones, is_smooth, time_rate, num_contexts)
    return model, LogPosterior(form, observations)


def assign(model: TimeVaryingGP, posterior: LogPosterior, theta: Array) -> None:
    """Give the model the hyperparameters of logarithms."""
    named = posterior.named(theta).items()
    found = {name: torch.tensor(values, dtype=torch.float64) for name, values in named}
    kernel = model.covar_module.kernels[0].base_kernel
    scales = found["lengthscale"]
    if isinstance(kernel, ContextActionKernel):
        a = len(kernel.action_kernel.active_dims)
        kernel.action_kernel.base_kernel.lengthscale = scales[:a]
        kernel.context_kernel.base_kernel.lengthscale = scales[a:]
        shares = torch.cat([found["main_effect"], torch.ones(1).double()])
        kernel.outputscales = shares / shares.sum()
    else:
        kernel.lengthscale = scales
    (temporal,) = model.temporal_kernels
    if "time.lengthscale" in found:
        temporal.lengthscale = found["time.lengthscale"]
    elif RATE_NAME in found:
        temporal.forgetting_rate = found[RATE_NAME]
    if "noise" in found:
        model.likelihood.noise = found["noise"]
    model.mean_module.constant = found["mean"][0]
