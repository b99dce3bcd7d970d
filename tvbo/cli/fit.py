"""``tvbo fit``: fit the drift rate of a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from json import dumps
from pathlib import Path
from typing import Annotated

import typer
from gpytorch.kernels import MaternKernel, RBFKernel
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tvbo.cli.output import check_outputs, check_picture, print_drift_fit, progress_console, saving
from tvbo.cli.panel import TemporalName, fit_panel_file, print_panel_fit
from tvbo.fitting import DriftFit, fit_drift, outcome_unit, panel_rows, steps
from tvbo.fitting.drift_fit import scaled_kernel
from tvbo.kernels import CovarianceMatrixKernel, empirical_covariance
from tvbo.plotting import plot_drift_fit, save_figure
from tvbo.tables import LogTable, TableError, read_log, read_panel


class KernelName(StrEnum):
    """Kernels over the actions of a long log."""

    rbf = "rbf"
    matern = "matern"


BASE_KERNELS = {KernelName.rbf: RBFKernel, KernelName.matern: MaternKernel}


def fit(
    log: Annotated[Path, typer.Argument(help="CSV file, plain or .gz.")],
    panel: Annotated[
        bool,
        typer.Option(
            "--panel",
            help="First column the times, every other column an arm; the kernel is "
            "the panel's own empirical covariance.",
        ),
    ] = False,
    time: Annotated[str | None, typer.Option(help="Column of times, in a long log.")] = None,
    reward: Annotated[str | None, typer.Option(help="Column of rewards, in a long log.")] = None,
    action: Annotated[
        str | None, typer.Option(help="Columns of the action, x1,x2, in a long log.")
    ] = None,
    reward_variance: Annotated[
        str | None, typer.Option(help="Column of known noise variances, in a long log.")
    ] = None,
    kernel: Annotated[
        KernelName | None,
        typer.Option(help="Kernel over the actions of a long log; default rbf."),
    ] = None,
    resample: Annotated[
        str | None, typer.Option(help="Average a panel over steps such as 10min; needs timestamps.")
    ] = None,
    rows: Annotated[str | None, typer.Option(help="Rows a:b, from 0, after resampling.")] = None,
    time_unit: Annotated[
        str | None,
        typer.Option(help="Unit of time such as 1h. Default: the step, or the commonest gap."),
    ] = None,
    noise_variance: Annotated[
        float | None, typer.Option(help="Fix the noise variance; default: learn it.")
    ] = None,
    level: Annotated[float, typer.Option(help="Confidence of the interval.")] = 0.95,
    temporal: Annotated[
        TemporalName | None,
        typer.Option(
            help="Fit the model of a panel, with means, season and this form of drift; auto "
            "compares them."
        ),
    ] = None,
    season: Annotated[
        str | None,
        typer.Option(help="Period of the season: 1D, a number of units, auto (default) or none."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Save the model of a panel, FILE.npz, for PanelFit.load.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Save the fit as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Save a picture, FILE.png.")] = None,
) -> None:
    """Learn how fast the objective drifts from a log, with an interval.

    A long log has one row per observation: tvbo fit LOG.csv --time t --reward y --action x1,x2.
    A panel has one row per time and one column per arm: tvbo fit PANEL.csv --panel. Cells of a
    panel may be empty, those of a long log may not.
    """
    check_outputs({"--json": json, "--plot": plot, "--save": save}, [log])
    check_picture("--plot", plot)
    model = None
    if not panel:
        _reject_options("a long log", temporal=temporal, season=season, save=save)
    elif temporal is not None or season is not None or save is not None:
        model = fit_panel_file(
            log, resample, rows, time_unit, temporal or TemporalName.auto, season or "auto"
        )
    with _fitting() as on_step:
        if panel:
            _reject_options(
                "--panel",
                time=time,
                reward=reward,
                action=action,
                reward_variance=reward_variance,
                kernel=kernel,
            )
            result = _fit_panel(log, resample, rows, time_unit, noise_variance, level, on_step)
        else:
            _reject_options("a long log", resample=resample)
            if time is None or reward is None or action is None:
                columns = {"--time": time, "--reward": reward, "--action": action}
                missing = [name for name, column in columns.items() if column is None]
                raise TableError(
                    "Expected --panel, or --time, --reward and --action with column names. "
                    f"Got no --panel and no {', '.join(missing)}."
                )
            table = read_log(
                log,
                time,
                reward,
                [name.strip() for name in action.split(",")],
                reward_variance,
                rows,
                time_unit,
            )
            result = _fit_log(table, kernel or KernelName.rbf, noise_variance, level, on_step)
    print_drift_fit(result)
    if model is not None:
        print_panel_fit(model)
    if json is not None:
        with saving(json) as file:
            if model is None:
                result.to_json(file)
            else:
                both = {**result.to_dict(), "panel": model.to_dict()}
                file.write_text(dumps(both, indent=2, allow_nan=False) + "\n")
    if model is not None and save is not None:
        with saving(save) as file:
            model.save(file)
    if plot is not None:
        with saving(plot) as file:
            save_figure(plot_drift_fit(result), file)


KERNEL_IS_ESTIMATED = (
    "The interval takes the kernel as known, but it is this panel's own empirical covariance: the "
    "fewer half-lives the panel spans, the more the interval is too narrow."
)

NUM_STARTS = 4
"""Number of starts of the maximization."""


@contextmanager
def _fitting() -> Iterator[Callable[[str], None]]:
    """Show a progress bar on stderr, and yield a function that reports the current step."""
    order = steps(NUM_STARTS)
    columns = (
        SpinnerColumn(),
        TextColumn("fitting: {task.description}"),
        BarColumn(),
        TextColumn("step {task.fields[number]} of {task.total}"),
        TimeElapsedColumn(),
    )
    on_a_terminal = progress_console.is_interactive
    with Progress(
        *columns, console=progress_console, transient=True, disable=not on_a_terminal
    ) as progress:
        task = progress.add_task("reading", total=len(order), number=0)

        def on_step(step: str) -> None:
            done = order.index(step)
            progress.update(task, description=step, completed=done, number=done + 1)

        yield on_step


def _fit_panel(
    log: Path,
    resample: str | None,
    rows: str | None,
    time_unit: str | None,
    noise_variance: float | None,
    level: float,
    on_step: Callable[[str], None],
) -> DriftFit:
    table = read_panel(log, resample, rows, time_unit, allow_gaps=True)
    train_X, train_Y = panel_rows(table.values, table.axis.times)
    # Covariances are squares, which overflow or underflow for outcomes far from one.
    unit = outcome_unit(train_Y)
    values = table.values / unit
    result = fit_drift(
        train_X,
        train_Y,
        covar_module=CovarianceMatrixKernel(empirical_covariance(values) * unit**2),
        noise_variance=noise_variance,
        mean=values.nanmean().item() * unit,
        time_unit=table.axis.unit,
        level=level,
        num_starts=NUM_STARTS,
        on_step=on_step,
    )
    return replace(result, messages=[*result.messages, KERNEL_IS_ESTIMATED])


def _fit_log(
    table: LogTable,
    kernel: KernelName,
    noise_variance: float | None,
    level: float,
    on_step: Callable[[str], None],
) -> DriftFit:
    return fit_drift(
        table.train_X,
        table.Y,
        table.Yvar,
        covar_module=scaled_kernel(BASE_KERNELS[kernel], table.actions, table.Y),
        noise_variance=noise_variance,
        time_unit=table.axis.unit,
        level=level,
        num_starts=NUM_STARTS,
        on_step=on_step,
    )


def _reject_options(where: str, **options: str | Path | None) -> None:
    """Raise if an option was given that does not apply."""
    for name, value in options.items():
        if value is not None:
            raise TableError(f"Expected no --{name.replace('_', '-')} with {where}. Got '{value}'.")
