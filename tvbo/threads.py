"""How many threads linear algebra uses."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

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
    return _controller(len(sys.modules)).limit(limits=1)


@lru_cache(maxsize=1)
def _controller(num_modules: int) -> ThreadpoolController:
    """Return the controller of the libraries that are loaded; to find them takes milliseconds.

    They are looked for again where modules were imported since, which may have brought others.
    """
    return ThreadpoolController()
