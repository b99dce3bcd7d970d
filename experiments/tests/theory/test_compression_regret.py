import math

import pytest
import torch

from experiments.theory.compression_regret import (
    compressed_ei_regret_bound,
    compressed_ucb_finite_regret_bound,
    compressed_ucb_regret_bound,
    compressed_ucb_run_regret_bound,
)
from experiments.theory.information import mutual_information
from experiments.theory.regret_bounds import tv_gp_ucb_regret_bound
from tvbo.retention.entropy import compression_budget

UCB = {
    "horizon": 1000,
    "beta": 40.0,
    "information_gain": 25.0,
    "noise_variance": 0.01,
    "budget": compression_budget(horizon=1000, alpha=0.5, dim=1),
}
RUN = {**UCB, "num_refused": 900}
FINITE = {"horizon": 1000, "beta": 40.0, "total_variance": 200.0, "noise_variance": 0.01}
EI = {**UCB, "largest_score": 30.0}


def random_covariance(generator, n=6, scale=0.3):
    points = torch.rand(n, 2, dtype=torch.float64, generator=generator) / scale
    return (-0.5 * (points.unsqueeze(1) - points).square().sum(dim=-1)).exp()


def compressed_run(covar, horizon, noise, budget, rule):
    """Posterior variance at the choice of each round and at all points, and what was admitted."""
    prior, posterior, held = covar, covar.clone(), []
    variances, every = [], []
    for t in range(horizon):
        point = rule(t, posterior.diagonal())
        variance = posterior[point, point].item()
        variances.append(variance)
        every.append(posterior.diagonal().clone())
        if 0.5 * math.log(1 + variance / noise) > budget:
            held.append(point)
            K = prior[held][:, held] + noise * torch.eye(len(held), dtype=torch.float64)
            posterior = prior - prior[:, held] @ torch.linalg.inv(K) @ prior[held]
    told = mutual_information(prior[held][:, held], noise).item() if held else 0.0
    return variances, every, told, horizon - len(held)


def test_equations_3_2_and_3_4_in_alpha_as_printed():
    c1, beta, T, alpha = 8 / math.log(1 + 1 / 0.01), 40.0, 1000, 0.5
    printed = math.sqrt(c1 * T * beta * 25)
    printed += T * math.sqrt(math.log(1 + T**-alpha)) * math.sqrt(c1 * beta)
    assert compressed_ucb_regret_bound(**UCB) == pytest.approx(printed, rel=1e-12)
    compact = compressed_ucb_regret_bound(**UCB, compact=True)
    assert compact == pytest.approx(printed + math.pi**2 / 6, rel=1e-12)
    # By hand: C1 = 1.7334, so 1316.6 and 8.3268 * 176.45.
    assert printed == pytest.approx(1316.6 + 8.3268 * 176.45, rel=1e-3)


def test_nothing_refused_is_the_bound_of_gp_ucb():
    options = {name: value for name, value in UCB.items() if name != "budget"}
    dense = tv_gp_ucb_regret_bound(**options) - 2
    assert compressed_ucb_regret_bound(**options, budget=0.0) == pytest.approx(dense)
    run = compressed_ucb_run_regret_bound(**options, budget=0.1, num_refused=0)
    assert run == pytest.approx(dense)


def test_the_bound_of_a_run_is_below_that_of_every_run():
    all_refused = {**RUN, "num_refused": 1000}
    c1, budget = 8 / math.log(101), UCB["budget"]
    of_proof = math.sqrt(c1 * 1000 * 40 * 25) + 1000 * math.sqrt(c1 * 40 * budget)
    bounds = [
        compressed_ucb_run_regret_bound(**RUN),
        compressed_ucb_run_regret_bound(**all_refused),
        of_proof,
        compressed_ucb_regret_bound(**UCB),
    ]
    assert bounds == sorted(bounds)
    expected = math.sqrt(c1 * 1000 * 40 * (25 + budget * 900))
    assert bounds[0] == pytest.approx(expected, rel=1e-12)
    compact = compressed_ucb_run_regret_bound(**RUN, compact=True)
    assert compact == pytest.approx(expected + math.pi**2 / 6, rel=1e-12)


@pytest.mark.parametrize("noise", [0.01, 0.5, 4.0])
@pytest.mark.parametrize("horizon", [3, 30, 120])
def test_widths_of_any_run_are_within_the_bounds(generator, noise, horizon):
    """Regret is at most 2 √β σ in a round; the sum is below all bounds, whatever is chosen."""
    budget, beta = 0.5 * math.log(1 + horizon**-0.5), 9.0
    rules = [
        lambda t, variance: int(variance.argmax()),
        lambda t, variance: int(torch.randint(len(variance), (1,), generator=generator)),
        lambda t, variance: 0,
    ]
    for rule in rules:
        covar = random_covariance(generator)
        variances, _, told, refused = compressed_run(covar, horizon, noise, budget, rule)
        shared = {"horizon": horizon, "beta": beta, "noise_variance": noise}
        of_run = compressed_ucb_run_regret_bound(
            **shared, information_gain=told, budget=budget, num_refused=refused
        )
        largest = sum(2 * math.sqrt(beta * variance) for variance in variances)
        assert largest <= of_run * (1 + 1e-9)
        assert of_run <= compressed_ucb_regret_bound(
            **shared, information_gain=told, budget=budget
        ) * (1 + 1e-9)
        finite = compressed_ucb_finite_regret_bound(**shared, total_variance=len(covar))
        assert of_run <= finite * (1 + 1e-9)


def test_equation_3_5():
    z1 = 200 / (0.01 * (1 - 1 / math.e))
    printed = math.sqrt(8 / math.log(101) * 40) * max(math.sqrt(z1), 1) * 1000 ** (3 / 4)
    assert compressed_ucb_finite_regret_bound(**FINITE) == pytest.approx(printed, rel=1e-12)
    # Z1 below 1: much noise, little variance.
    noisy = {**FINITE, "noise_variance": 500.0}
    expected = math.sqrt(8 / math.log(1 + 1 / 500) * 40) * 1000**0.75
    assert compressed_ucb_finite_regret_bound(**noisy) == pytest.approx(expected, rel=1e-12)


def test_equation_3_6_with_the_root_of_its_proof():
    log, T = math.log(101), 1000
    widths = math.sqrt(3 * (40 + 1 + 30**2)) + math.sqrt(40)
    told = math.sqrt(2 * T * 25) + T * math.sqrt(math.log(1 + T**-0.5))
    assert compressed_ei_regret_bound(**EI) == pytest.approx(widths / log**0.5 * told, rel=1e-12)
    assert compressed_ei_regret_bound(**EI) > widths / log * told
    # Where the logarithm is 1, the print and its proof agree.
    same = {**EI, "noise_variance": 1 / (math.e - 1)}
    assert compressed_ei_regret_bound(**same) == pytest.approx(widths * told, rel=1e-12)


def test_variances_at_the_maximizer_are_not_bounded_by_lemma_9_5():
    """(9.26): a rule that never takes the second arm leaves its variance as it was."""
    noise, horizon, budget = 0.5, 60, 0.01
    covar = torch.eye(2, dtype=torch.float64)
    chosen, every, told, refused = compressed_run(covar, horizon, noise, budget, lambda t, v: 0)
    lemma = 2 / math.log(1 + 1 / noise) * (told + budget * refused)
    assert sum(chosen) <= lemma
    assert sum(row[1].item() for row in every) > 5 * lemma
