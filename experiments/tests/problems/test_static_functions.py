import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from experiments.problems.static_functions import ExampleFunction, Rosenbrock
from tvbo import recipes, run
from tvbo.test_functions.drifting_gp import unit_grid


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_example_function_is_4_1():
    x = [0.0, 0.3, 1.7, 9.9]
    rows = tensor(*[[value, 5.0] for value in x])
    expected = [math.sin(v) + math.cos(v) + 0.1 * v for v in x]
    assert ExampleFunction().evaluate_true(rows).tolist() == pytest.approx(expected, rel=1e-14)


def test_the_best_of_the_example_function():
    """f' = 0 where √2 cos(x + π/4) = -0.1: the second maximum, one turn after the first."""
    problem = ExampleFunction()
    x = math.acos(-0.1 / math.sqrt(2)) - math.pi / 4 + 2 * math.pi
    assert problem.optimal_action(0.0).item() == pytest.approx(x, abs=0.005)
    best = math.sin(x) + math.cos(x) + 0.1 * x
    # Half a step of the grid beside it, where the curvature is √2: at most 1.8e-5 below.
    assert best - 1.8e-5 <= problem.optimal_value(0.0) <= best
    assert len(problem.choices) == 1000
    assert problem.bounds.tolist() == [[0.0], [10.0]]


def test_rosenbrock_is_4_2_negated():
    problem = Rosenbrock(a=1.5, b=7.0, shift=0.0, scale=1.0)
    for x, y in ((0.0, 0.0), (1.5, 2.25), (-1.0, 3.0)):
        expected = -((1.5 - x) ** 2 + 7.0 * (y - x**2) ** 2)
        assert problem.evaluate_true(tensor([x, y, 9.0])).item() == pytest.approx(expected)


def test_rosenbrock_is_standardized_over_its_choices():
    problem = Rosenbrock()
    values = problem.evaluate_true(problem.layout.rows(problem.choices, 3.0)).numpy()
    x, y = problem.choices.numpy().T
    raw = -((1 - x) ** 2 + 10 * (y - x**2) ** 2)
    assert values == pytest.approx((raw - np.mean(raw)) / np.std(raw), abs=1e-12)
    assert len(values) == 2500
    assert problem.bounds.tolist() == [[-2.0, -1.0], [2.0, 3.0]]
    assert problem.optimal_value(1.0) == values.max()
    assert problem.optimal_action(1.0).tolist() == pytest.approx([1.0, 1.0], abs=0.08)


def test_shift_and_scale():
    rows = tensor([2.0, 0.0], [4.0, 0.0])
    raw = ExampleFunction().evaluate_true(rows)
    fitted = ExampleFunction(shift=0.5, scale=4.0)
    assert torch.allclose(fitted.evaluate_true(rows), (raw - 0.5) / 4.0, rtol=1e-14)
    assert fitted.optimal_value(0.0) == pytest.approx(
        (ExampleFunction().optimal_value(0.0) - 0.5) / 4.0
    )


def test_optimum_is_that_of_the_choices():
    problem = ExampleFunction(choices=tensor([0.0], [1.0], [4.0]))
    assert problem.optimal_action(0.0).item() == 1.0
    assert problem.optimal_value(7.0) == pytest.approx(math.sin(1) + math.cos(1) + 0.1)


@pytest.mark.parametrize("seed", range(3))
def test_a_loop_finds_the_ridge(seed):
    """The regret is 0.004 ± 0.002 in 15 runs: the limit is seven standard deviations above."""
    kernel = RBFKernel().double()
    kernel.lengthscale = tensor(1.0)
    choices = tensor([-2.0, -1.0]) + 4 * unit_grid(20)
    problem = Rosenbrock(choices=choices)
    optimizer = recipes.gp_ucb(
        choices=choices,
        covar_module=kernel,
        noise_variance=1e-4,
        generator=torch.Generator().manual_seed(seed),
    )
    history = run(problem, optimizer, horizon=40, progress=False)
    assert history.regret[-5:].mean() < 0.02
