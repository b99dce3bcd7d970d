"""RExp3: Exp3 that starts afresh every block."""

from __future__ import annotations

import math

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from torch import Generator, Tensor

from tvbo.optimizers.base import Optimizer
from tvbo.optimizers.trial_log import LostTrial
from tvbo.spaces import Context, FiniteSpace, Named, Time
from tvbo.spaces.observations import Observations
from tvbo.trial import Trial


class RExp3(Optimizer):
    r"""Exp3 restarted every block of rounds (Besbes, Gur, Zeevi, 2014, Algorithm 1).

    Within a block of :math:`\Delta` rounds over ``K`` arms, arm ``k`` is drawn with probability

    .. math:: p_k = (1 - \gamma) \frac{w_k}{\sum_j w_j} + \frac{\gamma}{K}

    and its weight multiplied by :math:`\exp(\gamma \hat y / (K p_k))`, where :math:`\hat y` is the
    reward scaled to [0, 1]. It learns each arm by itself: no correlation between arms is used.

    Args:
        search_space: The arms.
        block: Block length Δ in rounds; see :func:`rexp3_block_length`.
        reward_bounds: Lowest and highest possible reward, which Exp3 must know.
        exploration: γ in (0, 1]; default :math:`\min(1, \sqrt{K \log K / ((e - 1)\Delta)})`.
        generator: Source of the draws; default a fresh one with seed 0.

    Raises:
        ValueError: if an argument is out of range.
    """

    search_space: FiniteSpace

    def __init__(
        self,
        search_space: FiniteSpace,
        block: int,
        reward_bounds: tuple[float, float],
        exploration: float | None = None,
        generator: Generator | None = None,
    ):
        super().__init__(search_space, generator=generator)
        low, high = reward_bounds
        if not -math.inf < low < high < math.inf:
            raise ValueError(f"Expected finite reward_bounds (low, high). Got {reward_bounds}.")
        if block < 1:
            raise ValueError(f"Expected block >= 1 round. Got {block}.")
        K = len(search_space.choices)
        if exploration is None:
            exploration = min(1.0, math.sqrt(K * math.log(K) / ((math.e - 1) * block)))
        if not 0 < exploration <= 1:
            raise ValueError(f"Expected exploration in (0, 1]. Got {exploration} with {K} arms.")
        self.block = block
        self.reward_bounds = (float(low), float(high))
        self.exploration = exploration
        self._log_weights = torch.zeros(K, dtype=torch.float64)
        self._block_of_weights = 0
        # By trial: the block and the probability it was drawn with, which importance weighting
        # needs however late the outcome comes.
        self._draws: dict[int, tuple[int, float]] = {}

    @property
    def probabilities(self) -> Tensor:
        """Probability of each arm at the next draw within this block, ``K``."""
        K = len(self._log_weights)
        return (1 - self.exploration) * self._log_weights.softmax(-1) + self.exploration / K

    def attach(self, X: Tensor | Named, t: Time, context: Context | None = None) -> Trial:
        """Refused: an arm that was not drawn has no probability to weight its outcome by.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("RExp3 learns only from its own draws. Got an action to attach.")

    def attach_frame(self, *_: object, **__: object) -> int:
        """Refused, as :meth:`attach` is.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("RExp3 learns only from its own draws. Got a table to attach.")

    def _choose(self, round_number: int, t: float, context: Tensor | None) -> Tensor:
        block = (round_number - 1) // self.block
        if block != self._block_of_weights:
            self._log_weights.zero_()
            self._block_of_weights = block
        arm = torch.multinomial(self.probabilities, 1, generator=self.generator)
        self._draws[self._num_trials + 1] = (block, self.probabilities[arm].item())
        return self.search_space.choices[arm].clone()

    @property
    def _unit(self) -> float:
        # The bounds of the rewards are all there is to keep to.
        return math.inf

    def _learn(self, trial: Trial, observation: Observations) -> None:
        low, high = self.reward_bounds
        reward = (observation.Y.item() - low) / (high - low)
        if not 0 <= reward <= 1:
            raise InputDataError(
                f"Expected Y within reward_bounds {self.reward_bounds}. Got {observation.Y.item()}."
            )
        block, probability = self._draws.pop(trial.id)
        if block == self._block_of_weights:
            arm = self.search_space.index(trial.X)
            self._log_weights[arm] += (
                self.exploration * reward / (probability * len(self._log_weights))
            )

    def _forget(self, lost: LostTrial) -> None:
        del self._draws[lost.trial.id]


def rexp3_block_length(num_arms: int, horizon: int, variation: float) -> int:
    r"""Block length of Besbes et al. (2014), Theorem 2.

    :math:`\Delta = \lceil (K \log K)^{1/3} (T / V)^{2/3} \rceil`, at most ``T``.

    Args:
        num_arms: K, at least 2.
        horizon: T, in rounds.
        variation: V, the total change of the mean rewards (scaled to [0, 1]) over the horizon.

    Raises:
        ValueError: if an argument is out of range.
    """
    if num_arms < 2 or horizon < 1 or variation <= 0:
        raise ValueError(
            "Expected num_arms >= 2, horizon >= 1 and variation > 0. "
            f"Got {num_arms}, {horizon}, {variation}."
        )
    length: float = (num_arms * math.log(num_arms)) ** (1 / 3) * (horizon / variation) ** (2 / 3)
    return min(horizon, math.ceil(length))
