"""N of R-GP-UCB by cross-validation."""

import math

import pytest
import torch

from experiments.bogunovic.block_length import tune_block_length
from tvbo import recipes, run
from tvbo.acquisition import LogBeta
from tvbo.kernels import CovarianceMatrixKernel
from tvbo.test_functions import PanelProblem

NOISE = 0.01


def jumps(rounds, every, first=0):
    """Values of four arms of which each is the best for ``every`` rounds in turn."""
    values = torch.zeros(rounds, 4, dtype=torch.float64)
    for t in range(rounds):
        values[t, (first + t // every) % 4] = 1.0
    return values


@pytest.mark.slow
def test_resets_where_the_function_jumps():
    stretches = [jumps(45, 15), jumps(45, 15, 2)]
    tuned = tune_block_length(
        stretches, noise_variance=NOISE, beta=1.0, lengths=(45, 3, 15, 22), replicates=1
    )
    assert tuned.length == 15
    assert list(tuned.mean_regret) == [3, 15, 22, 45]
    assert all(len(regret) == 2 for regret in tuned.by_stretch.values())


def test_each_stretch_is_played_with_the_moments_of_the_others(generator):
    lengths, beta = (6, 14, 10), LogBeta(c1=0.8, c2=0.4)
    stretches = [
        torch.randn(n, 3, dtype=torch.float64, generator=generator).cumsum(dim=0) + 5
        for n in lengths
    ]
    tuned = tune_block_length(stretches, noise_variance=0.5, beta=beta, lengths=(4,), replicates=2)
    regrets = []
    for left_out, values in enumerate(stretches):
        others = torch.cat([s for i, s in enumerate(stretches) if i != left_out])
        mean = others.mean()
        moments = (others - mean).mT @ (others - mean) / len(others)
        for seed in range(2):
            optimizer = recipes.r_gp_ucb(
                every=4.0,
                choices=torch.arange(3.0).unsqueeze(-1),
                covar_module=CovarianceMatrixKernel(moments),
                noise_variance=0.5,
                beta=beta,
                generator=torch.Generator().manual_seed(seed),
            )
            problem = PanelProblem(values - mean)
            history = run(problem, optimizer, horizon=len(values), progress=False)
            regrets.append(history.regret.sum().item())
    assert tuned.mean_regret[4] == pytest.approx(math.fsum(regrets) / (2 * sum(lengths)))
    first = math.fsum(regrets[:2]) / (2 * lengths[0])
    assert tuned.by_stretch[4][0] == pytest.approx(first)
