import math

import pytest
import torch

from experiments.problems.simulated_service import SimulatedService
from tvbo import recipes, run

ACTION = {"batch": 4, "cache": 7, "rule": "fair"}


def service(seed=3, **options):
    return SimulatedService(generator=torch.Generator().manual_seed(seed), **options)


def by_hand(problem, action, t):
    """Revenue and latency of an action in a round, from the formulas, one number at a time."""
    load, temperature = problem.contexts[int(t) - 1].tolist()
    x, y = (action["batch"] - 1) / 11, action["cache"] / 10
    rule = ["fifo", "fair", "short"].index(action["rule"])
    phases, periods = problem.phases.tolist(), problem.periods.tolist()
    waves = [
        math.sin(2 * math.pi * t / period + phase)
        for period, phase in zip(periods, phases[1:5], strict=True)
    ]
    season = math.sin(2 * math.pi * t / 24 + phases[0])
    a = 0.5 + 0.2 * season + 0.26 * (load / 5 - 0.5) + 0.05 * waves[0]
    b = 0.5 + 0.24 * waves[1] + 0.24 * ((temperature - 10) / 25 - 0.5)
    turn = 2 * math.pi * t / periods[2] + phases[3] + 2 * math.pi * rule / 3
    height = 100 * (1 + 0.2 * math.sin(turn))
    revenue = 50 + height * math.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * 0.25**2))
    latency = 65 + 25 * load / 5 + 15 * waves[3] + [0, 6, -6][rule] + 60 * x - 25 * y
    return revenue, latency


@pytest.mark.parametrize("t", [1, 20, 173, 300])
def test_values_and_the_best_action_against_a_loop(t):
    problem = service()
    values = {}
    for batch in range(1, 13):
        for cache in range(11):
            for rule in ("fifo", "fair", "short"):
                action = {"batch": batch, "cache": cache, "rule": rule}
                values[batch, cache, rule] = by_hand(problem, action, t)
    assert len(values) == len(problem.choices) == 396
    row = problem.row(ACTION, t)
    revenue, latency = values[tuple(ACTION.values())]
    assert problem.evaluate_true(row).item() == pytest.approx(revenue, rel=1e-12)
    assert problem.latency(row).item() == pytest.approx(latency, rel=1e-12)
    feasible = {key: value for key, (value, ms) in values.items() if ms <= 100}
    assert 0 < len(feasible) < 396
    best = max(feasible.values())
    expected = pytest.approx((min(feasible.values()), best), rel=1e-12)
    assert problem.feasible_range(t) == expected
    assert problem.feasible_range(t, problem.context(t)) == expected
    assert problem.optimal_value(t) == pytest.approx(best, rel=1e-12)
    found = problem.parameters.decode(problem.optimal_action(t))
    assert feasible[tuple(found.values())] == pytest.approx(best, rel=1e-12)
    assert problem.regret(found, t) == (pytest.approx(0, abs=1e-9), True)


def test_an_action_above_the_limit_counts_as_the_worst_feasible_one():
    problem = service()
    slow = {"batch": 12, "cache": 0, "rule": "fair"}
    times = [t for t in range(1, 301) if by_hand(problem, slow, t)[1] > 100]
    assert len(times) > 200
    for t in times[:3]:
        worst, best = problem.feasible_range(t)
        assert problem.regret(slow, t) == (pytest.approx(best - worst), False)


def test_there_is_always_a_feasible_action_and_the_limit_matters():
    """In 10 services; else neither the regret nor the constraint would mean anything."""
    bound = total = 0
    for seed in range(10):
        problem = service(seed)
        for t in range(1, 301, 10):
            rows = problem.layout.rows(problem.choices, t, problem.context(t))
            best = problem.evaluate_true(rows).max().item()
            bound += problem.optimal_value(t) < best - 1e-9
            total += 1
    assert 0.2 * total < bound < 0.9 * total


def test_measurements_have_the_noise_of_their_round():
    problem = service()
    measured = problem.measure(ACTION, 5)
    true = by_hand(problem, ACTION, 5)
    noise = problem.noise[4].tolist()
    assert list(measured) == ["revenue", "latency"]
    for value, without, more in zip(measured.values(), true, noise, strict=True):
        assert value == pytest.approx(without + more)
    assert problem.measure(ACTION, 5) == service().measure(ACTION, 5)
    assert problem.noise.std(dim=0).tolist() == pytest.approx([4, 4], rel=0.15)


def test_outcomes_are_late_and_some_are_lost():
    delays = torch.cat([service(seed).delays for seed in range(20)])
    arrived = delays[delays.isfinite()]
    assert arrived.min() >= 5
    assert arrived.max() <= 50
    assert torch.equal(arrived, arrived.round())
    # 6,000 rounds: five standard errors.
    assert 1 - len(arrived) / len(delays) == pytest.approx(0.1, abs=0.02)
    assert service().delay(7) == service().delays[6]


def test_contexts_vary_and_are_within_their_bounds():
    contexts = torch.cat([service(seed).contexts for seed in range(20)])
    lower, upper = service().context_parameters.bounds
    assert ((contexts >= lower) & (contexts <= upper)).all()
    assert (contexts.std(dim=0) > 0.2 * (upper - lower)).all()
    assert torch.equal(service().context(300), service().contexts[-1])


def test_it_is_told_to_a_recipe_by_name():
    problem = service(horizon=3, price=0.5)
    optimizer = recipes.tv_cgp_ucb(
        bounds=problem.parameters,
        context_bounds=problem.context_parameters,
        objectives=["revenue"],
        constraints={"latency": (None, problem.limit)},
    )
    trial = optimizer.ask(1.0, problem.context(1.0))
    assert problem.regret(trial.parameters, 1.0) == problem.regret(trial.X, 1.0)
    optimizer.tell(trial, problem.measure(trial.parameters, 1.0))
    assert optimizer.model_size == 1


def test_run_counts_regret_from_feasible_actions():
    problem = service(horizon=20)
    optimizer = recipes.tv_cgp_ucb(
        bounds=problem.parameters,
        context_bounds=problem.context_parameters,
        objectives=["revenue"],
        constraints={"latency": (None, problem.limit)},
        initial=30,
    )
    history = run(problem, optimizer, horizon=20, progress=False)
    known = [problem.regret(each.trial.X, each.trial.t) for each in history.rounds]
    assert history.regret.tolist() == pytest.approx([regret for regret, _ in known])
    assert 0 < sum(feasible for _, feasible in known) < 20
    for each in history.rounds:
        told = {"revenue": each.reward, "latency": each.others["latency"]}
        assert told == pytest.approx(problem.measure(each.trial.X, each.trial.t))
