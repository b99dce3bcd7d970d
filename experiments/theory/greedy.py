r"""Maximum information gain, by greedy choice of points."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.theory.information import checked_covariance
from tvbo.kernels.temporal import check_forgetting_rate
from tvbo.rounding import argmax
from tvbo.values import check_count, check_positive

STATIC_SHARE = 1 - math.exp(-1)
"""Least share of the maximum that greedy choice reaches for a static function."""

DRIFTING_SHARE = 0.5
"""Least share of the maximum that greedy choice reaches if each round has its own time."""


@dataclass(frozen=True)
class InformationGain:
    r"""Result of :func:`greedy_information_gain`.

    Attributes:
        points: Row of ``covar`` chosen in rounds 1, ..., T; ``T``.
        information: Nats gathered after rounds 1, ..., T; ``T``. A lower bound on
            :math:`\gamma_1, \dots, \gamma_T`, or on :math:`\tilde\gamma_1, \dots` under drift.
        share: The least share of the maximum that greedy choice is guaranteed to reach.
    """

    points: Tensor
    information: Tensor
    share: float

    @property
    def ceiling(self) -> Tensor:
        """Upper bounds on the maxima, ``T``.

        The minimum of ``information / share`` and of T times the information of the first round,
        which no later round exceeds.
        """
        rounds = torch.arange(1, len(self.information) + 1, dtype=torch.float64)
        return torch.minimum(self.information / self.share, rounds * self.information[0])


def greedy_information_gain(
    covar: Tensor, horizon: int, noise_variance: float, forgetting_rate: float = 0.0
) -> InformationGain:
    r"""Choose the point of largest posterior variance in each round (Srinivas et al., 2010).

    .. math:: x_t = \arg\max_x \tilde\sigma_{t-1}(x), \qquad
        \tilde I_t = \tilde I_{t-1} + \tfrac12 \log(1 + \sigma^{-2} \tilde\sigma_{t-1}^2(x_t))

    At ε = 0 this approximates the maximum information gain :math:`\gamma_T` of Bogunovic et al.
    (2016), (13); else :math:`\tilde\gamma_T` of (15), where the point of round ``t`` is observed at
    time ``t``. Information is monotone and submodular, so greedy reaches 1 - 1/e of the maximum at
    ε = 0 (Nemhauser, Wolsey and Fisher, 1978), and half of it under drift, where one point must be
    taken for each time (Fisher, Nemhauser and Wolsey, 1978).

    Args:
        covar: ``n x n``, the covariance over the points; each may be chosen repeatedly.
        horizon: Number of rounds T.
        noise_variance: σ² > 0, in squared units of the reward.
        forgetting_rate: ε per round, in [0, 1]; 0 is a static function.

    Returns:
        Points and information by round. Costs ``O(n t)`` in round ``t``, and memory of ``n x T``.

    Raises:
        ValueError: if an argument is out of range, or ``covar`` is not a symmetric, finite matrix.
    """
    check_count(horizon=horizon)
    check_positive(noise_variance=noise_variance)
    check_forgetting_rate(forgetting_rate)
    covar = checked_covariance(covar)
    if covar.dim() != 2:
        raise ValueError(f"Expected covar to be n x n. Got {tuple(covar.shape)}.")
    keep = 1 - forgetting_rate
    prior = covar.diagonal()
    known = torch.zeros_like(prior)
    # The posterior covariance is covar - C C', one column of C per reward. One round of drift turns
    # it into keep * (covar - C C') + (1 - keep) * covar: it multiplies C by the root of keep.
    columns = covar.new_zeros(len(covar), horizon)
    points = torch.zeros(horizon, dtype=torch.long)
    gains = covar.new_zeros(horizon)
    for t in range(horizon):
        columns[:, :t] *= math.sqrt(keep)
        known = known * keep
        variance = (prior - known).clamp_min(0.0)
        point = int(argmax(variance))
        column = covar[:, point] - columns[:, :t] @ columns[point, :t]
        columns[:, t] = column / (variance[point] + noise_variance).sqrt()
        known = known + columns[:, t].square()
        points[t] = point
        gains[t] = torch.log1p(variance[point] / noise_variance) / 2
    share = STATIC_SHARE if forgetting_rate == 0 else DRIFTING_SHARE
    return InformationGain(points, gains.cumsum(dim=0), share)
