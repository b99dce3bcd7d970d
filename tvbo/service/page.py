"""Pages of runs for people: HTML that needs no other host, with pictures within."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tvbo.evaluation import DiagnosisError, diagnose
from tvbo.fit.drift_estimate import DriftEstimate
from tvbo.optimizers import GPOptimizer, Optimizer
from tvbo.plotting.diagnosis import draw_errors
from tvbo.plotting.figure import BEST, FAILED, MODEL, OPEN, TOLD, new_figure
from tvbo.plotting.history import in_units, plot_actions, plot_half_life, plot_history
from tvbo.plotting.slices import BAND, Slices
from tvbo.recommendation import Recommendation
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

MAX_SLICES = 8
"""Number of parameters, those that matter most, along which the model is drawn."""

CLASSES = {TOLD: "told", FAILED: "failed", MODEL: "model", OPEN: "open", BEST: "best"}
"""Names of the colors of things in the style sheet, which has others for the dark."""

_drawing = Lock()


class Picture(NamedTuple):
    """A picture with what it shows."""

    heading: str
    svg: Markup
    caption: str


def overview(runs: Mapping[str, RunRows], refresh: int = 0) -> str:
    """Return a page with a line for each run.

    Args:
        runs: The rows of each run by the name under which it is served: its own page is expected at
            ``runs/NAME``, relative to this one.
        refresh: Seconds after which a browser asks for the page again; 0 never.
    """
    lines = []
    for name, rows in runs.items():
        newest = next((each for each in reversed(rows.trials) if each["state"] == "told"), None)
        words = "" if newest is None else _outcomes(rows, newest)
        lines.append(
            {"name": name, "counts": rows.counts, "newest": words, "changed": _changed(rows)}
        )
    return _render("overview.html", runs=lines, refresh=refresh)


def run_page(name: str, rows: RunRows, optimizer: Optimizer, refresh: int = 0) -> str:
    """Return the page of a run: what is recommended, how fast it drifts, what matters, and why.

    Args:
        name: What the run is called.
        rows: Its rows.
        optimizer: The optimizer of the run; it is not modified.
        refresh: Seconds after which a browser asks for the page again; 0 for a file.
    """
    values: dict[str, Any] = {"name": name, "refresh": refresh, "counts": rows.counts}
    values |= {"optimizer": type(optimizer).__name__, "changed": _changed(rows)}
    values |= {"opened": _listed(rows, ("open",)), "lost": _listed(rows, ("failed", "expired"))}
    values |= {"best": None, "sentences": [], "why_none": "Nothing was observed yet."}
    slices = drift = None
    if not isinstance(optimizer, GPOptimizer):
        values["why_none"] = "This rule has no model of its own to ask."
    elif rows.counts["told"] > 0:
        numbers = rows.trials[-1]["context"]
        context = None if optimizer.contexts is None else torch.tensor(numbers)
        slices, drift = Slices(optimizer, None, context), optimizer.drift()
        values |= _now(slices, drift)
    values["pictures"] = list(_pictures(rows, slices, drift))
    try:
        diagnosis = diagnose(rows)
        values["sentences"] = diagnosis.sentences()
        if diagnosis.calibration.num_outcomes > 0:
            figure = new_figure(WIDTH, HEIGHT)
            draw_errors(figure.subplots(), diagnosis)
            caption = (
                "Each outcome less what was predicted; of a right model, 95 % are in the band."
            )
            values["pictures"].append(Picture("Calibration", _svg(figure), caption))
    except DiagnosisError:
        pass  # It says that there is nothing to diagnose.
    return _render("run.html", **values)


def _now(slices: Slices, drift: DriftEstimate) -> dict[str, Any]:
    """Return what the model says of the present, in words."""
    optimizer, best = slices.optimizer, slices.best
    several = optimizer.goals.num_objectives > 1
    front = optimizer.front(slices.context) if several else []
    row = best.labels.to_row(best.X, best.t, best.context)
    context = {} if best.context is None else dict(list(row.items())[1 + len(_action(best)) :])
    return {
        "best": {"action": _action(best), "lines": list(_expected(best))},
        "front": [
            {name: _number(value) for name, value in each.to_row().items()} for each in front
        ],
        "at": _number(row["t"]),
        "context": {each: _number(value) for each, value in context.items()},
        "drift": _drift(drift),
        "importance": optimizer.importance(),
        "outcome": optimizer.labels.outcome_columns[0],
    }


def _action(best: Recommendation) -> dict[str, str]:
    row = best.labels.to_row(best.X, best.t, None)
    return {name: _number(value) for name, value in row.items() if name != "t"}


def _expected(best: Recommendation) -> Iterator[str]:
    """Yield what is expected of an action, a line each."""
    first, *_ = best.labels.outcome_columns
    for name, (mean, deviation) in {
        first: (best.mean, best.standard_deviation),
        **best.others,
    }.items():
        low, high = mean - BAND * deviation, mean + BAND * deviation
        yield f"Expected {name}: {mean:.4g}, with 95 % between {low:.4g} and {high:.4g}."
    if best.feasibility is not None:
        yield f"It meets the constraints with a probability of {best.feasibility:.0%}."
    if best.probability_of_success is not None:
        yield f"It does not fail with a probability of {best.probability_of_success:.0%}."


def _drift(drift: DriftEstimate) -> dict[str, Any]:
    """Return how fast it drifts, in words."""
    if not 0 < drift.half_life < float("inf"):
        return {"headline": "No drift is known", "lines": [f"Form: {drift.form}."]}
    lines = [
        "After this time, what was observed tells half as much about what is now (form: "
        f"{drift.form})."
    ]
    if drift.half_life_interval is not None:
        low, high = drift.half_life_interval
        interval = in_units(f"{_number(low)} to {_number(high)}", drift.time_unit)
        lines.insert(0, f"95 % interval: {interval}.")
    if drift.forgetting_rate is not None:
        lines.append(f"Forgetting rate: {drift.forgetting_rate:.3g} per unit of time.")
    half_life = in_units(_number(drift.half_life), drift.time_unit)
    return {"headline": f"Half-life {half_life}", "lines": lines}


def _pictures(
    rows: RunRows, slices: Slices | None, drift: DriftEstimate | None
) -> Iterator[Picture]:
    """Yield the pictures of a run, most of which need a model."""
    if not rows.trials:
        return
    limits, best = {}, None
    if slices is not None:
        goals, best = slices.optimizer.goals, slices.best
        limits = {goals.names[place]: (low, high) for place, low, high in goals.limits}
    drawn: dict[str, Any] = {"newest": NEWEST_DRAWN, "width": WIDTH}
    yield Picture(
        "Outcomes over time",
        _svg(plot_history(rows, limits=limits, height=HEIGHT, **drawn)),
        "Dots: outcomes. Bars: what was predicted of each before it came, with its 95 % band, "
        "noise included. Below, trials without an outcome.",
    )
    yield Picture(
        "Actions over time",
        _svg(plot_actions(rows, best, **drawn)),
        "Dots: what was tried. Line: the best of the newest actions tried, as each ask judged it. "
        "Star: what is recommended now.",
    )
    if slices is None or drift is None:
        return
    yield Picture(
        "Drift",
        _svg(plot_half_life(rows, drift, height=HEIGHT, **drawn)),
        "Time after which an outcome tells half as much, as each ask knew it. Right: what is known "
        "now, with its 95 % interval.",
    )
    matter = slices.optimizer.importance()
    axes = sorted(slices.axes, key=lambda axis: -matter[axis.name])[:MAX_SLICES]
    for each in axes:
        figure = new_figure(WIDTH, HEIGHT)
        slices.draw(figure.subplots(), each)
        caption = (
            "Expected now, with its 95 % band, through what is recommended (dashed). Dots: "
            "outcomes, the newer the darker, whose other parameters differ. Shaded: probably not "
            "allowed, or fails; crosses did."
        )
        yield Picture(f"Along {each.name}", _svg(figure), caption)
    if (pair := slices.main_pair) is not None:
        figure = new_figure(WIDTH, HEIGHT + 0.6)
        slices.draw(figure.subplots(), *pair)
        caption = (
            "Expected now, over the two numbers that matter most, with the others as recommended "
            "(star). Shaded: probably not allowed, or fails; crosses did."
        )
        yield Picture(f"Over {pair[0].name} and {pair[1].name}", _svg(figure), caption)


def _listed(rows: RunRows, states: tuple[str, ...]) -> list[dict[str, str]]:
    """Return the newest trials in some states as rows of a table, the newest first."""
    found = [each for each in rows.trials if each["state"] in states]
    return [
        {"trial": str(each["id"]), "time": _number(rows.time_of(each)).replace("T", " ")}
        | {name: _number(value) for name, value in each["parameters"].items()}
        | {"state": f"{each['state']}, {_date(each['ended_at'] or each['opened_at'])}"}
        | {"note": each["reason"] or (each["key"] and f"key {each['key']}") or ""}
        for each in found[: -NEWEST_LISTED - 1 : -1]
    ]


def _outcomes(rows: RunRows, trial: Mapping[str, Any]) -> str:
    pairs = zip(rows.outcome_names, rows.outcomes[trial["id"]][0], strict=True)
    return ", ".join(f"{name} {value:.4g}" for name, value in pairs)


def _changed(rows: RunRows) -> str:
    return f"{_date(rows.run['changed_at'])} by {rows.run['changed_by']}"


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _number(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"


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
