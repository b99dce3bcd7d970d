"""From observations to a model: fixed hyperparameters, or learned ones warm-started."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Normalize
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.means import Mean, ZeroMean
from gpytorch.settings import min_fixed_noise
from torch import Generator, Tensor
from torch.nn import Module

from tvbo.models import IncrementalGP, TimeVaryingGP
from tvbo.models.raw import outcome_scale, raw_noise_variance
from tvbo.models.scale import (
    SIGNAL_TO_NOISE,
    FixedScale,
    RelativeStandardize,
    ScaledMean,
    in_unit,
    power_of_two,
)
from tvbo.observations import Observations
from tvbo.optimizers.fit import FitWatch, Values, fit_from, learned_values
from tvbo.optimizers.noise import known_noise
from tvbo.optimizers.open_rows import with_open_rows
from tvbo.optimizers.pending import Pending
from tvbo.optimizers.refit import Refit, RefitEvery, RefitNever
from tvbo.randomness import seeded
from tvbo.search_space import InputLayout
from tvbo.validation import check_forgetting_rate

OBSERVATIONS_PER_PARAMETER = 2
"""A fit waits for this many observations for each number it learns. From fewer, the likelihood
picks an ε at one of its bounds more often than not."""

LEARNED = ("covar_module", "mean_module", "likelihood")
"""The parts whose state is carried from fit to fit. Loading a whole model's state would carry its
transforms too, which belong to older data."""


class GPSurrogate:
    """Builds a :class:`tvbo.models.TimeVaryingGP` from the observations of a loop.

    Whatever is given is used in the user's own units. Where ``covar_module`` is left out,
    outcomes are standardized and actions scaled to the unit cube, as BoTorch's default priors ask.
    Until there are two observations for each number to be learned, those stay at their defaults.
    Where it is given, the model works in a unit of the outcomes in which the kernel's variance is
    of order one: the limits and priors of GPyTorch and BoTorch then mean the same for outcomes of
    any size.

    Each fit climbs from the values of the last one and from the defaults, and keeps those of the
    larger posterior density. One that ends at a bound of its constraint, and a jump of ε, are
    logged to ``logging.getLogger("tvbo.optimizers.fit")``.

    Args:
        layout: How rows are laid out.
        action_bounds: ``2 x d``, the range of the actions, for scaling them; with contexts in
            ``layout``, that of all columns but time.
        covar_module: Kernel over the non-time columns. At a refit, those of its parameters that
            require gradients are learned, on a copy. None learns BoTorch's default.
        forgetting_rate: ε per unit of time; 0 is a static model. None learns it.
        noise_variance: Variance of the noise, for outcomes told without their own. None learns it.
        mean_module: Prior mean. None: zero where nothing is learned, else a learned constant.
        likelihood: As in :class:`tvbo.models.TimeVaryingGP`, for a learned noise.
        refit: When to learn. None: never if kernel, rate and noise are all given, else always.

    Raises:
        ValueError: if kernel or rate must be learned but ``refit`` is never, or a rate or a noise
            variance is out of range.
    """

    def __init__(
        self,
        layout: InputLayout,
        action_bounds: Tensor,
        covar_module: Kernel | None = None,
        forgetting_rate: float | None = None,
        noise_variance: float | None = None,
        mean_module: Mean | None = None,
        likelihood: Likelihood | None = None,
        refit: Refit | None = None,
    ):
        if forgetting_rate is not None:
            check_forgetting_rate(forgetting_rate)
        if noise_variance is not None and not 0 < noise_variance < float("inf"):
            raise ValueError(f"Expected noise_variance > 0. Got {noise_variance}.")
        self.layout = layout
        self.action_bounds = action_bounds
        self.covar_module = covar_module
        self.forgetting_rate = forgetting_rate
        self.noise_variance = noise_variance
        self.mean_module = mean_module
        self.likelihood = likelihood
        missing = [name for name, value in self._given().items() if value is None]
        if refit is None:
            refit = RefitEvery(1) if missing else RefitNever()
        # The noise may come with the outcomes instead.
        needed = [name for name in missing if name != "noise_variance"]
        if needed and isinstance(refit, RefitNever):
            raise ValueError(f"Expected {', '.join(needed)}, since refit is never. Got None.")
        self.refit = refit
        self.last_model: SingleTaskGP | None = None
        self._state: dict[str, Mapping[str, Tensor]] = {}
        self.newest_fit: dict[str, list[float]] | None = None
        self._unit: float | None = None
        self._num_told_at_fit = 0
        self._watch = FitWatch()

    def model(
        self, observations: Observations, num_told: int, generator: Generator
    ) -> SingleTaskGP:
        """The model that the next action rests on.

        Args:
            observations: What the retention policy kept.
            num_told: Number of outcomes that entered so far, kept since or not; decides whether a
                fit is due.
            generator: Seeds the restarts of a fit that failed from all its starts.

        Raises:
            InputDataError: if ``refit`` is never, there is no ``noise_variance``, and outcomes were
                told without their own.
            botorch.exceptions.errors.ModelFittingError: if a fit fails in every restart.
        """
        self.check_noise(observations)
        model = self._fresh(observations)
        defaults = learned_values(model)
        self._carry_over(model)
        num_learned = _num_values(defaults)
        if num_learned == 0 and not isinstance(self.refit, RefitNever):
            raise ValueError(
                "Expected a parameter to learn, since a refit was asked for. Got none: give "
                "refit=RefitNever(), or a kernel whose parameters require gradients."
            )
        enough = len(observations) >= OBSERVATIONS_PER_PARAMETER * num_learned
        if enough and self.refit.due(num_told - self._num_told_at_fit):
            starts = [learned_values(model), defaults] if self._state else [defaults]
            with seeded(generator):
                fit_from(model, starts)
            self._watch.see(model)
            self._state.update(
                {part: deepcopy(getattr(model, part).state_dict()) for part in _learned(model)}
            )
            self.newest_fit = {
                name: value.detach().flatten().tolist()
                for name, value in model.named_parameters()
                if value.requires_grad
            }
            self._num_told_at_fit = num_told
        self.last_model = model
        return model.eval()

    def model_with(
        self,
        observations: Observations,
        rows: Tensor,
        pending: Pending,
        num_told: int,
        generator: Generator,
    ) -> Model:
        """As :meth:`Surrogate.model_with`."""
        model = self.model(observations, num_told, generator)
        return with_open_rows(
            self.raw_posterior(model, observations), observations, rows, pending, self
        )

    def raw_posterior(self, model: SingleTaskGP, observations: Observations) -> IncrementalGP:
        """The posterior of a dense model in raw units, which takes further outcomes as they are.

        Args:
            model: Of these observations.
            observations: ``n`` of them.
        """
        raw = IncrementalGP.from_model(model, self.noise_variance)
        if len(observations) > 0:
            noise = known_noise(self, raw.covar_module, observations)
            raw.observe(observations.X, observations.Y, noise)
        return raw

    def drop(self, observations: Observations, keep: Tensor, t: float) -> None:
        """Nothing to do: each model is built from what is kept."""

    def preview(self, observations: Observations) -> SingleTaskGP:
        """A model of any observations, with the hyperparameters of now; changes nothing here."""
        self.check_noise(observations)
        return self._build(observations).eval()

    def num_initial(self) -> int:
        """Number of observations that the first fit waits for; 0 where nothing is learned."""
        if isinstance(self.refit, RefitNever):
            return 0
        model = self._fresh(Observations.empty(self.layout.num_columns))
        return OBSERVATIONS_PER_PARAMETER * _num_values(learned_values(model))

    def changes(self, num_told: int) -> bool:
        """Whether the next model may have other hyperparameters than the last one."""
        if isinstance(self.refit, RefitNever):
            return False
        return not self._state or self.refit.due(num_told - self._num_told_at_fit)

    def outcome_noise(self, observations: Observations) -> float | None:
        """Noise variance to expect of the next outcome: as given, as told before, or as learned.

        Args:
            observations: Those held.

        Returns:
            The variance; None where it comes with the outcomes, and none has come yet.
        """
        if self.noise_variance is not None:
            least = min_fixed_noise.value(torch.float64) * outcome_scale(self.last_model)[1] ** 2
            return max(self.noise_variance, least)
        if observations.Yvar is not None and len(observations) > 0:
            return observations.Yvar.mean().item()
        if isinstance(self.refit, RefitNever):
            return None
        return raw_noise_variance(self.last_model)

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

    def _given(self) -> dict[str, object | None]:
        """What a model needs, by name; None for what must be learned."""
        return {
            "covar_module": self.covar_module,
            "forgetting_rate": self.forgetting_rate,
            "noise_variance": self.noise_variance,
        }

    def _scaled_columns(self) -> list[int]:
        """The columns whose kernel is BoTorch's default, which expects the unit cube."""
        return [] if self.covar_module is not None else list(range(self.layout.time_feature))

    def _make(self, unit: float, **shared: Any) -> SingleTaskGP:
        """The model in a unit of the outcomes, from the arguments that every model takes."""
        covar_module = deepcopy(self.covar_module)
        if covar_module is not None:
            covar_module = in_unit(covar_module, unit)
        return TimeVaryingGP(covar_module=covar_module, **shared)

    def _build(self, observations: Observations) -> SingleTaskGP:
        """The model of some observations, with what was learned so far."""
        model = self._fresh(observations)
        self._carry_over(model)
        return model

    def _fresh(self, observations: Observations) -> SingleTaskGP:
        """The model of some observations, with the defaults of what is learned."""
        default = len(self._scaled_columns()) > 0
        mean_module = deepcopy(self.mean_module)
        if mean_module is None and isinstance(self.refit, RefitNever):
            mean_module = ZeroMean()
        Yvar = observations.Yvar
        if Yvar is None and self.noise_variance is not None:
            Yvar = torch.full_like(observations.Y, self.noise_variance)
        if default:
            outcome_transform = RelativeStandardize(_guess(Yvar, self.noise_variance))
        elif self.unit != 1.0:
            outcome_transform = FixedScale(self.unit)
            if self.mean_module is not None:
                mean_module = ScaledMean(mean_module, self.unit)
        else:
            outcome_transform = None
        return self._make(
            unit=self.unit,
            train_X=observations.X,
            train_Y=observations.Y,
            train_Yvar=Yvar,
            time_feature=self.layout.time_feature,
            forgetting_rate=self.forgetting_rate,
            mean_module=mean_module,
            likelihood=deepcopy(self.likelihood) if Yvar is None else None,
            outcome_transform=outcome_transform,
            input_transform=self._normalize() if default else None,
        )

    def _carry_over(self, model: SingleTaskGP) -> None:
        """Give a model what was learned so far."""
        for part in _learned(model):
            if part in self._state:
                getattr(model, part).load_state_dict(self._state[part])

    @property
    def unit(self) -> float:
        """The unit of the outcomes in which the model works, where nothing standardizes them."""
        if self._unit is None:
            self._unit = self._find_unit()
        return self._unit

    def _find_unit(self) -> float:
        """Of the order of the prior standard deviation, where nothing scales the outcomes.

        GPyTorch has limits on variances, and a prior over noise, which suit outcomes of order one.
        So the model sees them in this unit, a power of two, which rounds nothing.
        """
        bounds = self._bounds().to(torch.float64)
        if self._scaled_columns() or bounds.shape[-1] != self.layout.time_feature:
            return 1.0
        if self.likelihood is not None and self.noise_variance is None:
            # Its constraints and its prior are in the user's unit.
            return 1.0
        rows = torch.cat([bounds, bounds.new_zeros(2, 1)], dim=-1)
        model = self._make(
            unit=1.0,
            train_X=rows[:0],
            train_Y=rows[:0, :1],
            time_feature=self.layout.time_feature,
            forgetting_rate=self.forgetting_rate,
            outcome_transform=None,
        )
        with torch.no_grad():
            return power_of_two(model.covar_module(rows, diag=True).max().item())

    def _normalize(self) -> Normalize:
        """Columns to the unit cube by their declared range; time is left raw, as ε is per unit."""
        bounds = torch.zeros(2, self.layout.num_columns, dtype=torch.float64)
        bounds[1] = 1.0
        scaled = self._scaled_columns()
        lower, upper = self._bounds()[:, scaled]
        bounds[:, scaled] = torch.stack([lower, torch.where(upper > lower, upper, lower + 1)])
        return Normalize(self.layout.num_columns, indices=scaled, bounds=bounds)

    def _bounds(self) -> Tensor:
        """Declared range of the columns that are not time."""
        return self.action_bounds


def _guess(Yvar: Tensor | None, noise_variance: float | None) -> float | None:
    """Of the order of the outcomes' standard deviation, where their noise is known."""
    if Yvar is not None and len(Yvar) > 0:
        noise_variance = Yvar.mean().item()
    return None if noise_variance is None else power_of_two(SIGNAL_TO_NOISE * noise_variance)


def _num_values(values: Values) -> int:
    return sum(value.numel() for value in values.values())


def _learned(model: SingleTaskGP) -> list[str]:
    """The parts of a model that learn: not the noise where each observation has its own."""
    return [part for part in LEARNED if not _is_fixed_noise(getattr(model, part))]


def _is_fixed_noise(part: Module) -> bool:
    """True for a likelihood that holds one variance per observation: no state to carry."""
    return isinstance(part, FixedNoiseGaussianLikelihood)
