import cmath
import math

import numpy as np
import pytest
import torch

from tvbo.test_functions.moving_functions import (
    MovingPeaks,
    RotatingOptimum,
    SeasonalOptimum,
    SuddenJump,
)

RANDOM = [MovingPeaks, SuddenJump, SeasonalOptimum]


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_moving_peaks_against_a_loop():
    problem = MovingPeaks(60, num_peaks=3, width=0.2, generator=seeded(1))
    for x, y, t in ((0.1, 0.8, 0.0), (0.5, 0.5, 17.3), (1.0, 0.2, 60.0)):
        values = []
        for turns, phases in zip(problem.turns.tolist(), problem.phases.tolist(), strict=True):
            a, b, h = (
                math.sin(2 * math.pi * turn * t / 60 + phase)
                for turn, phase in zip(turns, phases, strict=True)
            )
            square = (x - 0.5 - 0.4 * a) ** 2 + (y - 0.5 - 0.4 * b) ** 2
            values.append((1 + 0.4 * h) * math.exp(-square / (2 * 0.2**2)))
        expected = (max(values) - problem.mean) / problem.scale
        assert problem.evaluate_true(tensor([x, y, t])).item() == pytest.approx(expected, rel=1e-12)


def test_another_peak_becomes_the_highest():
    """In most of 20 draws the best action moves by more than 0.3 from one round to the next."""
    jumps = []
    for seed in range(20):
        problem = MovingPeaks(80, generator=seeded(seed))
        path = torch.stack([problem.optimal_action(t) for t in range(81)])
        jumps.append((path.diff(dim=0).norm(dim=-1) > 0.3).any())
        steps = problem.centers(torch.arange(81.0).double()).diff(dim=0).norm(dim=-1)
        assert steps.max() < 2**0.5 * 0.4 * 2 * math.pi * 1.5 / 80
    assert sum(jumps) > 10


def test_sudden_jump_rests_and_jumps():
    problem = SuddenJump(100, jump_times=tensor(20.0, 50.0), generator=seeded(2))
    path = [problem.optimal_action(t).tolist() for t in (0, 19.99, 20, 49.99, 50, 100)]
    assert path[0] == path[1]
    assert path[2] == path[3]
    assert path[4] == path[5]
    for before, after in ((1, 2), (3, 4)):
        assert math.dist(path[before], path[after]) >= 0.4
    assert SuddenJump(80).jump_times.tolist() == pytest.approx([24, 44, 64])
    assert SuddenJump(80, jump_times=torch.empty(0)).places.shape == (1, 2)


def test_the_season_comes_again():
    problem = SeasonalOptimum(90, period=12.0, generator=seeded(3))
    moved = SeasonalOptimum(90, period=12.0, trend=0.3, generator=seeded(3))
    for t in (0.0, 5.3, 60.0):
        c = problem.optimal_action(t)
        assert torch.allclose(problem.optimal_action(t + 12), c, atol=1e-12)
        assert not torch.allclose(problem.optimal_action(t + 6), c, atol=1e-2)
        trend = 0.3 * (t / 90 - 0.5)
        assert torch.allclose(moved.optimal_action(t), c + trend, atol=1e-12)
        expected = 0.5 + sum(
            a * np.sin(2 * np.pi * k * t / 12 + problem.phases[:, k - 1].numpy())
            for k, a in ((1, 0.2), (2, 0.07), (3, 0.03))
        )
        assert c.tolist() == pytest.approx(expected.tolist(), rel=1e-12)


def test_the_ridge_turns_with_its_center():
    problem = RotatingOptimum(80, period=40.0, width=0.4, radius=0.3)
    for x, y, t in ((0.8, 0.5, 0.0), (0.3, 0.6, 7.0), (0.9, 0.1, 33.3)):
        u = (complex(x, y) - complex(0.5, 0.5)) * cmath.exp(-2j * math.pi * t / 40)
        raw = math.exp(-((u.real - 0.3) ** 2) / (2 * 0.16) - u.imag**2 / (2 * 0.01))
        expected = (raw - problem.mean) / problem.scale
        assert problem.evaluate_true(tensor([x, y, t])).item() == pytest.approx(expected, rel=1e-11)
    assert problem.optimal_action(10.0).tolist() == pytest.approx([0.5, 0.8])
    assert RotatingOptimum(80).period == 80


@pytest.mark.parametrize("problem", RANDOM)
def test_centers_stay_in_the_square(problem):
    options = {"trend": 0.4} if problem is SeasonalOptimum else {}
    times = torch.linspace(0, 80, 161, dtype=torch.float64)
    for seed in range(20):
        centers = problem(80, generator=seeded(seed), **options).centers(times)
        assert centers.shape[0::2] == (161, 2)
        assert (centers >= 0).all()
        assert (centers <= 1).all()
