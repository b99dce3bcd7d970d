"""Confidence bounds on a function from observations chosen independently of their outcomes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tvbo.values import check_not_negative, check_positive


@dataclass(frozen=True)
class Exploration:
    r"""Quantities that a width may depend on.

    Args:
        delta: Probability of failure δ; half of it is for the bounds, half for the delays.
        num_rounds: Number of rounds R, or an upper bound.
        num_arrived: Number of outcomes that the bounds are computed from, at least 1.
        noise_variance: λ², the noise variance of the model.
        dim: Number of columns of an action, d.
        num_points: Number of actions; None for a box.
        max_variance: The largest prior variance, :math:`k_{\max}`.
        horizon: T.
    """

    delta: float
    num_rounds: int
    num_arrived: int
    noise_variance: float
    dim: int
    num_points: int | None
    max_variance: float
    horizon: int


class Width(NamedTuple):
    """Half the distance between the bounds: ``offset + multiplier * standard_deviation``.

    Attributes:
        multiplier: Multiplier on the posterior standard deviation.
        offset: Constant added to it.
    """

    multiplier: float
    offset: float = 0.0


WidthRule = Callable[[Exploration], Width]
"""A rule for the width of the bounds at the end of a round; it raises ``ValueError`` where it does
not apply to such a set of actions."""


@dataclass(frozen=True)
class FixedWidth:
    """A multiple of the standard deviation; the authors' runs use 6.

    Args:
        beta: The multiplier itself, not its square.

    Raises:
        ValueError: if ``beta`` is not positive.
    """

    beta: float

    def __post_init__(self) -> None:
        check_positive(beta=self.beta)

    def __call__(self, exploration: Exploration) -> Width:
        """Return the same width for all rounds."""
        return Width(self.beta)


@dataclass(frozen=True)
class FiniteSetWidth:
    r"""Finite sets (Vakili et al., 2023, Theorem 6.1).

    .. math:: \tilde\beta = C_k + \frac{\sigma}{\lambda}\sqrt{2 \log\frac{4 R |X|}{\delta}}

    The union bound is over R rounds, so R must be known in advance. Where outcomes are observed
    with noise variances of their own, :math:`\sigma/\lambda` must bound their ratios as well.

    Args:
        rkhs_norm: :math:`C_k`, an upper bound on the RKHS norm of the function.
        noise_sd: σ of the sub-Gaussian noise; for Gaussian noise its standard deviation. It may
            differ from that of the model, λ.

    Raises:
        ValueError: if one of them is negative or not finite; and from a call, for a box.
    """

    rkhs_norm: float
    noise_sd: float

    def __post_init__(self) -> None:
        check_not_negative(rkhs_norm=self.rkhs_norm, noise_sd=self.noise_sd)

    def __call__(self, exploration: Exploration) -> Width:
        """Return the width, which is the same for all rounds."""
        if exploration.num_points is None:
            raise ValueError("Expected choices, of which there is a number. Got bounds.")
        log = math.log(4 * exploration.num_rounds * exploration.num_points / exploration.delta)
        ratio = self.noise_sd / math.sqrt(exploration.noise_variance)
        return Width(self.rkhs_norm + ratio * math.sqrt(2 * log))


@dataclass(frozen=True)
class PriorDrawWidth:
    r"""Functions drawn from the prior, whose RKHS norm is not known.

    .. math:: \beta = \sqrt{2 \log\frac{2 R |X|}{\delta}}

    from the Gaussian tail and the same union bound (as in Srinivas et al., 2010, Lemma 5.1). It is
    exact for the first round. In later rounds the surviving actions depend on earlier outcomes of
    the same function, which the posterior of the round ignores; no theorem covers that. For a box,
    :math:`|X|` is replaced by :math:`T^d`.
    """

    def __call__(self, exploration: Exploration) -> Width:
        """Return the width, which is the same for all rounds."""
        if exploration.num_points is None:
            log_points = exploration.dim * math.log(exploration.horizon)
        else:
            log_points = math.log(exploration.num_points)
        log = math.log(2 * exploration.num_rounds / exploration.delta) + log_points
        return Width(math.sqrt(2 * log))
