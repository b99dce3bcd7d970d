"""Fit of a panel: means, season, covariances and drift at a maximum, and a tuner's multiplier."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from numpy.typing import NDArray
from torch import Tensor

from tvbo.kernels import TemporalKernel
from tvbo.logs.dataset import check_varies
from tvbo.logs.forms import FORMS, forms_of
from tvbo.logs.panel_cells import (
    WRONG,
    Cells,
    Outlier,
    Units,
    deviations_of,
    replace_outliers,
    scan_arms,
    typical_range,
)
from tvbo.logs.panel_forms import FAR
from tvbo.logs.panel_play import tune_multiplier
from tvbo.logs.panel_report import PanelFit, messages_of
from tvbo.logs.panel_search import INDEPENDENT, VECTOR, PanelSearch
from tvbo.logs.panel_season import seasons_of
from tvbo.logs.panel_selection import affordable, choose_form, choose_season
from tvbo.logs.season import Season
from tvbo.quadratic_model import Array
from tvbo.spaces.observations import check_finite
from tvbo.spaces.times import duration, to_timestamp
from tvbo.values import as_numbers, check_probability

if TYPE_CHECKING:
    from datetime import datetime

SHORTEST = 8
"""Smallest number of times of a panel."""

TUNED = (0.5, 0.75)
"""Shares of the log after which multipliers are played."""


def fit_panel(
    values: Tensor,
    times: Tensor,
    *,
    segments: Tensor | None = None,
    season: float | Season | Literal["auto"] | None = "auto",
    temporal_kernel: TemporalKernel | Sequence[TemporalKernel] | str | None = "auto",
    time_unit: str = "1",
    origin: datetime | str | None = None,
    level: float = 0.95,
    arms: Sequence[str] | None = None,
    on_step: Callable[[str], None] = lambda step: None,
) -> PanelFit:
    r"""Fit a model of a panel, arms that are read together, at the maximum of its likelihood.

    .. math:: y_a(t) = m_a + s_a(t) + f_a(t) + \text{noise}

    The season :math:`s_a` is the same in every period, or in every segment, and smooth. What
    drifts, :math:`f`, is a linear Gaussian state-space model, whose Kalman filter takes missing
    cells as they are:

    * ``"exponential"``, ``"matern32"``, ``"two-scales"``: temporal kernels that all arms share,
      with one covariance over the arms, :math:`K \otimes \sum_c p_c \tau_c`, and one noise
      variance;
    * ``"independent"``: exponential decay of each arm by itself, with a noise variance each;
    * ``"vector"``: :math:`f(t + 1) = A f(t) + w`, :math:`w \sim N(0, Q)`, with a noise variance for
      each arm. The prior is that of Litterman (1986): A is Gaussian about the decay of each arm by
      itself, with a weight by empirical Bayes.

    The likelihood that is maximized is the restricted one, in which the means are integrated out
    (Patterson, Thompson, 1971), but for ``"vector"``; season and means are then at their maximum.
    Covariances over arms have an inverse Wishart prior about a diagonal with the weight of Ledoit
    and Wolf (2004), for what is left about the season; a season has a Gaussian prior by empirical
    Bayes; ``log_likelihood`` includes the log densities of these priors.

    Season, and the temporal kernel that all arms share, are chosen by evidence: log marginal
    likelihood over the season ``- k / 2 log N``, with ``k`` other parameters and ``N`` values
    (BIC). The independent and the vector form take its place if they predict better, by three
    standard errors, what a tuner needs to know: all arms in the last quarter of the log, from one
    random arm at each time, by models of the first three quarters.

    A cell more than eight standard deviations from what its arm's past predicts is taken for that
    prediction, and is named in ``outliers``; where more than 3 % of an arm's cells lie far out,
    they count as they are, and a message says so. The multiplier of a tuner's standard deviation is
    chosen by playing the second half of the log (:attr:`PanelFit.tuning`).

    Args:
        values: ``T x n``, larger is better; NaN where there is no value.
        times: ``T``, increasing in each segment, in units of ``time_unit``.
        segments: ``T`` labels of independent segments, such as days; None: one segment. The season
            is then what the segments have in common as a function of time, if they have the same
            range of times.
        season: Period of the season, in units of ``time_unit``, or the season of another fit; None:
            no season. ``"auto"`` compares none with a day and a week, where ``time_unit`` is a
            duration such as "5min" and the log spans two of them, and with a day whose profile
            differs between working days and weekends, where ``origin`` is given too and the log has
            both; else with the three periods at which the panel has most more power than drift
            explains, of at most a quarter of the log, if one has enough more evidence than chance
            gives, and a part of the log does not predict what follows worse with it.
        temporal_kernel: The form of drift by one of the names above; ``"auto"`` or None compares
            them. Or a temporal kernel, or several for a sum of components: their parameters that
            require gradients are learned, on copies.
        time_unit: Name of the unit of time.
        origin: Timestamp of time zero in local time, such as ``"2012-03-01 00:00"``; None if the
            times are of no calendar.
        level: Confidence of the interval of ε, where the form is ``"exponential"``.
        arms: Names of the arms, for messages; None counts from 0.
        on_step: Called with the name of each step, for a progress bar.

    Returns:
        A :class:`PanelFit`, with the table of candidates, the reason of the choice, and messages.

    Raises:
        BotorchTensorDimensionError: if shapes do not agree.
        InputDataError: if a value is infinite, times do not increase within a segment, there are
            fewer than 8 times or 2 arms, an arm has no value, the values are constant, or nearly
            so, or the period is longer than half the log, or shorter than two gaps.
        TypeError: if a kernel in ``temporal_kernel`` is no temporal kernel.
        ValueError: if ``temporal_kernel``, ``season`` or ``origin`` is none of the above, or
            ``level`` lies outside (0, 1).

    Example:
        >>> fit = fit_panel(values, times, time_unit="5min")
        >>> tuner = fit.optimizer()
    """
    if temporal_kernel in (INDEPENDENT, VECTOR):
        names, forms = [str(temporal_kernel)], FORMS
    else:
        asked = forms_of("auto" if temporal_kernel is None else temporal_kernel)
        forms = FORMS | asked
        names = [*FORMS, INDEPENDENT, VECTOR] if asked is FORMS else [*asked]
    check_probability(level=level)
    values, times = as_numbers("values", values), as_numbers("times", times)
    labels = torch.zeros(times.shape) if segments is None else as_numbers("segments", segments)
    numbers = range(values.shape[-1]) if values.ndim else ()
    arms = [str(arm) for arm in (numbers if arms is None else arms)]
    T, shapes = times.numel(), [tuple(each.shape) for each in (values, times, labels)]
    if shapes != [(T, len(arms)), (T,), (T,)]:
        raise BotorchTensorDimensionError(
            f"Expected values T x n, T times, T labels of segments and n arms. Got shapes "
            f"{', '.join(map(str, shapes))} and {len(arms)} arms."
        )
    rows, own_times, starts = _checked(values, times, labels, arms)
    gap = float(np.median(np.diff(own_times)[~starts[1:]]))
    on_step("outliers")
    cells, units, outliers = _without_outliers(rows, own_times, starts, gap)
    search = PanelSearch(cells, forms, units, on_step)
    kept = affordable(search, names)
    zero = None if origin is None else to_timestamp("origin", origin)
    chosen_season: Season | None = None
    if season is not None:
        local = None if zero is None else zero.tz_localize(None)
        seasons = seasons_of(season, search, time_unit, local, segments is not None)
        if season == "auto":
            are_found = segments is None and duration(time_unit) is None
            chosen_season = choose_season(search, seasons, kept, are_found)
        else:
            chosen_season = seasons[0]
            search.set_prior(chosen_season)
    chosen, rows_of_forms, reason = choose_form(search, kept, chosen_season)
    on_step(f"maximum of {chosen}")
    found = search.polish(search.fit(chosen, chosen_season))
    model = found.model(units)
    on_step("playing")
    folds = [search.fold(chosen, chosen_season, share) for share in TUNED]
    return PanelFit(
        arms=arms,
        time_unit=time_unit,
        origin=None if zero is None else str(zero),
        num_times=len(rows),
        log_likelihood=found.objective - search.shift,
        forgetting_rate_interval=search.rate_interval(found, level),
        level=level,
        evidence=rows_of_forms,
        chosen=kept.index(chosen),
        reason=reason,
        messages=[*search.messages, *messages_of(found, cells, outliers, arms)],
        outliers=outliers,
        model=model,
        belief=model.filter_panel(units.undo(cells)),
        last_time=None if segments is not None else float(own_times[-1]),
        round_length=gap,
        missing=np.isnan(rows).mean(axis=0),
        missing_correlation=_missing_correlation(np.isnan(rows), starts),
        tuning=tune_multiplier(folds),
    )


def _without_outliers(
    rows: Array, times: Array, starts: NDArray[np.bool_], gap: float
) -> tuple[Cells, Units, list[Outlier]]:
    """Return the panel with outliers replaced, its units, and the outliers.

    It is about the centre of each arm, in a unit in which arms have a mean variance of one.
    """
    center, deviation = typical_range(rows)
    deviation = np.where(deviation > 0, deviation, np.nanstd(rows, axis=0))
    deviation = np.where(deviation > 0, deviation, 1.0)
    scaled = Cells.of((rows - center) / deviation, times / gap, starts)
    typical = np.where(np.abs(scaled.values) > WRONG, np.nan, scaled.values.clip(-FAR, FAR))
    usual = replace(scaled, values=typical)
    drawn, found = replace_outliers(scaled, *scan_arms(usual))
    values = drawn * deviation + center
    center, deviations = np.nanmedian(values, axis=0), deviations_of(values)
    unit = math.sqrt(float((deviations**2).mean()))
    cells = replace(scaled, values=(values - center) / unit, deviations=deviations / unit)
    outliers = [
        Outlier(float(times[t]), arm, float(rows[t, arm]), distance) for t, arm, distance in found
    ]
    return cells, Units(center, unit, gap), outliers


def _missing_correlation(missing: NDArray[np.bool_], starts: NDArray[np.bool_]) -> float:
    """Return the correlation of missing readings of successive times, after one outage more."""
    before, after = missing[:-1][~starts[1:]], missing[1:][~starts[1:]]
    by_chance = float((before.sum(axis=0) * missing.mean(axis=0)).sum())
    both, each = float((before & after).sum()), float(before.sum())
    return (max(0.0, both - by_chance) + 1) / (each - by_chance + 1)


def _checked(
    values: Tensor, times: Tensor, labels: Tensor, arms: Sequence[str]
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Return values, times, and whether each begins a segment; raise unless they can be fitted.

    Rows without a value are left out, and segments follow one another.
    """
    check_finite("values", torch.where(values.isnan(), 0.0, values))
    check_finite("times", times)
    check_finite("segments", labels)
    order = torch.argsort(labels, stable=True)
    order = order[~values[order].isnan().all(dim=1)]
    T, n = len(order), values.shape[1]
    if T < SHORTEST or n < 2:
        raise InputDataError(
            f"Expected at least {SHORTEST} times and 2 arms, for their covariance. Got {T} times "
            f"and {n} arms."
        )
    rows, kept, own = values[order].double(), labels[order], times[order].double()
    check_varies(rows[~rows.isnan()])
    counts = (~rows.isnan()).sum(0)
    if counts.min() < 2:
        raise InputDataError(
            f"Expected at least two values of each arm. Got {int(counts.min())} of arm "
            f"{arms[int(counts.argmin())]}."
        )
    starts = torch.ones(T, dtype=torch.bool)
    starts[1:] = kept.diff() != 0
    backwards = (own.diff() <= 0) & ~starts[1:]
    if backwards.any():
        label = kept[1:][backwards][0].item()
        raise InputDataError(
            f"Expected times that increase in every segment. Got others in segment {label:g}."
        )
    if starts.all():
        raise InputDataError("Expected two times at least in a segment. Got one in each.")
    return rows.numpy(), own.numpy(), starts.numpy()
