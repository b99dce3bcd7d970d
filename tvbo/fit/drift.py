"""The drift of a model, its forms that are compared, and priors over how fast it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from botorch.models.utils.gpytorch_modules import MIN_INFERRED_NOISE_LEVEL
from gpytorch.constraints import GreaterThan
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.priors import NormalPrior
from torch import Size, Tensor

from tvbo.kernels import TemporalDecayKernel, TemporalKernel, TemporalMaternKernel
from tvbo.kernels.temporal import (
    MAX_FORGETTING_RATE,
    MIN_FORGETTING_RATE,
    check_forgetting_rate,
    check_markov,
)
from tvbo.models import TimeVaryingGP
from tvbo.models.time_varying_gp import as_temporal_kernels

RATE, RATE_SPREAD = -math.log1p(-0.05), 1.0
r"""Median of :math:`\rho = -\ln(1 - \varepsilon)` per round, that of ε = 0.05, and standard
deviation of its logarithm: nine of ten half-lives are between 5 and 140 rounds."""

LENGTHSCALE, LENGTHSCALE_SPREAD = 30.0, 1.5
"""Median of the lengthscale of smooth drift in rounds, and standard deviation of its logarithm."""

NOISE, NOISE_SPREAD = 0.03, 1.5
"""Median of the noise variance as a share of the variance of the outcomes, and standard deviation
of its logarithm. Under BoTorch's prior, whose mode is 0.007, the noise of a drifting function is
underestimated, and bands are too narrow."""

Form = TemporalKernel | Sequence[TemporalKernel] | None
"""A form of drift: one or several temporal kernels, or None for exponential decay with ε."""


class Drift:
    """The drift of a model: known, learned, or of the form that the observations favour.

    Args:
        forgetting_rate: ε per unit of time; None learns it.
        temporal_kernel: One or several temporal kernels in place of ε; or ``"auto"``, for
            exponential decay and Matérn-5/2, which are compared where ε is not given.

    Attributes:
        forms: The forms that are compared, one unless ``temporal_kernel`` is ``"auto"``.
        averages: Whether it is ``"auto"``: predictions are averaged over hyperparameters.
        temporal_kernels: The temporal kernels that were given, with their parameters.
        likelihood: That by which the noise of standardized outcomes is learned, to be copied; None
            is BoTorch's default, where the drift has no prior either.

    Raises:
        TypeError: if a temporal kernel is another kernel.
        ValueError: if ε lies outside [0, 1], is given beside a temporal kernel, or
            ``temporal_kernel`` is another string, or is not Markov.
    """

    def __init__(
        self, forgetting_rate: float | None, temporal_kernel: Form | Literal["auto"] = None
    ):
        if forgetting_rate is not None:
            check_forgetting_rate(forgetting_rate)
        self.averages = isinstance(temporal_kernel, str)
        self.forms: list[Form] = [None]
        self.temporal_kernels: list[TemporalKernel] = []
        if not isinstance(temporal_kernel, str):
            self.forms = [temporal_kernel]
            given = as_temporal_kernels(temporal_kernel, forgetting_rate)
            self.temporal_kernels = [check_markov(kernel) for kernel in given]
        elif temporal_kernel != "auto":
            raise ValueError(
                "Expected temporal_kernel to be a kernel, several, None, or 'auto'. "
                f"Got {temporal_kernel!r}."
            )
        elif forgetting_rate is None:
            least = GreaterThan(1e-13, transform=None, initial_value=LENGTHSCALE)
            form = TemporalMaternKernel(nu=2.5, lengthscale_constraint=least)
            self.forms.append(form.double())
        # How fast the function drifts is learned, with priors of this module.
        self._is_learned = forgetting_rate is None and not self.temporal_kernels
        self.likelihood: GaussianLikelihood | None = None
        if self._is_learned:
            least = GreaterThan(MIN_INFERRED_NOISE_LEVEL, transform=None, initial_value=NOISE)
            prior = LogarithmPrior(NOISE, NOISE_SPREAD)
            self.likelihood = GaussianLikelihood(prior, noise_constraint=least)

    def set_prior(self, model: TimeVaryingGP, times: Tensor) -> None:
        """Give a model that learns how fast it drifts a prior over that, in rounds.

        The median of the prior becomes its value. From few observations the likelihood alone often
        picks a function without memory, which explains any scatter.

        Args:
            model: The model, with one of the forms.
            times: ``n``, the times of its observations.
        """
        if not self._is_learned:
            return
        gap, kernel = round_length(times), model.temporal_kernels[0]
        if isinstance(kernel, TemporalDecayKernel):
            rate = -math.expm1(-RATE / gap)
            kernel.forgetting_rate = min(max(rate, MIN_FORGETTING_RATE), MAX_FORGETTING_RATE)
            kernel.set_prior("forgetting_rate", RatePrior(RATE / gap, RATE_SPREAD))
        else:
            assert isinstance(kernel, TemporalMaternKernel)
            kernel.lengthscale = LENGTHSCALE * gap
            prior = LogarithmPrior(LENGTHSCALE * gap, LENGTHSCALE_SPREAD)
            kernel.set_prior("lengthscale", prior)


def round_length(times: Tensor) -> float:
    """Return the length of a round: the mean gap between distinct times, ``n``, of one it is 1."""
    distinct = torch.unique(times)
    gaps = len(distinct) - 1
    return ((distinct[-1] - distinct[0]) / gaps).item() if gaps > 0 else 1.0


class LogarithmPrior(NormalPrior):
    """Normal prior over the logarithm of a positive parameter, as a density of that logarithm.

    So it does not depend on the unit, nor does the place of its maximum.

    Args:
        median: Median of the parameter.
        spread: Standard deviation of its logarithm.
    """

    def __init__(self, median: float, spread: float):
        super().__init__(torch.tensor(math.log(median)).double(), torch.tensor(spread).double())

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of the logarithm."""
        return super().log_prob(value.log())

    def rsample(self, sample_shape: Size = Size()) -> Tensor:  # noqa: B008
        """Return draws of the parameter."""
        return torch.exp(super().rsample(sample_shape))


