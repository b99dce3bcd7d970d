"""Which observations the next model sees."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from botorch.models.model import Model
from torch import Tensor

from tvbo.columns import check_forgetting_rate
from tvbo.kernels import temporal_correlation
from tvbo.observations import Observations


class Retention(Protocol):
    """A rule that answers which observations stay."""

    def keep(self, observations: Observations, model: Model | None, t: float) -> Tensor:
        """A mask, ``n``, over the observations: True stays, False is dropped for good.

        Args:
            observations: What the optimizer holds; the last column of X is time.
            model: The model of the round before, None in the first round.
            t: The present time.
        """


@dataclass(frozen=True)
class KeepAll:
    """Every observation stays."""

    def keep(self, observations: Observations, model: Model | None, t: float) -> Tensor:
        """All True."""
        return torch.ones(len(observations), dtype=torch.bool)


@dataclass(frozen=True)
class Reset:
    """Start afresh every ``every`` units of time (R-GP-UCB: Bogunovic et al., 2016, Algorithm 1).

    With rounds for times, ``t = 1, 2, ...``, the model is reset where ``t mod N = 1``: the blocks
    are ``1..N``, ``N+1..2N`` and so on.

    Args:
        every: Block length N, in units of time.
        start: Time at which the first block begins.

    Raises:
        ValueError: if ``every`` is not positive and finite.
    """

    every: float
    start: float = 1.0

    def __post_init__(self):
        _check_positive("every", self.every)

    def keep(self, observations: Observations, model: Model | None, t: float) -> Tensor:
        """True for the observations of the block that ``t`` lies in."""
        block = math.floor((t - self.start) / self.every)
        return torch.floor((observations.X[:, -1] - self.start) / self.every) == block


@dataclass(frozen=True)
class SlidingWindow:
    """Only the last ``length`` units of time.

    Args:
        length: An observation of age ``t - t_i <= length`` stays.

    Raises:
        ValueError: if ``length`` is not positive and finite.
    """

    length: float

    def __post_init__(self):
        _check_positive("length", self.length)

    def keep(self, observations: Observations, model: Model | None, t: float) -> Tensor:
        """True for the observations no older than ``length``."""
        return t - observations.X[:, -1] <= self.length


@dataclass(frozen=True)
class StaleCutoff:
    r"""Drop what the drift has made worthless.

    An observation of age :math:`a` has weight :math:`w = (1 - \varepsilon)^a`: the squared
    correlation of what it saw with the present. Without the observations of weight at most
    ``tol``, no posterior variance grows by more than the share ``tol`` of the prior variance. A
    dense posterior mean moves by about :math:`\sqrt{\text{tol}}` prior standard deviations at
    most; a streaming one, which carries its sum forward, by nothing.

    Args:
        forgetting_rate: ε per unit of time, in [0, 1]; with 0 all stay.
        tol: Weight up to which an observation is dropped.

    Raises:
        ValueError: if an argument is out of range.
    """

    forgetting_rate: float
    tol: float = 1e-12

    def __post_init__(self):
        check_forgetting_rate(self.forgetting_rate)
        if not 0 < self.tol < 1:
            raise ValueError(f"Expected tol in (0, 1). Got {self.tol}.")

    def keep(self, observations: Observations, model: Model | None, t: float) -> Tensor:
        """True for the observations that still weigh."""
        age = t - observations.X[:, -1]
        rate = torch.as_tensor(self.forgetting_rate, dtype=age.dtype)
        return temporal_correlation(age, rate).square() > self.tol


def _check_positive(name: str, value: float) -> None:
    if not (0 < value < math.inf):
        raise ValueError(f"Expected {name} > 0, in units of time. Got {value}.")
