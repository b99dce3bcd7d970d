"""Maximize the marginal posterior from several starts, carry what was learned, log odd fits."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from typing import cast

import torch
from botorch.exceptions.warnings import OptimizationWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim.core import OptimizationStatus
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.settings import fast_computations
from torch import Generator, Tensor

from tvbo.kernels import TemporalDecayKernel
from tvbo.models import TimeVaryingGP
from tvbo.optimizers.bounds_reached import EXPECTED, parameters_at_bounds
from tvbo.optimizers.drift import DenseGP
from tvbo.optimizers.log_posterior import OPTIONS, LogPosterior
from tvbo.randomness import seeded

logger = logging.getLogger(__name__)

Values = dict[str, Tensor]
"""Values of the learned parameters by name, as the model holds them."""

SAME_OPTIMUM = 1e-6
"""Relative difference of two log posteriors up to which their fits are taken for the same."""

LARGE_JUMP = 10.0
"""Factor by which ε changes from one fit to the next in a jump."""

NO_DRIFT = 0.01
"""An ε that forgets no more than this over the whole time of the data is none."""

PARTS = ("covar_module", "mean_module", "likelihood")
"""Parts of a model whose state is carried from fit to fit. The state of the whole model would
include its transforms, which belong to older data."""


def learned_values(model: SingleTaskGP) -> Values:
    """Return copies of the parameters that require gradients."""
    return {
        name: value.detach().clone()
        for name, value in model.named_parameters()
        if value.requires_grad
    }


def larger(value: float, other: float) -> bool:
    """Return whether a log posterior is larger than another one by more than rounding."""
    return value > other + SAME_OPTIMUM * max(1.0, abs(other))


def fit_from(
    model: SingleTaskGP, starts: Sequence[Values], posterior: LogPosterior | None = None
) -> float:
    """Fit a model by L-BFGS-B from each of several starts, and keep the best.

    Where two starts end in the same optimum, to a relative difference of 1e-6 in the log
    posterior, the earlier start is kept, so that rounding does not decide. Log determinants are
    computed by Cholesky factors for any number of observations, since estimates of them are random.

    Args:
        model: Of one output and no batch; holds the fitted parameters afterwards.
        starts: One or more, in order of preference.
        posterior: That of the model in closed form; None takes GPyTorch's.

    Returns:
        The log posterior density there, up to a constant.

    Raises:
        botorch.exceptions.errors.ModelFittingError: if all starts fail, and all restarts that
            BoTorch then draws from the priors, by torch's global generator.
    """
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    best = None
    with fast_computations(log_prob=False):
        for start in starts:
            _set(model, start)
            value = _climb(mll) if posterior is None else posterior.climb()
            if not math.isfinite(value):
                continue
            if best is None or larger(value, best[0]):
                best = (value, learned_values(model))
        if best is None:
            _set(model, starts[0])
            fit_gpytorch_mll(mll, optimizer_kwargs={"options": OPTIONS})
            best = (_climb(mll), learned_values(model))
        _set(model, best[1])
    mll.eval()
    return best[0]


class FittedParameters:
    """Carry learned hyperparameters from fit to fit.

    Attributes:
        newest: Values that the newest fit learned, by name of the parameter; None before the first.
    """

    def __init__(self) -> None:
        self.newest: dict[str, list[float]] | None = None
        self._state: dict[str, Mapping[str, Tensor]] = {}

    def load_into(self, model: SingleTaskGP) -> None:
        """Give a model what was learned so far."""
        for part in _learned_parts(model):
            if part in self._state:
                getattr(model, part).load_state_dict(self._state[part])

    def fit(
        self, model: DenseGP, defaults: Values, generator: Generator, is_default: bool = False
    ) -> float:
        """Fit a model from its present values and from the defaults, and remember the result.

        Args:
            model: Model whose parameters are those of the last fit; holds the new ones afterwards.
            defaults: Its values before anything was learned, the only start of the first fit.
            generator: Seeds the restarts of a fit that failed from all its starts.
            is_default: Whether the model is one that :class:`LogPosterior` takes.

        Returns:
            The log posterior density there, up to a constant.

        Raises:
            botorch.exceptions.errors.ModelFittingError: if the fit fails in every restart.
        """
        present = learned_values(model)
        posterior = LogPosterior(model) if is_default else None
        if posterior is not None and posterior.part is not None:
            _set(model, defaults)
            posterior.part.climb()
            defaults = learned_values(model)
        starts = [present, defaults] if self._state else [defaults]
        with seeded(generator):
            density = fit_from(model, starts, posterior)
        for part in _learned_parts(model):
            self._state[part] = deepcopy(getattr(model, part).state_dict())
        self.newest = {
            name: value.detach().flatten().tolist()
            for name, value in model.named_parameters()
            if value.requires_grad
        }
        return density

    def copy(self) -> FittedParameters:
        """Return a copy whose further fits change nothing here."""
        new = copy(self)
        new._state = dict(self._state)
        return new


class FitWatch:
    """Logs fits that deserve a look: a parameter at a bound, another form of drift, a jump of ε.

    Each is logged once, and again only after a fit without it. A bound at which no sound fit ends
    is logged at level WARNING; that of no drift and that of no noise, and jumps, at level INFO.
    """

    def __init__(self) -> None:
        self._at_bound: set[tuple[str, int, str]] = set()
        self._form: str | None = None
        self._rate: float | None = None

    def see(self, model: SingleTaskGP) -> None:
        """Look at a fitted model."""
        self._see_bounds(model)
        self._see_form(model)
        self._see_rate(model)

    def _see_bounds(self, model: SingleTaskGP) -> None:
        at_bound = set()
        for reached in parameters_at_bounds(model):
            at_bound.add(reached[:3])
            if reached[:3] in self._at_bound:
                continue
            logger.log(
                logging.INFO if (reached.name, reached.side) in EXPECTED else logging.WARNING,
                "Fit of %d observations: %s (%s, entry %d) = %.4g is at the %s bound of its "
                "constraint: %s.",
                len(model.train_targets),
                reached.name,
                reached.path,
                reached.entry,
                reached.value,
                reached.side,
                reached.meaning,
            )
        self._at_bound = at_bound

    def _see_form(self, model: SingleTaskGP) -> None:
        kernels = model.temporal_kernels if isinstance(model, TimeVaryingGP) else ()
        form = " + ".join(type(kernel).__name__ for kernel in kernels)
        before, self._form = self._form, form
        if before is not None and form != before:
            logger.info(
                "Fit of %d observations: the form of drift changed from %s to %s.",
                len(model.train_targets),
                before,
                form,
            )

    def _see_rate(self, model: SingleTaskGP) -> None:
        kernel = model.temporal_kernel if isinstance(model, TimeVaryingGP) else None
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


def _climb(mll: ExactMarginalLogLikelihood) -> float:
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


def _set(model: SingleTaskGP, values: Values) -> None:
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in values.items():
            parameters[name].copy_(value)


def _learned_parts(model: SingleTaskGP) -> list[str]:
    """Return the parts that learn: not a likelihood that holds one variance per observation."""
    return [
        part for part in PARTS if not isinstance(getattr(model, part), FixedNoiseGaussianLikelihood)
    ]
