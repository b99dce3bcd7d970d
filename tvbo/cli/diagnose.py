"""``tvbo diagnose`` and ``report``: whether the model of a run is to be trusted, and its page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tvbo.cli.app import Run, check_outputs, files_of, print_values, save_files, say, title_of
from tvbo.cli.options import Wait
from tvbo.evaluation import Diagnosis, diagnose
from tvbo.optimizers import Optimizer
from tvbo.plotting import plot_diagnosis, save_figure
from tvbo.service.page import run_page
from tvbo.storage import read_run


def run_diagnose(
    run: Run,
    save: Annotated[
        Path | None, typer.Option(help="File for a page of pictures, FILE.png.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="File for the figures, as JSON.")] = None,
) -> None:
    """Say whether outcomes came as the model predicted them, and what it learned of the drift."""
    check_outputs({"--save": save, "--json": json}, files_of(run), "--save")
    diagnosis = diagnose(run)
    print_diagnosis(diagnosis, title_of(run))
    title = f"{title_of(run)}: {diagnosis.optimizer}"
    save_files(
        (json, diagnosis.to_json),
        (save, lambda file: save_figure(plot_diagnosis(diagnosis, title), file)),
    )


def print_diagnosis(diagnosis: Diagnosis, name: str) -> None:
    """Print the figures of a diagnosis as a table, and its sentences."""
    calibration, newest = diagnosis.calibration, diagnosis.trials.iloc[-1]
    low, high = calibration.coverage_interval
    counts = [f"{number} {state}" for state, number in diagnosis.counts.items() if number]
    values: dict[str, object] = {
        "optimizer": diagnosis.optimizer,
        "trials": ", ".join(counts),
        "outcomes judged": calibration.num_outcomes,
    }
    if calibration.num_outcomes > 0:
        values |= {
            "in the 95 % band": f"{calibration.coverage:.1%} ({low:.1%} to {high:.1%})",
            "mean error": f"{calibration.mean:.3g} predictive deviations",
            "root mean square error": f"{calibration.deviation:.3g}",
            "correlation of errors": f"{calibration.lag_correlation:.3g}",
        }
    values["form of drift"] = newest.form
    learned = diagnosis.hyperparameters.iloc[-1].dropna()
    values |= {name.replace("_", " "): value for name, value in learned.items()}
    print_values(f"Diagnosis of {name}", values | {"observations held": newest.model_size})
    for sentence in diagnosis.sentences():
        say(sentence)


def report(
    run: Run,
    html: Annotated[Path, typer.Option("--html", help="File to write, FILE.html.")],
    wait: Wait = 60.0,
) -> None:
    """Save the page of a run: what is recommended, how fast it drifts, what matters, and why.

    The file needs no other, nor a network.
    """
    check_outputs({"--html": html}, files_of(run))
    optimizer = Optimizer.open(run, read_only=True, wait=wait)
    page = run_page(title_of(run), read_run(run, wait), optimizer)
    save_files((html, lambda file: file.write_text(page, encoding="utf-8")))
