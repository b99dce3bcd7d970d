"""``tvbo runs``: inspect a journal without executing anything from it."""

from __future__ import annotations

from csv import QUOTE_NONNUMERIC
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvbo.cli.app import Run, check_outputs, files_of, note, print_values, saving
from tvbo.plotting import save_figure
from tvbo.plotting.runs import plot_run
from tvbo.spaces.labels import Labels
from tvbo.storage import JournalReader, trials_of

if TYPE_CHECKING:
    import pandas as pd

app = typer.Typer(help="Look at journaled runs: Optimizer.record, Optimizer.open.")

NEWEST = 20
"""Number of outcomes that stand for the present."""

STATES = ("told", "open", "failed", "expired", "skipped")


@app.callback()
def runs() -> None:
    """Look at journaled runs, finished or in progress."""


@app.command()
def show(
    run: Run,
    last: Annotated[int, typer.Option(help="Number of newest events to show.", min=0)] = 10,
) -> None:
    """Show what was optimized, the number of trials by state, and the newest outcomes."""
    with JournalReader(run) as journal:
        trials = trials_of(journal)
        _print_summary(journal, trials)
        if newest := list(journal.events(after=max(0, journal.num_good - last))):
            print_values("Newest events", {str(seq): event for seq, event in newest})
        _warn_of_damage(journal)


@app.command()
def export(
    run: Run,
    csv: Annotated[Path, typer.Option("--csv", help="File to write.")],
) -> None:
    """Save the trials as CSV, one row each; of a damaged journal, the readable ones."""
    check_outputs({"--csv": csv}, files_of(run))
    with JournalReader(run) as journal:
        trials = trials_of(journal)
        _warn_of_damage(journal)
    trials = trials.rename(columns=_without_formula)
    for name in trials.columns[trials.dtypes.map(lambda dtype: dtype.kind == "O")]:
        trials[name] = trials[name].map(_without_formula)
    with saving(csv) as file:
        # A carriage return in a text would begin a row.
        trials.to_csv(file, index=False, quoting=QUOTE_NONNUMERIC)


def _without_formula(cell: object) -> object:
    """Return a cell as text that no spreadsheet runs, after OWASP's page on CSV injection."""
    is_text = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{cell}" if is_text else cell


@app.command()
def plot(
    run: Run,
    out: Annotated[Path, typer.Option("--out", help="File to write, FILE.png.")],
) -> None:
    """Plot the outcomes over time, and the trials without one."""
    check_outputs({"--out": out}, files_of(run), "--out")
    with JournalReader(run) as journal:
        title = f"{run.name}: {_class_name(journal)}"
        trials = trials_of(journal)
        _warn_of_damage(journal)
    with saving(out) as file:
        save_figure(plot_run(trials, title, journal.labels.outcome_columns[0]), file)


def _print_summary(journal: JournalReader, trials: pd.DataFrame) -> None:
    rows = {
        "optimizer": _class_name(journal),
        "search space": journal.meta.get("search space", "unknown"),
        "contexts": journal.meta.get("contexts", "unknown"),
        "begun": _date(journal.sessions[0][1] if journal.sessions else None),
        "last event": _date(journal.written_at),
        "opened for writing": f"{len(journal.sessions)} times",
        "events": f"{journal.num_good}",
    }
    counts = trials.state.value_counts()
    rows["trials"] = ", ".join(f"{counts.get(state, 0)} {state}" for state in STATES)
    observed = trials[trials.state == "told"]
    if len(observed):
        # Under drift, the best outcome of all may be of a time long past.
        newest = observed.sort_values("t", kind="stable", na_position="first").tail(NEWEST)
        outcomes = journal.labels.outcome_columns
        means = [f"mean {newest[name].mean():.6g}" for name in outcomes]
        if journal.labels.outcomes:
            means = [f"{name} {mean}" for name, mean in zip(outcomes, means, strict=True)]
        rows[f"newest {len(newest)} outcomes"] = ", ".join(means)
        if len(outcomes) == 1:
            values = newest[outcomes[0]]
            best = values.idxmin() if journal.minimize else values.idxmax()
            rows["best of these"] = _best(newest.loc[best], values[best], journal.labels)
    rows["journal"] = "whole" if journal.damage is None else "damaged"
    print_values(journal.path.name, rows)


def _best(trial: pd.Series, outcome: float, labels: Labels) -> str:
    import pandas as pd

    words = f"{outcome:.6g}, trial {trial.trial}"
    if pd.isna(trial.t):
        # The record of its ask is in the damaged part of the journal.
        return words + ", opened before the journal"
    if labels.actions is None:
        X = [f"{value:.4g}" for name, value in trial.items() if name.startswith("action_")]
        action = f"X = [{', '.join(X)}]"
    else:
        action = ", ".join(f"{name} = {_number(trial[name])}" for name in labels.actions.names)
    return f"{words} at t = {_number(trial.t)}, {action}"


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _class_name(journal: JournalReader) -> str:
    return journal.meta.get("optimizer", "unknown").rsplit(".", 1)[-1]


def _date(seconds: float | None) -> str:
    if seconds is None:
        return "none"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _warn_of_damage(journal: JournalReader) -> None:
    if journal.damage is not None:
        note(
            f"{journal.path} is damaged: {journal.damage}. What was read are its first "
            f"{journal.num_good} records, which are good; Optimizer.open(..., read_only=True) "
            "brings them back."
        )
