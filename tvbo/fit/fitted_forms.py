"""Maximize the marginal posterior from several starts, and carry what was learned."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from copy import copy
from typing import cast

import torch
from botorch.exceptions.warnings import OptimizationWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim.core import OptimizationStatus
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.settings import fast_computations
from torch import Generator, Tensor

from tvbo.fit.drift import DenseGP
from tvbo.fit.log_posterior import OPTIONS, LogPosterior
from tvbo.kernels import TemporalDecayKernel
from tvbo.models import TimeVaryingGP
from tvbo.models.at_bounds import Place, log_bounds, logger
from tvbo.models.closed_form import HyperparameterSets
from tvbo.randomness import draw_seed, seeded

Values = dict[str, Tensor]
"""Values of the learned parameters by name, as the model holds them."""

LEAST_WEIGHT = 1e-6
"""Weight of a set of hyperparameters, as a share of all, below which it is left out."""

SAME_OPTIMUM = 1e-6
"""Relative difference of two log posteriors up to which their fits are taken for the same."""

LARGE_JUMP = 10.0
"""Factor by which ε changes from one fit to the next in a jump."""

NO_DRIFT = 0.01
"""An ε that forgets no more than this over the whole time of the data is none."""


def learned_values(model: SingleTaskGP) -> Values:
    """Return copies of the parameters that require gradients."""
    return {
        name: value.detach().clone()
        for name, value in model.named_parameters()
        if value.requires_grad
    }


def fit_from(
    model: SingleTaskGP,
    starts: Sequence[Values],
    generator: Generator,
    posterior: LogPosterior | None = None,
) -> float:
    """Fit a model by L-BFGS-B from each of several starts, and keep the best.

    Where two starts end in the same optimum, to a relative difference of 1e-6 in the log
    posterior, the earlier start is kept, so that rounding does not decide. Log determinants are
    computed by Cholesky factors for any number of observations, since estimates of them are random.

    Args:
        model: Of one output and no batch; holds the fitted parameters afterwards.
        starts: One or more, in order of preference.
        generator: Seeds the restarts of BoTorch, which draws them from the priors.
        posterior: That of the model in closed form; None takes GPyTorch's.

    Returns:
        The log posterior density there, up to a constant.

    Raises:
        botorch.exceptions.errors.ModelFittingError: if all starts fail, and all restarts.
    """
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    best = None
    with fast_computations(log_prob=False):
        for start in starts:
            model.load_state_dict(start, strict=False)
            value = _maximize(mll) if posterior is None else posterior.maximize()
            if not math.isfinite(value):
                continue
            # Larger by more than rounding.
            if best is None or value > best[0] + SAME_OPTIMUM * max(1.0, abs(best[0])):
                best = (value, learned_values(model))
        if best is None:
            model.load_state_dict(starts[0], strict=False)
            with seeded(generator):
                fit_gpytorch_mll(mll, optimizer_kwargs={"options": OPTIONS})
            best = (_maximize(mll), learned_values(model))
        model.load_state_dict(best[1], strict=False)
    mll.eval()
    return best[0]


class FitWatch:
    """Logs fits that deserve a look: a parameter at a bound, another form of drift, a jump of ε.

    Each is logged once, and again only after a fit without it. A bound at which no sound fit ends
    is logged at level WARNING; that of no drift and that of no noise, and jumps, at level INFO.
    """

    def __init__(self) -> None:
        self._at_bound: set[Place] = set()
        self._form: str | None = None
        self._rate: float | None = None

    def see(self, model: SingleTaskGP) -> None:
        """Look at a fitted model."""
        self._at_bound = log_bounds(model, self._at_bound)
        kernels = model.temporal_kernels if isinstance(model, TimeVaryingGP) else ()
        form = " + ".join(type(kernel).__name__ for kernel in kernels)
        if self._form is not None and form != self._form:
            logger.info(
                "Fit of %d observations: the form of drift changed from %s to %s.",
                len(model.train_targets),
                self._form,
                form,
            )
        self._form = form
        kernel = kernels[0] if len(kernels) == 1 else None
        if not isinstance(kernel, TemporalDecayKernel):
            return
        if not kernel.raw_forgetting_rate.requires_grad:
            return
        rate = kernel.forgetting_rate.detach().max().item()
        before, self._rate = self._rate, rate
        if before is None:
            return
        times = model.train_inputs[0][..., cast(int, model.time_feature)]
        # Rates too small to matter over the time of the data are alike.
        least = -math.expm1(math.log1p(-NO_DRIFT) / max((times.max() - times.min()).item(), 1e-300))
        one, two = max(before, least), max(rate, least)
        if max(one, two) >= LARGE_JUMP * min(one, two):
            logger.info(
                "Fit of %d observations: the forgetting rate ε jumped from %.4g to %.4g per unit "
                "of time: the observations are too few to tell drift from noise or shape, or the "
                "drift has changed. A known forgetting_rate or noise_variance settles it.",
                len(model.train_targets),
                before,
                rate,
            )


class FittedForms:
    """Carry the hyperparameters of each form of drift, and which of the forms is chosen.

    Args:
        num_forms: Number of forms.

    Attributes:
        values: Values that the newest fit of each form learned; None before the first.
        newest: Values that the newest fit of the chosen form learned, by name of the parameter;
            None before the first. Each fit has an object of its own.
        sets: Sets of hyperparameters to average over, of each form that has such; none if there is
            but one.
        chosen: Index of the form with the largest posterior density in the newest fit.
    """

    def __init__(self, num_forms: int):
        self.values: list[Values | None] = [None] * num_forms
        self._watch = FitWatch()
        self.newest: dict[str, list[float]] | None = None
        self.sets: list[HyperparameterSets] = []
        self.chosen = 0

    def fit(
        self,
        models: Sequence[DenseGP],
        defaults: Sequence[Values] | None,
        generator: Generator,
        widths: Sequence[int] | None,
        averages: bool,
    ) -> None:
        """Fit each model from its present values and from the defaults, and choose one.

        Args:
            models: A model of each form, whose parameters are those of the last fit; they hold the
                new ones afterwards.
            defaults: Their values before anything was learned, the only start of the first fit;
                None begins a later one at the present values alone.
            generator: Seeds the restarts of a fit that failed from all its starts.
            widths: Number of columns of each lengthscale, where the models are such that
                :class:`LogPosterior` takes; None otherwise.
            averages: Whether sets of hyperparameters are to be averaged over.

        Raises:
            botorch.exceptions.errors.ModelFittingError: if a fit fails in every restart.
        """
        largest, sets = -math.inf, []
        for i, model in enumerate(models):
            posterior = None if widths is None else LogPosterior(model, widths)
            starts = [learned_values(model)] if self.values[i] is not None else []
            if defaults is not None:
                start = defaults[i]
                if posterior is not None and posterior.part is not None:
                    model.load_state_dict(start, strict=False)
                    posterior.part.maximize()
                    start = learned_values(model)
                starts.append(start)
            # One draw, so that later ones do not depend on whether restarts are needed.
            restarts = Generator().manual_seed(draw_seed(generator))
            density = fit_from(model, starts, restarts, posterior)
            self.values[i] = learned_values(model)
            if density > largest:
                largest, self.chosen = density, i
            if posterior is not None and averages:
                sets.append(posterior.sigma_points())
        self.sets = []
        if kept := [each for each in sets if each is not None]:
            # Those of a form that the outcomes exclude would take as long as the rest.
            weights = torch.cat([each.log_weights for each in kept]).softmax(dim=0)
            counts = (weights >= LEAST_WEIGHT).split([len(each.log_weights) for each in kept])
            pairs = zip(kept, counts, strict=True)
            self.sets = [
                each if which.all() else each.part(which) for each, which in pairs if which.any()
            ]
        chosen = self.values[self.chosen]
        assert chosen is not None
        self.newest = {name: value.flatten().tolist() for name, value in chosen.items()}
        self._watch.see(models[self.chosen])

    def copy(self) -> FittedForms:
        """Return a copy whose further fits change nothing here."""
        new = copy(self)
        new.values = list(self.values)
        new._watch = copy(self._watch)
        return new


def _maximize(mll: ExactMarginalLogLikelihood) -> float:
    """Climb from the present values; return the log posterior there, not finite if it failed."""
    for _ in range(2):
        mll.train()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OptimizationWarning)
            result = fit_gpytorch_mll_scipy(mll, options=OPTIONS)
        if result.status is not OptimizationStatus.FAILURE or not math.isfinite(result.fval):
            break
        # A line search that found no larger value. With its memory of curvatures cleared, L-BFGS
        # goes on where there is one, and stops at once where there is none.
    return -float(result.fval) * len(mll.model.train_targets)
