"""What a backtest compares with that has no model: simple rules, SW-UCB, D-UCB."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from tvbo.logs.arm_rule import ArmRule
from tvbo.spaces import FiniteSpace

SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Shares of the newest outcome in an exponentially weighted mean that are tried."""

HOURS = 24
"""Parts of a day that are told apart."""


class LastBest(ArmRule):
    """The action whose newest outcome is the largest.

    Each action is known by its newest outcome alone, however old that is. One without an outcome
    comes first, one whose newest trial failed or expired last. It explores nothing: it stays with
    an action until an outcome of it falls below the newest one of another. Outcomes of a log are
    given by ``attach`` and ``tell``. Among ties the generator decides.

    Args:
        search_space: The actions.
        generator: Source of the draws among ties; default a fresh one with seed 0.
    """

    def __init__(self, search_space: FiniteSpace, generator: Generator | None = None):
        super().__init__(search_space, generator=generator)
        n = len(search_space.choices)
        self._newest = torch.full((n,), math.inf, dtype=torch.float64)
        self._times = torch.full((n,), -math.inf, dtype=torch.float64)

    def _index(self, t: float) -> Tensor:
        return self._newest

    def _observe(self, arm: int, t: float, value: float) -> None:
        if t >= self._times[arm]:
            self._newest[arm] = -math.inf if math.isnan(value) else value
            self._times[arm] = t


class BestOfHour(ArmRule):
    """The arm with the largest mean in training at the same time of day; learns nothing later.

    Args:
        search_space: The arms.
        values: ``T x n``, the training values; NaN where there is no reading.
        times: ``T``.
        day: Length of a day in units of time; infinite for the mean of all training.
        generator: Source of the draws among ties; default a fresh one with seed 0.
    """

    def __init__(
        self,
        search_space: FiniteSpace,
        values: Tensor,
        times: Tensor,
        day: float,
        generator: Generator | None = None,
    ):
        super().__init__(search_space, generator=generator)
        self.day = day
        hours = self._hour(times)
        everywhere = values.nanmean(dim=0).nan_to_num(nan=-math.inf)
        means = [values[hours == hour].nanmean(dim=0) for hour in range(HOURS)]
        self.means = torch.stack([torch.where(m.isnan(), everywhere, m) for m in means])

    def _hour(self, times: Tensor) -> Tensor:
        # A time that rounding puts just before the hour is one of that hour.
        return ((times % self.day) * (HOURS / self.day) + 1e-9).floor().long() % HOURS

    def _index(self, t: float) -> Tensor:
        return self.means[int(self._hour(torch.tensor(t, dtype=torch.float64)))]


class WeightedMeans(ArmRule):
    """The arm with the largest exponentially weighted mean of its outcomes.

    The mean of an arm moves by a share of the difference to each new outcome, however old the
    previous one is. The share is the one of :data:`SHARES` that plays the last third of training
    best. A trial that failed or expired counts for nothing.

    Args:
        search_space: The arms.
        values: ``T x n``, the training values; NaN where there is no reading.
        generator: Source of the draws among ties; default a fresh one with seed 0.
    """

    def __init__(
        self, search_space: FiniteSpace, values: Tensor, generator: Generator | None = None
    ):
        super().__init__(search_space, generator=generator)
        cut = 2 * len(values) // 3
        lost: list[float] = []
        for share in SHARES:
            self.share, self.means = share, _weighted_means(values[:cut], share)
            lost.append(0.0)
            for row in values[cut:][~values[cut:].isnan().all(dim=1)]:
                arm = int(self.means.argmax())
                worst, best = row[~row.isnan()].aminmax()
                lost[-1] += float(best - row[arm].nan_to_num(nan=worst.item()))
                self._observe(arm, 0.0, row[arm].item())
        self.share = SHARES[lost.index(min(lost))]
        self.means = _weighted_means(values, self.share)

    def _index(self, t: float) -> Tensor:
        return self.means

    def _observe(self, arm: int, t: float, value: float) -> None:
        if not math.isnan(value):
            self.means[arm] += self.share * (value - self.means[arm])


def _weighted_means(values: Tensor, share: float) -> Tensor:
    """Return the exponentially weighted mean of each arm, ``n``, from the mean of its values."""
    means = values.nanmean(dim=0)
    means = torch.where(means.isnan(), means.nanmean(), means)
    for row in values:
        means = torch.where(row.isnan(), means, means + share * (row - means))
    return means


