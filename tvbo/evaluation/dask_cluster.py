"""Evaluations on more than one machine: an executor of a Dask cluster, by the address of it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor
from contextlib import contextmanager

CONNECT_SECONDS = 10.0
"""How long to wait for the scheduler to answer."""


@contextmanager
def dask_executor(address: str, timeout: float = CONNECT_SECONDS) -> Iterator[Executor]:
    """An executor whose work is done by the workers of a Dask cluster.

    A worker that dies costs nothing but time: the scheduler gives its work to another one. Work
    that takes several workers with it (Dask's ``allowed-failures``, by default 3) fails instead.

    Dask does not say whether work has begun, and a task that was cancelled goes on in its worker.
    Evaluations that may hang need a limit of their own, in the function.

    Whoever has a ``distributed.Client`` already takes ``client.get_executor(pure=False)``; without
    ``pure=False``, Dask takes work that looks the same for work that is done.

    Args:
        address: Of the scheduler, such as ``"tcp://10.0.0.5:8786"``. Its workers need this package,
            in the same version.
        timeout: Seconds to wait for its answer.

    Raises:
        ModuleNotFoundError: if the extra ``dask`` is not installed.
        ConnectionError: if no scheduler answers at the address.
        BrokenExecutor: in place of Dask's ``KilledWorker`` in the body, if workers died of their
            work.

    Example:
        >>> with dask_executor("tcp://10.0.0.5:8786") as executor:  # doctest: +SKIP
        ...     history = run_async(train, optimizer, executor, num_trials=200, max_pending=16)
    """
    try:
        from distributed import Client
        from distributed.comm import get_address_host_port
        from distributed.scheduler import KilledWorker
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Expected the package distributed, which the extra installs: "
            "pip install 'botorch-tvbo[dask]'. Got none."
        ) from error
    try:
        # Before the client looks at it, which would leave a thread behind.
        get_address_host_port(address)
        # Not for other code of this process, and no scheduler that others use is shut down.
        client = Client(address, timeout=timeout, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise ConnectionError(
            "Expected the address of a running Dask scheduler, such as tcp://10.0.0.5:8786. "
            f"Got {address!r}: {error}."
        ) from error
    with client:
        executor = client.get_executor(pure=False)
        try:
            yield executor
        except KilledWorker as error:
            raise BrokenExecutor(f"Dask lost workers by their work: {error}") from error
        finally:
            executor.shutdown(wait=False)
