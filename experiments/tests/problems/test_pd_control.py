import math

import pytest
import torch

from experiments.problems.pd_control import PDControl
from tvbo import recipes, run


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def simulated_cost(problem, row, duration=60.0, steps=60_000):
    """∫ e² + ρ u² by Runge-Kutta of order 4, the cost a third state; no closed form in it."""
    kp, kd = (10 ** row[:2]).tolist()
    load, strength = row[2].item(), problem.strength(row[3]).item()

    def slope(e, v):
        u = -(kp * e + kd * v)
        return v, strength * u / load, e**2 + problem.control_weight * u**2

    e, v, cost, h = 1.0, 0.0, 0.0, duration / steps
    for _ in range(steps):
        a = slope(e, v)
        b = slope(e + h / 2 * a[0], v + h / 2 * a[1])
        c = slope(e + h / 2 * b[0], v + h / 2 * b[1])
        d = slope(e + h * c[0], v + h * c[1])
        e, v, cost = (
            old + h / 6 * (w + 2 * x + 2 * y + z)
            for old, w, x, y, z in zip((e, v, cost), a, b, c, d, strict=True)
        )
    assert abs(e) < 1e-6
    return cost


# Light and heavy, fresh and worn, well damped, ringing and creeping.
ROWS = tensor(
    [1.3, 0.8, 1.0, 0.0],
    [1.7, 0.5, 4.0, 0.0],
    [1.0, 1.3, 2.0, 30.0],
    [0.6, 0.4, 0.5, 80.0],
)


@pytest.mark.parametrize("row", ROWS)
def test_cost_is_that_of_the_simulated_motion(row):
    problem = PDControl(wear=0.01, season=0.3, season_period=50.0)
    expected = simulated_cost(problem, row)
    # The step of 1 ms resolves the fastest mode, 30 /s, to 1e-8.
    assert problem.cost(row.unsqueeze(0)).item() == pytest.approx(expected, rel=1e-7)
    assert problem.evaluate_true(row.unsqueeze(0)).item() == pytest.approx(
        -math.log(expected), abs=1e-7
    )


# The last two drive the best damping, or the best stiffness, out of the box.
SETTINGS = [
    ({}, 0.0, 2.0),
    ({"wear": 0.01}, 60.0, 8.0),
    ({"season": 0.5}, 25.0, 0.5),
    ({"wear": 0.05}, 120.0, 8.0),
    ({"control_weight": 1e-6}, 1.0, 1.0),
    ({"control_weight": 4.0}, 1.0, 1.0),
    ({"control_weight": 1e-6, "wear": 0.05}, 150.0, 8.0),
]


@pytest.mark.parametrize(("options", "t", "load"), SETTINGS)
def test_optimum_is_that_of_a_fine_grid(options, t, load):
    problem = PDControl(**options)
    axis = torch.linspace(0.0, 2.0, 801, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    values = problem.evaluate_true(problem.layout.rows(grid, t, tensor(load)))
    best, action = problem.optimal_value(t, tensor(load)), problem.optimal_action(t, tensor(load))
    assert ((action >= problem.bounds[0]) & (action <= problem.bounds[1])).all()
    # The nearest grid point is at most d = 0.00177 away. At the peak the curvatures of -ln J are
    # 12.1 and 1.16 (the Hessian is ln(10)² [[1.5, -1], [-1, 1]]), so its value is at most
    # 12.1 d² / 2 lower, and the grid's best point at most d (12.1 / 1.16)^½ away.
    assert -1e-12 < best - values.max().item() < 2e-5
    assert (grid[values.argmax()] - action).norm() < 0.0058


@pytest.mark.parametrize("t", [0.0, 40.0])
@pytest.mark.parametrize("load", [0.5, 3.0, 8.0])
def test_best_gains_are_those_of_the_riccati_equation(t, load):
    """A' P + P A - P B B' P / ρ + Q = 0 with B = (0, b/m): gains B' P / ρ, cost P[0, 0]."""
    problem = PDControl(wear=0.01)
    kp, kd = 10 ** problem.optimal_action(t, tensor(load))
    input_gain = problem.strength(t) / load
    A, B = tensor([0, 1], [0, 0]), torch.stack([tensor(0.0)[0], input_gain])
    Q, rho = tensor([1, 0], [0, 0]), problem.control_weight
    gains = torch.stack([kp, kd])
    # P follows from its second row, which the gains give, and the equation's corner for P[0, 0].
    second = rho * gains / input_gain
    first = second[1] * gains[0] * input_gain
    P = torch.stack([torch.stack([first, second[0]]), second])
    residual = A.T @ P + P @ A - torch.outer(P @ B, P @ B) / rho + Q
    assert residual.abs().max() < 1e-12
    assert math.exp(-problem.optimal_value(t, tensor(load))) == pytest.approx(first.item())


def test_where_nothing_binds():
    problem = PDControl(wear=0.01)
    fresh, worn = (problem.optimal_action(t, tensor(2.0)) for t in (0.0, 100.0))
    assert (10**fresh).tolist() == pytest.approx([20.0, 80**0.5])
    # Stiffness stays, damping grows with the root of what is lost.
    assert worn[0] == fresh[0]
    assert (10 ** (worn - fresh))[1].item() == pytest.approx(math.exp(0.5))
    assert problem.optimal_value(0.0, tensor(2.0)) == pytest.approx(-math.log(80**0.5 / 20))


def test_strength_has_wear_and_season():
    problem = PDControl(wear=0.02, season=0.4, season_period=8.0)
    assert problem.strength(tensor(0.0, 2.0, 8.0)).tolist() == pytest.approx(
        [1.0, math.exp(0.4 - 0.04), math.exp(-0.16)]
    )


def test_a_loop_runs_on_it(generator):
    problem = PDControl()
    optimizer = recipes.random_search(bounds=problem.bounds, generator=generator)
    history = run(
        problem, optimizer, horizon=3, contexts=tensor([0.5], [2.0], [8.0]), progress=False
    )
    assert (history.regret > 0).all()
