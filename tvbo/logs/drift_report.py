"""The report of a fit of the drift rate: its numbers, and messages on their reliability."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel

from tvbo.logs.block_length import block_length
from tvbo.logs.dataset import DriftLog
from tvbo.logs.drift_result import DriftFit
from tvbo.logs.maximize import LikelihoodMaximizer
from tvbo.logs.profile import Profile, rates_at_noise

NOISE_FACTORS = (2.0, 10.0)
"""Factors of the noise variance, and of its inverse, for which ε is reported as well."""

LONG = 10.0
"""Half-life, as a multiple of the longest segment, above which ε is an extrapolation."""

FLAT = 0.1
"""Range of the profile, in nats, below which the likelihood counts as flat."""


@dataclass(frozen=True)
class Report:
    """The report of a fit.

    Args:
        profile: The profile likelihood.
        maximizer: The maximizer of the likelihood.
        log: The observations, with outcomes divided by ``unit``.
        kernel: The kernel over actions.
        level: Confidence of the interval.
        time_unit: Name of the unit of time.
        unit: Unit of the outcomes of ``log``, in the unit of the user.
        noise_variance: σ² in the unit of the user, if it was given.
    """

    profile: Profile
    maximizer: LikelihoodMaximizer
    log: DriftLog
    kernel: Kernel
    level: float
    time_unit: str
    unit: float
    noise_variance: float | None

    def fit(self) -> DriftFit:
        """Build the result, and set the kernel to the maximum."""
        # Imported here since importing scipy.stats takes longer than the rest of tvbo.
        from scipy.stats import chi2

        profile, log, kernel = self.profile, self.log, self.kernel
        best = profile.best
        by_noise = [] if log.Yvar is not None else self._rates_by_noise()
        sigma2, mean = self._assigned()
        # Converts the density of the outcomes to the user's unit.
        offset = -len(log) * math.log(self.unit)
        rate = profile.rate(best.log_rate)
        statistic = max(0.0, 2 * (best.log_likelihood - profile.at_zero.log_likelihood))
        smooth = [k for k in kernel.modules() if isinstance(k, Kernel) and k.has_lengthscale]
        scaled = [k for k in kernel.modules() if isinstance(k, ScaleKernel)]
        nu = next((k.nu for k in smooth if isinstance(k, MaternKernel)), math.inf)
        round_length = log.gaps.median().item()
        horizon, dim = log.span / round_length + 1, log.actions.shape[-1]
        low, high = profile.interval
        return DriftFit(
            forgetting_rate=-math.expm1(-rate),
            forgetting_rate_interval=(-math.expm1(-low), -math.expm1(-high)),
            level=self.level,
            time_unit=self.time_unit,
            half_life=2 * math.log(2) / rate if rate > 0 else math.inf,
            noise_variance=None if log.Yvar is not None else sigma2,
            mean=mean * self.unit,
            lengthscales=[x for k in smooth for x in k.lengthscale.detach().flatten().tolist()],
            outputscale=scaled[0].outputscale.item() if scaled else None,
            log_likelihood=best.log_likelihood + offset,
            lr_statistic=statistic,
            lr_pvalue=0.5 * float(chi2.sf(statistic, df=1)) if statistic > 0 else 1.0,
            round_length=round_length,
            block_length=block_length(-math.expm1(-rate * round_length), horizon, dim=dim, nu=nu),
            n_observations=len(log),
            messages=self._messages(sigma2, by_noise),
            profile=[(-math.expm1(-profile.rate(x)), y + offset) for x, y in profile.points],
            covar_module=kernel,
            forgetting_rate_by_noise=by_noise,
        )

    def _assigned(self) -> tuple[float, float]:
        """Set the kernel to the maximum; return σ² in the unit of the user, and the mean."""
        sigma2, mean = self.maximizer.assign(self.profile.best.theta)
        return self.noise_variance or sigma2 * self.unit**2, mean

    def _rates_by_noise(self) -> list[tuple[float, float]]:
        """Return ``(σ², ε)`` for σ² fixed at some multiples of its value at the maximum, by σ²."""
        (sigma2, _), best = self._assigned(), self.profile.best
        pairs = [(sigma2, -math.expm1(-self.profile.rate(best.log_rate)))]
        for factors in (NOISE_FACTORS, [1 / factor for factor in NOISE_FACTORS]):
            fixed = [sigma2 * factor for factor in factors]
            in_unit = [variance / self.unit**2 for variance in fixed]
            rates = rates_at_noise(self.maximizer, best, in_unit)
            pairs += [(v, -math.expm1(-rate)) for v, rate in zip(fixed, rates, strict=False)]
        return sorted(pairs)

    def _messages(self, sigma2: float, by_noise: list[tuple[float, float]]) -> list[str]:
        """Return warnings on the reliability of the numbers, with σ² in the unit of the user."""
        messages = []
        profile, maximizer = self.profile, self.maximizer
        best, (low, high) = profile.best, profile.interval
        values = [y for _, y in profile.points]
        change = max(values) - min(values)
        half_life = 2 * math.log(2) / math.exp(best.log_rate)
        if change < FLAT:
            messages.append(
                f"The likelihood is flat: from no drift to no memory it changes by {change:.2g} "
                "nats, so this log says nothing about ε."
            )
        elif low == 0 and high == math.inf:
            messages.append(
                f"The {self.level:.0%} interval is all of [0, 1]: the log is too short, or too "
                "sparse in time, to tell the drift."
            )
        elif best.log_rate <= maximizer.rate_bounds[0] and low == 0:
            messages.append("ε is at its lower bound: the log shows no drift.")
        elif best.log_rate >= maximizer.rate_bounds[1]:
            messages.append(
                "ε is at its upper bound: the function shares nothing between times, or the times "
                "are too far apart to see what it shares."
            )
        elif half_life > LONG * self.log.span and low > 0:
            messages.append(
                f"The half-life is more than {LONG:g} times the length of the log: the function "
                "drifts, but so slowly for its variance that ε and the signal variance cannot be "
                "told apart. Trust neither alone; a fixed kernel, or a longer log, tells ε."
            )
        if low > 40:
            messages.append(
                f"ε rounds to 1 per {self.time_unit}: state time in a shorter unit to tell it from "
                "1."
            )
        for name in maximizer.at_bounds(best.theta):
            if name == "noise variance":
                messages.append(
                    f"At an end of its range: noise variance, {sigma2:.3g}."
                    + _rests_on(by_noise, sigma2)
                )
            else:
                messages.append(f"At an end of its range: {name}.")
        if self.log.Yvar is None and not maximizer.learns_noise:
            messages.append(
                f"The noise variance {sigma2:.3g} was given, not learned."
                + _rests_on(by_noise, sigma2)
            )
        if not best.converged:
            messages.append(f"The maximization did not converge: {best.message}.")
        return messages


def _rests_on(by_noise: list[tuple[float, float]], sigma2: float) -> str:
    """Return ε at half and twice the noise variance in words, as far as it could be fitted."""
    words = [
        f"{rate:.3g} with {name}"
        for name, factor in (("half of it", 0.5), ("twice as much", 2.0))
        for variance, rate in by_noise
        if math.isclose(variance, factor * sigma2, rel_tol=1e-9)
    ]
    return f" ε rests on it: {', '.join(words)}." if words else " ε rests on it."
