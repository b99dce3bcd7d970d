"""Generators, and the only code that draws from the global ones of torch and Python."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import numpy as np
import torch
from torch import Generator

OPTIMIZER_SEED = 0
PROBLEM_SEED = 7_205_759
"""Differs from the optimizers' seed: with the same one, the noise would depend on the actions."""

_LOCK = RLock()
"""Held while the global generators are seeded, one thread at a time."""


def default_generator(generator: Generator | None, seed: int = OPTIMIZER_SEED) -> Generator:
    """Return the given generator, or a new one with a fixed seed, so that runs are reproducible."""
    return torch.Generator().manual_seed(seed) if generator is None else generator


def generator_of(seed: int, number: int) -> Generator:
    """Return the generator of one step of a run, whatever was drawn before it.

    Args:
        seed: Seed of the run.
        number: Number of the step, at least 0.
    """
    word = np.random.SeedSequence([seed, number]).generate_state(1)[0]
    return torch.Generator().manual_seed(int(word))


def copy_of(generator: Generator) -> Generator:
    """Return a generator in the same state; its draws do not advance the given one."""
    return Generator(generator.device).set_state(generator.get_state())


@contextmanager
def seeded(generator: Generator) -> Iterator[None]:
    """Seed the global generators from ``generator`` inside a ``with`` block.

    BoTorch's optimizers and fits draw their starts from torch's, and some values of a category of
    many from Python's. The states of both on the CPU are restored afterwards. Other threads wait,
    which would draw from the same ones.
    """
    seed = draw_seed(generator)
    with _LOCK:
        state, python_state = torch.get_rng_state(), random.getstate()
        try:
            random.seed(seed)
            # ``torch.manual_seed`` formats a stack trace for each kind of device not in use.
            torch.default_generator.manual_seed(seed)
            if torch.cuda.is_initialized():
                torch.cuda.manual_seed_all(seed)
            yield
        finally:
            torch.set_rng_state(state)
            random.setstate(python_state)


def draw_seed(generator: Generator) -> int:
    """Return a seed drawn from ``generator``."""
    return int(torch.randint(2**31 - 1, (1,), generator=generator))
