"""Functions drawn from the posteriors of models: at many rows jointly, or as a path.

Paths are by rules of :func:`botorch.sampling.pathwise.draw_matheron_paths`, which takes random
features of the kernels (:mod:`tvbo.kernels.features`) and Matheron's rule (Wilson et al., 2020).
Its own rule is that of :class:`tvbo.models.TimeVaryingGP` and :class:`tvbo.models.ContextualGP`,
exact GPs of GPyTorch, of which only the prior is drawn here.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.sampling.pathwise import draw_kernel_feature_paths, draw_matheron_paths
from botorch.sampling.pathwise.features import KernelEvaluationMap, KernelFeatureMap
from botorch.sampling.pathwise.features.generators import GenKernelFeatures, gen_kernel_features
from botorch.sampling.pathwise.paths import GeneralizedLinearPath, PathList, SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths, MatheronPath
from botorch.sampling.pathwise.prior_samplers import DrawKernelFeaturePaths
from botorch.sampling.pathwise.utils import (
    ChainedTransform,
    OutputscaleTransform,
    get_input_transform,
    get_output_transform,
    get_train_inputs,
)
from botorch.utils.context_managers import delattr_ctx
from gpytorch.models import ExactGP
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Generator, Size, Tensor

from tvbo.kernels.features import has_features
from tvbo.models.ensemble_gp import EnsembleGP
from tvbo.models.raw import ScaledKernel
from tvbo.models.streaming_gp import StreamingGP
from tvbo.models.time_varying_gp import TimeVaryingGP
from tvbo.randomness import seeded

NUM_FEATURES = 1024
"""Features of a path, as many as in BoTorch: given them, its standard deviation is within some 2 %
of the posterior's, and 64 features would leave 10 %."""


def draw_function(model: Model, rows: Tensor, generator: Generator, scale: float = 1.0) -> Tensor:
    """Draw a function from the joint posterior at ``n`` rows.

    It costs :math:`O(n^3)`; for all choices of a :class:`tvbo.models.StreamingGP`, in their order
    and at one time, :math:`O(k^3)` in its ``k`` rows.

    Args:
        model: A model of one output and no batch.
        rows: ``n x d``.
        generator: Source of randomness.
        scale: Multiplier on the deviation of the draw from the posterior mean.

    Returns:
        Values, ``n``.

    Raises:
        NotPSDError: if the posterior covariance is not positive semi-definite.
    """
    with torch.no_grad():
        actions, t = rows[:, :-1], rows[:, -1]
        is_at_once = bool((t == t[0]).all())
        if is_at_once and isinstance(model, StreamingGP) and torch.equal(actions, model.choices):
            drawn = model.draw(t[0].item(), generator)
            mean, _ = model.marginals(t[0].item())
        else:
            # All posteriors of these models are normal.
            posterior: Any = model.posterior(rows)
            mean = posterior.mean.squeeze(-1)
            root = psd_safe_cholesky(posterior.distribution.covariance_matrix)
            drawn = mean + root @ torch.randn(
                len(mean), dtype=torch.float64, generator=generator
            ).to(mean)
        return drawn if scale == 1.0 else mean + scale * (drawn - mean)


def has_paths(model: Model) -> bool:
    """Return whether functions can be drawn from the posterior of a model of one output."""
    if isinstance(model, EnsembleGP) and (model.width == 0 or model.batch_shape):
        return False  # Without observations it does not know the number of columns.
    return isinstance(model, EnsembleGP | ExactGP) and has_features(model.covar_module)


def draw_path(model: Model, generator: Generator) -> SamplePath:
    """Draw a function from the posterior, with features of its own.

    Args:
        model: A model of one output for which :func:`has_paths`.
        generator: Source of randomness.

    Returns:
        A function of rows ``... x q x d``, with values ``... x q``.
    """
    with torch.no_grad(), seeded(generator):
        return draw_matheron_paths(model, Size())


@GenKernelFeatures.register(ScaledKernel)
def _features_in_raw_units(
    kernel: ScaledKernel, *, num_inputs: int, num_outputs: int
) -> KernelFeatureMap:
    features = gen_kernel_features(
        kernel.base_kernel, num_inputs=num_inputs, num_outputs=num_outputs
    )
    # Any modules can be chained, not only those of their annotation.
    chain: Any = ChainedTransform
    inputs = [features.input_transform, kernel.input_transform]
    features.input_transform = chain(*(each for each in inputs if each is not None))
    features.output_transform = chain(OutputscaleTransform(kernel), features.output_transform)
    return features


@DrawKernelFeaturePaths.register((EnsembleGP, TimeVaryingGP))
def _prior_paths(
    model: Any, sample_shape: Size, num_features: int = NUM_FEATURES
) -> GeneralizedLinearPath:
    """Return functions drawn from the prior, those of several outputs independently.

    BoTorch's rule takes the weights from a Sobol sequence, whose neighbouring points, those of two
    outputs, are correlated; and the same for all outputs that share a kernel without a batch.
    """
    (train_X,) = get_train_inputs(model)
    features = gen_kernel_features(
        model.covar_module, num_inputs=train_X.shape[-1], num_outputs=num_features
    )
    batch_shape = getattr(model, "_aug_batch_shape", model.batch_shape)
    shape = (*sample_shape, *batch_shape, features.num_outputs)
    return GeneralizedLinearPath(
        features,
        torch.randn(shape, dtype=features.weight.dtype).to(features.weight),
        bias_module=model.mean_module,
        input_transform=get_input_transform(model),
        output_transform=get_output_transform(model),
    )


@DrawMatheronPaths.register(EnsembleGP)
def _posterior_paths(
    model: Any,
    *,
    sample_shape: Size,
    prior_sampler: Any = draw_kernel_feature_paths,
    update_strategy: Any = None,
) -> SamplePath:
    if model.sets is not None:
        return _averaged_paths(model, sample_shape)
    if len(model.factors) > 1:
        raise UnsupportedError(
            "Expected an exact posterior without a batch. Got "
            f"{type(model).__name__}, batch_shape={tuple(model.batch_shape)}."
        )
    (factor,) = model.factors
    with delattr_ctx(model, "outcome_transform"):
        prior = prior_sampler(model=model, sample_shape=sample_shape)
    drawn: Tensor = prior(factor.X)
    residual = factor.Y[0] - drawn - factor.noise[0].sqrt() * torch.randn_like(drawn)
    whitened = factor.whiten(residual.reshape(1, sample_shape.numel(), len(factor.X)))
    weight = factor.whiten(whitened, transposed=True).view_as(residual)
    update = GeneralizedLinearPath(KernelEvaluationMap(model.covar_module, factor.X), weight)
    return MatheronPath(prior, update, output_transform=get_output_transform(model))


def _averaged_paths(model: Any, sample_shape: Size) -> SamplePath:
    """Return paths each of which is by one set of hyperparameters, drawn by its weight."""
    drawn = torch.multinomial(model.weights, sample_shape.numel(), replacement=True)
    sets, place = drawn.unique(return_inverse=True)
    paths = [_posterior_paths(model.member(i), sample_shape=sample_shape) for i in sets]
    join = partial(_chosen, place=place.reshape(*sample_shape, 1))
    return PathList(paths, join=join, output_transform=get_output_transform(model))


def _chosen(values: list[Tensor], place: Tensor) -> Tensor:
    """Return of each path the values by its own set; ``place`` is ``sample_shape x 1``."""
    chosen = values[0]
    for i, each in enumerate(values[1:], start=1):
        chosen = torch.where(place == i, each, chosen)
    return chosen
