"""Pages of runs for people: HTML that needs no other host, with pictures within."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tvbo.evaluation import DiagnosisError, diagnose
from tvbo.optimizers import GPOptimizer, Optimizer
from tvbo.plotting.diagnosis import draw_errors
from tvbo.plotting.figure import BEST, FAILED, MODEL, OPEN, TOLD, new_figure
from tvbo.plotting.history import plot_history
from tvbo.plotting.slices import Slices
from tvbo.service import calls
from tvbo.storage import RunRows
from tvbo.terminal import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The ``Content-Security-Policy`` under which the pages are whole."""

WIDTH, HEIGHT = 4.2, 2.5
"""Inches of a picture, whose text is then legible on a phone."""

NEWEST_DRAWN, NEWEST_LISTED = 300, 20
"""Number of trials that are drawn, and listed."""

MAX_PANELS = 8
"""Number of parameters, those that matter most, along which the model is drawn."""

CLASSES = {TOLD: "told", FAILED: "failed", MODEL: "model", OPEN: "open", BEST: "best"}
"""Names of the colors of things in the style sheet, which has others for the dark."""

_drawing = Lock()


def overview(runs: Mapping[str, RunRows], refresh: int = 0) -> str:
    """Return a page with a line for each run.

    Args:
        runs: The rows of each run by the name under which it is served: its own page is expected at
            ``runs/NAME``, relative to this one.
        refresh: Seconds after which a browser asks for the page again; 0 never.
    """
    return _render("overview.html", runs=runs, refresh=refresh)


def run_page(name: str, rows: RunRows, optimizer: Optimizer, refresh: int = 0) -> str:
    """Return the page of a run: what is recommended, how fast it drifts, what matters, and why.

    Args:
        name: What the run is called.
        rows: Its rows.
        optimizer: The optimizer of the run; it is not modified.
        refresh: Seconds after which a browser asks for the page again; 0 for a file.
    """
    values: dict[str, Any] = {"name": name, "rows": rows, "refresh": refresh, "best": None}
    values |= {"opened": _listed(rows, "open"), "lost": _listed(rows, "failed", "expired")}
    values |= {"sentences": (), "has_model": isinstance(optimizer, GPOptimizer)}
    pictures: dict[str, list[Markup]] = {"slices": [], "calibration": []}
    drawn: dict[str, Any] = {"newest": NEWEST_DRAWN, "width": WIDTH}
    if isinstance(optimizer, GPOptimizer) and rows.counts["told"] > 0:
        numbers = rows.trials[-1].context
        context = None if optimizer.contexts is None else torch.tensor(numbers)
        slices, drift, goals = Slices(optimizer, None, context), optimizer.drift(), optimizer.goals
        drawn |= {"best": slices.best, "drift": drift}
        drawn["limits"] = {goals.names[place]: ends for place, *ends in goals.limits}
        front = optimizer.front(context) if goals.num_objectives > 1 else []
        values |= {
            "best": calls.outlook(optimizer, slices.best),
            "front": [each.to_row() for each in front],
            "drift": calls.estimate(drift),
            "importance": slices.importance,
        }
        pictures["slices"] += _slices(slices)
    pictures["history"] = [_svg(plot_history(rows, **drawn))] if rows.trials else []
    try:
        diagnosis = diagnose(rows)
        values["sentences"] = diagnosis.sentences()
        if diagnosis.calibration.num_outcomes > 0:
            figure = new_figure(WIDTH, HEIGHT)
            draw_errors(figure.subplots(), diagnosis)
            pictures["calibration"].append(_svg(figure))
    except DiagnosisError:
        pass  # There is nothing to diagnose yet.
    return _render("run.html", pictures=pictures, **values)


def _slices(slices: Slices) -> Iterator[Markup]:
    """Yield the pictures of the model."""
    *lines, last = slices.panels
    for panel in [*lines[: MAX_PANELS - 1], last]:
        figure = new_figure(WIDTH, HEIGHT)
        slices.draw(figure.subplots(), *panel)
        yield _svg(figure)


def _listed(rows: RunRows, *states: str) -> list[dict[str, Any]]:
    """Return the newest trials in some states as rows of a table, the newest first."""
    found = [each for each in rows.trials if each.state in states]
    return [
        {"trial": each.id, "time": str(rows.time_of(each)).replace("T", " "), **each.parameters}
        | {"state": each.state, "since": _date(each.ended_at or each.opened_at)}
        | {"note": each.reason or (each.key and f"key {each.key}") or ""}
        for each in found[: -NEWEST_LISTED - 1 : -1]
    ]


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _shown(value: object) -> object:
    """Return a value as text that can be seen; what is markup stays so."""
    if isinstance(value, float):
        return f"{value:.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"
    # Names, keys and reasons are text of others: escaped, and without control characters.
    return visible(value) if type(value) is str else value


def _svg(figure: Figure) -> Markup:
    """Return a figure as SVG within HTML, in the colors of its style sheet."""
    from matplotlib import rc_context

    file = io.StringIO()
    # Settings of Matplotlib are those of the process.
    with _drawing, rc_context({"svg.fonttype": "none"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r' (width|height)="[0-9.]+pt"', "", text, count=2)
    for color, name in CLASSES.items():
        text = text.replace(color.lower(), f"var(--{name})")
    return Markup(text.replace("#000000", "currentColor"))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tvbo.service", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["date"] = _date
    return environment


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)
