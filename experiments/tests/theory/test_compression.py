import math

import pytest
import torch

from experiments.theory.compression import (
    compression_regret_exponent,
    information_model_order_bound,
    model_order_bound,
    model_order_exponent,
    variance_threshold,
)
from tvbo.retention.entropy import compression_budget

NOISE = 0.01


def grid(dim):
    side = torch.linspace(0, 1, 60 if dim == 1 else 8, dtype=torch.float64)
    return torch.cartesian_prod(*[side] * dim).reshape(-1, dim)


def squared_exponential(X, lengthscales):
    X = X / torch.tensor(lengthscales, dtype=torch.float64)
    return (-0.5 * (X.unsqueeze(1) - X).square().sum(dim=-1)).exp()


def admitted(covar, budget, worst):
    """Points that pass the test until none does: the least known one, or just above the bar."""
    bar = NOISE * (math.exp(2 * budget) - 1)
    covar = covar.clone()
    points = []
    while (covar.diagonal() > bar).any():
        variance = covar.diagonal()
        point = variance.where(variance > bar, math.inf).argmin() if worst else variance.argmax()
        column = covar[:, point].clone()
        covar -= torch.outer(column, column) / (column[point] + NOISE)
        points.append(int(point))
    return points


def test_budget_is_half_the_log_by_hand():
    # 1000^(-1/2) = 0.0316228: half of log 1.0316228.
    assert compression_budget(horizon=1000, alpha=0.5, dim=1) == pytest.approx(0.0155665, abs=1e-7)
    assert compression_budget(horizon=1, alpha=0.3, dim=2) == pytest.approx(math.log(2) / 2)
    for alpha in (0.1, 0.24):
        budget = compression_budget(horizon=500, alpha=alpha, dim=4)
        assert math.exp(2 * budget) - 1 == pytest.approx(500**-alpha, rel=1e-12)


def test_threshold_is_where_the_entropy_test_turns(generator):
    """(2.12) against the entropies it comes from."""
    for budget, noise in torch.rand(20, 2, dtype=torch.float64, generator=generator).tolist():
        variance = variance_threshold(budget, noise)
        entropy = 0.5 * math.log(2 * math.pi * math.e * (noise + variance))
        expected = math.log(math.sqrt(2 * math.pi * math.e * noise)) + budget
        assert entropy == pytest.approx(expected, abs=1e-12)


def test_threshold_of_the_least_and_of_the_largest_budgets():
    assert variance_threshold(0.0, 0.3) == 0.0
    # exp(2e-18) is 1 to rounding.
    assert variance_threshold(1e-18, 0.5) == pytest.approx(1e-18, rel=1e-12)
    assert variance_threshold(1e4, 0.5) == math.inf


def test_exponents_are_those_of_the_theorems_not_of_the_table():
    for dim in (1, 2, 5):
        assert compression_regret_exponent(1 / dim) == 1 - 1 / (2 * dim)
        assert compression_regret_exponent(1 / (2 * dim)) == 1 - 1 / (4 * dim)
        assert model_order_exponent(1 / dim, dim) == 1
        assert model_order_exponent(1 / (2 * dim), dim) == 0.5
    # What the budget adds to the regret, at two horizons far out.
    added = [T * math.sqrt(math.log1p(T**-0.4)) for T in (1e14, 1e15)]
    power = math.log10(added[1] / added[0])
    assert power == pytest.approx(compression_regret_exponent(0.4), abs=1e-5)


def test_the_budgets_of_the_paper():
    """5,000 looks at one point with that of its experiments, 32 with that of its theorem."""
    one = torch.ones(1, 1, dtype=torch.float64)
    assert len(admitted(one, 1e-4, worst=False)) == 5000
    assert len(admitted(one, compression_budget(horizon=1000, alpha=0.5, dim=1), False)) == 32


