"""The result of a fit of a panel: numbers, messages, forecasts, and a tuner."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.means import Mean
from torch import Generator, Tensor

from tvbo.kernels import CovarianceMatrixKernel, TemporalDecayKernel, TemporalKernel
from tvbo.logs.arm_rule import ArmRule
from tvbo.logs.forms import PanelCandidate, describe, describe_kernel
from tvbo.logs.panel_cells import TAIL, Cells, Outlier
from tvbo.logs.panel_dynamics import (
    Belief,
    CommonDynamics,
    IndependentDynamics,
    PanelModel,
    VectorDynamics,
)
from tvbo.logs.panel_forms import CommonForm
from tvbo.logs.panel_play import Tuning
from tvbo.logs.panel_search import Maximum
from tvbo.logs.saved import SavedFit
from tvbo.logs.season import Season
from tvbo.models.time_varying_gp import make_temporal_kernel
from tvbo.quadratic_model import Array
from tvbo.serialize import to_data
from tvbo.spaces import FiniteSpace
from tvbo.spaces.observations import Observations
from tvbo.spaces.times import duration, to_timestamp, units_since
from tvbo.trial import Trial
from tvbo.values import check_not_negative, check_probability

if TYPE_CHECKING:
    from datetime import datetime

SHORT = 20.0
"""Correlation times that a panel should span for its covariance to be known."""

NAMED_OUTLIERS = 5
"""Number of outliers that a message names."""

FEW = 0.1
"""Share of the times below which the readings of an arm are few."""

KEPT = 500
"""Newest outcomes that may still be joined by one of an earlier time."""

FAR_OUT = 24.0
"""Distance from the median, in medians of it, beyond which a value lies far out: 16 deviations."""

ESTIMATED = (
    "Covariances, means and season are this panel's own estimates, and the bands of a forecast "
    "take them as known: the fewer correlation times the panel spans, the more they are too narrow."
)


@dataclass(frozen=True)
class PanelForecast:
    """Mean and band of every arm at future times.

    Args:
        times: ``k``.
        mean: ``k x n``.
        standard_deviation: ``k x n``, of the arms' true values.
        lower: ``k x n``, the lower end of the band.
        upper: ``k x n``, its upper end.
        level: Probability of the band.
    """

    times: Tensor
    mean: Tensor
    standard_deviation: Tensor
    lower: Tensor
    upper: Tensor
    level: float


@dataclass(frozen=True, repr=False)
class PanelFit(SavedFit):
    r"""A model of a panel, :math:`y_a(t) = m_a + s_a(t) + f_a(t) + \text{noise}`.

    Args:
        arms: Names of the arms, ``n``.
        time_unit: Name of the unit of time.
        origin: Timestamp of time zero; None if the times are of no calendar.
        num_times: Number of times.
        log_likelihood: Log likelihood and log densities of the priors, at the maximum.
        forgetting_rate_interval: Profile likelihood interval of ε; None but for ``"exponential"``.
        level: Its confidence.
        evidence: The candidates that were compared.
        chosen: Index of the one that was chosen.
        reason: Why this one was chosen, in a sentence.
        messages: Remarks on season, outliers and on the reliability of the numbers.
        outliers: Cells that were taken for what the past of their arm predicts.
        model: Means, season and dynamics.
        belief: What is believed of the state after the last time.
        last_time: Last time of the log; None if its segments are independent.
        round_length: The usual gap between times.
        missing: Share of the times at which each arm had no reading, ``n``.
        missing_correlation: Correlation of missing readings of successive times; 1 if there are
            none.
        tuning: The multiplier of a tuner's standard deviation, with its reason.
    """

    arms: list[str]
    time_unit: str
    origin: str | None
    num_times: int
    log_likelihood: float
    forgetting_rate_interval: tuple[float, float] | None
    level: float
    evidence: list[PanelCandidate]
    chosen: int
    reason: str
    messages: list[str]
    outliers: list[Outlier]
    model: PanelModel
    belief: Belief
    last_time: float | None
    round_length: float
    missing: Array
    missing_correlation: float
    tuning: Tuning

    def __post_init__(self) -> None:
        """Check that the numbers go together."""
        if not 0 <= self.chosen < len(self.evidence):
            raise ValueError(f"Expected one of {len(self.evidence)} rows. Got {self.chosen}.")
        noise, (mean, _) = self.noise_variances, self.predict_arms(np.zeros(1))
        of_arms = self.missing.shape == noise.shape == mean[0].shape
        if not (of_arms and (noise >= 0).all() and 0 < self.missing_correlation <= 1):
            raise ValueError(
                f"Expected shares of missing readings, their correlation in (0, 1], and noise "
                f"variances of at least 0, of {self.num_arms} arms. Got {self.missing}, "
                f"{self.missing_correlation} and {noise}."
            )

    @property
    def form(self) -> str:
        """Name of the form of drift."""
        return self.evidence[self.chosen].temporal_kernel

    @property
    def num_arms(self) -> int:
        """Number of arms."""
        return len(self.arms)

    @property
    def choices(self) -> Tensor:
        """The arms as choices, by number, ``n x 1``."""
        return torch.arange(self.num_arms, dtype=torch.float64).unsqueeze(-1)

    @cached_property
    def arm_means(self) -> Tensor:
        """Means of the arms, ``n``."""
        return torch.as_tensor(self.model.coefficients[0])

    @property
    def season(self) -> Season | None:
        """The season, in the unit of time of the fit; None without one."""
        return self.model.season

    @cached_property
    def noise_variances(self) -> Tensor:
        """Noise variance of each arm, ``n``."""
        return self.model.dynamics.noise

    @property
    def temporal_kernels(self) -> list[TemporalKernel]:
        """Temporal kernel of each component, or of each arm where it drifts by itself.

        Raises:
            ValueError: if the form is a vector autoregression, which has none.
        """
        return [kernel for kernel, _ in self._components()]

    @property
    def covariances(self) -> list[Tensor]:
        """Covariance of each component over the arms, ``n x n``."""
        return [covariance for _, covariance in self._components()]

    def _components(self) -> list[tuple[TemporalKernel, Tensor]]:
        """Return temporal kernels, and the covariance over arms of each."""
        dynamics = self.model.dynamics
        if isinstance(dynamics, CommonDynamics):
            return [*zip(dynamics.kernels, dynamics.covariances, strict=True)]
        if isinstance(dynamics, IndependentDynamics):
            kernels = [make_temporal_kernel(rate) for rate in dynamics.forgetting_rates.tolist()]
            return [*zip(kernels, torch.diag_embed(torch.diag(dynamics.variances)), strict=True)]
        raise ValueError(
            "Expected a form of drift with temporal kernels. Got a vector autoregression; use "
            "`optimizer()`, or fit with `temporal_kernel` of another form."
        )

    @property
    def mean_module(self) -> PanelMean:
        """The forecast as a prior mean over rows ``[arm | time]``, for times after the log."""
        return PanelMean(self)

    def settings(self) -> dict[str, Any]:
        """Return the arguments of a recipe, such as ``recipes.tv_gp_ucb(**fit.settings())``.

        The choices are the indices of the arms, in one column; the time of an ask is a number in
        the unit of the fit, so that the recipe takes no ``time_unit``. One exponential component
        gives ``forgetting_rate``, others ``temporal_kernel``. The noise variance is the mean of
        those of the arms. :meth:`optimizer` also knows what the log says of the arms' state, and
        the noise of each.

        Raises:
            ValueError: if the form is a vector autoregression, which has no temporal kernel.
        """
        kernels = self.temporal_kernels
        modules = [CovarianceMatrixKernel(covar) for covar in self.covariances]
        drift: dict[str, Any] = {"temporal_kernel": kernels if len(kernels) > 1 else kernels[0]}
        if len(kernels) == 1 and isinstance(kernels[0], TemporalDecayKernel):
            drift = {"forgetting_rate": kernels[0].forgetting_rate.item()}
        return {
            "choices": self.choices,
            "noise_variance": self.noise_variances.mean().item(),
            "mean_module": self.mean_module,
            "covar_module": modules if len(modules) > 1 else modules[0],
            "beta": self.tuning.multiplier**2,
            **drift,
        }

    def optimizer(self, beta: float | None = None, generator: Generator | None = None) -> PanelUCB:
        """Return a tuner that goes on from the end of the log.

        Args:
            beta: β of the upper confidence bound; None is the square of ``tuning.multiplier``.
            generator: Source of the draws among ties; default a fresh one with seed 0.
        """
        return PanelUCB(self, self.tuning.multiplier**2 if beta is None else beta, generator)

    def time_of(self, timestamp: datetime | str) -> float:
        """Return a timestamp as a time of the fit, for :meth:`forecast` and the tuner's ``ask``.

        Args:
            timestamp: A timestamp, or one in ISO 8601, such as ``"2026-01-31T12:00"``; without an
                offset it has that of ``origin``, before and after a change of the clocks.

        Raises:
            ValueError: if it is none, or the times of the fit are of no calendar.
        """
        if self.origin is None or duration(self.time_unit) is None:
            raise ValueError(
                "Expected a fit with an origin, and with a duration as unit of time. Got "
                f"{self.origin} and {self.time_unit!r}."
            )
        zero, stamp = to_timestamp("origin", self.origin), to_timestamp("timestamp", timestamp)
        return units_since(zero, stamp, self.time_unit)

    def forecast(self, times: Tensor | float, level: float = 0.95) -> PanelForecast:
        """Return mean and band of every arm at future times.

        The band is of the true values, without the noise of an observation.

        Args:
            times: ``k`` times, or one, after the log; with independent segments, times within a
                new one.
            level: Probability of the band.

        Raises:
            InputDataError: if a time is not finite, or before the end of the log.
            ValueError: if ``level`` lies outside (0, 1).
        """
        later = torch.atleast_1d(torch.as_tensor(times, dtype=torch.float64))
        if not torch.isfinite(later).all() or later.ndim != 1:
            raise InputDataError(f"Expected finite times, k. Got {later.tolist()}.")
        check_probability(level=level)
        _check_later(self.last_time, min(later.tolist(), default=math.inf))
        mean, variance = (torch.as_tensor(each) for each in self.predict_arms(later.numpy()))
        deviation = variance.sqrt()
        half = deviation * torch.special.ndtri(torch.tensor(0.5 + level / 2, dtype=torch.float64))
        return PanelForecast(later, mean, deviation, mean - half, mean + half, level)

    def predict_arms(self, times: Array) -> tuple[Array, Array]:
        """Return means and variances of the arms' true values, both ``len(times) x n``.

        Times before the end of the log have the state of its end.
        """
        beliefs = [self.model.predict(self.last_time, self.belief, t) for t in times.tolist()]
        moments = np.array([self.model.arms(belief) for belief in beliefs])
        means, variances = moments.reshape(-1, 2, self.num_arms).swapaxes(0, 1)
        return self.model.levels(times) + means, variances

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, without covariances and state, in types of JSON."""
        names = [name for name in self.__dataclass_fields__ if name not in ("model", "belief")]
        dynamics = self.model.dynamics
        if isinstance(dynamics, VectorDynamics):
            decay = dynamics.transition.diagonal().tolist()
            drift: list[dict[str, Any]] = [{"transition_of_each_arm": decay, "gap": dynamics.gap}]
        else:
            drift = [
                {**describe(kernel), "mean_variance": covariance.diagonal().mean().item()}
                for kernel, covariance in self._components()
            ]
        return {
            **{name: to_data(getattr(self, name)) for name in names},
            "form": self.form,
            "season_length": None if self.season is None else self.season.length,
            "arm_means": self.arm_means.tolist(),
            "noise_variances": self.noise_variances.tolist(),
            "drift": drift,
        }

    def summary(self) -> dict[str, str]:
        """Return the numbers by name, as text."""
        best, interval = int(self.arm_means.argmax()), {}
        if self.forgetting_rate_interval is not None:
            low, high = self.forgetting_rate_interval
            name = f"{self.level:.0%} interval of the forgetting rate"
            interval[name] = f"{low:.4g} to {high:.4g}"
        return {
            "panel": f"{self.num_arms} arms, {self.num_times} times",
            "largest mean": f"{self.arm_means[best]:.4g}, arm {self.arms[best]}",
            "season": describe_season(self),
            "drift": self._describe_drift(),
            **interval,
            "deviation of noise": _range(self.noise_variances.sqrt()),
            "log likelihood": f"{self.log_likelihood:.2f}",
            "multiplier": f"{self.tuning.multiplier:g}",
        }

    def _describe_drift(self) -> str:
        """Return what drifts, as text."""
        dynamics = self.model.dynamics
        if isinstance(dynamics, CommonDynamics):
            return " + ".join(
                f"{describe_kernel(kernel, self.time_unit)}, deviation "
                f"{covar.diagonal().mean().sqrt():.4g}"
                for kernel, covar in self._components()
            )
        if isinstance(dynamics, IndependentDynamics):
            rates, deviations = _range(dynamics.forgetting_rates), _range(dynamics.variances.sqrt())
            return (
                f"of each arm by itself, forgetting rate {rates} (time in {self.time_unit}), "
                f"deviation {deviations}"
            )
        assert isinstance(dynamics, VectorDynamics)
        radius = torch.linalg.eigvals(dynamics.transition).abs().max().item()
        return f"vector autoregression of the arms, largest eigenvalue {radius:.4g} a gap"

    def __repr__(self) -> str:
        return f"{super().__repr__()}\n{self.reason}\n{self.tuning.reason}"


