import math

import pytest
import torch
from botorch.exceptions.errors import InputDataError

from experiments.problems.moving_functions import DriftingFeatures


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_values_against_a_loop():
    problem = DriftingFeatures(4, generator=seeded(0))
    x, t = (0.3, 0.9), 2
    total = 0.0
    for j in range(256):
        angle = sum(x[i] * problem.frequencies[i, j].item() for i in range(2))
        a, b = problem.weights[t, j].item(), problem.weights[t, 256 + j].item()
        total += a * math.cos(angle) + b * math.sin(angle)
    row = torch.tensor([[*x, t]], dtype=torch.float64)
    assert problem.evaluate_true(row).item() == pytest.approx(total / 16, rel=1e-12)


def test_draws_have_the_covariance_of_the_model():
    """Over 300 draws: k(x, x') (1 - ε)^(lag / 2).

    An entry is the mean over draws and over some 90 times, correlated over about 20: a standard
    error of at most √2 / √(300 · 4) = 0.041. At lag 13, an exponent of lag in place of lag / 2
    would be wrong by 0.25.
    """
    actions = torch.tensor([[0.2, 0.3], [0.2, 0.5], [0.9, 0.9]], dtype=torch.float64)
    times = torch.arange(100.0, dtype=torch.float64)
    rows = torch.cat([actions.repeat(100, 1), times.repeat_interleave(3).unsqueeze(-1)], dim=-1)
    values = torch.stack(
        [
            DriftingFeatures(99, forgetting_rate=0.1, generator=seeded(seed))
            .evaluate_true(rows)
            .reshape(100, 3)
            for seed in range(300)
        ]
    )
    kernel = torch.exp(-torch.cdist(actions, actions).square() / (2 * 0.2**2))
    for lag in (0, 1, 13):
        sample = torch.einsum("sti,stj->ij", values[:, : 100 - lag], values[:, lag:])
        sample /= 300 * (100 - lag)
        assert (sample - kernel * 0.9 ** (lag / 2)).abs().max() < 0.15


def test_limits_of_the_rate():
    """At ε = 0 nothing moves; at ε = 1 nothing is left a round later."""
    still = DriftingFeatures(3, forgetting_rate=0.0, generator=seeded(1)).weights
    assert torch.equal(still[0], still[3])
    fresh = DriftingFeatures(3, forgetting_rate=1.0, generator=seeded(1)).weights
    # 512 independent pairs: a standard error of 0.044.
    assert abs((fresh[0] * fresh[1]).mean()) < 0.25


def test_no_point_of_a_fine_grid_beats_the_optimum():
    """A peak loses 0.007² · 3 / (2 · 0.2²) = 2e-3 at most, 0.007 from the next grid point."""
    problem = DriftingFeatures(40, generator=seeded(2))
    side = torch.linspace(0, 1, 101, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    for t in (0.0, 13.0, 40.0):
        largest = problem.evaluate_true(problem.layout.rows(grid, t)).max().item()
        assert -2e-3 < largest - problem.optimal_value(t) < 1e-10


def test_times_between_integers():
    problem = DriftingFeatures(5)
    with pytest.raises(InputDataError):
        problem.optimal_value(2.5)
