"""Confidence bounds on a function, from observations chosen without looking at their outcomes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from tvbo.theory.arguments import check_count, check_not_negative, check_positive, check_probability


@dataclass(frozen=True)
class Exploration:
    r"""What a width may depend on.

    Args:
        delta: Probability of failure δ; half of it is for the bounds, half for the delays.
        num_rounds: Number of rounds R, or an upper bound of it.
        num_arrived: Outcomes that the bounds rest on, at least 1.
        noise_variance: λ², the noise of the model.
        dim: Number of actions' columns d.
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

    def __post_init__(self) -> None:
        check_probability(self.delta)
        check_count(num_rounds=self.num_rounds, num_arrived=self.num_arrived, dim=self.dim)
        check_positive(noise_variance=self.noise_variance, max_variance=self.max_variance)


@dataclass(frozen=True)
class Width:
    """Half the distance between the bounds: ``offset + multiplier * standard_deviation``.

    Args:
        multiplier: Of the standard deviation.
        offset: Added everywhere.
    """

    multiplier: float
    offset: float = 0.0

    def half(self, standard_deviation: Tensor) -> Tensor:
        """Half the distance, where the posterior has these standard deviations."""
        return self.offset + self.multiplier * standard_deviation


@runtime_checkable
class WidthRule(Protocol):
    """Says how wide the bounds are at the end of a round."""

    def width(self, exploration: Exploration) -> Width:
        """The width. Raises ``ValueError`` if the rule is not made for such actions."""


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

    def width(self, exploration: Exploration) -> Width:
        """The same whatever was seen."""
        return Width(self.beta)


@dataclass(frozen=True)
class FiniteSetWidth:
    r"""Finite sets (Vakili et al., 2023, Theorem 6.1).

    .. math:: \tilde\beta = C_k + \frac{\sigma}{\lambda}\sqrt{2 \log\frac{4 R |X|}{\delta}}

    The union bound is over R rounds, so that R has to be known in advance. Where outcomes are told
    with variances of their own, :math:`\sigma/\lambda` must bound their ratios too.

    Args:
        rkhs_norm: :math:`C_k`, an upper bound of the function's norm.
        noise_sd: σ, with which the noise is sub-Gaussian; for Gaussian noise its standard
            deviation. It need not be that of the model, λ.

    Raises:
        ValueError: if one of them is negative or not finite; from :meth:`width`, for a box.
    """

    rkhs_norm: float
    noise_sd: float

    def __post_init__(self) -> None:
        check_not_negative(rkhs_norm=self.rkhs_norm, noise_sd=self.noise_sd)

    def width(self, exploration: Exploration) -> Width:
        """The same for all rounds."""
        if exploration.num_points is None:
            raise ValueError(
                "Expected choices: the width of Theorem 6.1 is that of a finite set. Got bounds; "
                "CompactSetWidth is made for them."
            )
        log = math.log(4 * exploration.num_rounds * exploration.num_points / exploration.delta)
        ratio = self.noise_sd / math.sqrt(exploration.noise_variance)
        return Width(self.rkhs_norm + ratio * math.sqrt(2 * log))


@dataclass(frozen=True)
class CompactSetWidth:
    r"""Boxes (Vakili et al., 2023, Theorem 6.2 with Lemma 4.3).

    Half the width is :math:`2/u_r + \tilde\beta'_r (\tilde\sigma + 2/\sqrt{u_r})`, with

    .. math:: \tilde\beta'_r = C_k + \frac{\sigma}{\lambda}\sqrt{2 \log\frac{8 R \Gamma}{\delta}},
        \quad \Gamma = c\, \tilde C^d u_r^d, \quad \tilde C = C_k +
        \frac{\max(\sigma, k_{\max}) \sqrt{u_r}}{\lambda} \sqrt{2 \log\frac{16 R u_r}{\delta}}.

    The paper does not say what :math:`u_r` is. In Lemma 4.3 its place is that of the number of
    observations, so it is taken to be the number of outcomes of the round that arrived. Formula (9)
    prints the upper bound twice; the lower one has minus signs. The offset is large: with few
    outcomes nothing is removed.

    Args:
        rkhs_norm: :math:`C_k`, an upper bound of the function's norm.
        noise_sd: σ, with which the noise is sub-Gaussian.
        cover: c of Assumption 4.2: :math:`c\, C_k^d u^d` points cover the box so that no function
            of norm :math:`C_k` changes by more than 1/u from a point to its nearest one.

    Raises:
        ValueError: if one of them is out of range.
    """

    rkhs_norm: float
    noise_sd: float
    cover: float

    def __post_init__(self) -> None:
        check_not_negative(rkhs_norm=self.rkhs_norm, noise_sd=self.noise_sd)
        check_positive(cover=self.cover)

    def width(self, exploration: Exploration) -> Width:
        """From the number of outcomes that arrived."""
        u, sd = exploration.num_arrived, math.sqrt(exploration.noise_variance)
        # Lemma 4.3 with δ / 4R in the place of δ.
        delta = exploration.delta / (4 * exploration.num_rounds)
        spread = max(self.noise_sd, exploration.max_variance) * math.sqrt(u) / sd
        norm = self.rkhs_norm + spread * math.sqrt(2 * math.log(4 * u / delta))
        log_points = math.log(self.cover) + exploration.dim * math.log(norm * u)
        log = max(0.0, math.log(2 / delta) + log_points)
        beta = self.rkhs_norm + self.noise_sd / sd * math.sqrt(2 * log)
        return Width(beta, 2 / u + 2 * beta / math.sqrt(u))


@dataclass(frozen=True)
class PriorDrawWidth:
    r"""For a function drawn from the prior, where its norm is not known.

    .. math:: \beta = \sqrt{2 \log\frac{2 R |X|}{\delta}}

    from the Gaussian tail and the same union bound (as in Srinivas et al., 2010, Lemma 5.1). It is
    exact for the first round. In later ones the actions left were chosen by earlier outcomes of
    the same function, which the posterior of the round leaves aside; no theorem covers that. For a
    box, :math:`T^d` points stand for :math:`|X|`.
    """

    def width(self, exploration: Exploration) -> Width:
        """The same for all rounds."""
        if exploration.num_points is None:
            log_points = exploration.dim * math.log(exploration.horizon)
        else:
            log_points = math.log(exploration.num_points)
        log = math.log(2 * exploration.num_rounds / exploration.delta) + log_points
        return Width(math.sqrt(2 * log))
