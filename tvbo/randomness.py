"""Generators are passed in; what draws from torch's global one is confined here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from botorch.utils.sampling import manual_seed
from torch import Generator

OPTIMIZER_SEED = 0
PROBLEM_SEED = 7_205_759
"""Not that of optimizers: with one seed for both, noise would be a function of the actions."""


def default_generator(generator: Generator | None, seed: int = OPTIMIZER_SEED) -> Generator:
    """The generator given, or a fresh one with a fixed seed, so that a run can be repeated."""
    return torch.Generator().manual_seed(seed) if generator is None else generator


def copy_of(generator: Generator) -> Generator:
    """A generator in the same state, whose draws leave the given one as it is."""
    return Generator(generator.device).set_state(generator.get_state())


@contextmanager
def seeded(generator: Generator) -> Iterator[None]:
    """Run code that draws from torch's global generator on a seed taken from ours.

    BoTorch's optimizers and fits start from global random numbers. Inside this context those come
    from ``generator``; afterwards the global state is as it was.
    """
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
    with manual_seed(seed):
        yield
