"""Fit of a panel: means, season, covariances and drift, chosen by evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from tvbo.kernels import TemporalKernel
from tvbo.logs.dataset import check_varies, outcome_unit
from tvbo.logs.forms import PanelCandidate, candidates_of, choose
from tvbo.logs.panel_evidence import Comparison
from tvbo.logs.panel_mean import mode_forecast
from tvbo.logs.panel_report import PanelFit, messages_of
from tvbo.logs.panel_season import seasons_of
from tvbo.logs.season import Season
from tvbo.quadratic_model import Array
from tvbo.spaces.observations import check_finite
from tvbo.spaces.times import ISO_8601, from_iso
from tvbo.values import as_numbers

if TYPE_CHECKING:
    from datetime import datetime

    import pandas as pd

SHORTEST = 8
"""Smallest number of times of a panel."""


def fit_panel(
    values: Tensor,
    times: Tensor,
    *,
    segments: Tensor | None = None,
    season: float | Season | Literal["auto"] | None = "auto",
    temporal_kernel: TemporalKernel | Sequence[TemporalKernel] | str | None = None,
    time_unit: str = "1",
    origin: datetime | str | None = None,
    drop_missing: bool = False,
    on_step: Callable[[str], None] = lambda step: None,
) -> PanelFit:
    r"""Fit a model of a panel, every arm at every time, by maximum marginal likelihood.

    .. math:: y_a(t) = m_a + s_a(t) + \sum_c f_{c,a}(t) + \text{noise}

    The mean :math:`m_a` of an arm is shrunk to the common one. The season :math:`s_a` is the same
    in every period, or in every segment, and smooth. A drifting component has the covariance
    :math:`K_c \otimes \tau_c` with a temporal kernel :math:`\tau_c`; the covariances over arms are
    powers of that of the panel about means and season, shrunk as by Ledoit and Wolf (2004):
    :math:`K_c = e^{a_c} K^{b_c}`. Means and season are Gaussian with prior variances that are
    maximized, and are integrated out. All parts have the same eigenvectors, so that the panel
    separates into modes, each with a Kalman filter: the likelihood is exact.

    Candidates are compared by ``log marginal likelihood - k / 2 log N``, with ``k`` parameters and
    ``N`` values (BIC), the evidence; that of the largest is chosen. All are fitted alike: from one
    estimate of the covariance of the arms, which each improves by as many steps of EM. That of the
    chosen one begins as the estimate about its season. Beside it the table shows how a model that
    is fitted to the first three quarters of the log predicts the last: by the log density one step
    ahead, with the same penalty, and by the error of a forecast.

    Args:
        values: ``T x n``; NaN where there is no value, with ``drop_missing``.
        times: ``T``, increasing in each segment, in units of ``time_unit``.
        segments: ``T`` labels of independent segments, such as days; None: one segment. The season
            is then what the segments have in common as a function of time, if they have the same
            range of times.
        season: Period of the season, in units of ``time_unit``, or the season of another fit; None:
            no season. ``"auto"`` compares none with a day and a week, where ``time_unit`` is a
            duration such as "5min" and the log spans two of them, and with a day whose profile
            differs between working days and weekends, where ``origin`` is given too and the log has
            both; else with the three periods at which the leading modes have most more power than
            drift explains, of at most a quarter of the log.
        temporal_kernel: A temporal kernel, or several for a sum of components: their parameters
            that require gradients are learned, on copies. ``"auto"`` compares exponential decay,
            Matérn-3/2 and two exponential decays, each of which can be named alone:
            ``"exponential"``, ``"matern32"``, ``"two-scales"``. None: exponential decay.
        time_unit: Name of the unit of time.
        origin: Timestamp of time zero in local time, such as ``"2012-03-01 00:00"``; None if the
            times are of no calendar.
        drop_missing: Whether times at which an arm has no value are left out, which ``messages``
            then says.
        on_step: Called with the name of each step, for a progress bar.

    Returns:
        A :class:`PanelFit`, with the table of candidates, the reason of the choice, and messages.

    Raises:
        BotorchTensorDimensionError: if shapes do not agree.
        InputDataError: if a value is infinite, or missing without ``drop_missing``, times do not
            increase within a segment, there are fewer than 8 times or 2 arms, the values are
            constant, or nearly so, or the period is longer than half the log, or shorter than two
            gaps.
        TypeError: if a kernel in ``temporal_kernel`` is no temporal kernel.
        ValueError: if ``temporal_kernel``, ``season`` or ``origin`` is none of the above.

    Example:
        >>> fit = fit_panel(values, times, temporal_kernel="auto", time_unit="5min")
        >>> tuner = recipes.tv_gp_ucb(**fit.settings(), beta=0.04)
    """
    candidates = candidates_of(temporal_kernel)
    values, times = as_numbers("values", values), as_numbers("times", times)
    labels = torch.zeros(times.shape) if segments is None else segments
    if values.ndim != 2 or {times.shape, labels.shape} != {values.shape[:1]}:
        raise BotorchTensorDimensionError(
            f"Expected values T x n, T times and T labels of segments. Got shapes "
            f"{tuple(values.shape)}, {tuple(times.shape)} and {tuple(labels.shape)}."
        )
    messages: list[str] = []
    reason_of_few = ""
    full = ~values.isnan().any(dim=1)
    if drop_missing and not full.all():
        left_out = f"{int((~full).sum())} of {len(full)} times"
        messages.append(f"{left_out} have an arm without a value, and are left out of the fit.")
        reason_of_few = (
            f", since {left_out} have an arm without a value; resample to a longer step, or "
            "leave out the arms that have most gaps"
        )
        values, times, labels = values[full], times[full], labels[full]
    blocks = _checked_segments(values, times, labels, reason_of_few)
    unit = outcome_unit(values.flatten().double())
    gap = float(np.median(np.concatenate([np.diff(t) for t, _ in blocks])))
    scaled = [(t / gap, y / unit) for t, y in blocks]
    compared = Comparison(scaled, candidates, gap, on_step)
    zero = None if origin is None else _local_timestamp(origin)
    on_step("covariance and drift")
    seasons = seasons_of(season, compared, time_unit, zero, segments is not None, messages)
    if seasons and season != "auto" and len(candidates) == 1:
        # Nothing is compared, so that the covariance can be that about the season at once.
        bases = [compared.fit_base(seasons[0])]
    else:
        bases = [] if seasons and season != "auto" else [compared.flat]
        if seasons:
            on_step("season")
            bases.append(max(map(compared.fit_season, seasons), key=compared.evidence))
    compared.fit_all(bases)
    scores = compared.scores(unit) if len(compared.fits) > 1 else {}
    shift = compared.data.num_values * math.log(unit)
    rows = [
        PanelCandidate(
            *key,
            fit.num_parameters,
            fit.log_likelihood - shift,
            compared.evidence(fit) - shift,
            *scores.get(key, (None, None, None)),
        )
        for key, fit in compared.fits.items()
    ]
    chosen, reason = choose(rows)
    fit = compared.fit_final((chosen.temporal_kernel, chosen.has_season))
    return PanelFit(
        time_unit=time_unit,
        num_times=compared.data.num_times,
        mean=fit.mean * unit,
        noise_variance=math.exp(fit.theta[-1]) * unit**2,
        log_likelihood=fit.log_likelihood - shift,
        evidence=rows,
        chosen=rows.index(chosen),
        reason=reason,
        messages=[*messages, *messages_of(fit, compared.data)],
        mode_forecast=mode_forecast(fit, compared.data, unit, gap, segments is not None),
    )


def _local_timestamp(origin: datetime | str) -> pd.Timestamp:
    """Return a timestamp without its zone, as clocks there show it."""
    import pandas as pd

    try:
        zero = from_iso(pd.Series([origin])).iloc[0]
    except ValueError:
        zero = pd.NaT
    if zero is pd.NaT:
        raise ValueError(f"Expected a timestamp {ISO_8601} as origin. Got {origin!r}.")
    return zero.tz_localize(None)


def _checked_segments(
    values: Tensor, times: Tensor, labels: Tensor, reason_of_few: str
) -> list[tuple[Array, Array]]:
    """Return times and values of each segment; raise unless they can be fitted."""
    T, n = values.shape
    if T < SHORTEST or n < 2:
        raise InputDataError(
            f"Expected at least {SHORTEST} times and 2 arms, for their covariance. Got {T} times "
            f"and {n} arms{reason_of_few}."
        )
    missing = (~torch.isfinite(values)).nonzero().tolist()
    if missing:
        row, arm = missing[0]
        raise InputDataError(
            f"Expected a finite value of every arm at every time. Got {len(missing)} cells "
            f"without, the first of arm {arm} in row {row}; drop these arms, or, by drop_missing, "
            "these times."
        )
    check_finite("times", times)
    check_varies(values.flatten())
    blocks = []
    for label in torch.unique(labels):
        rows = labels == label
        t = times[rows].double().numpy()
        if len(t) < 2 or (np.diff(t) <= 0).any():
            raise InputDataError(
                "Expected two times at least in every segment, increasing. Got "
                f"{len(t)} in segment {label:g}{'' if len(t) < 2 else ', not increasing'}."
            )
        blocks.append((t, values[rows].double().numpy()))
    return blocks
