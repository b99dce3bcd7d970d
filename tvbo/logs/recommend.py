"""What to do next by a log, what to expect of it, and how long that holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from scipy.optimize import brentq
from scipy.special import ndtri
from torch import Size, Tensor

from tvbo.logs.dataset import DriftLog
from tvbo.logs.drift_result import DriftFit
from tvbo.logs.forms import in_time
from tvbo.logs.likelihood import MAX_DENSE
from tvbo.models.ensemble_gp import EnsembleGP
from tvbo.models.raw import ScaledMean, times_factor
from tvbo.models.time_varying_gp import make_drifting_kernel, make_temporal_kernel
from tvbo.rounding import argmax

MAX_CHOICES = 200
"""Distinct actions up to which one of them is recommended, and none between them."""

SPREAD, NEAR, SHRINK = 4096, 1024, (0.1, 0.03, 0.01)
"""Actions that are compared: over their whole ranges, and around the best, as shares of a range."""

LONGEST = 1e6
"""Rounds, within a factor of two, for which a lead is followed; if more than half of it is left
then, it is said to hardly fade."""


@dataclass(frozen=True)
class LogRecommendation:
    """The action with the best expected outcome by a log, at one time and in one context.

    Args:
        X: The action, and the context behind it, ``d``.
        t: The time.
        mean: Expected outcome.
        interval: Interval of an outcome, noise included.
        usual: Prior mean of the fit, which is expected of an action that is not known.
        holds_for: Time after which half of the lead over ``usual`` is gone, in ``time_unit``;
            infinite beyond some million rounds, zero where nothing is known to be better.
        level: Confidence of the interval.
        time_unit: Name of the unit of time.
    """

    X: Tensor
    t: float
    mean: float
    interval: tuple[float, float]
    usual: float
    holds_for: float
    level: float
    time_unit: str

    def describe(self, names: Sequence[str], labels: Mapping[int, Sequence[str]]) -> str:
        """Return one line of advice.

        Args:
            names: Names of the columns of ``X``.
            labels: Labels of the columns of categories, by column.
        """
        settings = ", ".join(
            f"{name} {labels[place][int(value)] if place in labels else f'{value:.4g}'}"
            for place, (name, value) in enumerate(zip(names, self.X.tolist(), strict=True))
        )
        low, high = self.interval
        expected = (
            f"expect {self.mean:.4g} ({self.level:.0%}: {low:.4g} to {high:.4g}; usual "
            f"{self.usual:.4g})"
        )
        held = f"half of the lead is gone after {in_time(self.holds_for, self.time_unit)}"
        if self.holds_for == 0:
            held = "nothing is known to be better than usual"
        elif math.isinf(self.holds_for):
            held = "the lead hardly fades"
        return f"{settings}: {expected}; {held}"


@torch.no_grad()
def recommend(
    fit: DriftFit,
    train_X: Tensor,
    train_Y: Tensor,
    train_Yvar: Tensor | None = None,
    *,
    t: float | None = None,
    context: Mapping[int, float] | None = None,
    categories: Sequence[int] = (),
    row_numbers: Sequence[int] | None = None,
) -> LogRecommendation:
    """Return the action with the best expected outcome by the newest 1,000 rows of a log.

    One of the actions of the log, if there are 200 at most, else one within their ranges.

    Args:
        fit: The fit of the log; of several forms of drift, the chosen one predicts.
        train_X: ``n x d`` rows, the last column of them time.
        train_Y: ``n x 1`` outcomes.
        train_Yvar: ``n x 1`` known noise variances, or None.
        t: The time; None is one round after the last row.
        context: Values of columns that cannot be chosen, by number; those of the last row, say.
        categories: Columns whose values are numbers of categories.
        row_numbers: Those by which outliers were named; they are left out.

    Raises:
        InputDataError: if the time is before the last row, or as of :func:`fit_drift`.
    """
    log = DriftLog.from_rows(train_X, train_Y, train_Yvar, -1, row_numbers=row_numbers)
    known = list(context or {})
    fixed = torch.tensor([*(context or {}).values()], dtype=torch.float64)
    last = log.times.max().item()
    t = last + fit.round_length if t is None else t
    if not (math.isfinite(t) and t >= last):
        raise InputDataError(f"Expected a time from that of the last row, {last:g}, on. Got {t}.")
    log = log.without(fit.outliers).rows(slice(-MAX_DENSE, None))
    settings, columns = fit.settings(), log.actions.shape[-1]
    in_time = settings.get("temporal_kernel") or make_temporal_kernel(fit.forgetting_rate)
    covar_module = settings["covar_module"]
    kernel = make_drifting_kernel(covar_module, in_time, range(columns), columns, Size())
    noise, mean_module = settings["noise_variance"] or 0.0, settings["mean_module"]
    # In the unit of the outcomes' deviation, since a model has a least variance.
    unit = log.Y.std(correction=0).item()
    rows = torch.cat([log.actions, log.times.unsqueeze(-1)], dim=-1)
    Yvar = None if log.Yvar is None else log.Yvar.unsqueeze(-1) / unit**2
    model = EnsembleGP(
        times_factor(kernel, unit**-2),
        noise / unit**2,
        mean_module=ScaledMean(mean_module, 0.0, 1 / unit),
    ).condition_on_observations(rows, log.Y.unsqueeze(-1) / unit, Yvar)

    def moments(X: Tensor, t: float) -> tuple[Tensor, Tensor]:
        rows = torch.cat([X, torch.full_like(X[:, :1], t)], dim=-1)
        posterior: Any = model.posterior(rows.unsqueeze(-2))
        return unit * posterior.mean.flatten(), unit**2 * posterior.variance.flatten()

    def best_of(candidates: Tensor) -> Tensor:
        candidates[:, known] = fixed
        return candidates[int(argmax(moments(candidates, t)[0]))]

    generator = torch.Generator().manual_seed(0)
    of_actions = log.actions.clone()
    of_actions[:, known] = 0.0
    choices = torch.unique(of_actions, dim=0)
    best = best_of(choices)
    if len(choices) > MAX_CHOICES:
        low, high = log.actions.amin(dim=0), log.actions.amax(dim=0)
        shares = torch.rand(SPREAD, len(low), dtype=low.dtype, generator=generator)
        drawn = low + shares * (high - low)
        for place in categories:
            rows = torch.randint(len(log), (SPREAD,), generator=generator)
            drawn[:, place] = log.actions[rows, place]
        best = best_of(torch.cat([best.unsqueeze(0), drawn]))
        for share in SHRINK:
            steps = share * torch.randn(NEAR, len(low), dtype=low.dtype, generator=generator)
            steps[0] = steps[:, list(categories)] = 0.0
            best = best_of((best + steps * (high - low)).clamp(low, high))
    mean, variance = (moment.item() for moment in moments(best.unsqueeze(0), t))
    noise = noise if log.Yvar is None else log.Yvar.mean().item()
    usual = mean_module(best.unsqueeze(0)).item()

    halfway: float = 0.5 * (mean + usual)

    def excess(later: float) -> float:
        """Return by how much the lead over the prior mean is then more than half of that now."""
        expected: float = moments(best.unsqueeze(0), t + later)[0].item()
        return expected - halfway

    holds_for, later, longest = 0.0, fit.round_length, LONGEST * fit.round_length
    if mean > usual:
        while later <= longest and excess(later) > 0:
            later *= 2
        holds_for = brentq(excess, 0.0, later, rtol=1e-6) if later <= longest else math.inf
    reach = float(ndtri(0.5 + 0.5 * fit.level)) * math.sqrt(variance + noise)
    interval = mean - reach, mean + reach
    return LogRecommendation(best, t, mean, interval, usual, holds_for, fit.level, fit.time_unit)
