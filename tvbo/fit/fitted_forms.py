"""Maximize the marginal posterior from several starts, and carry what was learned."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from botorch.exceptions.errors import ModelFittingError
from botorch.exceptions.warnings import OptimizationWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim.core import OptimizationStatus
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.settings import fast_computations
from torch import Generator

from tvbo.fit.log_posterior import OPTIONS, PRIOR_MEAN, LogPosterior, Values
from tvbo.models.at_bounds import AtBound, Place, log_bounds, parameters_at_bounds
from tvbo.models.closed_form import HyperparameterSets
from tvbo.quadratic_model import QuadraticModel
from tvbo.randomness import draw_seed, seeded

LEAST_WEIGHT = 1e-6
"""Weight of a set of hyperparameters, as a share of all, below which it is left out."""

SAME_OPTIMUM = 1e-6
"""Relative difference of two log posteriors up to which their fits are taken for the same."""


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
        sets: Sets of hyperparameters of the default model, of all forms if it averages over them.
        at_bounds: Bounds at which parameters of the chosen form are.
        quadratics: The Hessian of the newest fit of each form of the default model.
    """

    values: Sequence[Values | None]
    chosen: int = 0
    sets: HyperparameterSets | None = None
    at_bounds: frozenset[Place] = frozenset()
    quadratics: Sequence[QuadraticModel | None] = ()

    @cached_property
    def newest(self) -> dict[str, list[float]] | None:
        """What was learned of the chosen form, by name; None before the first fit."""
        values = self.values[self.chosen]
        if values is None:
            return None
        return {name: value.flatten().tolist() for name, value in values.items()}

    def fit(
        self,
        posteriors: Sequence[Posterior],
        num: int,
        from_defaults: bool,
        generator: Generator,
        averages: bool,
    ) -> Fitted:
        """Return what is learned from the values so far, and from the defaults.

        Parameters at a bound are logged once, and again only after a fit without.

        Args:
            posteriors: The density of each form.
            num: Number of observations.
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
        sets, best = None, posteriors[chosen]
        if averages:
            # Those of the chosen form first. What outcomes exclude would take as long as the rest.
            order = sorted(range(len(posteriors)), key=lambda i: i != chosen)
            pairs = ((posteriors[i], values[i]) for i in order)
            parts = [each.sigma_points(at) for each, at in pairs if isinstance(each, LogPosterior)]
            kept = [part for part in parts if part is not None]
            sets = HyperparameterSets.joined(kept, LEAST_WEIGHT) if kept else None
        elif isinstance(best, LogPosterior):
            mode = best.logarithms(values[chosen])
            sets = best.sets(mode[None], [values[chosen][PRIOR_MEAN].item()], [0.0])
        reached = best.at_bounds(values[chosen])
        known = [each.quadratic for each in posteriors if isinstance(each, LogPosterior)]
        return Fitted(values, chosen, sets, log_bounds(reached, num, self.at_bounds), known)
