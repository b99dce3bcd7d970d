"""RExp3: Exp3 that starts again in every block."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from tvbo.optimizers import Optimizer, Trial
from tvbo.spaces import FiniteSpace
from tvbo.spaces.observations import Observations
from tvbo.spaces.search_space import SearchSpace


class RExp3(Optimizer):
    r"""Exp3 restarted every block of rounds (Besbes, Gur, Zeevi, 2014, Algorithm 1).

    Within a block of :math:`\Delta` rounds over ``K`` arms, arm ``k`` is drawn with probability

    .. math:: p_k = (1 - \gamma) \frac{w_k}{\sum_j w_j} + \frac{\gamma}{K}

    and its weight multiplied by :math:`\exp(\gamma \hat y / (K p_k))`, where :math:`\hat y` is the
    reward scaled to [0, 1]. It learns each arm by itself: no correlation between arms is used. It
    learns from its own draws alone, and from those of the present block.

    Args:
        choices: The arms, ``K x d``.
        block: Block length Δ in rounds; see :func:`rexp3_block_length`.
        reward_bounds: Lowest and highest possible reward, which Exp3 must know.
        exploration: γ in (0, 1]; None is :math:`\min(1, \sqrt{K \log K / ((e - 1)\Delta)})`.
        generator: Source of the draws; None is a fresh one with seed 0.
    """

    search_space: FiniteSpace

    def __init__(
        self,
        choices: Tensor,
        block: int,
        reward_bounds: tuple[float, float],
        exploration: float | None = None,
        generator: Generator | None = None,
    ):
        super().__init__(FiniteSpace(choices), generator=generator)
        K = len(choices)
        if exploration is None:
            exploration = min(1.0, math.sqrt(K * math.log(K) / ((math.e - 1) * block)))
        self.block = block
        self.reward_bounds = reward_bounds
        self.exploration = exploration
        self._log_weights = torch.zeros(K, dtype=torch.float64)
        self._block_of_weights = 0
        # By trial: the block and the probability with which it was drawn.
        self._draws: dict[int, tuple[int, float]] = {}

    @property
    def probabilities(self) -> Tensor:
        """Probability of each arm at the next draw within this block, ``K``."""
        K = len(self._log_weights)
        return (1 - self.exploration) * self._log_weights.softmax(-1) + self.exploration / K

    def _choose(
        self, search_space: SearchSpace, q: int, t: float, context: Tensor | None
    ) -> Tensor:
        block = self._num_asked // self.block
        if block != self._block_of_weights:
            self._log_weights.zero_()
            self._block_of_weights = block
        arm = torch.multinomial(self.probabilities, 1, generator=self.generator)
        self._draws[self.num_trials + 1] = (block, self.probabilities[arm].item())
        return self.search_space.choices[arm].clone()

    def _learn(self, trial: Trial, observation: Observations) -> None:
        low, high = self.reward_bounds
        reward = (observation.Y.item() - low) / (high - low)
        if not 0 <= reward <= 1:
            raise ValueError(
                f"Expected Y within reward_bounds {self.reward_bounds}. Got {observation.Y.item()}."
            )
        block, probability = self._draws.pop(trial.id)
        if block == self._block_of_weights:
            arm = self.search_space.index(trial.X)
            self._log_weights[arm] += (
                self.exploration * reward / (probability * len(self._log_weights))
            )


def rexp3_block_length(num_arms: int, horizon: int, variation: float) -> int:
    r"""Block length of Besbes et al. (2014), Theorem 2.

    :math:`\Delta = \lceil (K \log K)^{1/3} (T / V)^{2/3} \rceil`, at most ``T``.

    Args:
        num_arms: K, at least 2.
        horizon: T, in rounds.
        variation: V, the total change of the mean rewards (scaled to [0, 1]) over the horizon.
    """
    length: float = (num_arms * math.log(num_arms)) ** (1 / 3) * (horizon / variation) ** (2 / 3)
    return min(horizon, math.ceil(length))
