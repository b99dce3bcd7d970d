"""Simulated delays: how long after a trial its outcome arrives, for ``tvbo.run(..., delay=)``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Generator, Tensor
from torch.distributions import Distribution

from tvbo.randomness import default_generator, seeded
from tvbo.trial import Trial
from tvbo.values import as_numbers, check_not_negative, check_positive

DELAY_SEED = 2_718_281
"""Not the seed of optimizers or problems, with whose actions and noise delays would correlate."""

LOSS_SEED = 3_141_592
"""Not the seed of delays, with which losses would correlate: slow outcomes would be kept."""


@dataclass(frozen=True)
class Delay(ABC):
    """Independent delays, one for each trial number, in the unit of time.

    Trial ``i`` has the ``i``-th draw, whatever the order in which delays are looked up, and however
    often: runs of several algorithms with equal seeds meet the same delays.

    Args:
        generator: Source of the delays, which nothing else may draw from; default a fresh one with
            a fixed seed.
    """

    _seed: ClassVar[int] = DELAY_SEED
    generator: Generator | None = field(default=None, kw_only=True, repr=False, compare=False)
    _source: Generator = field(init=False, repr=False, compare=False)
    _drawn: list[float] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_source", default_generator(self.generator, self._seed))
        object.__setattr__(self, "generator", self._source)

    def __call__(self, trial: Trial) -> float:
        """Return the time until the outcome of a trial arrives; infinite if it never does."""
        while len(self._drawn) < trial.id:
            self._drawn.append(self._draw())
        return self._drawn[trial.id - 1]

    @property
    @abstractmethod
    def mean(self) -> float | None:
        """Mean delay; infinite if outcomes get lost, None where it is not known."""

    @abstractmethod
    def _draw(self) -> float:
        """Draw the delay of the next trial."""


@dataclass(frozen=True)
class ConstantDelay(Delay):
    """Every outcome arrives after the same time.

    Args:
        time: The delay, at least 0.

    Raises:
        ValueError: if ``time`` is negative or not finite.
    """

    time: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(time=self.time)

    @property
    def mean(self) -> float:
        """The delay itself."""
        return float(self.time)

    def _draw(self) -> float:
        return float(self.time)


@dataclass(frozen=True)
class PoissonDelay(Delay):
    """Whole delays from a Poisson distribution (Vakili et al., 2023, Section 7).

    Args:
        rate: λ, the mean, at least 0.

    Raises:
        ValueError: if ``rate`` is negative or not finite.
    """

    rate: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(rate=self.rate)

    @property
    def mean(self) -> float:
        """λ."""
        return float(self.rate)

    def _draw(self) -> float:
        rate = torch.tensor(self.rate, dtype=torch.float64)
        return torch.poisson(rate, generator=self._source).item()


@dataclass(frozen=True)
class GeometricDelay(Delay):
    r"""Whole delays of a search that succeeds at every step with the same probability.

    .. math:: P(\tau = k) = p\,(1 - p)^k

    Args:
        probability: p, in (0, 1].

    Raises:
        ValueError: if ``probability`` lies outside (0, 1].
    """

    probability: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.probability <= 1:
            raise ValueError(f"Expected probability in (0, 1]. Got {self.probability}.")

    @property
    def mean(self) -> float:
        """(1 - p) / p."""
        return (1 - self.probability) / self.probability

    def _draw(self) -> float:
        if self.probability == 1:
            return 0.0
        # The whole part of an exponential variable; 1 - u is never 0.
        uniform = 1 - torch.rand((), dtype=torch.float64, generator=self._source).item()
        return float(math.floor(math.log(uniform) / math.log1p(-self.probability)))


@dataclass(frozen=True)
class ExponentialDelay(Delay):
    r"""Real delays with density :math:`r e^{-r \tau}`.

    Args:
        rate: r, per unit of time, positive: the mean is 1/r.

    Raises:
        ValueError: if ``rate`` is not positive and finite.
    """

    rate: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(rate=self.rate)

    @property
    def mean(self) -> float:
        """1 / r."""
        return 1 / self.rate

    def _draw(self) -> float:
        uniform = torch.rand((), dtype=torch.float64, generator=self._source).item()
        return -math.log1p(-uniform) / self.rate


@dataclass(frozen=True)
class DistributionDelay(Delay):
    """Delays from any distribution of torch over numbers at least 0.

    Distributions draw from torch's global generator, which is seeded here by ours for the draw and
    restored afterwards.

    Args:
        distribution: Of one number.

    Raises:
        TypeError: if it is no distribution of torch.
        BotorchTensorDimensionError: if it is of several numbers.
        InputDataError: at the trial where a draw is negative or NaN.

    Example:
        >>> DistributionDelay(torch.distributions.LogNormal(1.0, 0.5))
    """

    distribution: Distribution

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.distribution, Distribution):
            raise TypeError(f"Expected a distribution of torch. Got {self.distribution!r}.")
        shape = self.distribution.batch_shape + self.distribution.event_shape
        if shape.numel() != 1:
            raise BotorchTensorDimensionError(
                f"Expected a distribution of one number. Got one of shape {tuple(shape)}."
            )

    @property
    def mean(self) -> float | None:
        """Mean of the distribution; None where that is not known."""
        try:
            mean = float(self.distribution.mean)
        except NotImplementedError:
            return None
        return None if math.isnan(mean) else mean

    def _draw(self) -> float:
        with seeded(self._source):
            delay = self.distribution.sample().item()
        if not delay >= 0:
            raise InputDataError(f"Expected delays >= 0. Got {delay} from {self.distribution}.")
        return float(delay)


@dataclass(frozen=True)
class ResampledDelay(Delay):
    """Delays drawn from a log of them, with replacement.

    Args:
        log: ``n`` delays, at least 0; an infinite one is an outcome that never arrived.

    Raises:
        InputDataError: if there are none, or one is negative or NaN.
    """

    log: Sequence[float] | Tensor = field(repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        log = as_numbers("log", self.log).flatten()
        if len(log) == 0 or not (log >= 0).all():
            bad = log[~(log >= 0)][:3].tolist()
            raise InputDataError(
                f"Expected at least one delay, all >= 0. Got {len(log)} delays, among them {bad}."
            )
        object.__setattr__(self, "log", tuple(log.tolist()))

    @property
    def mean(self) -> float:
        """Mean of the log."""
        return float(sum(self.log)) / len(self.log)

    def _draw(self) -> float:
        return float(self.log[int(torch.randint(len(self.log), (), generator=self._source))])


@dataclass(frozen=True)
class LossyDelay(Delay):
    """Delays of which some are infinite: those outcomes get lost, independently of all else.

    Args:
        delay: Delay of the outcomes that arrive, with a generator of its own.
        probability: Probability that an outcome gets lost, in [0, 1].

    Raises:
        TypeError: if ``delay`` is none, or lossy: losses p and q are one of 1 - (1 - p)(1 - q).
        ValueError: if ``probability`` lies outside [0, 1], or both generators are in one state.

    Example:
        >>> LossyDelay(PoissonDelay(50), probability=0.05)
    """

    _seed: ClassVar[int] = LOSS_SEED
    delay: Delay
    probability: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.delay, Delay) or isinstance(self.delay, LossyDelay):
            raise TypeError(f"Expected a delay that loses nothing. Got {self.delay!r}.")
        if not 0 <= self.probability <= 1:
            raise ValueError(f"Expected probability in [0, 1]. Got {self.probability}.")
        if torch.equal(self._source.get_state(), self.delay._source.get_state()):
            raise ValueError(
                "Expected a generator of their own for losses. Got one in the state of the delay's."
            )

    @property
    def mean(self) -> float | None:
        """Mean delay; infinite unless the probability is 0."""
        return math.inf if self.probability > 0 else self.delay.mean

    def __call__(self, trial: Trial) -> float:
        """Return infinity, or the delay, which is the same for any probability."""
        lost = super().__call__(trial) < self.probability
        return math.inf if lost else self.delay(trial)

    def _draw(self) -> float:
        return torch.rand((), dtype=torch.float64, generator=self._source).item()
