"""Simulated delays: how long after a trial its outcome arrives, for ``tvbo.run(..., delay=)``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from torch import Generator, Tensor

from tvbo.randomness import default_generator, draw_seed
from tvbo.trial import Trial

DELAY_SEED = 2_718_281
"""Not the seed of optimizers or problems, with whose actions and noise delays would correlate."""

LOSS_SEED = 3_141_592
"""Not the seed of delays, with which losses would correlate: slow outcomes would be kept."""

DelayFunction = Callable[[Trial], float]
"""Returns how long after ``trial.t`` the outcome of a trial arrives; infinity if it never does."""


@dataclass(eq=False)
class RandomDelay:
    """Independent delays from any distribution, one for each trial number, in the unit of time.

    Trial ``i`` has the ``i``-th draw, whatever the order in which delays are looked up, and however
    often: runs of several algorithms with equal seeds meet the same delays.

    Args:
        distribution: Distribution of SciPy with its parameters, such as ``scipy.stats.expon()``, or
            a function that draws a delay with a generator of torch.
        generator: Source of the delays, which nothing else may draw from; default a fresh one with
            a fixed seed.

    Raises:
        TypeError: if ``distribution`` is neither.
        InputDataError: at the trial where a draw is negative or NaN.

    Example:
        >>> RandomDelay(scipy.stats.poisson(50))
        >>> RandomDelay(lambda generator: torch.poisson(torch.tensor(50.0), generator))
        >>> RandomDelay(lambda generator: log[torch.randint(len(log), (), generator=generator)])
    """

    distribution: Any
    generator: Generator | None = None

    def __post_init__(self) -> None:
        if not (hasattr(self.distribution, "rvs") or callable(self.distribution)):
            raise TypeError(
                "Expected a distribution of SciPy or a function of a generator. Got "
                f"{self.distribution!r}."
            )
        self.generator = default_generator(self.generator, DELAY_SEED)
        self._drawn: list[float] = []

    def __call__(self, trial: Trial) -> float:
        """Return the time until the outcome of a trial arrives; infinite if it never does."""
        while len(self._drawn) < trial.id:
            self._drawn.append(self._draw())
        return self._drawn[trial.id - 1]

    def _draw(self) -> float:
        assert self.generator is not None
        if hasattr(self.distribution, "rvs"):
            source = np.random.default_rng(draw_seed(self.generator))
            delay = float(self.distribution.rvs(random_state=source))
        else:
            delay = float(self.distribution(self.generator))
        if not delay >= 0:
            raise InputDataError(f"Expected delays >= 0. Got {delay} from {self.distribution}.")
        return delay


class LossyDelay:
    """Delays of which some are infinite: those outcomes get lost, independently of all else.

    Args:
        delay: Delay of the outcomes that arrive, as of :func:`run`.
        probability: Probability that an outcome gets lost, in [0, 1].
        generator: Source of the losses, which nothing else may draw from; default a fresh one with
            a fixed seed.

    Raises:
        ValueError: if ``probability`` lies outside [0, 1], or the generators of delays and losses
            are in one state, so that losses would go with the delays.

    Example:
        >>> LossyDelay(RandomDelay(scipy.stats.poisson(50)), probability=0.05)
    """

    def __init__(
        self,
        delay: DelayFunction | float,
        probability: float,
        generator: Generator | None = None,
    ):
        if not 0 <= probability <= 1:
            raise ValueError(f"Expected probability in [0, 1]. Got {probability}.")
        self.delay, self.probability = delay, probability
        self.generator = default_generator(generator, LOSS_SEED)
        other = getattr(delay, "generator", None)
        if other is not None and torch.equal(self.generator.get_state(), other.get_state()):
            raise ValueError(
                "Expected a generator of their own for losses. Got one in the state of the delay's."
            )
        self._uniform = RandomDelay(_uniform, self.generator)

    def __call__(self, trial: Trial) -> float:
        """Return infinity, or the delay, which is the same for any probability."""
        if self._uniform(trial) < self.probability:
            return math.inf
        return self.delay(trial) if callable(self.delay) else self.delay


def _uniform(generator: Generator) -> Tensor:
    return torch.rand((), dtype=torch.float64, generator=generator)
