"""Maximize the marginal posterior from several starts, and carry what was learned."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from botorch.exceptions.errors import ModelFittingError
from botorch.exceptions.warnings import OptimizationWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim.core import OptimizationStatus
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.settings import fast_computations
from torch import Generator, Tensor

from tvbo.fit.log_posterior import OPTIONS, LogPosterior, Values
from tvbo.models.at_bounds import AtBound, Place, log_bounds, logger, parameters_at_bounds
from tvbo.models.closed_form import HyperparameterSets
from tvbo.randomness import draw_seed, seeded

LEAST_WEIGHT = 1e-6
"""Weight of a set of hyperparameters, as a share of all, below which it is left out."""

SAME_OPTIMUM = 1e-6
"""Relative difference of two log posteriors up to which their fits are taken for the same."""

LARGE_JUMP = 10.0
"""Factor by which ε changes from one fit to the next in a jump."""

NO_DRIFT = 0.01
"""An ε that forgets no more than this over the whole time of the data is none."""


class ModelPosterior:
    """Log posterior density of the parameters of any model, by GPyTorch.

    Log determinants are computed by Cholesky factors for any number of observations, since
    estimates of them are random.

    Args:
        model: Of one output and no batch, with its parameters by default; it holds those of the
            newest search afterwards.
    """

    def __init__(self, model: SingleTaskGP):
        self.model = model
        self.default = learned_values(model)

    @property
    def num_learned(self) -> int:
        """How many numbers are learned."""
        return sum(value.numel() for value in self.default.values())

    def start(self) -> Values:
        """Return where a first fit begins."""
        return self.default

    def maximize(self, start: Values) -> tuple[float, Values]:
        """Return the log density at the maximum that L-BFGS-B finds from a start, and where it is.

        The density is up to a constant, and not finite if the search failed.
        """
        # It has no noise to learn where that comes with the outcomes.
        self.model.load_state_dict({**self.default, **start}, strict=False)
        mll = ExactMarginalLogLikelihood(self.model.likelihood, self.model)
        for _ in range(2):
            mll.train()
            with warnings.catch_warnings(), fast_computations(log_prob=False):
                warnings.simplefilter("ignore", OptimizationWarning)
                result = fit_gpytorch_mll_scipy(mll, options=OPTIONS)
            if result.status is not OptimizationStatus.FAILURE or not math.isfinite(result.fval):
                break
            # A line search that found no larger value. With its memory of curvatures cleared,
            # L-BFGS goes on where there is one, and stops at once where there is none.
        mll.eval()
        return -float(result.fval) * len(self.model.train_targets), learned_values(self.model)

    def named(self, values: Values) -> Values:
        """Return the numbers that parameters stand for, by name."""
        model: Any = self.model
        found = {}
        for path, _, constraint in model.named_parameters_and_constraints():
            if path in values:
                raw = values[path]
                value = raw if constraint is None else constraint.transform(raw)
                found[path.replace("raw_", "")] = value
        return found

    def at_bounds(self, values: Values) -> Iterator[AtBound]:
        """Iterate over the parameters that are at a bound."""
        self.model.load_state_dict(values, strict=False)
        return parameters_at_bounds(self.model)

    def restart(self, start: Values, generator: Generator) -> tuple[float, Values]:
        """Return the same after BoTorch's fit, which begins again at draws from the priors.

        Raises:
            ModelFittingError: if the search fails from all of them.
        """
        self.model.load_state_dict(start, strict=False)
        mll = ExactMarginalLogLikelihood(self.model.likelihood, self.model)
        with seeded(generator), fast_computations(log_prob=False):
            fit_gpytorch_mll(mll, optimizer_kwargs={"options": OPTIONS})
        return self.maximize(learned_values(self.model))


def learned_values(model: SingleTaskGP) -> Values:
    """Return copies of the parameters that require gradients."""
    return {
        name: value.detach().clone()
        for name, value in model.named_parameters()
        if value.requires_grad
    }


Posterior = LogPosterior | ModelPosterior


def fit_from(
    posterior: Posterior, starts: Sequence[Values], generator: Generator
) -> tuple[float, Values]:
    """Return the largest log density that is found from several starts, and where it is.

    Where two starts end in the same optimum, to a relative difference of 1e-6 in the log
    posterior, the earlier start is kept, so that rounding does not decide.

    Args:
        posterior: The density.
        starts: One or more, in order of preference.
        generator: Seeds the restarts after starts that all fail.

    Raises:
        botorch.exceptions.errors.ModelFittingError: if all starts fail, and all restarts.
    """
    best = None
    for start in starts:
        value, found = posterior.maximize(start)
        # Larger by more than rounding.
        if math.isfinite(value) and (
            best is None or value > best[0] + SAME_OPTIMUM * max(1.0, abs(best[0]))
        ):
            best = value, found
    if best is None and isinstance(posterior, ModelPosterior):
        best = posterior.restart(starts[0], generator)
    if best is None:
        raise ModelFittingError("Expected a start with a finite posterior density. Got none.")
    return best


@dataclass(frozen=True, eq=False)
class Fitted:
    """Hyperparameters that were learned, of each form of drift.

    Args:
        values: What the newest fit of each form learned; None before the first.
        chosen: Index of the form with the largest posterior density in the newest fit.
        newest: What was learned of the chosen form, by name; None before the first fit.
        sets: Sets of hyperparameters of all forms, to average over; None if there is but one.
        rate: The newest ε that was learned, None before.
        at_bounds: Bounds at which parameters of the chosen form are.
    """

    values: Sequence[Values | None]
    chosen: int = 0
    newest: dict[str, list[float]] | None = None
    sets: HyperparameterSets | None = None
    rate: float | None = None
    at_bounds: frozenset[Place] = frozenset()

    def fit(
        self,
        posteriors: Sequence[Posterior],
        times: Tensor,
        from_defaults: bool,
        generator: Generator,
        averages: bool,
    ) -> Fitted:
        """Return what is learned from the values so far, and from the defaults.

        A parameter at a bound, another form of drift and a jump of ε are logged once, and again
        only after a fit without. A bound at which no sound fit ends is logged at level WARNING;
        that of no drift and that of no noise, and the others, at level INFO.

        Args:
            posteriors: The density of each form.
            times: Times of the observations, ``n``.
            from_defaults: Whether searches also begin at the defaults, as those of the first fit.
            generator: Seeds the restarts of a fit that failed from all its starts.
            averages: Whether sets of hyperparameters are to be averaged over.

        Raises:
            botorch.exceptions.errors.ModelFittingError: if a fit fails in every restart.
        """
        densities, values = [], []
        for posterior, learned in zip(posteriors, self.values, strict=True):
            starts = [] if learned is None else [learned]
            if from_defaults or learned is None:
                starts.append(posterior.start())
            # One draw, so that later ones do not depend on whether restarts are needed.
            restarts = Generator().manual_seed(draw_seed(generator))
            density, found = fit_from(posterior, starts, restarts)
            densities.append(density)
            values.append(found)
        chosen = densities.index(max(densities))
        sets = None
        if averages:
            # Those of the chosen form first. What outcomes exclude would take as long as the rest.
            order = sorted(range(len(posteriors)), key=lambda i: i != chosen)
            pairs = ((posteriors[i], values[i]) for i in order)
            parts = [each.sigma_points(at) for each, at in pairs if isinstance(each, LogPosterior)]
            kept = [part for part in parts if part is not None]
            sets = HyperparameterSets.joined(kept, LEAST_WEIGHT) if kept else None
        named = posteriors[chosen].named(values[chosen])
        newest = {name: value.flatten().tolist() for name, value in named.items()}
        rates = [value for name, value in newest.items() if name.endswith("forgetting_rate")]
        rate = max(rates[0]) if len(rates) == 1 else None
        if chosen != self.chosen and self.newest is not None:
            logger.info("Fit of %d observations: another form of drift explains them.", len(times))
        if rate is not None and self.rate is not None:
            # Rates too small to matter over the time of the data are alike.
            span = max((times.max() - times.min()).item(), 1e-300)
            least = -math.expm1(math.log1p(-NO_DRIFT) / span)
            low, high = sorted(max(each, least) for each in (self.rate, rate))
            if high >= LARGE_JUMP * low:
                logger.info(
                    "Fit of %d observations: the forgetting rate ε jumped from %.4g to %.4g per "
                    "unit of time: the observations are too few to tell drift from noise or shape, "
                    "or the drift has changed. A known forgetting_rate or noise_variance settles "
                    "it.",
                    len(times),
                    self.rate,
                    rate,
                )
        reached = posteriors[chosen].at_bounds(values[chosen])
        at_bounds = log_bounds(reached, len(times), self.at_bounds)
        rate = self.rate if rate is None else rate
        return Fitted(values, chosen, newest, sets, rate, at_bounds)
