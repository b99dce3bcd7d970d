"""What ``tvbo fit`` and ``tvbo backtest`` share: options, seasons, the forms that were compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tvbo.cli.app import note, print_rows
from tvbo.logs import PanelFit
from tvbo.logs.forms import DriftComparison
from tvbo.logs.reading import TableError, read_log
from tvbo.logs.reading.log import LogTable, PanelTable
from tvbo.spaces.times import duration, parse_timedelta

Sep = Annotated[
    str | None,
    typer.Option(help=r"What is between the columns of a CSV file, such as ';', '\t' or '\s+'."),
]
Decimal = Annotated[str | None, typer.Option(help="The decimal point of a CSV file, such as ','.")]
Encoding = Annotated[
    str | None, typer.Option(help="Encoding of a CSV file, such as latin-1 or utf-16.")
]
TimeColumn = Annotated[str | None, typer.Option("--time", help="Column of times, in a long log.")]
RewardColumn = Annotated[
    str | None, typer.Option("--reward", help="Column of rewards, in a long log.")
]
ActionColumns = Annotated[
    str | None, typer.Option("--action", help="Columns of the action, x1,x2, in a long log.")
]
Resample = Annotated[
    str | None, typer.Option(help="Average a panel over steps such as 10min; needs timestamps.")
]
TimeUnit = Annotated[
    str | None,
    typer.Option(help="Unit of time such as 1h. Default: the step, or one near the median gap."),
]
Json = Annotated[Path | None, typer.Option("--json", help="Save the results as JSON.")]
Picture = Annotated[Path | None, typer.Option("--plot", help="Save a picture, FILE.png.")]


TemporalName = Literal["auto", "exponential", "matern32", "two-scales", "independent", "vector"]
Temporal = Annotated[
    TemporalName | None,
    typer.Option(help="Form of drift that is fitted; of a panel with means and season."),
]
Season = Annotated[
    str | None,
    typer.Option(help="Period of the season: 1D, a number of units, auto (default) or none."),
]


def read_long_log(
    log: Path,
    time: str | None,
    reward: str | None,
    action: str | None,
    contexts: Sequence[str] = (),
    **options: Any,
) -> tuple[LogTable, list[str]]:
    """Return a long log and the names of its inputs, and print what became of its rows.

    Raises:
        TableError: if a column is not given, or of :func:`tvbo.logs.reading.read_log`.
    """
    if time is None or reward is None or action is None:
        raise TableError(
            "Expected --time, --reward and --action with column names, for a long log. Got "
            f"--time {time}, --reward {reward}, --action {action}."
        )
    actions = names_of(action)
    table = read_log(log, time, reward, actions, contexts=contexts, **options)
    inputs = [*actions, *contexts]
    note(*table.axis.remarks)
    if table.num_dropped:
        count = table.num_dropped + len(table.lines)
        note(f"{table.num_dropped} of {count} rows have an empty cell and were left out")
    for place, labels in table.categories.items():
        note(f"column '{inputs[place]}' is text: {len(labels)} categories")
    return table, inputs


def names_of(text: str | None) -> list[str]:
    """Return the names in an option such as ``x1,x2``."""
    return [] if text is None else [name.strip() for name in text.split(",")]


def note_on_steps(table: PanelTable) -> None:
    """Print how many rows, or steps of time, of a file are empty."""
    if table.num_dropped:
        note(f"left out: {table.num_dropped} rows, or steps, without a reading")


def print_candidates(compared: PanelFit | DriftComparison) -> None:
    """Print the forms that were compared as a table, if there are several, and what was chosen."""
    if len(compared.evidence) > 1:
        rows = [
            {
                "drift": row.temporal_kernel + " *" * (place == compared.chosen),
                "season": "yes" if row.has_season else "no",
                "parameters": _number(row.num_parameters, ".0f"),
                "evidence": _number(row.evidence, ".1f"),
                "prediction": _number(row.predictive_score, ".4g"),
            }
            for place, row in enumerate(compared.evidence)
        ]
        print_rows("Candidates", rows)
        note(
            "evidence: log marginal likelihood with the penalty of BIC. Prediction: mean log "
            "density of a value of the last quarter of the log by a model of the first three: one "
            "step ahead, of a panel from one random arm at each time."
        )
    note(compared.reason, *compared.messages)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def parse_season(text: str, unit: str) -> float | Literal["auto"] | None:
    """Return the season of an option: ``auto``, ``none``, a duration such as 1D, or a number.

    Args:
        text: The option.
        unit: Unit of time of the panel, in which the period is returned.

    Raises:
        TableError: if it is none of these.
    """
    if text == "auto":
        return "auto"
    if text == "none":
        return None
    return in_units("season", text, unit)


def in_units(option: str, text: str, unit: str) -> float:
    """Return a length of time in units of a panel; a plain number is in these units already.

    Raises:
        TableError: if it is neither, or a duration where the times of the panel are numbers.
    """
    try:
        return float(text)
    except ValueError:
        if (one := duration(unit)) is None:
            raise TableError(
                f"Expected {option} as a number of units, since times are numbers. Got {text!r}."
            ) from None
        return float(parse_timedelta(option, text) / one)


def reject_options(command: typer.Context, where: str, names: str) -> None:
    """Raise if an option was given that does not apply.

    Args:
        command: The command as it was given.
        where: What it does not go with, in words.
        names: Names of the options, with spaces between.

    Raises:
        TableError: naming the first one.
    """
    for name in names.split():
        source = command.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            what = option if command.params[name] is True else f"'{command.params[name]}'"
            raise TableError(f"Expected no {option} with {where}. Got {what}.")
