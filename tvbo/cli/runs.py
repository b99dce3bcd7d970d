"""``tvbo runs`` and ``tvbo backup``: look at the rows of a run, and copy them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy import insert, select

from tvbo.cli.app import (
    Run,
    check_outputs,
    files_of,
    print_rows,
    print_values,
    saving,
    title_of,
    without_password,
)
from tvbo.recorded_trial import RecordedTrial
from tvbo.storage.database import Database, make_tables, metadata
from tvbo.storage.rows import RunRows, read_run

app = typer.Typer()


@app.callback()
def runs() -> None:
    """Look at runs, finished or in progress."""


@app.command()
def show(
    run: Run,
    last: Annotated[int, typer.Option(help="Number of newest trials to show.", min=0)] = 10,
) -> None:
    """Show what was optimized, the number of trials by state, and the newest trials."""
    rows = read_run(run)
    print_values(title_of(rows.name), _summary(rows))
    if newest := rows.trials[max(0, len(rows.trials) - last) :]:
        print_rows("Newest trials", [_row(rows, trial) for trial in newest])


@app.command()
def export(run: Run, csv: Annotated[Path, typer.Option("--csv", help="File to write.")]) -> None:
    """Save the trials as CSV, one row each."""
    from csv import QUOTE_NONNUMERIC

    check_outputs({"--csv": csv}, files_of(run))
    trials = read_run(run).to_frame().rename(columns=_without_formula)
    for name in trials.columns[trials.dtypes.map(lambda dtype: dtype.kind == "O")]:
        trials[name] = trials[name].map(_without_formula)
    with saving(csv) as file:
        # A carriage return in a text would begin a row.
        trials.to_csv(file, index=False, quoting=QUOTE_NONNUMERIC)


@app.command()
def plot(run: Run, out: Annotated[Path, typer.Option("--out", help="File, FILE.png.")]) -> None:
    """Plot outcomes over time with what was predicted of them, and trials without one."""
    from tvbo.plotting import save_figure
    from tvbo.plotting.history import plot_history

    check_outputs({"--out": out}, files_of(run), "--out")
    rows = read_run(run)
    title = f"{title_of(rows.name)}: {rows.class_name}"
    with saving(out) as file:
        save_figure(plot_history(rows, title), file)


def backup(
    run: Run, copy: Annotated[str, typer.Argument(help="The file to write, or an empty database.")]
) -> None:
    """Copy a run as it is now, also while another command writes.

    From a file to a database of a server, or the other way, it moves a run.
    """
    is_file = "://" not in copy
    if is_file:
        check_outputs({"COPY": Path(copy)}, files_of(run))
    source = Database(run)
    with source.transaction() as connection:
        source.check(connection)
        with saving(Path(copy)) if is_file else nullcontext(copy) as target:
            if isinstance(target, Path):
                target.touch()
            with Database(target).transaction(writes=True) as copied:
                make_tables(copied, without_password(copy))
                for table in metadata.sorted_tables:
                    if rows := connection.execute(select(table)).mappings().all():
                        copied.execute(insert(table), [dict(row) for row in rows])


def _without_formula(cell: object) -> object:
    """Return a cell as text that no spreadsheet runs, after OWASP's page on CSV injection."""
    is_text = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{cell}" if is_text else cell


def _summary(rows: RunRows) -> dict[str, object]:
    run = rows.run
    values: dict[str, object] = {"optimizer": rows.class_name, "seed": run["seed"]}
    if rows.trials:
        values["parameters"] = ", ".join(rows.trials[-1].parameters)
    values["trials"] = ", ".join(f"{count} {state}" for state, count in rows.counts.items())
    begun = datetime.fromtimestamp(run["begun_at"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return values | {"begun": f"{begun}, by tvbo {run['tvbo']}", "changed by": run["changed_by"]}


def _row(rows: RunRows, trial: RecordedTrial) -> dict[str, object]:
    """Return a trial as a row of a table."""
    row = {"trial": trial.id, "t": rows.time_of(trial), **trial.parameters}
    Y: Sequence[float | None] = trial.Y or [None] * len(rows.outcome_names)
    row |= {"state": trial.state, **dict(zip(rows.outcome_names, Y, strict=True))}
    return row | {"reason": trial.reason}
