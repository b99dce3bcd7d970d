"""Optimizers as bytes.

Reading a pickle runs code. Open only journals that you, or somebody you trust, wrote.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import torch

from tvbo.journal.errors import JournalError

if TYPE_CHECKING:
    from tvbo.optimizers.base import Optimizer


def dump(optimizer: Optimizer) -> bytes:
    """The optimizer without its journal; tensors that share memory go on sharing it.

    Raises:
        JournalError: if something in it has no name that it could be found by again.
    """
    try:
        file = io.BytesIO()
        torch.save(optimizer, file)
    except Exception as error:  # Whatever a user's __getstate__ raises.
        raise JournalError(
            "Expected an optimizer whose functions and classes stand at the top of a module, so "
            "that another process finds them: no lambda, no function within a function. "
            f"Got {type(error).__name__}: {error}.{_hint(str(error))}"
        ) from error
    return file.getvalue()


def load(data: bytes) -> Optimizer:
    """The optimizer that :func:`dump` gave.

    Raises:
        JournalError: if a class or function that it rests on is gone.
    """
    try:
        return torch.load(io.BytesIO(data), weights_only=False)
    except (ImportError, AttributeError) as error:
        raise JournalError(
            "Expected the code that the run was recorded with. Got none of it: "
            f"{error}. Put the module back, under the same name, where Python finds it."
        ) from error
    except Exception as error:
        raise JournalError(
            "Expected an optimizer that this code can read. "
            f"Got {type(error).__name__}: {error}. The classes have changed since."
        ) from error


def _hint(words: str) -> str:
    if not any(name in words for name in ("Kernel.__init__", "register_prior")):
        return ""
    return (
        " GPyTorch keeps such a function for each prior added by register_prior, and for those "
        "given to its periodic, cosine, linear and constant kernels: leave them out."
    )
