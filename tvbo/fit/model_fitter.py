"""Fit the hyperparameters of a model to observations, or hold those that are given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.kernels import CategoricalKernel
from botorch.models.transforms import Normalize, Standardize
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import ConstantMean, Mean, ZeroMean
from torch import Generator, Tensor

from tvbo.fit.density import ModelPosterior
from tvbo.fit.drift import Drift, Form
from tvbo.fit.fitted_forms import Fitted, Posterior
from tvbo.fit.log_posterior import DefaultForm, LogPosterior
from tvbo.kernels.context_action import Structure
from tvbo.kernels.temporal import check_forgetting_rate, decay_exponent
from tvbo.models import ContextualGP, TimeVaryingGP
from tvbo.models.closed_form import HyperparameterSets
from tvbo.models.raw import ScaledMean, times_factor
from tvbo.models.scale import MIN_NOISE, standardized, standardizer
from tvbo.quadratic_model import QuadraticModel
from tvbo.serialize import from_data, to_data
from tvbo.spaces import InputLayout
from tvbo.spaces.observations import Observations
from tvbo.values import as_number, check_count, check_positive

OBSERVATIONS_PER_PARAMETER = 2
"""A fit waits for this many observations for each number it learns. From fewer, the likelihood
picks an ε at one of its bounds more often than not."""

SHARE = 0.2
"""Share of new outcomes above which a fit also begins at the defaults, to find other optima."""

CONSTANT = 1e-13
"""Standard deviation of outcomes, as a share of the largest outcome, that is rounding error."""

SIGNAL_TO_NOISE = math.exp(4.0)
"""Assumed ratio of the variance of outcomes to that of their noise while nothing is known of it:
the median of BoTorch's prior over noise."""


class Refit(Protocol):
    """Rule for when hyperparameters are fitted again."""

    def due(self, num_new: int) -> bool:
        """Return whether a fit is due after ``num_new`` outcomes since the last one."""


@dataclass(frozen=True)
class RefitNever:
    """Keep hyperparameters as they were given."""

    def due(self, num_new: int) -> bool:
        """Return False."""
        return False


@dataclass(frozen=True)
class RefitEvery:
    """Fit again after every ``every`` outcomes; ``RefitEvery(1)`` fits before each ask.

    Raises:
        ValueError: if ``every`` is not a positive whole number.
    """

    every: int = 1

    def __post_init__(self) -> None:
        check_count(every=self.every)

    def due(self, num_new: int) -> bool:
        """Return whether ``every`` outcomes or more are new."""
        return num_new >= self.every


EACH_ROUND = RefitEvery(1)


