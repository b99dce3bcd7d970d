"""The optimum of each of the eight against random actions, and their noise."""

import pytest
import torch

from experiments.problems.fresh_problems import fresh_problems

NAMES = list(fresh_problems(80))


def problem_named(name, seed=0):
    return fresh_problems(80, 0.05, torch.Generator().manual_seed(seed))[name]


@pytest.mark.parametrize("name", NAMES)
def test_no_action_is_better_than_the_optimum(name):
    for seed in (0, 1):
        problem = problem_named(name, seed)
        low, high = problem.bounds
        generator = torch.Generator().manual_seed(seed)
        for t in (0.0, 17.0, 44.5, 80.0):
            best = problem.optimal_action(t)
            assert ((low <= best) & (best <= high)).all()
            draws = torch.rand(4_000, len(low), dtype=torch.float64, generator=generator)
            # Half of them near to the optimum.
            draws[::2] = (best + 0.02 * (draws[::2] - 0.5)).clamp(0.0, 1.0)
            values = problem.evaluate_true(problem.layout.rows(draws, t))
            assert values.max().item() <= problem.optimal_value(t) + 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_values_are_standardized_and_drawn_from_the_seed(name):
    problem, again, other = (problem_named(name, seed) for seed in (0, 0, 1))
    generator = torch.Generator().manual_seed(2)
    X = torch.rand(20_000, problem.layout.num_columns, dtype=torch.float64, generator=generator)
    X[:, -1] *= 80
    values = problem.evaluate_true(X)
    assert values.mean().item() == pytest.approx(0.0, abs=0.05)
    assert values.std().item() == pytest.approx(1.0, abs=0.05)
    assert torch.equal(values, again.evaluate_true(X))
    assert not torch.equal(values, other.evaluate_true(X))


@pytest.mark.parametrize("name", ["uneven noise", "heavy tails"])
def test_noise(name):
    problem, generator = problem_named(name), torch.Generator().manual_seed(0)
    X = torch.rand(50_000, 2, dtype=torch.float64, generator=generator)
    noise = problem.noise(X, generator)
    assert noise.mean().item() == pytest.approx(0.0, abs=0.05)
    if name == "uneven noise":
        left, right = (noise[side].std().item() for side in (X[:, 0] < 0.1, X[:, 0] > 0.9))
        assert right > 5 * left
    else:
        # Of a normal distribution, one in 16,000 is beyond four deviations.
        assert (noise.abs() > 4).double().mean().item() > 1 / 1_000
