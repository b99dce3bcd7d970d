"""The block length of R-GP-UCB, chosen by cross-validation on recorded values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from torch import Tensor

from tvbo.acquisition.ucb import BetaSchedule
from tvbo.evaluation import run
from tvbo.kernels import CovarianceMatrixKernel
from tvbo.logs import empirical_covariance
from tvbo.recipes import r_gp_ucb
from tvbo.test_functions import PanelProblem
from tvbo.values import as_numbers

LENGTHS = (5, 10, 15, 20, 30, 50, 75, 100)
"""Block lengths to compare, in rounds."""


@dataclass(frozen=True)
class TunedBlockLength:
    """A block length, and the regret by which it was chosen.

    Args:
        length: The block length N, in rounds.
        mean_regret: Mean regret of a round over all stretches, by block length.
        by_stretch: Mean regret of a round on each stretch, by block length.
    """

    length: int
    mean_regret: dict[int, float]
    by_stretch: dict[int, list[float]]


def tune_block_length(
    stretches: Sequence[Tensor],
    *,
    noise_variance: float,
    beta: BetaSchedule | float | None = None,
    lengths: Sequence[int] = LENGTHS,
    replicates: int = 5,
) -> TunedBlockLength:
    """Choose the block length of R-GP-UCB by leave-one-out cross-validation over stretches.

    Bogunovic et al. (2016), Section 5.2, choose N by cross-validation on the three training days;
    how, they do not say. Here each stretch is left out in turn, the kernel and the mean are the
    empirical ones of the others, and R-GP-UCB plays the stretch with each block length. The length
    with the smallest mean regret is chosen, the shortest where several have it.

    Args:
        stretches: Recorded values, each ``T_i x n``, of the same ``n`` actions at equal steps, such
            as days, or ``values.tensor_split(3)``. At least two.
        noise_variance: σ², in squared units of the values.
        beta: β of UCB, a number or a schedule by round; default as of
            :func:`tvbo.recipes.r_gp_ucb`.
        lengths: The block lengths to compare, in rounds.
        replicates: Number of runs of each stretch, with the seeds ``0, 1, ...``, which break ties.

    Raises:
        ValueError: if there are fewer than two stretches, no block length, or one below 1, or
            ``replicates`` is not positive.
        BotorchTensorDimensionError: if a stretch is not ``T_i x n``.

    Example:
        >>> tuned = tune_block_length(values.tensor_split(3), noise_variance=0.5)
        >>> optimizer = recipes.r_gp_ucb(every=tuned.length, **options)
    """
    stretches = [as_numbers("stretches", values) for values in stretches]
    lengths = sorted(set(lengths))
    if len(stretches) < 2 or not lengths or lengths[0] < 1 or replicates < 1:
        raise ValueError(
            "Expected at least two stretches, block lengths of at least 1 round, and replicates "
            f">= 1. Got {len(stretches)} stretches, lengths={lengths}, replicates={replicates}."
        )
    shapes = [tuple(values.shape) for values in stretches]
    if any(len(shape) != 2 or 0 in shape or shape[1] != shapes[0][1] for shape in shapes):
        raise BotorchTensorDimensionError(
            f"Expected stretches of shape T x n, with the same n. Got {shapes}."
        )
    by_stretch: dict[int, list[float]] = {length: [] for length in lengths}
    for left_out, values in enumerate(stretches):
        others = torch.cat(stretches[:left_out] + stretches[left_out + 1 :])
        for length in lengths:
            regret = [
                _play(others, values, length, noise_variance, beta, seed)
                for seed in range(replicates)
            ]
            by_stretch[length].append(torch.stack(regret).mean().item())
    rounds = torch.tensor([float(shape[0]) for shape in shapes], dtype=torch.float64)
    share = rounds / rounds.sum()
    mean_regret = {
        length: (share * torch.tensor(regret, dtype=torch.float64)).sum().item()
        for length, regret in by_stretch.items()
    }
    best = min(lengths, key=lambda length: mean_regret[length])
    return TunedBlockLength(best, mean_regret, by_stretch)


def _play(
    train: Tensor,
    values: Tensor,
    length: int,
    noise_variance: float,
    beta: BetaSchedule | float | None,
    seed: int,
) -> Tensor:
    """Return the regret of R-GP-UCB in each round, ``T``."""
    problem = PanelProblem(values - train.mean())
    optimizer = r_gp_ucb(
        every=length,
        choices=problem.choices,
        covar_module=CovarianceMatrixKernel(empirical_covariance(train)),
        noise_variance=noise_variance,
        beta=beta,
        generator=torch.Generator().manual_seed(seed),
    )
    return run(problem, optimizer, horizon=len(values), progress=False).regret
