"""``tvbo report``: the page of a run as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tvbo.cli.app import Run, check_outputs, files_of, saving, title_of
from tvbo.cli.options import Wait
from tvbo.optimizers import Optimizer
from tvbo.service.page import run_page
from tvbo.storage.rows import read_run


def report(
    run: Run,
    html: Annotated[Path, typer.Option("--html", help="File to write, FILE.html.")],
    wait: Wait = 60.0,
) -> None:
    """Save the page of a run: what is recommended, how fast it drifts, what matters, and why.

    The file needs no other, nor a network.
    """
    check_outputs({"--html": html}, files_of(run))
    page = run_page(
        title_of(run), read_run(run, wait), Optimizer.open(run, read_only=True, wait=wait)
    )
    with saving(html) as file:
        file.write_text(page, encoding="utf-8")