class RatePrior(LogarithmPrior):
    r"""The same of :math:`\rho = -\ln(1 - \varepsilon)`, for the parameter ε."""

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of the logarithm of ρ."""
        return super().log_prob(-torch.log1p(-value))

    def rsample(self, sample_shape: Size = Size()) -> Tensor:  # noqa: B008
        """Return draws of ε."""
        rate = -torch.expm1(-super().rsample(sample_shape))
        return rate.clamp(MIN_FORGETTING_RATE, MAX_FORGETTING_RATE)


def describe_form(kernels: Sequence[TemporalKernel]) -> str:
    """Return the form of a drift by kernels over time as text."""
    if all(kernel.is_static for kernel in kernels):
        return "no drift"
    return " + ".join(_describe_kernel(kernel) for kernel in kernels)


def half_life(kernels: Sequence[TemporalKernel]) -> float:
    """Return the lag at which the correlation over time has fallen to one half.

    Infinite without drift, NaN for several temporal kernels, or where it never falls that far.
    """
    if all(kernel.is_static for kernel in kernels):
        return math.inf
    if len(kernels) > 1:
        return math.nan
    (kernel,) = kernels

    def above_half(lags: Tensor | float) -> Any:
        with torch.no_grad():
            return kernel.correlation(torch.as_tensor(lags, dtype=torch.float64)) - 0.5

    lags = torch.cat([torch.zeros(1), 2.0 ** torch.arange(-40, 60)]).double()
    below = (above_half(lags) <= 0).nonzero().flatten()
    if len(below) == 0:
        return math.nan
    from scipy.optimize import brentq  # It takes long to import.

    low, high = lags[below[0] - 1 : below[0] + 1].tolist()
    return float(brentq(above_half, low, high, xtol=1e-14 * high, rtol=1e-14))


def _describe_kernel(kernel: TemporalKernel) -> str:
    if isinstance(kernel, TemporalDecayKernel):
        return "exponential decay"
    if isinstance(kernel, TemporalMaternKernel):
        return f"Matérn-{2 * kernel.nu:g}/2"
    return type(kernel).__name__