class DriftUCB(ArmRule):
    r"""SW-UCB and D-UCB, rules that forget (Garivier, Moulines, 2011, Sections 3.2 and 3.1).

    At time ``t`` it plays the arm with the largest

    .. math::
        \frac{1}{N_i} \sum_{s : I_s = i} w_s X_s + c B \sqrt{\frac{\log n}{2 N_i}}, \qquad
        N_i = \sum_{s : I_s = i} w_s, \quad n = \sum_i N_i,

    over the outcomes :math:`X_s` observed so far. With a window τ (SW-UCB), those of the last τ
    units of time weigh 1, older ones nothing, and ``c = 1``: where ``t`` counts rounds, n is
    :math:`\min(t - 1, \tau)` as in the paper. With a discount γ (D-UCB), one of age ``a`` weighs
    :math:`\gamma^a`, and ``c = 2``; a log of n below one counts as 0. An arm whose :math:`N_i` is
    zero comes first. Among ties the generator decides. A trial that failed or expired counts as one
    with the lowest reward, which the paper does not know.

    Args:
        search_space: The arms.
        reward_bounds: Lowest and highest reward to expect; their difference is B. An outcome beyond
            them is learned from as it is.
        window: τ, in units of time; see :func:`sw_ucb_window`.
        discount: γ per unit of time, instead of a window; see :func:`d_ucb_discount`.
        generator: Source of the draws among ties; default a fresh one with seed 0.
    """

    def __init__(
        self,
        search_space: FiniteSpace,
        reward_bounds: tuple[float, float],
        window: float = math.inf,
        discount: float = 1.0,
        generator: Generator | None = None,
    ):
        super().__init__(search_space, generator=generator)
        self.reward_bounds, self.window, self.discount = reward_bounds, window, discount
        # Times, arms and rewards, of which ``reward_bounds`` are 0 and 1.
        self._outcomes = torch.empty(0, 3, dtype=torch.float64)

    def weights(self, ages: Tensor) -> Tensor:
        """Return the weights of outcomes of some ages, ``n``."""
        return torch.where(ages <= self.window, self.discount**ages, 0.0)

    def weighted_sums(self, t: float) -> tuple[Tensor, Tensor]:
        """Return the weights' sum and the weighted sum of the rewards of each arm at time ``t``.

        Rewards are scaled so that ``reward_bounds`` are 0 and 1.
        """
        times, arms, rewards = self._outcomes.unbind(dim=-1)
        weights, n = self.weights(t - times), len(self.search_space.choices)
        counts = torch.bincount(arms.long(), weights, minlength=n)
        return counts, torch.bincount(arms.long(), weights * rewards, minlength=n)

    def _index(self, t: float) -> Tensor:
        counts, totals = self.weighted_sums(t)
        # Discounted counts sum to less than one after a single outcome.
        log_n = math.log(max(1.0, counts.sum().item()))
        padding = 2.0 if self.discount < 1 else 1.0
        width = padding * (0.5 * log_n / counts).sqrt()
        return torch.where(counts > 0, totals / counts + width, math.inf)

    def _observe(self, arm: int, t: float, value: float) -> None:
        low, high = self.reward_bounds
        reward = 0.0 if math.isnan(value) else (value - low) / ((high - low) or 1.0)
        outcomes = torch.cat([self._outcomes, self._outcomes.new_tensor([[t, arm, reward]])])
        # No ask comes before the newest outcome, so that those without weight are of no use.
        newest = max(t, self._newest_observed[0])
        self._outcomes = outcomes[self.weights(newest - outcomes[:, 0]) > 0]


def sw_ucb_window(horizon: int) -> float:
    r"""Return the window of SW-UCB for one change of the mean rewards.

    :math:`\tau = 2 \sqrt{T \log T}` (Garivier, Moulines, 2011, after Theorem 2, with rewards scaled
    to [0, 1]), in rounds; at least 1.

    Args:
        horizon: T, in rounds.
    """
    return max(1.0, 2 * math.sqrt(horizon * math.log(horizon)))


def d_ucb_discount(horizon: int) -> float:
    r"""Return the discount of D-UCB for one change of the mean rewards.

    :math:`\gamma = 1 - \tfrac{1}{4} \sqrt{1 / T}` (Garivier, Moulines, 2011, after Theorem 1, with
    rewards scaled to [0, 1]), per round.

    Args:
        horizon: T, in rounds.
    """
    return 1 - math.sqrt(1 / horizon) / 4