class ModelFitter:
    """Build a model of standardized outcomes, and fit its hyperparameters.

    It is a :class:`tvbo.models.TimeVaryingGP`, or with contexts and without ``covar_module`` a
    :class:`tvbo.models.ContextualGP`. Whatever is given is in the user's own units. Columns whose
    kernel is left out are scaled to the unit cube, and outcomes are then standardized by their mean
    and standard deviation, as BoTorch's default priors expect; a scale in a kernel given beside is
    one of standardized outcomes. Where all kernels are given, outcomes are divided by
    :attr:`unit`, the order of their prior standard deviation.

    Parameters stay at their defaults until there are two observations for each number to learn.
    Each fit starts from the values of the last one, and whenever a fifth of the outcomes are new
    from the defaults as well, and keeps the result with the larger posterior density. A learned ε
    has a prior in rounds, and a noise learned beside it a wider one than BoTorch's. A fit that ends
    at a bound of a constraint is logged to ``"tvbo.fit.fitted_forms"``.

    Args:
        layout: Layout of the rows.
        bounds: ``2 x (d + c)``, the range of the columns other than time.
        covar_module: Kernel over the columns other than time, or one for each temporal kernel. At a
            refit, those of its parameters that require gradients are learned, on a copy that has
            the buffers of the one given. None learns BoTorch's default RBF, and with
            ``temporal_kernel="auto"`` Matérn-5/2 with the same priors.
        forgetting_rate: ε per unit of time; 0 is a static model. None learns it.
        noise_variance: Variance of the noise of outcomes observed without their own. None learns
            it.
        mean_module: Prior mean. None: zero where nothing is learned, else a learned constant.
        likelihood: Likelihood for a learned noise, as in :class:`tvbo.models.TimeVaryingGP`.
        refit: When to learn. None: never if kernel, rate and noise are all given, else always.
        temporal_kernel: One or several temporal kernels in place of ε, of which those parameters
            are learned that require gradients; or ``"auto"``: without a rate, exponential decay and
            Matérn-5/2 are both learned, :meth:`fit` returns the one with the larger posterior
            density, and :attr:`fitted` has hyperparameters to average over.
        structure: How the kernels over actions and contexts are combined, ``"product"``,
            ``"additive"`` or ``"both"``, as in :class:`tvbo.models.ContextualGP`.
        action_kernel: Kernel over actions; None learns BoTorch's default, RBF.
        context_kernel: Kernel over contexts; None learns BoTorch's default, RBF.
        widths: Number of columns of each parameter and context, several of a category, which then
            have one lengthscale in the default kernel; None is one for each.

    Attributes:
        transform: How its outcomes were standardized.
        fitted: What was learned, of each form of drift. It is replaced by a fit, so that a shallow
            copy of a fitter begins with what was learned, and its fits change nothing here.

    Raises:
        ValueError: if a kernel, the rate, or the scales of structure ``"both"`` must be learned but
            ``refit`` is never, a rate or a noise variance is out of range, or a kernel takes labels
            as numbers that have a column each.
    """

    def __init__(
        self,
        layout: InputLayout,
        bounds: Tensor,
        covar_module: Kernel | Sequence[Kernel] | None = None,
        forgetting_rate: float | None = None,
        noise_variance: float | None = None,
        mean_module: Mean | None = None,
        likelihood: Likelihood | None = None,
        refit: Refit | None = None,
        temporal_kernel: Form | Literal["auto"] = None,
        *,
        structure: Structure = "product",
        action_kernel: Kernel | None = None,
        context_kernel: Kernel | None = None,
        widths: Sequence[int] | None = None,
    ):
        if structure not in get_args(Structure):
            raise ValueError(
                f"Expected structure 'product', 'additive' or 'both'. Got {structure!r}."
            )
        # Copies, so that the models stay as they are when the caller changes what was given.
        self.covar_module, self.action_kernel, self.context_kernel = deepcopy(
            (covar_module, action_kernel, context_kernel)
        )
        self.mean_module, self.likelihood = deepcopy((mean_module, likelihood))
        self.forgetting_rate, temporal_kernel = deepcopy((forgetting_rate, temporal_kernel))
        self.drift = Drift(forgetting_rate, temporal_kernel)
        if noise_variance is not None:
            noise_variance = as_number("noise_variance", noise_variance)
            check_positive(noise_variance=noise_variance)
        self.noise_variance = noise_variance
        self.layout, self.bounds, self.structure = layout, bounds, structure
        lower, upper = bounds.to(torch.float64)
        # A column of one value is moved to zero.
        self._cube = torch.stack([lower, torch.where(upper > lower, upper, lower + 1)])
        # Whether its kernel has parts for actions and contexts other than those of the default.
        given = (action_kernel, context_kernel) != (None, None) or structure != "product"
        is_joint = self.drift.averages and not given
        self._has_parts = layout.num_contexts > 0 and covar_module is None and not is_joint
        self.widths = [1] * bounds.shape[-1] if widths is None else list(widths)
        by_label = isinstance(covar_module, Kernel) and any(
            isinstance(part, CategoricalKernel) for part in covar_module.modules()
        )
        if by_label and max(self.widths) > 1:
            raise ValueError(
                "Expected a kernel over one column for each label of a category. Got a "
                "CategoricalKernel, which takes labels as numbers, as that of a fitted log: give "
                "rows of numbers as choices."
            )
        # Columns whose kernel is a default of BoTorch, which expects the unit cube.
        self._scaled_columns: list[int] = []
        if covar_module is None and action_kernel is None:
            self._scaled_columns += range(layout.num_actions)
        if covar_module is None and context_kernel is None:
            self._scaled_columns += layout.context_features
        own = (covar_module, mean_module, likelihood, *self.drift.temporal_kernels)
        # Whether the kernel, the mean, and all priors are the defaults.
        self.is_default = not self._has_parts and all(part is None for part in own)
        parts: dict[str, object] = {"covar_module": covar_module}
        if self._has_parts:
            parts = {"action_kernel": action_kernel, "context_kernel": context_kernel}
            if structure == "both":
                parts["outputscales"] = None
        if not self.drift.temporal_kernels:
            parts["forgetting_rate"] = forgetting_rate
        elif len(self.drift.temporal_kernels) > 1 and not isinstance(covar_module, Sequence):
            parts["amplitudes of temporal_kernel"] = None
        missing = [name for name, value in parts.items() if value is None]
        if refit is None:
            refit = RefitEvery(1) if missing or noise_variance is None else RefitNever()
        if missing and isinstance(refit, RefitNever):  # Outcomes may bring the noise.
            raise ValueError(f"Expected {', '.join(missing)}, since refit is never. Got None.")
        self.refit = refit
        self.transform = standardizer(0.0, 1.0)
        self.fitted = Fitted([None] * len(self.drift.forms))
        self._observations: Observations | None = None
        self._last_model: TimeVaryingGP | None = None
        self._num_told_at_fit = self._num_told_at_restart = 0

    @cached_property
    def unit(self) -> float:
        """The order of the prior standard deviation where all kernels are given, else 1.

        It is a power of two, which rounds nothing, and 1 as well where a given likelihood or
        scales that are learned are in the user's unit.
        """
        has_unit = self.likelihood is not None and self.noise_variance is None
        if self._scaled_columns or has_unit or self.structure == "both":
            return 1.0
        corners = torch.cat([self.bounds, self.bounds.new_zeros(2, 1)], dim=-1).to(torch.float64)
        model = self._built(Observations.empty(self.layout.num_columns), self.drift.forms[0], 1.0)
        with torch.no_grad():
            variance = model.covar_module(corners, diag=True).max().item()
        return 2.0 ** round(0.5 * math.log2(variance)) if 0 < variance < math.inf else 1.0

    def fit(self, observations: Observations, num_told: int, generator: Generator) -> None:
        """Take observations for the next model, and fit its hyperparameters if that is due.

        Args:
            observations: Observations that the retention policy kept, in the user's unit.
            num_told: Number of outcomes that entered so far; decides whether a fit is due.
            generator: Seeds the restarts of a fit that failed from all its starts.

        Raises:
            InputDataError: if ``refit`` is never, there is no ``noise_variance``, and outcomes were
                observed without their own.
            ValueError: if ``refit`` is not never, but nothing is to be learned.
            botorch.exceptions.errors.ModelFittingError: if a fit fails in every restart.
        """
        self.check_noise(observations)
        self.transform = self._standardizer(observations)
        self._observations, self._last_model = self.standardized(observations), None
        if isinstance(self.refit, RefitNever):
            return
        from_defaults = num_told - self._num_told_at_restart > SHARE * len(observations)
        posteriors = self.posteriors(() if from_defaults else self.fitted.quadratics)
        num_learned = posteriors[0].num_learned
        if num_learned == 0:
            raise ValueError(
                "Expected a parameter to learn, since a refit was asked for. Got none: give "
                "refit=RefitNever(), or a kernel whose parameters require gradients."
            )
        enough = len(observations) >= OBSERVATIONS_PER_PARAMETER * num_learned
        if enough and self.refit.due(num_told - self._num_told_at_fit):
            averages, num = self.is_default and self.drift.averages, len(observations)
            self.fitted = self.fitted.fit(posteriors, num, from_defaults, generator, averages)
            self._num_told_at_fit = num_told
            if from_defaults:
                self._num_told_at_restart = num_told
        elif self.fitted.newest is None and isinstance(posteriors[0], LogPosterior):
            sets = posteriors[0].sets(posteriors[0].default[None])
            self.fitted = replace(self.fitted, sets=sets)

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned, as data."""
        return {
            "mean": self.transform.means.item(),
            "deviation": self.transform.stdvs.item(),
            "num_told_at_fit": self._num_told_at_fit,
            "num_told_at_restart": self._num_told_at_restart,
            "fitted": to_data(self.fitted),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self.transform = standardizer(state["mean"], state["deviation"])
        self._num_told_at_fit = state["num_told_at_fit"]
        self._num_told_at_restart = state["num_told_at_restart"]
        self.fitted = from_data(Fitted, state["fitted"])

    def resume(self, observations: Observations) -> None:
        """Take observations for the model by the hyperparameters that were learned before."""
        self._observations, self._last_model = self.standardized(observations), None

    def posteriors(self, quadratics: Sequence[QuadraticModel | None] = ()) -> list[Posterior]:
        """Return the density of the hyperparameters by each form, of the last observations.

        Args:
            quadratics: Of each form of the default model, the Hessian of an earlier fit; none where
                there was none, or it is to be computed again.
        """
        observations = self._observations
        if observations is None:
            observations = self.standardized(Observations.empty(self.layout.num_columns))
        if not self.is_default:
            models = [self._built(observations, form, self.unit) for form in self.drift.forms]
            return [ModelPosterior(model) for model in models]
        rate = self.forgetting_rate
        given = DefaultForm(
            "MaternKernel" if self.drift.averages else "RBFKernel",
            self._cube[1] - self._cube[0],
            torch.tensor(self.widths),
            rate=None if rate is None else -2 * decay_exponent(check_forgetting_rate(rate)).item(),
            num_contexts=int((np.cumsum(self.widths) > self.layout.num_actions).sum()),
        )
        forms = [replace(given, is_smooth=form is not None) for form in self.drift.forms]
        pairs = zip_longest(forms, quadratics)
        return [LogPosterior(form, observations, quadratic=known) for form, known in pairs]

    @property
    def last_model(self) -> TimeVaryingGP | None:
        """The model of the observations of the last :meth:`fit`, None before the first.

        It has standardized outcomes; :attr:`transform` says how they were standardized.
        """
        if self._last_model is None and self._observations is not None:
            fitted, observations = self.fitted, self._observations
            if fitted.sets is not None:
                model = _dense(fitted.sets, observations)
            else:
                model = self._built(observations, self.drift.forms[fitted.chosen], self.unit)
                for name, parameter in model.named_parameters():
                    # The noise is not learned where it comes with the outcomes.
                    if (values := (fitted.newest or {}).get(name)) is not None:
                        parameter.data = torch.tensor(values).to(parameter).view_as(parameter)
            self._last_model = model.eval()
        return self._last_model

    def may_change(self, num_told: int, are_others: bool) -> bool:
        """Return whether the next model may have other hyperparameters than the last one.

        Args:
            num_told: As in :meth:`fit`.
            are_others: Whether it would be fitted to other observations. Hyperparameters that are
                learned in each round go with those that they were learned from.
        """
        if self._observations is None or (are_others and self.refit == EACH_ROUND):
            return True
        if isinstance(self.refit, RefitNever):
            return False
        return self.fitted.newest is None or self.refit.due(num_told - self._num_told_at_fit)

    def num_initial(self) -> int:
        """Return the number of observations that the first fit waits for; 0 if nothing is learned.

        The same number of actions fills the space at first.
        """
        if isinstance(self.refit, RefitNever):
            return 0
        return OBSERVATIONS_PER_PARAMETER * self.posteriors()[0].num_learned

    def check_noise(self, observations: Observations) -> None:
        """Raise unless the noise of the observations is known or learned.

        Raises:
            InputDataError: if it is neither.
        """
        known = observations.Yvar is not None or self.noise_variance is not None
        if not known and isinstance(self.refit, RefitNever) and len(observations) > 0:
            raise InputDataError(
                "Expected Yvar with every outcome, since refit is never and no noise_variance was "
                "given. Got outcomes without Yvar."
            )

    @property
    def given_noise(self) -> float | None:
        """The given noise variance, of standardized outcomes; None if there is none."""
        if self.noise_variance is None:
            return None
        scale: float = self.transform.stdvs.item()
        return max(self.noise_variance / scale**2, MIN_NOISE)

    def standardized(self, observations: Observations) -> Observations:
        """Return standardized observations with their noise variances, if these are known."""
        observations, noise = standardized(observations, self.transform), self.given_noise
        if observations.Yvar is None and noise is not None:
            return replace(observations, Yvar=torch.full_like(observations.Y, noise))
        return observations

    def _standardizer(self, observations: Observations) -> Standardize:
        """Return how outcomes are standardized."""
        Y, Yvar = observations.Y, observations.Yvar
        if not self._scaled_columns:
            return standardizer(0.0, self.unit)
        mean, largest = (Y.mean().item(), Y.abs().max().item()) if len(Y) > 0 else (0.0, 0.0)
        deviation = Y.std().item() if len(Y) > 1 else 0.0
        if deviation <= CONSTANT * largest:
            # Of no outcome, one, or equal ones: the order that their noise suggests, or their own.
            noise = self.noise_variance if Yvar is None or len(Y) == 0 else Yvar.mean().item()
            deviation = math.sqrt(SIGNAL_TO_NOISE * (noise or 0.0)) or largest or 1.0
        return standardizer(mean, deviation)

    def _built(self, observations: Observations, form: Form, unit: float) -> TimeVaryingGP:
        """Return the model of standardized observations, with the defaults of what is learned.

        Args:
            observations: The observations.
            form: The form of drift.
            unit: The unit of standardized outcomes in that of the kernels.
        """
        mean_module = deepcopy(self.mean_module)
        if mean_module is None and isinstance(self.refit, RefitNever):
            mean_module = ZeroMean()
        elif mean_module is not None and unit != 1.0:
            mean_module = ScaledMean(mean_module, 0.0, 1 / unit)
        likelihood = deepcopy(self.likelihood)
        input_transform = None
        if self._scaled_columns:
            likelihood = likelihood or deepcopy(self.drift.likelihood)
            columns = self._scaled_columns
            input_transform = Normalize(
                self.layout.num_columns, indices=columns, bounds=self._cube[:, columns]
            )
        kernels: dict[str, Any]
        if self._has_parts:
            # A product has the unit of its factors only once.
            of_context = 1.0 if self.structure == "product" else unit
            kernels = {
                "context_features": self.layout.context_features,
                "structure": self.structure,
                "action_kernel": _in_unit(self.action_kernel, unit),
                "context_kernel": _in_unit(self.context_kernel, of_context),
            }
        elif isinstance(self.covar_module, Sequence):
            kernels = {"covar_module": [_in_unit(kernel, unit) for kernel in self.covar_module]}
        elif self.covar_module is None and self.drift.averages:
            # Where functions have many local optima, regret is less than with RBF.
            matern = get_covar_module_with_dim_scaled_prior(sum(self.widths), use_rbf_kernel=False)
            kernels = {"covar_module": matern}
        else:
            kernels = {"covar_module": _in_unit(self.covar_module, unit)}
        time = self.layout.time_feature
        model: TimeVaryingGP = (ContextualGP if self._has_parts else TimeVaryingGP)(
            observations.X,
            observations.Y,
            observations.Yvar,
            time_feature=time,
            forgetting_rate=self.forgetting_rate,
            temporal_kernel=deepcopy(form),
            mean_module=mean_module,
            likelihood=likelihood if observations.Yvar is None else None,
            outcome_transform=None,
            input_transform=input_transform,
            **kernels,
        )
        self.drift.set_prior(model, observations.X[:, time])
        return model


def _dense(sets: HyperparameterSets, observations: Observations) -> TimeVaryingGP:
    """Return the model of standardized observations by the most probable hyperparameters."""
    over_space, over_time = sets.kernels(0)
    mean_module = ConstantMean().double()
    mean_module.constant = sets.mean[0]
    model = TimeVaryingGP(
        observations.X,
        observations.Y,
        observations.Yvar,
        time_feature=observations.X.shape[-1] - 1,
        covar_module=over_space,
        temporal_kernel=over_time,
        mean_module=mean_module,
        outcome_transform=None,
    )
    if observations.Yvar is None:
        model.likelihood.noise = sets.noise[0]
    return model


def _in_unit(kernel: Kernel | None, unit: float) -> Any:
    """Return a copy of a kernel, stated in the user's unit, in another unit."""
    kernel = deepcopy(kernel)
    return kernel if kernel is None or unit == 1.0 else times_factor(kernel, unit**-2)
