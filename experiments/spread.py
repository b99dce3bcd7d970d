"""Jobs of a reproduction, run serially or on an executor, with equal results."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import track

from tvbo.terminal import progress_lines

Job = TypeVar("Job")
Result = TypeVar("Result")


def progress_bar(steps: Sequence[Job], label: str, shown: bool) -> Iterator[Job]:
    """Yield the steps, with a progress bar on stderr, or lines where there is no terminal."""
    console = Console(stderr=True)
    is_seen = console.is_terminal or console.is_jupyter
    bar = track(steps, description=label, console=console, disable=not (shown and is_seen))
    with progress_lines(label, shown and not is_seen) as say:
        for number, step in enumerate(bar):
            say(f"{number} of {len(steps)} done")
            yield step


def spread(
    function: Callable[[Job], Result],
    jobs: Sequence[Job],
    executor: Executor | None,
    label: str,
    progress: bool,
) -> list[Result]:
    """Run all jobs.

    Each job computes with one thread of torch, since the order of summation, and so the last
    digits, depends on the number of threads. A job must draw from its own seeds only. Then the
    results are those of a serial run, bit for bit on machines of the same kind.

    Args:
        function: Function that runs a job. With an executor, the function, the jobs and the results
            are pickled.
        jobs: The jobs.
        executor: Executor that runs the jobs; None runs them serially. If one fails,
            those not yet begun are cancelled.
        label: Description of the progress bar.
        progress: Whether to show a progress bar.

    Returns:
        The results, in the order of the jobs.

    Raises:
        BrokenExecutor: if the executor lost jobs, such as one of Dask whose scheduler is gone.
    """
    with _one_thread():
        if executor is None:
            return [function(job) for job in progress_bar(jobs, label, shown=progress)]
        # Bytes, since tensors as they are would pass through shared memory, one open file for each.
        shared = pickle.dumps(function)
        futures = [executor.submit(_do, shared, pickle.dumps(job)) for job in jobs]
        try:
            done = progress_bar(futures, label, shown=progress)
            return [pickle.loads(future.result()) for future in done]
        except CancelledError as error:
            raise BrokenExecutor(f"The executor cancelled a job. {error}".rstrip()) from error
        finally:
            for future in futures:
                future.cancel()


def worker_processes(workers: int) -> ProcessPoolExecutor:
    """Return an executor of processes on this machine, spawned, not forked.

    Raises:
        ValueError: if ``workers`` is not positive.
    """
    if workers < 1:
        raise ValueError(f"Expected workers >= 1. Got {workers}.")
    return ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_end_at_interrupt
    )


def _do(function: bytes, job: bytes) -> bytes:
    """Run a pickled job in a worker process, which may also do other work."""
    with _one_thread():
        return pickle.dumps(pickle.loads(function)(pickle.loads(job)))


def _end_at_interrupt() -> None:
    """Let a worker end without a traceback at Ctrl-C, which a terminal sends to all processes."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
