"""``tvbo fit --panel --temporal ...``: fit the model of a panel, and print it."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Literal

from rich.table import Table

from tvbo.cli.app import console, note, working
from tvbo.fitting import PanelFit, fit_panel
from tvbo.fitting.panel_report import in_words, season_in_words
from tvbo.tables import read_panel
from tvbo.tables.log import parse_timedelta


class TemporalName(StrEnum):
    """Forms of drift of a panel."""

    auto = "auto"
    exponential = "exponential"
    matern32 = "matern32"
    two_scales = "two-scales"


def fit_panel_file(
    log: Path,
    resample: str | None,
    rows: str | None,
    time_unit: str | None,
    temporal: TemporalName,
    season: str,
) -> PanelFit:
    """Fit the model of a panel in a file.

    Args:
        log: The file.
        resample: As in :func:`tvbo.tables.read_panel`.
        rows: As there.
        time_unit: As there.
        temporal: Form of the drift.
        season: ``auto``, ``none``, or a period: a duration such as 1D, or units of time.

    Raises:
        TableError: if the file or the season is not as expected.
    """
    table = read_panel(log, resample, rows, time_unit)
    with working("fitting the panel") as on_step:
        return fit_panel(
            table.values,
            table.axis.times,
            season=_season(season, table.axis.unit),
            temporal_kernel=temporal.value,
            time_unit=table.axis.unit,
            origin=table.axis.origin,
            on_step=on_step,
        )


def print_panel_fit(fit: PanelFit) -> None:
    """Print a fit of a panel as tables: the model, and the candidates."""
    table = Table(title="Model of the panel", show_header=False)
    table.add_row("panel", f"{fit.num_arms} arms, {fit.num_times} times")
    table.add_row("common mean", f"{fit.mean:.4g}")
    best = int(fit.arm_means.argmax())
    table.add_row("largest mean", f"{fit.arm_means[best]:.4g}, arm {best}")
    table.add_row("season", season_in_words(fit))
    for kernel, covar in zip(fit.temporal_kernels, fit.covariances, strict=True):
        table.add_row("drift", in_words(kernel, fit.time_unit))
        table.add_row("  its deviation", f"{covar.diagonal().mean().sqrt():.4g}")
    table.add_row("deviation of noise", f"{math.sqrt(fit.noise_variance):.4g}")
    console.print(table)
    if len(fit.evidence) > 1:
        shown = Table(title="Candidates")
        shown.add_column("drift")
        shown.add_column("season")
        for name in ("parameters", "evidence", "next step", "forecast"):
            shown.add_column(name, justify="right")
        for number, row in enumerate(fit.evidence):
            shown.add_row(
                row.temporal_kernel + (" *" if number == fit.chosen else ""),
                "yes" if row.has_season else "no",
                str(row.num_parameters),
                f"{row.evidence:.1f}",
                f"{row.predictive_score:.4f}",
                f"{row.forecast_error:.4g}",
            )
        console.print(shown)
        note(
            "evidence: log marginal likelihood with the penalty of BIC. Next step: mean log "
            "density of the last quarter of the log, one step ahead; forecast: root mean squared "
            "error of a forecast of it; both by a model of the first three quarters."
        )
    note(fit.reason, *fit.messages)


def _season(text: str, unit: str) -> float | Literal["auto"] | None:
    """Return the season that an option says, in units of time."""
    if text == "auto":
        return "auto"
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        pass
    return float(parse_timedelta("season", text) / parse_timedelta("time unit", unit))
