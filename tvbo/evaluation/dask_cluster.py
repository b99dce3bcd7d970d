"""Executor of a Dask cluster, for evaluations on several machines."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor
from contextlib import contextmanager

CONNECT_SECONDS = 10.0
"""Seconds to wait for the scheduler to answer."""


@contextmanager
def dask_executor(address: str, timeout: float = CONNECT_SECONDS) -> Iterator[Executor]:
    """Connect to a Dask cluster and return an executor whose tasks run on its workers.

    If a worker dies, the scheduler gives its task to another one. A task that kills several workers
    (Dask's ``allowed-failures``, by default 3) fails.

    A cancelled task goes on in its worker. Evaluations that may hang need a time limit of their
    own, in the function.

    If you have a ``distributed.Client`` already, use ``client.get_executor(pure=False)``; without
    ``pure=False``, Dask reuses the result of a task that looks the same.

    Args:
        address: Address of the scheduler, such as ``"tcp://10.0.0.5:8786"``. Its workers need this
            package, in the same version.
        timeout: Seconds to wait for the scheduler to answer.

    Raises:
        ModuleNotFoundError: if the extra ``dask`` is not installed.
        ConnectionError: if no scheduler answers at the address.
        BrokenExecutor: in place of Dask's ``KilledWorker`` in the body, if a task killed several
            workers.

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
        # Checked first, since a client with a malformed address leaves a thread behind.
        get_address_host_port(address)
        # Not the default client of this process; the scheduler is not shut down with it.
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
