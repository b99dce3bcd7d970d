"""From observations to a model: fixed hyperparameters, or learned ones warm-started."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Protocol

import torch
from botorch.exceptions.errors import InputDataError
from botorch.fit import fit_gpytorch_mll
from botorch.models.model import Model
from botorch.models.transforms import Normalize, Standardize
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.means import Mean, ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Generator, Tensor
from torch.nn import Module

from tvbo.columns import Columns, check_forgetting_rate
from tvbo.models import TimeVaryingGP
from tvbo.observations import Observations
from tvbo.optimizers.refit import Refit, RefitEvery, RefitNever
from tvbo.randomness import seeded

OBSERVATIONS_PER_PARAMETER = 2
"""A fit waits for this many observations for each number it learns. From fewer, the likelihood
picks an ε at one of its bounds more often than not."""

LEARNED = ("covar_module", "mean_module", "likelihood")
"""The parts whose state is carried from fit to fit. Loading a whole model's state would carry its
transforms too, which belong to older data."""


class Surrogate(Protocol):
    """Gives the model that the next action rests on."""

    last_model: Model | None
    """The newest model, None before the first."""

    def model(self, observations: Observations, num_told: int, generator: Generator) -> Model:
        """The model of the observations that retention kept.

        Args:
            observations: Those of the call before, less what was dropped since, and new ones.
            num_told: Number of outcomes told so far, kept or not; decides whether a fit is due.
            generator: Seeds the restarts of a fit.
        """

    def drop(self, observations: Observations, keep: Tensor, t: float) -> None:
        """Retention keeps, at time ``t``, only the observations that the mask ``keep`` names."""


class GPSurrogate:
    """Builds a :class:`tvbo.models.TimeVaryingGP` from the observations of a loop.

    Whatever is given is used in the user's own units. Where ``covar_module`` is left out,
    outcomes are standardized and actions scaled to the unit cube, as BoTorch's default priors ask.
    Until there are two observations for each number to be learned, those stay at their starts.

    Args:
        columns: How rows are laid out.
        action_bounds: ``2 x d``, the range of the actions, for scaling them.
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
        columns: Columns,
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
        given = {
            "covar_module": covar_module,
            "forgetting_rate": forgetting_rate,
            "noise_variance": noise_variance,
        }
        missing = [name for name, value in given.items() if value is None]
        if refit is None:
            refit = RefitEvery(1) if missing else RefitNever()
        # The noise may come with the outcomes instead.
        needed = [name for name in missing if name != "noise_variance"]
        if needed and isinstance(refit, RefitNever):
            raise ValueError(f"Expected {', '.join(needed)}, since refit is never. Got None.")
        self.columns = columns
        self.action_bounds = action_bounds
        self.covar_module = covar_module
        self.forgetting_rate = forgetting_rate
        self.noise_variance = noise_variance
        self.mean_module = mean_module
        self.likelihood = likelihood
        self.refit = refit
        self.last_model: TimeVaryingGP | None = None
        self._state: dict[str, Mapping[str, Tensor]] = {}
        self._num_told_at_fit = 0

    def model(
        self, observations: Observations, num_told: int, generator: Generator
    ) -> TimeVaryingGP:
        """The model that the next action rests on.

        Args:
            observations: What the retention policy kept.
            num_told: Number of outcomes told so far, kept or not; decides whether a fit is due.
            generator: Seeds the restarts of a fit.

        Raises:
            InputDataError: if ``refit`` is never, there is no ``noise_variance``, and outcomes were
                told without their own.
            botorch.exceptions.errors.ModelFittingError: if a fit fails in every restart.
        """
        self.check_noise(observations)
        model = self._build(observations)
        learned = [part for part in LEARNED if not _is_fixed_noise(getattr(model, part))]
        for part in learned:
            if part in self._state:
                getattr(model, part).load_state_dict(self._state[part])
        num_learned = sum(p.numel() for p in model.parameters() if p.requires_grad)
        enough = len(observations) >= OBSERVATIONS_PER_PARAMETER * num_learned
        if enough and self.refit.due(num_told - self._num_told_at_fit):
            with seeded(generator):
                fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
            self._state.update(
                {part: deepcopy(getattr(model, part).state_dict()) for part in learned}
            )
            self._num_told_at_fit = num_told
        self.last_model = model
        return model.eval()

    def drop(self, observations: Observations, keep: Tensor, t: float) -> None:
        """Nothing to do: each model is built from what is kept."""

    def changes(self, num_told: int) -> bool:
        """Whether the next model may have other hyperparameters than the last one."""
        if isinstance(self.refit, RefitNever):
            return False
        return not self._state or self.refit.due(num_told - self._num_told_at_fit)

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

    def _build(self, observations: Observations) -> TimeVaryingGP:
        default = self.covar_module is None
        learns = not isinstance(self.refit, RefitNever)
        mean_module = deepcopy(self.mean_module)
        if mean_module is None and not learns:
            mean_module = ZeroMean()
        Yvar = observations.Yvar
        if Yvar is None and self.noise_variance is not None:
            Yvar = torch.full_like(observations.Y, self.noise_variance)
        return TimeVaryingGP(
            observations.X,
            observations.Y,
            Yvar,
            time_feature=self.columns.time_feature,
            forgetting_rate=self.forgetting_rate,
            covar_module=deepcopy(self.covar_module),
            mean_module=mean_module,
            likelihood=deepcopy(self.likelihood) if Yvar is None else None,
            # A standard deviation needs two outcomes.
            outcome_transform=Standardize(m=1) if default and len(observations) > 1 else None,
            input_transform=self._normalize() if default else None,
        )

    def _normalize(self) -> Normalize:
        """Actions to the unit cube by their declared range; time is left raw, as ε is per unit."""
        bounds = torch.zeros(2, self.columns.num_columns, dtype=torch.float64)
        bounds[1] = 1.0
        lower, upper = self.action_bounds
        bounds[:, : self.columns.num_actions] = torch.stack(
            [lower, torch.where(upper > lower, upper, lower + 1)]
        )
        return Normalize(
            self.columns.num_columns, indices=list(range(self.columns.num_actions)), bounds=bounds
        )


def _is_fixed_noise(part: Module) -> bool:
    """True for a likelihood that holds one variance per observation: no state to carry."""
    return isinstance(part, FixedNoiseGaussianLikelihood)
