import cmath
import math

import numpy as np
import pytest
import torch

from experiments.problems.moving_functions import (
    MovingPeaks,
    RotatingOptimum,
    SeasonalOptimum,
    SuddenJump,
)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def standardized(problem, raw):
    mean, scale = problem.moments
    return pytest.approx((raw - mean) / scale, rel=1e-11)


def test_moving_peaks_against_a_loop():
    problem = MovingPeaks(60, generator=seeded(1))
    for x, y, t in ((0.1, 0.8, 0.0), (0.5, 0.5, 17.3), (1.0, 0.2, 60.0)):
        values = []
        for turns, phases in zip(problem.turns.tolist(), problem.phases.tolist(), strict=True):
            a, b, h = (
                math.sin(2 * math.pi * turn * t / 60 + phase)
                for turn, phase in zip(turns, phases, strict=True)
            )
            square = (x - 0.5 - 0.4 * a) ** 2 + (y - 0.5 - 0.4 * b) ** 2
            values.append((1 + 0.4 * h) * math.exp(-square / (2 * 0.15**2)))
        value = problem.evaluate_true(tensor([x, y, t])).item()
        assert value == standardized(problem, max(values))


def test_another_peak_becomes_the_highest():
    """In most of 20 draws the best action moves by more than 0.3 from one round to the next."""
    jumps = []
    for seed in range(20):
        problem = MovingPeaks(80, generator=seeded(seed))
        path = torch.stack([problem.optimal_action(t) for t in range(81)])
        jumps.append((path.diff(dim=0).norm(dim=-1) > 0.3).any())
        centers, _ = problem.peaks(torch.arange(81.0).double())
        assert centers.diff(dim=0).norm(dim=-1).max() < 2**0.5 * 0.4 * 2 * math.pi * 1.5 / 80
        assert 0 <= centers.min() <= centers.max() <= 1
    assert sum(jumps) > 10


def test_sudden_jump_rests_and_jumps():
    problem = SuddenJump(100, generator=seeded(2))
    assert problem.jump_times.tolist() == pytest.approx([30, 55, 80])
    times = (0, 29.99, 30.01, 54.99, 55.01, 79.99, 80.01, 100)
    path = [problem.optimal_action(t).tolist() for t in times]
    assert path[::2] == path[1::2]
    for before, after in ((1, 2), (3, 4), (5, 6)):
        assert math.dist(path[before], path[after]) >= 0.4


def test_the_season_comes_again():
    problem = SeasonalOptimum(48, generator=seeded(3))
    for t in (0.0, 5.3, 35.0):
        c = problem.optimal_action(t)
        assert torch.allclose(problem.optimal_action(t + 12), c, atol=1e-12)
        assert not torch.allclose(problem.optimal_action(t + 6), c, atol=1e-2)
        expected = 0.5 + sum(
            a * np.sin(2 * np.pi * k * t / 12 + problem.phases[:, k - 1].numpy())
            for k, a in ((1, 0.2), (2, 0.07), (3, 0.03))
        )
        assert c.tolist() == pytest.approx(expected.tolist(), rel=1e-12)


def test_the_ridge_turns_with_its_center():
    problem = RotatingOptimum(40)
    for x, y, t in ((0.8, 0.5, 0.0), (0.3, 0.6, 7.0), (0.9, 0.1, 33.3)):
        u = (complex(x, y) - complex(0.5, 0.5)) * cmath.exp(-2j * math.pi * t / 40)
        raw = math.exp(-((u.real - 0.3) ** 2) / (2 * 0.16) - u.imag**2 / (2 * 0.01))
        value = problem.evaluate_true(tensor([x, y, t])).item()
        assert value == standardized(problem, raw)
    assert problem.optimal_action(10.0).tolist() == pytest.approx([0.5, 0.8])


@pytest.mark.parametrize("problem", [SuddenJump, SeasonalOptimum])
def test_centers_stay_in_the_square(problem):
    times = torch.linspace(0, 80, 161, dtype=torch.float64)
    for seed in range(20):
        centers = problem(80, generator=seeded(seed)).best_actions(times)
        assert centers.shape == (161, 2)
        assert (centers >= 0).all()
        assert (centers <= 1).all()
