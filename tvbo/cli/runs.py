"""``tvbo runs`` and ``tvbo backup``: look at the rows of a run, and copy them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy import insert, select

from tvbo.cli.app import Run, check_outputs, files_of, print_rows, print_values, saving, title_of
from tvbo.storage.database import Database, metadata
from tvbo.storage.rows import RunRows, read_run

NEWEST = 20
"""Number of outcomes that stand for the present."""

app = typer.Typer()


@app.callback()
def runs() -> None:
    """Look at runs, finished or in progress."""


@app.command()
def show(
    run: Run,
    last: Annotated[int, typer.Option(help="Number of newest trials to show.", min=0)] = 10,
) -> None:
    """Show what was optimized, the number of trials by state, and the newest outcomes."""
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
    title = f"{title_of(rows.name)}: {_class_name(rows)}"
    with saving(out) as file:
        save_figure(plot_history(rows, title), file)


def backup(
    run: Run,
    copy: Annotated[str, typer.Argument(help="The file to write, or an empty database.")],
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
                metadata.create_all(copied)
                for table in metadata.sorted_tables:
                    if rows := connection.execute(select(table)).mappings().all():
                        copied.execute(insert(table), [dict(row) for row in rows])


def _without_formula(cell: object) -> object:
    """Return a cell as text that no spreadsheet runs, after OWASP's page on CSV injection."""
    is_text = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{cell}" if is_text else cell


def _summary(rows: RunRows) -> dict[str, object]:
    run, labels = rows.run, rows.labels
    values: dict[str, object] = {
        "optimizer": _class_name(rows),
        "written by": f"tvbo {run['tvbo']}",
    }
    for name in ("actions", "contexts"):
        if labels[name] is not None:
            values[name] = ", ".join(part["name"] for part in labels[name]["parts"])
    values |= {"begun": _date(run["begun_at"]), "changed": _date(run["changed_at"])}
    values["changed by"] = run["changed_by"]
    values["trials"] = ", ".join(f"{count} {state}" for state, count in rows.counts.items())
    told = sorted(
        (trial for trial in rows.trials if trial["id"] in rows.outcomes),
        key=lambda trial: trial["t"],
    )
    # Under drift, the best outcome of all may be of a time long past.
    if newest := told[-NEWEST:]:
        columns = zip(*(rows.outcomes[trial["id"]][0] for trial in newest), strict=True)
        means = [f"mean {sum(column) / len(newest):.6g}" for column in columns]
        if labels["outcomes"]:
            means = [f"{name} {mean}" for name, mean in zip(labels["outcomes"], means, strict=True)]
        values[f"newest {len(newest)} outcomes"] = ", ".join(means)
        if len(means) == 1:
            sign = -1 if labels["minimize"] else 1
            best = max(newest, key=lambda trial: sign * rows.outcomes[trial["id"]][0][0])
            values["best of these"] = _row(rows, best)
    return values


def _row(rows: RunRows, trial: Mapping[str, Any]) -> dict[str, object]:
    """Return a trial as a row of a table."""
    row = {"trial": trial["id"], "t": rows.time_of(trial), **trial["parameters"]}
    Y = rows.outcomes.get(trial["id"], ([None] * len(rows.outcome_names), []))[0]
    row |= {"state": trial["state"], **dict(zip(rows.outcome_names, Y, strict=True))}
    return row | {"reason": trial["reason"]}


def _class_name(rows: RunRows) -> str:
    return str(rows.run["optimizer"]).rsplit(".", 1)[-1]


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
