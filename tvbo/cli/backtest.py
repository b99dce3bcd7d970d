"""``tvbo backtest``: what the algorithms would have cost on a recorded panel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tvbo.cli import panel as shared
from tvbo.cli.app import check_outputs, console, note, print_rows, save_files
from tvbo.cli.fit import fit_log
from tvbo.evaluation import backtest
from tvbo.evaluation.backtesting.backtest import (
    NUM_DRAWS,
    NUM_SIMULATED_TIMES,
    NUM_STARTS,
    simulate_backtest,
)
from tvbo.logs import DriftFit
from tvbo.logs.reading import TableError, read_panel
from tvbo.logs.reading.files import CsvOptions
from tvbo.logs.reading.log import row_range
from tvbo.plotting import plot_backtest, save_figure


def run_backtest(
    command: typer.Context,
    log: Annotated[
        Path, typer.Argument(help="CSV file, plain or .gz, or Parquet: a panel, or a long log.")
    ],
    train: Annotated[
        str | None, typer.Option(help="Training rows a:b, from 0, after resampling.")
    ] = None,
    test: Annotated[
        str | None, typer.Option(help="Rows a:b that are played; default all after --train.")
    ] = None,
    algorithms: Annotated[
        str | None, typer.Option(help="Names, separated by commas; default all.")
    ] = None,
    starts: Annotated[
        int | None, typer.Option(help="Starts of each algorithm; default 5, on a long log 1.")
    ] = None,
    folds: Annotated[
        int, typer.Option(help="Rolling folds: training moves along with what is played.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the first start.")] = 0,
    temporal: shared.Temporal = None,
    season: shared.Season = None,
    block: Annotated[
        str | None,
        typer.Option(
            help="Block of times for standard errors; default by correlation, a day at least."
        ),
    ] = None,
    resample: shared.Resample = None,
    time_unit: shared.TimeUnit = None,
    unit: Annotated[str, typer.Option(help="Unit of the values, for the verdict.")] = "",
    time: shared.TimeColumn = None,
    reward: shared.RewardColumn = None,
    action: shared.ActionColumns = None,
    sep: shared.Sep = None,
    decimal: shared.Decimal = None,
    encoding: shared.Encoding = None,
    horizon: Annotated[
        int, typer.Option(help="Long log: number of times that are played.")
    ] = NUM_SIMULATED_TIMES,
    draws: Annotated[int, typer.Option(help="Long log: number of functions drawn.")] = NUM_DRAWS,
    json: shared.Json = None,
    csv: Annotated[
        Path | None, typer.Option(help="Save a row per algorithm, start and time.")
    ] = None,
    plot: shared.Picture = None,
) -> None:
    """Fit algorithms on the first rows of a panel, and play them on the rest.

    A panel has one row per time and one column per arm; larger values are better. At each time an
    algorithm takes one arm and observes its value. Regret is the best value of that time minus this
    one. A long log, with --time, --reward and --action, has one action at a time: algorithms are
    then played on functions drawn from the model that is fitted to it, which is a simulation.
    """
    check_outputs({"--json": json, "--csv": csv, "--plot": plot}, [log], "--plot")
    names = None if algorithms is None else shared.names_of(algorithms)
    written: CsvOptions = {"sep": sep, "decimal": decimal, "encoding": encoding}
    if time is None and reward is None and action is None:
        shared.reject_options(command, "a panel", "horizon draws")
        if train is None:
            raise TableError(
                "Expected --train a:b, the training rows of a panel; or --time, --reward and "
                "--action of a long log. Got none."
            )
        panel = read_panel(log, resample, None, time_unit, **written)
        shared.note_on_steps(panel)
        length, time_unit = len(panel.values), panel.axis.unit
        result = backtest(
            panel.values,
            panel.axis.times,
            names,
            train=row_range(train, length),
            test=None if test is None else row_range(test, length),
            origin=panel.axis.origin,
            season=shared.parse_season(season or "auto", time_unit),
            temporal_kernel=temporal or "auto",
            folds=folds,
            starts=NUM_STARTS if starts is None else starts,
            block_length=None if block is None else shared.in_units("--block", block, time_unit),
            time_unit=time_unit,
            arms=panel.arms,
            unit=unit,
            seed=seed,
        )
        result = replace(result, messages=[*result.messages, *panel.axis.remarks])
    else:
        shared.reject_options(command, "a long log", "test folds temporal season resample block")
        table, _ = shared.read_long_log(
            log, time, reward, action, rows=train, time_unit=time_unit, **written
        )
        fit = fit_log(table)
        assert isinstance(fit, DriftFit)  # Without groups.
        count = 1 if starts is None else starts
        size: dict[str, Any] = {"horizon": horizon, "draws": draws, "starts": count}
        result = simulate_backtest(fit, table.train_X, names, unit=unit, seed=seed, **size)
    in_unit = f", {unit}" if unit else ""
    frame = result.to_frame().map("{:.4g}".format, na_action="ignore").reset_index()
    print_rows(
        f"Mean regret{in_unit}: {len(result.times)} times, "
        f"{max(map(len, result.regret.values()))} starts, {len(result.blocks.unique())} blocks; by "
        f"how much {result.subject} is better",
        frame.rename(columns=lambda name: name.replace("_", " ")).to_dict("records"),
    )
    console.print(result.verdict, soft_wrap=True, highlight=False)
    note(*result.messages)
    save_files(
        (json, result.to_json),
        (csv, result.to_csv),
        (plot, lambda file: save_figure(plot_backtest(result), file)),
    )
