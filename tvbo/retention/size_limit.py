"""A limit on the number of observations: the least informative ones go."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.model import Model
from torch import Tensor

from tvbo.models.covariance import noise_variance, prior_covariance
from tvbo.observations import Observations
from tvbo.retention.base import Retention
from tvbo.ties import first_largest

NOISE_FLOOR = 1e-8
"""Noise counts as at least this share of the largest prior variance. Without noise, the covariance
of outcomes may be singular, and what an outcome tells infinite."""


@dataclass(frozen=True)
class SizeLimit(Retention):
    r"""Hold at most ``limit`` observations; of more, drop those that tell least of the present.

    Where a round begins with more than ``limit``, the observation of the least
    :func:`marginal_information` goes, the others are weighed again without it, and so on. One by
    one, because two near-duplicates both look dispensable until the first of them is gone. Those
    alike to 1e-9 nats go by age. Outcomes told during a round are counted when the next one begins.

    To weigh ``n`` observations costs :math:`O(n^3)`, each one that goes :math:`O(n^2)` more. Hence
    the slack: once more than ``limit`` are held, as many go as leave ``limit - floor(slack *
    limit)``, so that the next ``slack * limit`` rounds need weigh nothing: :math:`O(n^2)` a round
    on average. ``slack=0`` drops one at a time and holds most.

    It takes a model from which :func:`tvbo.models.covariance.prior_covariance` can be read. Before
    there is one, in the first round, the newest stay.

    Args:
        limit: The most observations that a model sees.
        slack: Share of ``limit`` that is freed at once, in [0, 1).

    Raises:
        ValueError: if an argument is out of range.
    """

    limit: int
    slack: float = 0.1

    def __post_init__(self) -> None:
        whole = isinstance(self.limit, int) and not isinstance(self.limit, bool)
        if not whole or self.limit < 1:
            raise ValueError(f"Expected limit to be a whole number >= 1. Got {self.limit}.")
        if not 0 <= self.slack < 1:
            raise ValueError(f"Expected slack in [0, 1). Got {self.slack}.")

    def keep(self, observations: Observations, model: Model | None, t: float) -> Tensor:
        """True for what stays; all, where no more than ``limit`` are held.

        Raises:
            UnsupportedError: if the prior of the model cannot be read.
            InputDataError: as :func:`marginal_information`.
        """
        kept = torch.ones(len(observations), dtype=torch.bool)
        if len(observations) <= self.limit:
            return kept
        excess = len(observations) - self.limit + math.floor(self.slack * self.limit)
        oldest_first = observations.X[:, -1].argsort(stable=True)
        if model is None:
            kept[oldest_first[:excess]] = False
            return kept
        held = _Held(model, observations, t)
        for _ in range(excess):
            information = held.information().masked_fill(~kept, math.inf)
            # Ties, by a tolerance in nats: the oldest is dropped.
            dropped = int(oldest_first[first_largest(-information[oldest_first], scale=1.0)])
            held.drop(dropped)
            kept[dropped] = False
        return kept


def marginal_information(model: Model, observations: Observations, t: float) -> Tensor:
    r"""What each observation tells of the present at its own action, given all the others.

    .. math:: I\big(y_i; f_t(x_i) \mid y_{-i}\big) = \frac12 \log
        \frac{\mathrm{Var}[f_t(x_i) \mid y_{-i}]}{\mathrm{Var}[f_t(x_i) \mid y]}
        = \frac12 \log\Big(1 + \frac{[P k_i]_i^2}{P_{ii}\, s_i}\Big)

    with :math:`P` the inverse covariance of all outcomes, :math:`k_i` their covariances with
    :math:`f_t(x_i)`, and :math:`s_i = \mathrm{Var}[f_t(x_i) \mid y]`. Without drift this is
    :math:`\tfrac12 \log(1 + \sigma_{-i}^2(x_i) / \sigma^2)`, the conditional entropy by which Bedi
    et al. admit a point, here after the fact; with drift, old observations lose it.

    Noise variances count as at least 1e-8 of the largest prior variance: without noise, what an
    outcome tells is large (about 9 nats) instead of infinite, and a repeat tells little.

    Args:
        model: Its prior is used, not what it has seen; as in
            :func:`tvbo.models.covariance.prior_covariance`.
        observations: Rows ``[action | context | time]``, with their own noise variances, or the
            model's.
        t: The present time.

    Returns:
        Nats, ``n``.

    Raises:
        UnsupportedError: if the prior of the model cannot be read.
        InputDataError: if ``t`` is not finite, or the covariance of the observations is not
            positive semi-definite.
    """
    if len(observations) == 0:
        return observations.X.new_zeros(0)
    return _Held(model, observations, t).information()


class _Held:
    """Observations, weighed by what they tell of the present.

    Those that were dropped stay as rows whose values mean nothing.
    """

    def __init__(self, model: Model, observations: Observations, t: float):
        if not math.isfinite(t):
            raise InputDataError(f"Expected finite t. Got {t}.")
        X = observations.X
        present = X.clone()
        present[:, -1] = t
        prior = prior_covariance(model, present, present).diagonal()
        covar = prior_covariance(model, X, X)
        self.scale = max(prior.max().item(), covar.diagonal().max().item())
        noise = torch.full_like(prior, noise_variance(model))
        if observations.Yvar is not None:
            noise = observations.Yvar.squeeze(-1)
        # Where nothing can vary, nothing is told, whatever stands here.
        noise = noise.clamp_min(NOISE_FLOOR * self.scale or 1.0)
        covar = covar + noise.diag()
        root, failed = torch.linalg.cholesky_ex(covar)
        if failed:
            raise InputDataError(
                "Expected a covariance that is positive semi-definite, to 1e-8 of its largest "
                f"variance. Got one that is not, of {len(X)} observations."
            )
        V = torch.linalg.solve_triangular(root, prior_covariance(model, X, present), upper=False)
        self.total = covar.diagonal()
        self.precision = torch.cholesky_inverse(root)
        # How the outcomes, by row, enter the present mean at each action, by column.
        self.weights = torch.linalg.solve_triangular(root.mT, V, upper=True)
        self.variance = prior - V.square().sum(dim=0)

    def information(self) -> Tensor:
        """Nats that each tells, ``n``."""
        own_weight = self.weights.diagonal()
        # The variance of an outcome given the others is at most its own: rounding aside.
        own_precision = torch.maximum(self.precision.diagonal(), 1 / self.total)
        least = torch.finfo(own_weight.dtype).eps * self.scale or 1.0
        variance = self.variance.clamp_min(least)
        return torch.log1p(own_weight.square() / (own_precision * variance)) / 2

    def drop(self, i: int) -> None:
        """Without observation ``i``: the rank-one step back from its row of the inverse."""
        column, weights = self.precision[:, i].clone(), self.weights[i].clone()
        own = torch.maximum(column[i], 1 / self.total[i])
        self.variance = self.variance + weights.square() / own
        self.weights -= torch.outer(column, weights / own)
        self.precision -= torch.outer(column, column / own)
