import math

import numpy as np
import pytest
import torch
from reference import rbf

from experiments.problems.rkhs import RKHSFunction
from tvbo.test_functions.drifting_gp import unit_grid

GRID = 10 * unit_grid(15) - 5


def draw(seed=0, num_centers=40, lengthscale=0.8):
    return RKHSFunction.draw(
        GRID,
        rbf(lengthscale),
        num_centers=num_centers,
        generator=torch.Generator().manual_seed(seed),
    )


def se(x, z, lengthscale):
    return math.exp(-sum((a - b) ** 2 for a, b in zip(x, z, strict=True)) / (2 * lengthscale**2))


def double_loop(problem, X, lengthscale):
    centers, weights = problem.centers.tolist(), problem.weights.tolist()
    return [
        sum(w * se(x, z, lengthscale) for z, w in zip(centers, weights, strict=True)) for x in X
    ]


def test_values_are_the_sum_of_kernels():
    problem = draw()
    assert problem.values.tolist() == pytest.approx(
        double_loop(problem, GRID.tolist(), 0.8), abs=1e-9
    )
    elsewhere = [[0.123, -4.5, 7.0], [9.0, 9.0, 8.0]]
    assert problem.evaluate_true(torch.tensor(elsewhere, dtype=torch.float64)).tolist() == (
        pytest.approx(double_loop(problem, [row[:2] for row in elsewhere], 0.8), abs=1e-9)
    )


def test_norm_is_the_double_sum():
    problem = draw()
    at_centers = double_loop(problem, problem.centers.tolist(), 0.8)
    square = sum(w * f for w, f in zip(problem.weights.tolist(), at_centers, strict=True))
    assert problem.norm == pytest.approx(math.sqrt(square), rel=1e-9)


def test_norm_bounds_the_function():
    """|f(x)| <= ‖f‖ sqrt(k(x, x)), and the norm of c k(z, .) is |c|."""
    problem = draw()
    assert problem.values.abs().max() < problem.norm
    bump = RKHSFunction(GRID, GRID[:1], torch.tensor([-2.5]), rbf(0.8))
    assert bump.norm == pytest.approx(2.5, rel=1e-14)
    assert bump.minimum == pytest.approx(-2.5, rel=1e-14)


def test_the_draw_interpolates_a_gaussian_process():
    """Squared norms are χ² of the number of points: mean 40, standard deviation 8.9 of one."""
    squares = np.array([draw(seed).norm ** 2 for seed in range(60)])
    assert squares.mean() == pytest.approx(40, abs=3.5)
    at_centers = torch.stack(
        [problem.function(problem.centers) for problem in map(draw, range(60))]
    )
    # 2,400 values of variance 1, correlated in part.
    assert at_centers.square().mean().item() == pytest.approx(1.0, abs=0.15)


def test_the_points_lie_in_the_box_of_the_choices():
    centers = draw(num_centers=300, lengthscale=0.3).centers
    assert -5 < centers.min() < -4.9
    assert 4.9 < centers.max() < 5


def test_best_and_least():
    problem = draw()
    values = double_loop(problem, GRID.tolist(), 0.8)
    assert problem.optimal_value(3.0) == pytest.approx(max(values), abs=1e-9)
    assert problem.optimal_action(3.0).tolist() == GRID[int(np.argmax(values))].tolist()
    assert problem.minimum == pytest.approx(min(values), abs=1e-9)


def test_equal_generators_draw_equal_functions_and_noise():
    one, two, other = draw(1), draw(1), draw(2)
    assert torch.equal(one.values, two.values)
    assert not torch.equal(one.values, other.values)
    assert torch.equal(
        RKHSFunction.draw(GRID, rbf(0.8)).values, RKHSFunction.draw(GRID, rbf(0.8)).values
    )
