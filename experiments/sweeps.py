"""Batched simulation of upper confidence bound algorithms: all replicates in one tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from torch import Tensor

from tvbo.acquisition.ucb import BetaSchedule
from tvbo.models import StreamingGP
from tvbo.rounding import argmax
from tvbo.test_functions.drifting_gp import drifting_values


@dataclass(frozen=True)
class Replicates:
    """The functions and the noise that ``b`` independent replicates meet.

    Args:
        values: The functions, ``b x T x n``, at times ``1, ..., T``.
        noise: Noise in the outcome of each round, ``b x T``.
        first: Index of the action with which each replicate starts, and starts again after a reset,
            where all actions look alike: ``b x T``.

    Raises:
        BotorchTensorDimensionError: if shapes do not agree.
    """

    values: Tensor
    noise: Tensor
    first: Tensor

    def __post_init__(self) -> None:
        if not self.values.shape[:2] == self.noise.shape == self.first.shape:
            raise BotorchTensorDimensionError(
                "Expected values b x T x n, noise b x T and first b x T. Got "
                f"{tuple(self.values.shape)}, {tuple(self.noise.shape)}, {tuple(self.first.shape)}."
            )

    @classmethod
    def draw(
        cls, root: Tensor, forgetting_rate: float, horizon: int, noise_variance: float, seeds: range
    ) -> Replicates:
        """Draw functions of the Markov model (3)-(4) of Bogunovic et al. (2016).

        Args:
            root: From :func:`tvbo.test_functions.drifting_gp.covariance_root`, ``n x n``.
            forgetting_rate: ε per round.
            horizon: T.
            noise_variance: σ².
            seeds: One for each replicate, whose draw does not depend on the others.
        """
        values, noise, first = [], [], []
        for seed in seeds:
            generator = torch.Generator().manual_seed(seed)
            values.append(drifting_values(root, forgetting_rate, torch.arange(horizon), generator))
            normal = torch.randn(horizon, dtype=torch.float64, generator=generator)
            noise.append(noise_variance**0.5 * normal)
            first.append(torch.randint(len(root), (horizon,), generator=generator))
        return cls(torch.stack(values), torch.stack(noise), torch.stack(first))

    def __len__(self) -> int:
        return len(self.values)


def ucb_sweep(
    model: StreamingGP, replicates: Replicates, beta: BetaSchedule, reset_every: int | None = None
) -> Tensor:
    r"""Play :math:`\arg\max \mu(x) + \sqrt{\beta_t}\,\sigma(x)` in every replicate.

    Of actions that are tied (:mod:`tvbo.rounding`), the first is taken.

    TV-GP-UCB, or with ε = 0 in the model GP-UCB, or with resets R-GP-UCB (Bogunovic et al., 2016,
    Algorithms 1 and 2).

    Args:
        model: With batch shape ``(b,)`` and the ``n`` choices of the replicates; starts afresh.
        replicates: ``b`` replicates.
        beta: Schedule by round.
        reset_every: Block length N in rounds; None for no reset.

    Returns:
        Regret by round, ``b x T``.

    Raises:
        BotorchTensorDimensionError: if model and replicates do not agree.
        ValueError: if ``reset_every`` is not positive.
    """
    b, horizon, n = replicates.values.shape
    if model.batch_shape != (b,) or len(model.choices) != n:
        raise BotorchTensorDimensionError(
            f"Expected a model with batch_shape ({b},) and {n} choices. "
            f"Got {tuple(model.batch_shape)} and {len(model.choices)}."
        )
    if reset_every is not None and reset_every < 1:
        raise ValueError(f"Expected reset_every >= 1 round. Got {reset_every}.")
    regret = replicates.noise.new_empty(b, horizon)
    for i in range(horizon):
        t = i + 1
        if i == 0 or (reset_every is not None and i % reset_every == 0):
            model.reset()
            arm = replicates.first[:, i]
        else:
            mean, variance = model.marginals(t)
            arm = argmax(variance.sqrt_().mul_(beta(t) ** 0.5).add_(mean))
        now = replicates.values[:, i]
        value = now.gather(-1, arm.unsqueeze(-1))
        regret[:, i] = now.amax(dim=-1) - value.squeeze(-1)
        rows = torch.cat([model.choices[arm], value.new_full((b, 1), t)], dim=-1)
        model.observe(rows.unsqueeze(1), (value + replicates.noise[:, i : i + 1]).unsqueeze(1))
    return regret
