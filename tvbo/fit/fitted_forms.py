"""Maximize the posterior densities of hyperparameters from several starts, and carry the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from botorch.exceptions.errors import ModelFittingError
from torch import Generator

from tvbo.fit.density import Array, ModelPosterior
from tvbo.fit.log_posterior import LogPosterior
from tvbo.models.at_bounds import AtBound, log_bounds
from tvbo.models.closed_form import HyperparameterSets
from tvbo.quadratic_model import QuadraticModel
from tvbo.randomness import draw_seed

Posterior = LogPosterior | ModelPosterior
"""Log posterior density of ``p`` hyperparameters: in closed form, or of any model by GPyTorch."""

SAME_OPTIMUM = 1e-6
"""Relative difference of two log posteriors up to which their fits are taken for the same."""


def fit_from(
    posterior: Posterior, starts: Sequence[Array | None], generator: Generator
) -> tuple[float, Array]:
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
    ends = [each for each in map(posterior.maximize, starts) if math.isfinite(each[0])]
    if not ends and isinstance(posterior, ModelPosterior):
        ends = [posterior.restart(generator)]
    if not ends:
        raise ModelFittingError("Expected a start with a finite posterior density. Got none.")
    largest = max(value for value, _ in ends)
    least = largest - SAME_OPTIMUM * max(1.0, abs(largest))
    return next(each for each in ends if each[0] >= least)


@dataclass(frozen=True, eq=False)
class Fitted:
    """Hyperparameters that were learned, of each form of drift.

    Args:
        modes: Where the newest fit of each form ended; None before the first.
        chosen: Index of the form with the largest posterior density in the newest fit.
        newest: What was learned of the chosen form, by name; None before the first fit.
        sets: Sets of hyperparameters of the default model, of all forms if it averages over them.
        at_bounds: The hyperparameters of the chosen form that are at a bound.
        quadratics: The Hessian of the newest fit of each form of the default model.
    """

    modes: list[Array | None]
    chosen: int = 0
    newest: dict[str, list[float]] | None = None
    sets: HyperparameterSets | None = None
    at_bounds: list[AtBound] = field(default_factory=list)
    quadratics: list[QuadraticModel | None] = field(default_factory=list)

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
        densities, modes = [], []
        for posterior, mode in zip(posteriors, self.modes, strict=True):
            # Whether the noise is learned may have changed.
            is_known = mode is not None and len(mode) == len(posterior.default)
            starts = [mode] if is_known else []
            if from_defaults or not is_known:
                starts.append(None)
            # One draw, so that later ones do not depend on whether restarts are needed.
            restarts = Generator().manual_seed(draw_seed(generator))
            density, found = fit_from(posterior, starts, restarts)
            densities.append(density)
            modes.append(found)
        chosen = densities.index(max(densities))
        best, sets = posteriors[chosen], None
        if averages:
            # Those of the chosen form first.
            order = sorted(range(len(posteriors)), key=lambda i: i != chosen)
            pairs = ((posteriors[i], modes[i]) for i in order)
            parts = [each.sigma_points(at) for each, at in pairs if isinstance(each, LogPosterior)]
            sets = HyperparameterSets.joined(parts)
        elif isinstance(best, LogPosterior):
            sets = best.sets(modes[chosen][None], best(modes[chosen])[2])
        at_bounds = list(best.at_bounds(modes[chosen]))
        known = {reached[:3] for reached in self.at_bounds}
        log_bounds([reached for reached in at_bounds if reached[:3] not in known], num)
        quadratics = [each.quadratic for each in posteriors if isinstance(each, LogPosterior)]
        return Fitted([*modes], chosen, best.named(modes[chosen]), sets, at_bounds, [*quadratics])
