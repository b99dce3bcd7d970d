"""Simulated delays: how long after a trial its outcome arrives, for ``tvbo.run(..., delay=)``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from botorch.exceptions.errors import InputDataError
from torch import Generator

from tvbo.randomness import default_generator, draw_seed
from tvbo.trial import Trial

DELAY_SEED = 2_718_281
"""Not the seed of optimizers or problems, with whose actions and noise delays would correlate."""

LOSS_SEED = 3_141_592
"""Beside the seed of the delays, with which losses must not go: slow outcomes would be kept."""

DelayFunction = Callable[[Trial], float]
"""Returns how long after ``trial.t`` the outcome of a trial arrives; infinity if it never does."""


class RandomDelay:
    """Independent delays from any distribution, one for each trial number, in the unit of time.

    Trial ``i`` has the ``i``-th draw, whatever the order in which delays are looked up, and however
    often: runs of several algorithms with equal seeds meet the same delays.

    Args:
        distribution: Distribution of SciPy with its parameters, such as ``scipy.stats.expon()``, or
            a function that draws a delay with a generator of torch.
        generator: Source of the delays, which nothing else may draw from; default a fresh one with
            a fixed seed.
        loss_probability: Probability, in [0, 1], that an outcome gets lost, independently of all
            else; the delays of the others are the same for any.

    Raises:
        TypeError: if ``distribution`` is neither.
        ValueError: if ``loss_probability`` lies outside [0, 1].
        InputDataError: at the trial where a draw is negative or NaN.

    Example:
        >>> RandomDelay(scipy.stats.poisson(50), loss_probability=0.05)
        >>> RandomDelay(lambda generator: torch.poisson(torch.tensor(50.0), generator))
        >>> RandomDelay(lambda generator: log[torch.randint(len(log), (), generator=generator)])
    """

    def __init__(
        self, distribution: Any, generator: Generator | None = None, loss_probability: float = 0.0
    ):
        if not (hasattr(distribution, "rvs") or callable(distribution)):
            raise TypeError(
                "Expected a distribution of SciPy or a function of a generator. Got "
                f"{distribution!r}."
            )
        if not 0 <= loss_probability <= 1:
            raise ValueError(f"Expected loss_probability in [0, 1]. Got {loss_probability}.")
        self.distribution = distribution
        self.loss_probability = loss_probability
        self.generator = default_generator(generator, DELAY_SEED)
        self._losses = np.random.default_rng([LOSS_SEED, self.generator.initial_seed()])
        self._drawn: list[float] = []

    def __call__(self, trial: Trial) -> float:
        """Return the time until the outcome of a trial arrives; infinite if it never does."""
        while len(self._drawn) < trial.id:
            if hasattr(self.distribution, "rvs"):
                source = np.random.default_rng(draw_seed(self.generator))
                delay = float(self.distribution.rvs(random_state=source))
            else:
                delay = float(self.distribution(self.generator))
            if not delay >= 0:
                raise InputDataError(f"Expected delays >= 0. Got {delay} from {self.distribution}.")
            is_lost = self._losses.random() < self.loss_probability
            self._drawn.append(math.inf if is_lost else delay)
        return self._drawn[trial.id - 1]
