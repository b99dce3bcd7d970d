"""How many threads linear algebra uses."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache

from threadpoolctl import ThreadpoolController

SMALL = 500
"""Number of rows up to which one thread is faster than several, which wait for one another."""


def threads_for(num_rows: int) -> AbstractContextManager[object]:
    """Return a context in which linear algebra has one thread if its matrices are small.

    As in BoTorch's ``gen_candidates_scipy``, the threads are those of the process.

    Args:
        num_rows: Number of rows of the matrices.
    """
    if num_rows > SMALL:
        return nullcontext()
    limit: AbstractContextManager[object] = _controller().limit(limits=1)
    return limit


@cache
def _controller() -> ThreadpoolController:
    """Return the controller of the libraries that are loaded; to find them takes milliseconds."""
    return ThreadpoolController()
