"""What benchmarks share: options, runs in workers, seconds in turns, tables, figures as JSON."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

Record = Mapping[str, Any]
Columns = Mapping[str, str | Callable[[Any], str]]
"""Heading of each column, and how its cells are made of a record: a format string such as
``"{regret:.2f} ± {error:.2f}"``, or a function."""

COMPARED: Columns = {
    "method": "{method}",
    "mean regret": "{regret:.3f} ± {error:.3f}",
    "more than the first, paired": "{more:.3f} ± {more_error:.3f}",
}


def parser(description: str | None, **numbers: int) -> argparse.ArgumentParser:
    """Return an argument parser with ``--json`` and an option for each number."""
    made = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    made.add_argument("--json", type=Path, help="save the figures as JSON")
    for name, default in numbers.items():
        made.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    return made


def in_workers(work: Callable[..., Any], jobs: Iterable[Any], workers: int = 1) -> list[Any]:
    """Return ``work`` of each job, in processes of one thread each; in this one if it is alone."""
    jobs = list(jobs)
    torch.set_num_threads(1)
    if workers == 1:
        return [work(job) for job in track(jobs, "runs")]
    with ProcessPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(track(pool.map(work, jobs), "runs", total=len(jobs)))


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of a call."""
    started = clock()
    work()
    return clock() - started


def median_seconds(
    *works: Callable[[], object],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Return the median seconds of functions called in turn, so that load affects all alike."""
    taken = [[seconds(work, clock) for work in works] for _ in range(repeats)]
    return [statistics.median(each) for each in zip(*taken, strict=True)]


def squared_exponential(lengthscale: float, outputscale: float | None = None) -> Kernel:
    """Return a squared exponential kernel, scaled if a variance is given."""
    kernel = RBFKernel().double()
    kernel.lengthscale = lengthscale
    if outputscale is None:
        return kernel
    scaled = ScaleKernel(kernel).double()
    scaled.outputscale = outputscale
    return scaled


def mean_error(values: Sequence[float] | Tensor) -> tuple[float, float]:
    """Return the mean of independent values and its standard error."""
    values = torch.as_tensor(values, dtype=torch.float64)
    return values.mean().item(), values.std().item() / len(values) ** 0.5


def with_error(values: Sequence[float] | Tensor, form: str = ".2f", error_form: str = "") -> str:
    """Return the mean of independent values and its standard error as text."""
    mean, error = mean_error(values)
    return f"{mean:{form}} ± {error:{error_form or form}}"


def compared(regret: Mapping[str, Sequence[float]], **more: Mapping[str, Any]) -> list[dict]:
    """Return a record of each method: its regret by seed, and how much more it is than the first's.

    Args:
        regret: Regret by method, of each seed in the same order.
        **more: Further figures, by method.
    """
    first = torch.tensor(next(iter(regret.values())), dtype=torch.float64)
    records = []
    for method, values in regret.items():
        mean, error = mean_error(values)
        difference, difference_error = mean_error(torch.tensor(values, dtype=torch.float64) - first)
        records.append(
            {"method": method, "regret": mean, "error": error, "regret_by_seed": list(values)}
            | {"more": difference, "more_error": difference_error}
            | {name: figures[method] for name, figures in more.items()}
        )
    return records


def show(
    title: str,
    columns: Columns,
    records: Sequence[Any],
    path: Path | None,
    figures: object = None,
) -> None:
    """Print a table of records, and save them, or other figures, if a path is given."""
    table = Table(title=title)
    for heading in columns:
        table.add_column(heading, justify="right")
    for record in records:
        cells = (
            cell.format_map(record) if isinstance(cell, str) else cell(record)
            for cell in columns.values()
        )
        table.add_row(*cells)
    Console().print(table)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(records if figures is None else figures, indent=2) + "\n")
