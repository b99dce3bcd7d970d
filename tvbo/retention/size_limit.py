"""A limit on the number of observations that drops the least informative ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.model import Model
from torch import Tensor

from tvbo.models.one_output import OneOutputModel
from tvbo.models.scale import outcome_scale
from tvbo.retention.base import Retention
from tvbo.spaces.observations import Observations

NOISE_FLOOR = 1e-8
"""Floor of the noise variances as a share of the largest prior variance. Without noise the
covariance of outcomes may be singular, and the information of an outcome infinite."""

TIED = 1e-5
"""Nats by which the information of two observations may differ in a tie, in which the older one is
dropped: with noise at its floor, rounding is 1e8 times as large as in the covariance."""


NUM_EXPECTED = 10
"""Number of newest observations whose contexts are those to expect."""


@dataclass(frozen=True)
class SizeLimit(Retention):
    r"""Keep at most ``limit`` observations, the most informative ones about the present.

    Where a round begins with more than ``limit`` observations, the one with the smallest
    :class:`MarginalInformation` is dropped, the information of the others is computed without it,
    and so on, one at a time: of two near-duplicates only the first has little information. Of
    observations that differ by 1e-5 nats at most, the oldest is dropped. Outcomes observed during a
    round are counted when the next one begins.

    With contexts, the function is looked at in each of those to expect, the contexts of the ten
    newest observations, and the information is the mean over these.

    The information of ``n`` observations costs :math:`O(n^3)`, each drop another :math:`O(n^2)`.
    Therefore ``slack`` frees several places at once: once more than ``limit`` are held, all but
    ``limit - floor(slack * limit)`` are dropped, so that the next ``slack * limit`` rounds compute
    nothing, which is :math:`O(n^2)` per round on average. ``slack=0`` drops one at a time.

    The model is a :class:`tvbo.models.EnsembleGP`, whose prior is that by the most probable
    hyperparameters, or a :class:`tvbo.models.StreamingGP`. In the first round, before there is a
    model, the newest observations stay.

    Args:
        limit: Largest number of observations in the model.
        slack: Share of ``limit`` that is freed at once, in [0, 1).
        context_columns: The columns of a row that are contexts; with none, an observation is
            informative about its own context.

    Raises:
        ValueError: if an argument is out of range.
    """

    limit: int
    slack: float = 0.1
    context_columns: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        whole = isinstance(self.limit, int) and not isinstance(self.limit, bool)
        if not whole or self.limit < 1:
            raise ValueError(f"Expected limit to be a whole number >= 1. Got {self.limit}.")
        if not 0 <= self.slack < 1:
            raise ValueError(f"Expected slack in [0, 1). Got {self.slack}.")

    def keep(self, observations: Observations, model: Model | None, t: float) -> Tensor:
        """Return True for the observations that stay; all of them if there are ``limit`` at most.

        Raises:
            UnsupportedError: if the model is of another class, or has a batch.
            InputDataError: if the covariance of the observations is not positive semi-definite.
        """
        kept = torch.ones(len(observations), dtype=torch.bool)
        if len(observations) <= self.limit:
            return kept
        excess = len(observations) - self.limit + math.floor(self.slack * self.limit)
        oldest_first = observations.X[:, -1].argsort(stable=True)
        if model is None:
            kept[oldest_first[:excess]] = False
            return kept
        held = MarginalInformation(model, observations, t, self.context_columns)
        for _ in range(excess):
            information = held.information().masked_fill(~kept, math.inf)[oldest_first]
            is_tied = information <= information.min() + TIED
            dropped = int(oldest_first[is_tied.to(torch.uint8).argmax()])
            held.drop(dropped)
            kept[dropped] = False
        return kept


class MarginalInformation:
    r"""The information of each observation about the present, given all others.

    It is about the function at the observation's own action now:

    .. math:: I\big(y_i; f_t(x_i) \mid y_{-i}\big) = \frac12 \log
        \frac{\mathrm{Var}[f_t(x_i) \mid y_{-i}]}{\mathrm{Var}[f_t(x_i) \mid y]}
        = \frac12 \log\Big(1 + \frac{[P k_i]_i^2}{P_{ii}\, s_i}\Big)

    with :math:`P` the inverse covariance of all outcomes, :math:`k_i` their covariances with
    :math:`f_t(x_i)`, and :math:`s_i = \mathrm{Var}[f_t(x_i) \mid y]`. Without drift this is
    :math:`\tfrac12 \log(1 + \sigma_{-i}^2(x_i) / \sigma^2)`, the quantity by which Bedi et al.
    admit a point, computed for a held one; with drift, that of old observations decreases.

    Noise variances have a floor of 1e-8 of the largest prior variance: without noise, the
    information of an outcome is then about 9 nats instead of infinite, and that of a repeat small.

    Args:
        model: As of :class:`SizeLimit`, without a batch. Its prior is used, not its data.
        observations: Rows ``[action | context | time]``, with their own noise variances, or that
            of the model; one or more.
        t: The present time.
        context_columns: As of :class:`SizeLimit`.

    Raises:
        UnsupportedError: if the model is of another class, or has a batch.
        InputDataError: if the covariance of the observations is not positive semi-definite.
    """

    def __init__(
        self,
        model: Model,
        observations: Observations,
        t: float,
        context_columns: Sequence[int] = (),
    ):
        if not isinstance(model, OneOutputModel) or model.batch_shape:
            raise UnsupportedError(
                "Expected an EnsembleGP or a StreamingGP, without a batch. "
                f"Got {type(model).__name__}."
            )
        X, columns = observations.X, list(context_columns)
        newest = X[X[:, -1].argsort(stable=True, descending=True)[:NUM_EXPECTED]]
        expected = newest[:, columns].unique(dim=0) if columns else X.new_empty(1, 0)
        # The actions in each context to expect, now: contexts before observations.
        present = X.repeat(len(expected), 1, 1)
        present[..., -1] = t
        present[..., columns] = expected.unsqueeze(1)
        priors = [model.prior_covariance(each, each).diagonal() for each in present]
        prior, covar = torch.stack(priors), model.prior_covariance(X, X)
        self.scale = max(prior.max().item(), covar.diagonal().max().item())
        noise = model.noise_variance.expand(len(X))
        if observations.Yvar is not None:
            noise = observations.Yvar.squeeze(-1) / outcome_scale(model)[1] ** 2
        # If all prior variances are 0, the information is 0 for any positive noise.
        noise = noise.clamp_min(NOISE_FLOOR * self.scale or 1.0)
        covar = covar + noise.diag()
        root, failed = torch.linalg.cholesky_ex(covar)
        if failed:
            raise InputDataError(
                "Expected a covariance that is positive semi-definite, to 1e-8 of its largest "
                f"variance. Got one that is not, of {len(X)} observations."
            )
        cross = model.prior_covariance(X, present.flatten(0, 1))
        V = torch.linalg.solve_triangular(root, cross, upper=False)
        self.total = covar.diagonal()
        self.precision = torch.cholesky_inverse(root)
        # Weights of the outcomes (rows) in the present mean in each context at each action.
        weights = torch.linalg.solve_triangular(root.mT, V, upper=True)
        self.weights = weights.view(-1, *prior.shape)
        self.variance = prior - V.square().sum(dim=0).view(prior.shape)

    def information(self) -> Tensor:
        """Return it in nats, ``n``; those of dropped observations mean nothing."""
        own_weight = self.weights.diagonal(dim1=0, dim2=2)
        # Up to rounding, the variance of an outcome given the others is at most its own.
        own_precision = torch.maximum(self.precision.diagonal(), 1 / self.total)
        least = torch.finfo(own_weight.dtype).eps * self.scale or 1.0
        variance = self.variance.clamp_min(least)
        return torch.log1p(own_weight.square() / (own_precision * variance)).mean(dim=0) / 2

    def drop(self, i: int) -> None:
        """Remove observation ``i`` by a rank-one downdate of the inverse covariance."""
        column, weights = self.precision[:, i].clone(), self.weights[i].clone()
        own = torch.maximum(column[i], 1 / self.total[i])
        self.variance = self.variance + weights.square() / own
        self.weights -= column[:, None, None] * (weights / own)
        self.precision -= torch.outer(column, column / own)