@pytest.mark.parametrize("worst", [False, True])
@pytest.mark.parametrize("budget", [1.0, 0.3, 0.05])
@pytest.mark.parametrize("lengthscales", [(1.0,), (0.1,), (0.4, 0.4), (0.3, 2.0)])
def test_no_rule_admits_more_than_the_bounds(lengthscales, budget, worst):
    dim = len(lengthscales)
    covar = squared_exponential(grid(dim), lengthscales)
    order = len(admitted(covar, budget, worst))
    by_information = information_model_order_bound(covar, noise_variance=NOISE, budget=budget)
    by_cells = model_order_bound(
        budget=budget, noise_variance=NOISE, lengthscales=lengthscales, side_lengths=[1.0] * dim
    )
    assert 0 < order <= min(by_information, by_cells)


def test_no_more_in_one_cell_than_it_holds(generator):
    """In a box of one cell the mean of n outcomes leaves at most the threshold."""
    tau, budget = 0.5, math.log(1.5) / 2
    n = math.ceil(1.5 / tau)
    edge = math.sqrt(-2 * math.log1p(-NOISE * (tau - 1 / n) / 2))
    box = {"lengthscales": [1.0], "noise_variance": NOISE, "budget": budget}
    assert model_order_bound(side_lengths=[edge * (1 - 1e-9)], **box) == n
    assert model_order_bound(side_lengths=[edge * 2.5], **box) == 3 * n
    for _ in range(50):
        X = edge * torch.rand(n + 1, 1, dtype=torch.float64, generator=generator)
        covar = squared_exponential(X, [1.0])
        outcomes = covar[:n, :n] + NOISE * torch.eye(n, dtype=torch.float64)
        left = covar[n, n] - covar[n, :n] @ torch.linalg.solve(outcomes, covar[:n, n])
        assert left <= NOISE * tau


def test_a_cell_in_two_dimensions_is_as_wide_as_its_diagonal():
    """From n looks at one corner to the opposite one: more than a half of what is allowed."""
    tau, budget = 0.5, math.log(1.5) / 2
    n = math.ceil(2 / tau)
    edge = math.sqrt(-2 * math.log1p(-NOISE * (tau - 1 / n) / 2) / 2)
    box = {"lengthscales": [1.0, 1.0], "noise_variance": NOISE, "budget": budget}
    assert model_order_bound(side_lengths=[edge * (1 - 1e-9)] * 2, **box) == n
    assert model_order_bound(side_lengths=[edge * 1.2] * 2, **box) == 4 * n
    corners = torch.tensor([[0.0, 0.0], [edge, edge]], dtype=torch.float64)
    covar = squared_exponential(corners, [1.0, 1.0])
    left = 1 - covar[0, 1] ** 2 / (1 + NOISE / n)
    assert 0.5 * NOISE * tau < left <= NOISE * tau


def test_nothing_passes_above_the_prior_variance():
    budget = 0.5 * math.log(1 + 1.0 / NOISE)
    box = {"lengthscales": [0.1], "side_lengths": [1.0], "noise_variance": NOISE}
    covar = squared_exponential(grid(1), [0.1])
    for more in (1e-9, 1e3):
        assert model_order_bound(budget=budget + more, **box) == 0
        assert information_model_order_bound(covar, noise_variance=NOISE, budget=budget + more) == 0
    assert model_order_bound(budget=budget - 1e-9, **box) > 0
    assert information_model_order_bound(covar, noise_variance=NOISE, budget=budget - 1e-9) > 0


@pytest.mark.parametrize("budget", [2.0, 0.2, 0.01])
def test_information_bound_is_exact_for_unrelated_points(budget):
    """n of them tell M looks n/2 log(1 + M / n sigma^2): the last M with more than M budget."""
    n = 7
    bound = information_model_order_bound(
        torch.eye(n, dtype=torch.float64), noise_variance=NOISE, budget=budget
    )

    def told(M):
        return n / 2 * math.log1p(M / (n * NOISE))

    assert told(bound) >= bound * budget * (1 - 1e-4)
    assert told(bound + 1) < (bound + 1) * budget * (1 + 1e-4)
