r"""Regret and model order of compression (Bedi et al., Theorems 3.1 and 3.2).

A point enters the model if the expected information gain of its outcome exceeds ε nats, that is, by
their (2.12), if :math:`\sigma_D^2(x) > \sigma^2 \tau` with :math:`\tau = e^{2 \varepsilon} - 1`.

**Repeats.** The proof of (3.1) counts the points of a packing: it interprets the test as one on the
distance of :math:`k(x, \cdot)` from the span of the points held, by which a repeat is never
admitted. That distance is regularized, and its term :math:`\sigma^2 \|v\|^2` is not zero. After
``n`` observations of one point of prior variance ``v`` there remains :math:`\sigma_D^2 = v \sigma^2
/ (\sigma^2 + n v)`, so that point passes :math:`\lceil 1/\tau - \sigma^2/v \rceil` times. With the
experiments' :math:`\varepsilon = 10^{-4}` that is 5,000 times, and the model order does not
converge within 1,000 rounds; with :math:`\varepsilon = \tfrac12 \log(1 + T^{-\alpha})` it is
:math:`T^\alpha` times, 32 for ``T = 1000`` and :math:`\alpha = \tfrac12`. The model order is still
finite, and the two bounds below include repeats. The paper gives an order only, without its
constant, which depends on σ² as well (its (7.12)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from experiments.theory.information import checked_covariance
from tvbo.values import check_count, check_not_negative, check_positive

NEGLIGIBLE = 1e-6
"""Largest information of the truncated eigenvectors per observation, as a share of the budget; the
bound accounts for it."""

STEPS = 50
"""Steps towards the best allocation of observations; more steps give a tighter bound."""


def variance_threshold(budget: float, noise_variance: float) -> float:
    r"""Return :math:`\sigma^2 (e^{2\varepsilon} - 1)`, the threshold of the variance (2.12).

    Args:
        budget: ε >= 0, in nats.
        noise_variance: σ² > 0.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_not_negative(budget=budget)
    check_positive(noise_variance=noise_variance)
    # Beyond, it is larger than any variance.
    return noise_variance * math.expm1(2 * budget) if budget < 350 else math.inf


def compression_regret_exponent(alpha: float) -> float:
    r"""Return the exponent of T in the regret that compression adds, :math:`1 - \alpha/2`.

    Theorem 3.2. From :math:`T \sqrt{\log(1 + T^{-\alpha})} \le T^{1 - \alpha/2}`, up to constants
    and :math:`\sqrt{\beta_T}`. So :math:`\alpha = 1/p` gives :math:`T^{1 - 1/(2p)}` and
    :math:`\alpha = 1/(2p)` gives :math:`T^{1 - 1/(4p)}`: the two rows for UCB of the paper's Table
    1 have these exchanged.

    Args:
        alpha: α in [0, 1]; at 0 the regret is linear.

    Raises:
        ValueError: if α lies outside.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"Expected alpha in [0, 1]. Got {alpha}.")
    return 1 - alpha / 2


def model_order_exponent(alpha: float, dim: int) -> float:
    r"""Return the exponent of T in the model order of the paper, :math:`\alpha p` (Theorem 3.1).

    Its proof omits repeats. With repeats, :func:`model_order_bound` grows as
    :math:`T^{\alpha (1 + p/2)}`: faster for ``p = 1``, as fast for 2, slower from 3 on.

    Args:
        alpha: α in [0, 1/p].
        dim: Dimension ``p`` of the actions.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count(dim=dim)
    if not 0 <= alpha <= 1 / dim:
        raise ValueError(f"Expected alpha in [0, 1/p] = [0, {1 / dim:g}]. Got {alpha}.")
    return alpha * dim