class PanelUCB(ArmRule):
    r"""Upper confidence bounds over the arms of a panel, by the filter of its fit.

    At time ``t`` it takes the arm with the largest :math:`\mu_a(t) + \sqrt{\beta} \sigma_a(t)`, of
    its true value given the log and all outcomes before. An outcome more than six deviations from
    its prediction counts as one at that distance. An arm whose trials fail one after another is
    left out until as much is lost without it as these failures cost, each the worst arm in place of
    this one, which is at most twice what must be lost (ski rental, Karlin et al., 1988); and less
    long where readings of the log are missing at random. Outcomes may come in any order; one older
    than the newest five hundred counts as of their time.

    Args:
        fit: The fit. Its arms are the choices, by number; times are in its unit.
        beta: β, at least 0.
        generator: Source of the draws among ties; default a fresh one with seed 0.

    Raises:
        ValueError: if β is negative.
    """

    def __init__(self, fit: PanelFit, beta: float, generator: Generator | None = None):
        check_not_negative(beta=beta)
        super().__init__(FiniteSpace(fit.choices), generator=generator)
        self.model, self.beta, self._end = fit.model, beta, fit.last_time
        # Belief at a time, and the outcomes since then, in order: time, arm, outcome.
        self._base: tuple[float | None, Belief] = fit.last_time, fit.belief
        self._outcomes: list[tuple[float, int, float]] = []
        self._newest: tuple[float | None, Belief] = self._base
        # Of arms whose trials fail: how many in a row, and what is to be lost yet without them.
        self._failures: dict[int, tuple[int, float]] = {}
        self._missing, self._correlation = fit.missing.tolist(), fit.missing_correlation

    @property
    def model_size(self) -> int:
        """Number of outcomes that are kept one by one."""
        return len(self._outcomes)

    def predict(self, t: float) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the arms' true values at a time, both ``n``.

        Args:
            t: The time, not before the newest outcome.

        Raises:
            InputDataError: if it is before the end of the log.
        """
        _check_later(self._end, t)
        mean, variance = self.model.arms(self.model.predict(*self._newest, t))
        level = self.model.levels(np.array([t]))[0]
        return torch.as_tensor(level + mean), torch.as_tensor(np.sqrt(variance))

    def _bounds(self, t: float) -> tuple[Tensor, Tensor]:
        """Return upper bounds of all arms, and those of the arms that are not left out."""
        mean, deviation = self.predict(t)
        bounds = mean + math.sqrt(self.beta) * deviation
        left_out, others = [arm for arm, (_, owed) in self._failures.items() if owed > 0], bounds
        if len(left_out) < len(bounds):
            others = bounds.clone()
            others[left_out] = -math.inf
        return bounds, others

    def _index(self, t: float) -> Tensor:
        return self._bounds(t)[1]

    def _check_outcome(self, trial: Trial, observation: Observations) -> None:
        super()._check_outcome(trial, observation)
        _check_later(self._end, observation.X[0, -1].item())

    def _observe(self, arm: int, t: float, value: float) -> None:
        count, _ = self._failures.pop(arm, (0, 0.0))
        if math.isnan(value):
            # By Bayes: an arm that is out fails again, others do as often as in the log.
            by_chance = (1 - self._correlation) * self._missing[arm] ** count
            is_out = self._correlation / (self._correlation + by_chance)
            cost = float(self._bounds(t)[0][arm] - self.predict(t)[0].min())
            self._failures[arm] = count + 1, is_out * (count + 1) * cost
        if self._failures:
            # What each would gain in the next round is lost without it.
            bounds, others = self._bounds(t)
            lost = (bounds - others.max()).clamp(min=0.0).tolist()
            for each, (count, owed) in self._failures.items():
                self._failures[each] = count, owed - lost[each]
        if math.isnan(value):
            return
        outcome = t, arm, value
        bisect.insort(self._outcomes, outcome, key=itemgetter(0))
        if self._outcomes[-1] is outcome:
            self._newest = self._after(self._newest, outcome)
        else:
            self._newest = reduce(self._after, self._outcomes, self._base)
        if len(self._outcomes) > 2 * KEPT:
            self._base = reduce(self._after, self._outcomes[:-KEPT], self._base)
            del self._outcomes[:-KEPT]

    def _after(
        self, known: tuple[float | None, Belief], outcome: tuple[float, int, float]
    ) -> tuple[float | None, Belief]:
        """Return time and belief after an outcome."""
        t, arm, value = outcome
        level = self.model.levels(np.array([t]))[0, arm]
        belief = self.model.update(self.model.predict(*known, t), arm, value - level)
        return max(t, t if known[0] is None else known[0]), belief


def _check_later(end: float | None, t: float) -> None:
    """Raise if a time is before the end of a log; None is that of independent segments."""
    if end is not None and not t >= end:
        raise InputDataError(f"Expected times from the end of the log on, {end:g}. Got {t:g}.")


class PanelMean(Mean):
    """The forecast of every arm as a prior mean over rows ``[arm | time]``.

    Mean and season of the arm, and what persists of its state at the end of the log. At times
    before that, the state is that of the end. It has no parameters.

    Args:
        fit: The fit.
    """

    def __init__(self, fit: PanelFit):
        super().__init__()
        self._fit = fit

    def forward(self, x: Tensor) -> Tensor:
        """Return the means of rows ``... x 2``, ``...``."""
        times, place = torch.unique(x[..., -1].detach().double().cpu(), return_inverse=True)
        means = torch.as_tensor(self._fit.predict_arms(times.numpy())[0])
        arms = x[..., 0].detach().round().long().cpu()
        return means[place, arms].to(x)


def describe_season(fit: PanelFit) -> str:
    """Return what repeats, and its length, as text."""
    if fit.season is None:
        return "none"
    return f"{fit.season.kind} {fit.season.length:.6g} × {fit.time_unit}"


def _range(values: Tensor) -> str:
    """Return the median of some numbers, and their range if they differ."""
    low, middle, high = values.min().item(), values.median().item(), values.max().item()
    if math.isclose(low, high, rel_tol=1e-9):
        return f"{middle:.4g}"
    return f"{middle:.4g} ({low:.3g} to {high:.3g})"


def messages_of(
    maximum: Maximum, cells: Cells, outliers: Sequence[Outlier], arms: Sequence[str]
) -> list[str]:
    """Return warnings on the reliability of the numbers."""
    messages = []
    if outliers:
        largest = sorted(outliers, key=lambda each: -abs(each.deviations))[:NAMED_OUTLIERS]
        named = ", ".join(
            f"{each.value:.4g} of arm {arms[each.arm]} at {each.time:.10g}" for each in largest
        )
        others = len(outliers) - len(largest)
        messages.append(
            f"{len(outliers)} of {cells.num_values} values lie far from what their arm's past "
            f"predicts, and were taken for that: {named}{f', and {others} more' if others else ''}."
        )
    T, counts = len(cells.values), (~np.isnan(cells.values)).sum(axis=0)
    few = ", ".join(
        f"{arms[i]} ({counts[i]} of {T})" for i in np.flatnonzero(counts < FEW * T).tolist()
    )
    if few:
        messages.append(f"Arms with few readings, whose bands are too narrow: {few}.")
    residuals = maximum.regressors.removed_from(cells).values
    distances = np.abs(residuals - np.nanmedian(residuals, axis=0))
    limits = FAR_OUT * np.nanmedian(distances, axis=0)
    # Of an arm of which more than half are equal none lies far out.
    far = (distances > np.where(limits > 0, limits, math.inf)).sum(axis=0)
    if heavy := np.flatnonzero((far > 1) & (far > (1 - TAIL) * counts)).tolist():
        heavy.sort(key=lambda arm: -far[arm] / counts[arm])
        shares = [f"{arms[i]} ({far[i] / counts[i]:.0%})" for i in heavy[:NAMED_OUTLIERS]]
        messages.append(
            f"Many values of {len(heavy)} of {len(arms)} arms lie far out, and count as they are, "
            f"above all of {', '.join(shares)}."
        )
    if isinstance(maximum.form, CommonForm):
        place = maximum.form.num_counted - 1
        bounds = maximum.form.bounds()[place]
        for bound, side in zip(bounds, ("lower", "upper"), strict=True):
            if math.isclose(maximum.theta[place], bound, abs_tol=1e-3):
                messages.append(f"The noise variance is at its {side} bound.")
        longest = max(map(_correlation_time, maximum.form.dynamics(maximum.theta).kernels))
        if cells.span < SHORT * longest:
            messages.append(
                f"The panel is shorter than {SHORT:g} correlation times of its slowest component "
                f"({cells.span / longest:.2g} of them): what drifts so slowly can hardly be told "
                "from the means of the arms."
            )
    if not maximum.converged:
        messages.append("The maximization did not converge.")
    return [*messages, ESTIMATED]


def _correlation_time(kernel: TemporalKernel) -> float:
    """Return the lag at which the correlation has fallen to 1 / e, within a factor of two."""
    lag = 2.0 ** torch.arange(-10, 40, dtype=torch.float64)
    with torch.no_grad():
        below = kernel.correlation(lag).abs() < math.exp(-1)
    return math.inf if not below.any() else lag[below][0].item()
