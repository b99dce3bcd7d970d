"""Fit the hyperparameters of a model to observations, or hold those that are given."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, Self

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean, ZeroMean
from gpytorch.settings import min_fixed_noise
from torch import Generator, Tensor

from tvbo.fit.drift import DenseGP, Drift, Form
from tvbo.fit.fitted_forms import FittedForms, learned_values
from tvbo.models import TimeVaryingGP
from tvbo.models.raw import raw_noise_variance
from tvbo.models.scale import (
    SIGNAL_TO_NOISE,
    FixedScale,
    RelativeStandardize,
    ScaledMean,
    UnitCube,
    in_unit,
    outcome_scale,
)
from tvbo.rounding import power_of_two
from tvbo.spaces import InputLayout
from tvbo.spaces.observations import Observations
from tvbo.values import as_number, check_positive

OBSERVATIONS_PER_PARAMETER = 2
"""A fit waits for this many observations for each number it learns. From fewer, the likelihood
picks an ε at one of its bounds more often than not."""

SHARE = 0.1
"""Share of new outcomes above which a fit also begins at the defaults, to find other optima."""


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
        if self.every != int(self.every) or self.every < 1:
            raise ValueError(f"Expected every to be 1, 2, ... outcomes. Got {self.every}.")

    def due(self, num_new: int) -> bool:
        """Return whether ``every`` outcomes or more are new."""
        return num_new >= self.every


class ModelFitter:
    """Build a :class:`tvbo.models.TimeVaryingGP` of observations and fit its hyperparameters.

    Whatever is given is used in the user's own units. Where ``covar_module`` is left out, outcomes
    are standardized and actions scaled to the unit cube, as BoTorch's default priors expect. Where
    it is given, the model works in a :attr:`unit` of the outcomes, so that the constraints and
    priors of GPyTorch and BoTorch mean the same for outcomes of any size.

    Parameters stay at their defaults until there are two observations for each number to learn.
    Each fit starts from the values of the last one, and whenever a tenth of the outcomes are new
    from the defaults as well, and keeps the result with the larger posterior density. A learned ε
    has a prior in rounds, and a noise learned beside it a wider one than BoTorch's. A fit that ends
    at a bound of a constraint, and a jump of ε, are logged to ``"tvbo.fit.fitted_forms"``.

    Args:
        layout: Layout of the rows.
        action_bounds: ``2 x d``, the range of the actions, for scaling them; with contexts in
            ``layout``, the range of all columns but time.
        covar_module: Kernel over the columns other than time, or one for each temporal kernel. At a
            refit, those of its parameters that require gradients are learned, on a copy that has
            the buffers of the one given. None learns BoTorch's default RBF, and with
            ``temporal_kernel="auto"`` Matérn-5/2 with the same priors.
        forgetting_rate: ε per unit of time; 0 is a static model. None learns it.
        noise_variance: Variance of the noise of outcomes told without their own. None learns it.
        mean_module: Prior mean. None: zero where nothing is learned, else a learned constant.
        likelihood: Likelihood for a learned noise, as in :class:`tvbo.models.TimeVaryingGP`.
        refit: When to learn. None: never if kernel, rate and noise are all given, else always.
        temporal_kernel: One or several temporal kernels in place of ε, of which those parameters
            are learned that require gradients; or ``"auto"``: exponential decay and Matérn-5/2 are
            both learned, and :meth:`fit` returns the one with the larger posterior density.

    Attributes:
        last_model: The newest model that :meth:`fit` returned, None before the first.
        fitted: What was learned, of each form of drift.

    Raises:
        ValueError: if kernel or rate must be learned but ``refit`` is never, or a rate or a noise
            variance is out of range.
    """

    def __init__(
        self,
        layout: InputLayout,
        action_bounds: Tensor,
        covar_module: Kernel | Sequence[Kernel] | None = None,
        forgetting_rate: float | None = None,
        noise_variance: float | None = None,
        mean_module: Mean | None = None,
        likelihood: Likelihood | None = None,
        refit: Refit | None = None,
        temporal_kernel: Form | Literal["auto"] = None,
    ):
        # Copies, so that the models stay as they are when the caller changes what was given.
        covar_module, mean_module, likelihood, forgetting_rate, temporal_kernel = deepcopy(
            (covar_module, mean_module, likelihood, forgetting_rate, temporal_kernel)
        )
        # By these names, by which the settings of a journal are compared.
        self.forgetting_rate, self.temporal_kernel = forgetting_rate, temporal_kernel
        self.drift = Drift(forgetting_rate, temporal_kernel)
        if noise_variance is not None:
            noise_variance = as_number("noise_variance", noise_variance)
            check_positive(noise_variance=noise_variance)
        self.layout = layout
        self.action_bounds = action_bounds
        # The declared range of the columns other than time, ``2 x (d + c)``.
        self.bounds = action_bounds
        # Those whose kernel is a default of BoTorch, which expects the unit cube.
        self._scaled_columns = [] if covar_module is not None else list(range(layout.time_feature))
        self.covar_module = covar_module
        self.noise_variance = noise_variance
        self.mean_module = mean_module
        self.likelihood = likelihood
        own = (covar_module, mean_module, likelihood, *self.drift.temporal_kernels)
        # Whether the kernel, the mean, and all priors are the defaults.
        self.is_default = all(part is None for part in own)
        missing = [name for name, value in self._given().items() if value is None]
        if refit is None:
            refit = RefitEvery(1) if missing else RefitNever()
        needed = [name for name in missing if name != "noise_variance"]  # Outcomes may bring it.
        if needed and isinstance(refit, RefitNever):
            raise ValueError(f"Expected {', '.join(needed)}, since refit is never. Got None.")
        self.refit = refit
        self.last_model: DenseGP | None = None
        self.fitted = FittedForms(len(self.drift.forms))
        self._num_told_at_fit = self._num_told_at_restart = 0

    @property
    def newest_fit(self) -> dict[str, list[float]] | None:
        """Values that the newest fit learned, by name of the parameter; None before the first."""
        return self.fitted.newest

    @cached_property
    def unit(self) -> float:
        """Unit of the outcomes in which the model works where nothing standardizes them.

        GPyTorch has limits on variances, and a prior over noise, which suit outcomes of order one.
        So the unit is of the order of the prior standard deviation: a power of two, which rounds
        nothing.
        """
        bounds = self.bounds.to(torch.float64)
        # The constraints and the prior of a likelihood are in the user's unit.
        has_unit = self.likelihood is not None and self.noise_variance is None
        if has_unit or self._scaled_columns or bounds.shape[-1] != self.layout.time_feature:
            return 1.0
        rows = torch.cat([bounds, bounds.new_zeros(2, 1)], dim=-1)
        model = self._make(
            unit=1.0,
            train_X=rows[:0],
            train_Y=rows[:0, :1],
            outcome_transform=None,
            time_feature=self.layout.time_feature,
            **self.drift.arguments(self.drift.forms[0]),
        )
        with torch.no_grad():
            return power_of_two(model.covar_module(rows, diag=True).max().item())

    def fit(self, observations: Observations, num_told: int, generator: Generator) -> DenseGP:
        """Return the model of some observations, with its hyperparameters fitted if that is due.

        Args:
            observations: Observations that the retention policy kept.
            num_told: Number of outcomes that entered so far; decides whether a fit is due.
            generator: Seeds the restarts of a fit that failed from all its starts.

        Raises:
            InputDataError: if ``refit`` is never, there is no ``noise_variance``, and outcomes were
                told without their own.
            ValueError: if ``refit`` is not never, but nothing is to be learned.
            botorch.exceptions.errors.ModelFittingError: if a fit fails in every restart.
        """
        self.check_noise(observations)
        models = [self._with_defaults(observations, form) for form in self.drift.forms]
        defaults = [learned_values(model) for model in models]
        num_learned = sum(value.numel() for value in defaults[0].values())
        if num_learned == 0 and not isinstance(self.refit, RefitNever):
            raise ValueError(
                "Expected a parameter to learn, since a refit was asked for. Got none: give "
                "refit=RefitNever(), or a kernel whose parameters require gradients."
            )
        self.fitted.load_into(models)
        enough = len(observations) >= OBSERVATIONS_PER_PARAMETER * num_learned
        if enough and self.refit.due(num_told - self._num_told_at_fit):
            from_defaults = num_told - self._num_told_at_restart > SHARE * len(observations)
            starts = defaults if from_defaults else None
            self.fitted.fit(models, starts, generator, self.is_default)
            self._num_told_at_fit = num_told
            if from_defaults:
                self._num_told_at_restart = num_told
        self.last_model = models[self.fitted.chosen].eval()
        return self.last_model

    def copy(self) -> Self:
        """Return a fitter that begins with what was learned here; its fits change nothing here."""
        new = copy(self)
        new.fitted = self.fitted.copy()
        return new

    def may_change(self, num_told: int) -> bool:
        """Return whether the next model may have other hyperparameters than the last one.

        Args:
            num_told: As in :meth:`fit`.
        """
        if isinstance(self.refit, RefitNever):
            return False
        return self.newest_fit is None or self.refit.due(num_told - self._num_told_at_fit)

    def num_initial(self) -> int:
        """Return the number of observations that the first fit waits for; 0 if nothing is learned.

        The same number of actions fills the space at first.
        """
        if isinstance(self.refit, RefitNever):
            return 0
        none = Observations.empty(self.layout.num_columns)
        values = learned_values(self._with_defaults(none, self.drift.forms[0]))
        return OBSERVATIONS_PER_PARAMETER * sum(value.numel() for value in values.values())

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

    def outcome_noise(self, observations: Observations) -> float | None:
        """Return the noise variance to expect of the next outcome: given, told before, or learned.

        Args:
            observations: Observations held.

        Returns:
            The variance; None where it comes with the outcomes, and none has come yet.
        """
        if self.noise_variance is not None:
            assert self.last_model is not None
            scale = outcome_scale(self.last_model)[1]
            return max(self.noise_variance, float(min_fixed_noise.value(torch.float64)) * scale**2)
        if observations.Yvar is not None and len(observations) > 0:
            return observations.Yvar.mean().item()
        if isinstance(self.refit, RefitNever):
            return None
        assert self.last_model is not None
        return raw_noise_variance(self.last_model)

    def _given(self) -> dict[str, object | None]:
        """Return what a model needs, by name; None for what must be learned."""
        kernels = self.drift.temporal_kernels
        drift = {} if kernels else {"forgetting_rate": self.forgetting_rate}
        if len(kernels) > 1 and not isinstance(self.covar_module, Sequence):
            drift = {"amplitudes of temporal_kernel": None}
        return {"covar_module": self.covar_module, **drift, "noise_variance": self.noise_variance}

    def _make(self, unit: float, **shared: Any) -> DenseGP:
        """Return the model in a unit of the outcomes, from the arguments that every model takes."""
        covar_module = deepcopy(self.covar_module)
        if isinstance(covar_module, Sequence):
            covar_module = [in_unit(kernel, unit) for kernel in covar_module]
        elif covar_module is not None:
            covar_module = in_unit(covar_module, unit)
        elif len(self.drift.forms) > 1:
            # Where functions have many local optima regret is less than with RBF (validation.md).
            covar_module = get_covar_module_with_dim_scaled_prior(
                ard_num_dims=self.layout.time_feature, use_rbf_kernel=False
            )
        return TimeVaryingGP(covar_module=covar_module, **shared)

    def _with_defaults(self, observations: Observations, form: Form) -> DenseGP:
        """Return the model of some observations, with the defaults of what is learned."""
        mean_module = deepcopy(self.mean_module)
        if mean_module is None and isinstance(self.refit, RefitNever):
            mean_module = ZeroMean()
        Yvar = observations.Yvar
        if Yvar is None and self.noise_variance is not None:
            Yvar = torch.full_like(observations.Y, self.noise_variance)
        likelihood = deepcopy(self.likelihood)
        input_transform = outcome_transform = None
        if self._scaled_columns:
            likelihood = likelihood or self.drift.likelihood()
            input_transform = UnitCube(self._scaled_columns, self.bounds)
            noise = self.noise_variance if Yvar is None or len(Yvar) == 0 else Yvar.mean().item()
            # The order of the standard deviation that the noise suggests, where it is known.
            unit = None if noise is None else power_of_two(SIGNAL_TO_NOISE * noise)
            outcome_transform = RelativeStandardize(unit)
        elif self.unit != 1.0:
            outcome_transform = FixedScale(self.unit)
            if self.mean_module is not None:
                mean_module = ScaledMean(mean_module, self.unit)
        model = self._make(
            unit=self.unit,
            train_X=observations.X,
            train_Y=observations.Y,
            train_Yvar=Yvar,
            time_feature=self.layout.time_feature,
            **self.drift.arguments(form),
            mean_module=mean_module,
            likelihood=likelihood if Yvar is None else None,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
        )
        self.drift.set_prior(model, observations.X[:, self.layout.time_feature])
        return model