def model_order_bound(
    *,
    budget: float,
    noise_variance: float,
    lengthscales: Sequence[float],
    side_lengths: Sequence[float],
    prior_variance: float = 1.0,
) -> int:
    r"""Return an upper bound on the number of points of a box that can pass the test.

    This is (3.1) with its constant and with repeats, for :math:`k(x, x') = v \exp(-\tfrac12 \sum_i
    (x_i - x_i')^2 / l_i^2)`, any rule that proposes the points, and any number of rounds. Divide
    the box into cells in which :math:`\|k(x, \cdot) - k(x', \cdot)\|^2 = 2 v (1 - e^{-r^2/2}) \le
    \rho^2`, ``r`` being the distance in lengthscales. In a cell with ``n`` points, the mean squared
    error of the mean of their outcomes is at most :math:`\rho^2 + \sigma^2 / n`, and that of the
    posterior mean is no larger. With :math:`\rho^2 = \sigma^2 (\tau - 1/n)` that is :math:`\sigma^2
    \tau`, so no further point of the cell passes, and no cell ever has more than ``n`` points. Any
    ``n`` above :math:`1/\tau` is valid; :math:`\lceil (1 + p/2) / \tau \rceil` is nearly the best.
    Points that entered without a test are not counted.

    Args:
        budget: ε > 0, in nats.
        noise_variance: σ² > 0, in squared units of the reward.
        lengthscales: ``p`` lengthscales, all > 0.
        side_lengths: ``p`` side lengths of the box, at least 0, in the same units.
        prior_variance: :math:`v`, in squared units of the reward.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_positive(budget=budget, noise_variance=noise_variance, prior_variance=prior_variance)
    if len(lengthscales) != len(side_lengths) or len(lengthscales) == 0:
        raise ValueError(
            "Expected one lengthscale for each side of a box. "
            f"Got {len(lengthscales)} lengthscales and {len(side_lengths)} side_lengths."
        )
    for lengthscale, side in zip(lengthscales, side_lengths, strict=True):
        check_positive(lengthscale=lengthscale)
        check_not_negative(side_length=side)
    dim = len(lengthscales)
    tau = _tau(budget)
    if prior_variance <= noise_variance * tau:
        return 0
    per_cell = math.ceil((1 + dim / 2) / tau)
    # Half the squared kernel diameter of a cell, in units of the prior variance: less than 1/2.
    apart = noise_variance * (tau - 1 / per_cell) / (2 * prior_variance)
    edge = math.sqrt(-2 * math.log1p(-apart) / dim)
    sides = zip(lengthscales, side_lengths, strict=True)
    return per_cell * math.prod(max(1, math.ceil(side / (edge * scale))) for scale, side in sides)


def information_model_order_bound(covar: Tensor, *, noise_variance: float, budget: float) -> int:
    r"""Return an upper bound on the number of points of a finite set that can pass the test.

    Each point that passes has an information gain above ε nats, so ``M`` of them need :math:`M
    \varepsilon < \gamma_M`, the maximum information gain of ``M`` observations. Replace the numbers
    of observations by any weights :math:`w \ge 0`: :math:`G(w) = \tfrac12 \log\det(I + \sigma^{-2}
    W^{1/2} K W^{1/2})` is concave, with slopes :math:`g_i(w) = \sigma_w^2(x_i) / 2\sigma^2`, so
    every ``w`` gives a linear upper bound on :math:`\gamma`:

    .. math:: \gamma_M \le G(w) - w^\top g(w) + M \max_i g_i(w), \qquad
        M < \frac{G(w) - w^\top g(w)}{\varepsilon - \max_i g_i(w)}.

    The right-hand side is a bound for every ``w`` with :math:`\max_i g_i(w) < \varepsilon`. Good
    weights are found by multiplicative steps :math:`w_i \propto w_i g_i(w)`, as for D-optimal
    designs, with the bound itself as their sum, which is Newton's method for :math:`\gamma_M = M
    \varepsilon`. For smooth kernels :math:`\gamma_M` grows by powers of :math:`\log M`, so the
    model order is about :math:`1/\varepsilon` in any dimension.

    Args:
        covar: ``n x n``, the covariance over the points.
        noise_variance: σ² > 0, in squared units of the reward.
        budget: ε > 0, in nats.

    Returns:
        The bound, for any rule that proposes points and any number of rounds; points that entered
        without a test are not counted. It takes about a second for 1,000 points of a smooth kernel.

    Raises:
        ValueError: if an argument is out of range, or ``covar`` is not a symmetric, finite matrix.
    """
    check_positive(noise_variance=noise_variance, budget=budget)
    covar = checked_covariance(covar)
    if covar.dim() != 2:
        raise ValueError(f"Expected covar to be n x n. Got {tuple(covar.shape)}.")
    if covar.diagonal().max() <= variance_threshold(budget, noise_variance):
        return 0
    features = _features(covar, NEGLIGIBLE * 2 * budget * noise_variance) / math.sqrt(
        noise_variance
    )
    # Largest information per observation that the features leave out.
    truncated = (covar.diagonal() / noise_variance - features.square().sum(dim=-1)).max().item()
    budget = budget - max(truncated, 0.0) / 2
    weights = torch.full((len(covar),), 1 / budget / len(covar), dtype=covar.dtype)
    eye = torch.eye(features.shape[-1], dtype=covar.dtype)
    bound = math.inf
    for _ in range(STEPS):
        root = torch.linalg.cholesky(eye + features.mT @ (weights.unsqueeze(-1) * features))
        white = torch.linalg.solve_triangular(root, features.mT, upper=False)
        slopes = white.square().sum(dim=0) / 2
        largest_slope, total = slopes.max().item(), weights.sum()
        if largest_slope < budget:
            intercept = root.diagonal().log().sum() - weights @ slopes
            bound = min(bound, intercept.item() / (budget - largest_slope))
            total = bound
        else:
            total = 2 * total
        weights = weights * slopes
        weights = weights * (total / weights.sum())
    return math.floor(bound)


def _tau(budget: float) -> float:
    """Return the threshold of the posterior variance in units of the noise variance."""
    try:
        return math.expm1(2 * budget)
    except OverflowError:
        return math.inf


def _features(covar: Tensor, negligible: float) -> Tensor:
    """Return ``n x r`` features; the variances of ``F F^T`` are smaller by ``negligible``."""
    values, vectors = torch.linalg.eigh(covar)
    order = values.argsort(descending=True)
    values, vectors = values[order].clamp_min(0.0), vectors[:, order]
    variances = values * vectors.square()
    # Per row, the variance that is lost when the eigenvectors from each one on are truncated.
    lost = variances.flip(-1).cumsum(dim=-1).flip(-1)
    rank = int((lost.amax(dim=0) > negligible).sum())
    features: Tensor = vectors[:, :rank] * values[:rank].sqrt()
    return features
