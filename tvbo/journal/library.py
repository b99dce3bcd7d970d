"""Classes and functions of the libraries that a stored state may name: what a run makes as it goes.

Objects of these classes are made without their constructors. The functions are those that GPyTorch
keeps in its kernels, likelihoods and constraints. What else an optimizer holds, such as a class of
your own, is known from the optimizer that is given to ``Optimizer.open(path, like=...)``.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

LIBRARIES = ("tvbo", "torch", "gpytorch", "botorch", "linear_operator")

CLASSES = (
    "botorch.models.transforms.input.Normalize",
    "botorch.models.transforms.outcome.Standardize",
    "gpytorch.constraints.constraints.GreaterThan",
    "gpytorch.constraints.constraints.Interval",
    "gpytorch.constraints.constraints.Positive",
    "gpytorch.kernels.kernel.ProductKernel",
    "gpytorch.kernels.matern_kernel.MaternKernel",
    "gpytorch.kernels.rbf_kernel.RBFKernel",
    "gpytorch.kernels.scale_kernel.ScaleKernel",
    "gpytorch.likelihoods.gaussian_likelihood.FixedNoiseGaussianLikelihood",
    "gpytorch.likelihoods.gaussian_likelihood.GaussianLikelihood",
    "gpytorch.likelihoods.noise_models.FixedGaussianNoise",
    "gpytorch.likelihoods.noise_models.HomoskedasticNoise",
    "gpytorch.means.constant_mean.ConstantMean",
    "gpytorch.means.zero_mean.ZeroMean",
    "gpytorch.priors.torch_priors.GammaPrior",
    "gpytorch.priors.torch_priors.LogNormalPrior",
    "torch.distributions.normal.Normal",
    "torch.distributions.transforms.ExpTransform",
    "torch.nn.modules.activation.Softplus",
    "torch.nn.modules.container.ModuleList",
    "torch.nn.modules.module._WrappedHook",
    "tvbo.acquisition.beta.ConstantBeta",
    "tvbo.acquisition.beta.LogBeta",
    "tvbo.acquisition.bkb_beta.BKBBeta",
    "tvbo.search_space.box.Box",
    "tvbo.search_space.finite_space.FiniteSpace",
    "tvbo.acquisition.ucb.UCB",
    "tvbo.acquisition.thompson.ThompsonSampling",
    "tvbo.search_space.input_layout.InputLayout",
    "tvbo.optimizers.pending.Hallucinate",
    "tvbo.optimizers.pending.IgnorePending",
    "tvbo.optimizers.pending.ConstantLiar",
    "tvbo.search_space.row_index.RowIndex",
    "tvbo.kernels.column.ColumnKernel",
    "tvbo.kernels.context_action.ContextActionKernel",
    "tvbo.kernels.identity.IdentityKernel",
    "tvbo.kernels.temporal.TemporalDecayKernel",
    "tvbo.models.contextual_gp.ContextualGP",
    "tvbo.models.incremental.candidate_cache.CandidateCache",
    "tvbo.models.incremental.growing_cholesky.GrowingCholesky",
    "tvbo.models.incremental.row_posterior.ConditionedGP",
    "tvbo.models.incremental.whitened.Whitened",
    "tvbo.models.incremental_gp.IncrementalGP",
    "tvbo.models.nystrom_gp.NystromGP",
    "tvbo.models.raw.RawMean",
    "tvbo.models.raw.RawRowKernel",
    "tvbo.models.scale.FixedScale",
    "tvbo.models.scale.RelativeStandardize",
    "tvbo.models.stream_preview.StreamPreview",
    "tvbo.models.streaming.evicted_summary.EvictedSummary",
    "tvbo.models.streaming.eviction_policy.EvictionPolicy",
    "tvbo.models.streaming.finite_covariance.FiniteCovariance",
    "tvbo.models.streaming.innovations.Innovations",
    "tvbo.models.streaming.rows.RowStore",
    "tvbo.models.streaming_gp.StreamingGP",
    "tvbo.models.time_varying_gp.TimeVaryingGP",
    "tvbo.observations.Observations",
    "tvbo.optimizers.pending_posterior.PendingPosterior",
    "tvbo.optimizers.bpe.bounds.RoundBounds",
    "tvbo.optimizers.bpe.rounds.CurrentRound",
    "tvbo.optimizers.bpe.rounds.FinishedRound",
    "tvbo.optimizers.bpe.rounds.Outcome",
    "tvbo.optimizers.bpe.surviving_region.SurvivingRegion",
    "tvbo.optimizers.bpe.surviving_set.SurvivingSet",
    "tvbo.optimizers.trial_log.TrialLog",
    "tvbo.optimizers.trial_log.LostTrial",
    "tvbo.optimizers.contextual_model_fitter.ContextualModelFitter",
    "tvbo.optimizers.fit.FitWatch",
    "tvbo.optimizers.fit.FittedParameters",
    "tvbo.optimizers.gp_optimizer.GPOptimizer",
    "tvbo.optimizers.incremental_state.IncrementalState",
    "tvbo.optimizers.posterior_state.DenseState",
    "tvbo.optimizers.refit.RefitEvery",
    "tvbo.optimizers.refit.RefitNever",
    "tvbo.optimizers.rejection_log.RejectionLog",
    "tvbo.optimizers.rejection_log.RejectedTrial",
    "tvbo.search_space.space_filling.SpaceFilling",
    "tvbo.optimizers.streaming_state.StreamingState",
    "tvbo.optimizers.model_fitter.ModelFitter",
    "tvbo.optimizers.trial.Trial",
    "tvbo.retention.prediction.Prediction",
    "tvbo.retention.base.Chain",
    "tvbo.retention.policies.KeepAll",
    "tvbo.retention.policies.SlidingWindow",
    "tvbo.retention.policies.StaleCutoff",
    "tvbo.retention.size_limit.SizeLimit",
    "tvbo.theory.confidence.Width",
    "tvbo.theory.exploration_rounds.ExplorationRound",
)

FUNCTIONS = (
    "gpytorch.means.constant_mean._ensure_updated_strategy_flag_set",
    "gpytorch.utils.transforms.inv_sigmoid",
    "gpytorch.utils.transforms.inv_softplus",
    "gpytorch.kernels.kernel.Kernel._lengthscale_closure",
    "gpytorch.kernels.kernel.Kernel._lengthscale_param",
    "gpytorch.kernels.scale_kernel.ScaleKernel._outputscale_closure",
    "gpytorch.kernels.scale_kernel.ScaleKernel._outputscale_param",
    "gpytorch.likelihoods.noise_models._HomoskedasticNoiseBase._noise_closure",
    "gpytorch.likelihoods.noise_models._HomoskedasticNoiseBase._noise_param",
    "gpytorch.module.Module._load_state_hook_ignore_shapes",
)


def full_name(thing: Any) -> str:
    """Module and name of a class or function."""
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', thing)}"


def is_ours(function: object) -> bool:
    """Whether a function is defined in one of the libraries."""
    return str(getattr(function, "__module__", "")).split(".")[0] in LIBRARIES


@cache
def classes() -> dict[str, type]:
    """The classes, by full name."""
    return {name: _resolve(name) for name in CLASSES}


@cache
def functions() -> dict[str, Any]:
    """The functions and methods, by full name."""
    return {name: _resolve(name) for name in FUNCTIONS}


def _resolve(name: str) -> Any:
    path, _, last = name.rpartition(".")
    try:
        owner: Any = import_module(path)
    except ModuleNotFoundError:  # A method: its class comes before it.
        owner = _resolve(path)
    return getattr(owner, last)
