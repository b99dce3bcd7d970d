"""``tvbo diagnose``: whether the model of a recorded run is to be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tvbo.cli.app import Run, check_outputs, check_picture, console, files_of, note, save_files
from tvbo.evaluation import Diagnosis, diagnose
from tvbo.plotting import plot_diagnosis, save_figure


def run_diagnose(
    run: Run,
    save: Annotated[
        Path | None, typer.Option(help="File for a page of pictures, FILE.png.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="File for the figures, as JSON.")] = None,
) -> None:
    """Say whether outcomes came as the model predicted them, and what it learned of the drift."""
    check_outputs({"--save": save, "--json": json}, files_of(run))
    check_picture("--save", save)
    diagnosis = diagnose(run)
    print_diagnosis(diagnosis, run.name)
    title = f"{run.name}: {diagnosis.optimizer}"
    save_files(
        (json, diagnosis.to_json),
        (save, lambda file: save_figure(plot_diagnosis(diagnosis, title), file)),
    )


def print_diagnosis(diagnosis: Diagnosis, name: str) -> None:
    """Print the figures of a diagnosis as a table, and its sentences."""
    calibration = diagnosis.calibration
    low, high = calibration.coverage_interval
    newest = diagnosis.trials[-1]
    table = Table(title=f"Diagnosis of {name}", show_header=False)
    table.add_row("optimizer", diagnosis.optimizer)
    counts = [f"{number} {state}" for state, number in diagnosis.counts.items() if number]
    table.add_row("trials", ", ".join(counts))
    table.add_row("outcomes judged", str(len(calibration)))
    if len(calibration) > 0:
        table.add_row("in the 95 % band", f"{calibration.coverage:.1%} ({low:.1%} to {high:.1%})")
        table.add_row("mean error", f"{calibration.mean:.3g} predictive deviations")
        table.add_row("root mean square error", f"{calibration.deviation:.3g}")
        table.add_row("correlation of errors", f"{calibration.lag_correlation:.3g}")
    table.add_row("form of drift", newest.form)
    for parameter, value in newest.parameters.items():
        table.add_row(parameter.replace("_", " "), f"{value:.4g}")
    table.add_row("observations held", str(newest.model_size))
    console.print(table)
    for sentence in diagnosis.sentences():
        console.print(sentence, highlight=False, soft_wrap=True)
    note(*diagnosis.messages)
