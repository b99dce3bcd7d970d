"""Pages of runs for people: HTML that needs no other host, with pictures within."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tvbo.optimizers import GPOptimizer
from tvbo.storage.rows import RunRows
from tvbo.terminal import visible

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The ``Content-Security-Policy`` under which the pages are whole."""


def overview(runs: Mapping[str, RunRows], refresh: int = 0) -> str:
    """Return a page with a line for each run.

    Args:
        runs: The rows of each run by the name under which it is served: its own page is expected at
            ``runs/NAME``, relative to this one.
        refresh: Seconds after which a browser asks for the page again; 0 never.
    """
    return _render("overview.html", runs=runs, refresh=refresh)


def run_page(name: str, rows: RunRows, optimizer: GPOptimizer, refresh: int = 0) -> str:
    """Return the page of a run: what is recommended, how fast it drifts, what matters, and why.

    Args:
        name: What the run is called.
        rows: Its rows.
        optimizer: The optimizer of the run; it is not modified.
        refresh: Seconds after which a browser asks for the page again; 0 for a file.
    """
    return _render("run.html", name=name, rows=rows, refresh=refresh)


@cache
def _environment() -> Environment:
    # Names, keys and reasons are text of others: escaped, and without control characters.
    return Environment(
        loader=PackageLoader("tvbo.service", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)
