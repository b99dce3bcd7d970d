"""Fits of drift as tables on the console."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from tvbo.cli.app import console, note
from tvbo.logs import DriftFit
from tvbo.logs.groups import GroupedDriftFit
from tvbo.logs.panel_season import duration


def print_drift_fit(fit: DriftFit) -> None:
    """Print a fit as a table, and its messages."""
    low, high = fit.forgetting_rate_interval
    table = Table(title="Drift of the log", show_header=False)
    table.add_row("forgetting rate ε", f"{fit.forgetting_rate:.4g} per {fit.time_unit}")
    table.add_row(f"{fit.level:.0%} interval", f"{low:.4g} to {high:.4g}")
    table.add_row("correlation half-life", _in_time(fit.half_life, fit.time_unit))
    if fit.noise_variance is not None:
        table.add_row("noise variance σ²", f"{fit.noise_variance:.4g}")
    others = [(v, rate) for v, rate in fit.forgetting_rate_by_noise if v != fit.noise_variance]
    if others:
        lines = [f"{rate:.4g} with {variance:.4g}" for variance, rate in others]
        table.add_row("ε with another σ²", Text("\n".join(lines)))
    table.add_row("prior mean", f"{fit.mean:.4g}")
    if fit.lengthscales:
        table.add_row("length-scales", ", ".join(f"{x:.4g}" for x in fit.lengthscales))
    if fit.outputscale is not None:
        table.add_row("signal variance", f"{fit.outputscale:.4g}")
    table.add_row("log likelihood", f"{fit.log_likelihood:.2f}")
    p_value = f"{fit.lr_pvalue:.3g}" if fit.lr_pvalue >= 1e-300 else "below 1e-300"
    table.add_row("test of ε = 0", f"likelihood ratio {fit.lr_statistic:.4g}, p = {p_value}")
    block = _in_time(fit.block_length * fit.round_length, fit.time_unit)
    table.add_row("block length N of R-GP-UCB", f"{fit.block_length} rounds = {block}")
    table.add_row("observations", f"{fit.n_observations}")
    if fit.outliers:
        table.add_row("outliers", f"{len(fit.outliers)}")
    console.print(table)
    note(*fit.messages)


def print_grouped_fit(fit: GroupedDriftFit) -> None:
    """Print the rates of the groups and of all together as a table, and what they say."""
    level, unit = fit.together.level, fit.together.time_unit
    head = ("group", "rows", f"ε per {unit}", f"{level:.0%} interval", "half-life", "outliers")
    table = Table(*head, title="Drift by group")
    for row in fit.to_frame().itertuples():
        table.add_row(
            row.group,
            str(row.rows),
            f"{row.forgetting_rate:.4g}",
            f"{row.low:.4g} to {row.high:.4g}",
            f"{row.half_life:.4g}",
            str(row.outliers),
        )
    console.print(table)
    for label, part in fit.groups.items():
        note(*(f"{label}: {message}" for message in part.messages))
    note(*fit.messages)


def _in_time(amount: float, unit: str) -> str:
    """Format an amount of time in its unit, and in hours if the unit is one of pandas."""
    text = f"{amount:.4g} × {unit}"
    if (step := duration(unit)) is None:
        return text
    hours = amount * step.total_seconds() / 3600
    return f"{text} = {hours:.3g} h"
