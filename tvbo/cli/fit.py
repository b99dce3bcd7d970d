"""``tvbo fit``: fit the drift rate of a log."""

from __future__ import annotations

import math
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from json import dumps
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from gpytorch.kernels import MaternKernel, RBFKernel

from tvbo.cli import panel as shared
from tvbo.cli.app import announced, check_outputs, note, print_values, save_files, say, working
from tvbo.evaluation import dask_executor
from tvbo.logs import DriftFit, fit_drift, fit_drift_by, fit_panel
from tvbo.logs.groups import GroupedDriftFit
from tvbo.logs.outliers import clipped
from tvbo.logs.parameters import scaled_kernel
from tvbo.logs.reading import TableError, read_panel
from tvbo.logs.reading.files import CsvOptions
from tvbo.logs.reading.log import LogTable
from tvbo.logs.recommend import recommend as recommended
from tvbo.plotting import plot_drift_fit, plot_panel_fit, save_figure
from tvbo.serialize import to_data

KernelName = Literal["rbf", "matern"]

FLAGS = {"true": 1.0, "false": 0.0}
"""The numbers that a column of flags is read as."""


def fit(
    command: typer.Context,
    log: Annotated[Path, typer.Argument(help="CSV file, plain or .gz, or Parquet.")],
    panel: Annotated[
        bool,
        typer.Option(
            "--panel", help="First column the times, every other column an arm; cells may be empty."
        ),
    ] = False,
    time: shared.TimeColumn = None,
    reward: shared.RewardColumn = None,
    action: shared.ActionColumns = None,
    context: Annotated[
        str | None,
        typer.Option(
            help="Columns of the context, c1,c2, in a long log; text is categories. c1=VALUE says "
            "for which value to recommend; default that of the last row."
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(help="Column of groups in a long log: a rate for each, and one for all."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that fit the groups of --by.")] = 1,
    dask: Annotated[
        str | None, typer.Option(help="Scheduler of Dask whose workers fit the groups of --by.")
    ] = None,
    keep_outliers: Annotated[
        bool, typer.Option("--keep-outliers", help="Fit a long log with its outliers.")
    ] = False,
    reward_variance: Annotated[
        str | None, typer.Option(help="Column of known noise variances, in a long log.")
    ] = None,
    kernel: Annotated[
        KernelName | None, typer.Option(help="Kernel over the actions of a long log; default rbf.")
    ] = None,
    resample: shared.Resample = None,
    rows: Annotated[str | None, typer.Option(help="Rows a:b, from 0, after resampling.")] = None,
    time_unit: shared.TimeUnit = None,
    noise_variance: Annotated[
        float | None, typer.Option(help="Fix the noise variance; default: learn it.")
    ] = None,
    level: Annotated[float, typer.Option(help="Confidence of the interval.")] = 0.95,
    sep: shared.Sep = None,
    decimal: shared.Decimal = None,
    encoding: shared.Encoding = None,
    temporal: shared.Temporal = None,
    season: shared.Season = None,
    recommend: Annotated[
        bool,
        typer.Option(
            "--recommend", help="Say what to do next by a long log, and how long it holds."
        ),
    ] = False,
    at: Annotated[
        str | None,
        typer.Option(help="Time of the recommendation; default one round after the last row."),
    ] = None,
    json: shared.Json = None,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Save the fit with its kernel, for DriftFit.load; with --by, that of all. With "
            "--panel, the model of the panel, for PanelFit.load."
        ),
    ] = None,
    plot: shared.Picture = None,
) -> None:
    """Learn how fast the objective drifts from a log, with an interval.

    A long log has one row per observation: tvbo fit LOG.csv --time t --reward y --action x1,x2.
    Rows far from what the others predict are left out, and named by their line. A panel has one
    row per time and one column per arm: tvbo fit PANEL.csv --panel; its cells may be empty.
    """
    check_outputs({"--json": json, "--save": save, "--plot": plot}, [log], "--plot")
    csv: CsvOptions = {"sep": sep, "decimal": decimal, "encoding": encoding}
    if panel:
        shared.reject_options(
            command,
            "--panel",
            "time reward action context by workers dask keep_outliers reward_variance kernel "
            "noise_variance recommend at",
        )
        panel_table = read_panel(log, resample, rows, time_unit, **csv)
        shared.note_on_steps(panel_table)
        axis = panel_table.axis
        asked: dict[str, Any] = {"temporal_kernel": temporal or "auto", "level": level}
        asked["season"] = shared.parse_season(season or "auto", axis.unit)
        asked |= {"time_unit": axis.unit, "origin": axis.origin, "arms": panel_table.arms}
        with working("fitting the panel") as on_step:
            model = fit_panel(panel_table.values, axis.times, on_step=on_step, **asked)
        model = replace(model, messages=[*model.messages, *axis.remarks])
        print_values("Model of the panel", model.summary())
        shared.print_candidates(model)
        note(model.tuning.reason)
        save_files(
            (json, model.to_json),
            (save, model.save),
            (plot, lambda file: save_figure(plot_panel_fit(model), file)),
        )
        return
    shared.reject_options(command, "a long log", "resample season")
    shared.reject_options(command, "a fit without --recommend", "" if recommend else "at")
    if by is not None:
        shared.reject_options(command, "--by", "temporal recommend at")
    else:
        shared.reject_options(command, "a log without --by", "workers dask")
    values = dict(part.partition("=")[::2] for part in shared.names_of(context))
    if any(values.values()) and not recommend:
        raise TableError(f"Expected --recommend with a value in --context. Got {context!r} alone.")
    part = {"rows": rows, "time_unit": time_unit, "reward_variance": reward_variance, "group": by}
    table, inputs = shared.read_long_log(log, time, reward, action, list(values), **part, **csv)
    advised = recommend_at(table, inputs, values, at) if recommend else None
    options = {"noise_variance": noise_variance, "level": level, "outliers": not keep_outliers}
    with fit_executor(workers, dask) as executor:
        result = fit_log(table, kernel or "rbf", executor, temporal_kernel=temporal, **options)
    whole = result.together if isinstance(result, GroupedDriftFit) else result
    if isinstance(result, GroupedDriftFit):
        print_values("Drift by group", result.summary())
        note(*(f"{name}: {each}" for name, fit in result.groups.items() for each in fit.messages))
        note(*result.messages)
    print_values("Drift of the log", whole.summary())
    note(*whole.messages)
    figures = result.to_dict()
    if whole.comparison is not None:
        shared.print_candidates(whole.comparison)
    if advised is not None:
        advice = recommended(whole, table.train_X, table.Y, table.Yvar, **advised)
        figures["recommendation"] = to_data(advice)
        words = advice.describe(inputs, table.categories)
        say(f"next, at {table.axis.describe(advice.t)}: {words}")
    text = dumps(figures, indent=2, allow_nan=False) + "\n"
    save_files(
        (json, lambda file: file.write_text(text)),
        (save, whole.save),
        (plot, lambda file: save_figure(plot_drift_fit(whole), file)),
    )


def recommend_at(
    table: LogTable, inputs: list[str], values: dict[str, str], at: str | None
) -> dict[str, Any]:
    """Return options of :func:`tvbo.logs.recommend.recommend`, read before the log is fitted.

    Args:
        table: The log.
        inputs: Names of its columns, those of the context last.
        values: Values of the context by name; empty where it is that of the last row.
        at: The time as it was given, or None.

    Raises:
        TableError: if the time is before the last row or none, or a value none of its column.
    """
    newest = table.actions[int(table.axis.times.argmax())].tolist()
    context = {}
    for name, text in values.items():
        place = inputs.index(name)
        labels = table.categories.get(place)
        try:
            number = newest[place]
            if text:
                number = float(labels.index(text) if labels else FLAGS.get(text.lower(), text))
            if not math.isfinite(number):
                raise ValueError
        except ValueError as error:
            known = f"one of {', '.join(labels)}" if labels else "a number"
            raise TableError(f"Expected {known} for context '{name}'. Got {text!r}.") from error
        context[place] = number
    t = None if at is None else table.axis.number("--at", at)
    if t is not None and t < table.axis.times.max():
        raise TableError(f"Expected --at from the time of the last row on. Got {at!r}.")
    of_log = {"categories": list(table.categories), "row_numbers": table.lines}
    return {"t": t, "context": context, **of_log}


def fit_executor(workers: int, dask: str | None) -> AbstractContextManager[Executor | None]:
    """Return an executor of processes, or of a cluster; that of None where there is neither.

    Raises:
        TableError: if both are given.
    """
    if dask is not None and workers > 1:
        raise TableError(f"Expected --workers or --dask. Got both, {workers} and {dask!r}.")
    if dask is not None:
        return dask_executor(dask)
    if workers == 1:
        return nullcontext()
    # Not forked, since a lock of torch could be held.
    return ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (1,))


@announced()
def fit_log(
    table: LogTable, kernel: KernelName = "rbf", executor: Executor | None = None, **options: Any
) -> DriftFit | GroupedDriftFit:
    """Fit the drift of a long log, or of each of its groups, with options of ``fit_drift``."""
    # An outlier would make the initial scale too large.
    Y = clipped(table.Y) if options.get("outliers", True) else table.Y
    base = RBFKernel if kernel == "rbf" else MaternKernel
    options["covar_module"] = scaled_kernel(base, table.actions, Y, list(table.categories))
    options |= {"time_unit": table.axis.unit, "row_numbers": table.lines}
    if table.groups is None:
        return fit_drift(table.train_X, table.Y, table.Yvar, **options)
    log = table.train_X, table.Y, table.groups, table.Yvar
    return fit_drift_by(*log, executor=executor, **options)
