import dataclasses

import pytest
import torch
from gpytorch.kernels import RBFKernel

from experiments.bogunovic.fig3cf import (
    AT_PAPER_RATE,
    _algorithms,
    _regret_from,
    bogunovic_fig3cf,
    fit_training_days,
)
from experiments.claims import BEST_OF_TRAINING
from experiments.data.traffic import TrafficDays, traffic
from tvbo.test_functions import PanelProblem, drifting_gp
from tvbo.test_functions.drifting_gp import unit_grid

DAYS, STEPS, RATE = 9, 25, 0.1


@pytest.fixture(scope="module")
def drawn():
    """Days drawn from the model, 9 sensors of 10 mph standard deviation about 50 mph."""
    days = [
        drifting_gp(
            unit_grid(3),
            RBFKernel().double(),
            RATE,
            horizon=STEPS,
            generator=torch.Generator().manual_seed(day),
        ).values
        for day in range(DAYS)
    ]
    speeds = 50 + 10 * torch.stack(days)
    return TrafficDays(
        train=speeds[:6],
        test=speeds[6:],
        arms=[f"s{i}" for i in range(9)],
        time_unit="5min",
        train_days=list(range(1, 7)),
        test_days=[7, 8, 9],
    )


@pytest.fixture(scope="module")
def short(drawn):
    return bogunovic_fig3cf(drawn, trials=3, seed=1, num_sensors=8, progress=False)


@pytest.mark.slow
def test_a_row_for_each_day(short):
    assert list(short.results) == ["day 7", "day 8", "day 9", "all days"]
    assert short.row_label == "day"
    for i, row in enumerate(list(short.results.values())[:3]):
        for name in ("TV-GP-UCB", "GP-UCB", AT_PAPER_RATE):
            assert short.regret[name].shape == (3, 3, STEPS)
            assert row[name] == pytest.approx(short.regret[name][:, i].mean().item())
        assert row["GP-UCB minus TV-GP-UCB"] == pytest.approx(row["GP-UCB"] - row["TV-GP-UCB"])
    total = short.results["all days"]
    assert total["TV-GP-UCB"] == pytest.approx(short.regret["TV-GP-UCB"].mean().item())


@pytest.mark.slow
def test_each_trial_has_a_first_sensor_for_both_algorithms(short, drawn):
    sensors, firsts = short.settings["sensors"], short.settings["first_sensors"]
    assert (len(set(sensors)), len(set(firsts))) == (8, 3)
    columns = [drawn.arms.index(name) for name in sensors]
    best = drawn.test[:, 0, columns].amax(dim=1)
    for trial, first in enumerate(firsts):
        expected = best - drawn.test[:, 0, drawn.arms.index(first)]
        for name, rows in short.regret.items():
            if name != BEST_OF_TRAINING:
                torch.testing.assert_close(rows[trial, :, 0], expected)


@pytest.mark.slow
def test_the_best_arm_of_training_in_every_round(short, drawn):
    columns = [drawn.arms.index(name) for name in short.settings["sensors"]]
    train, test = drawn.train[..., columns], drawn.test[..., columns]
    arm = max(range(len(columns)), key=lambda i: train[..., i].mean().item())
    expected = test.amax(dim=2) - test[..., arm]
    for rows in short.regret[BEST_OF_TRAINING]:
        torch.testing.assert_close(rows, expected)
    total = short.results["all days"]
    assert total[BEST_OF_TRAINING] == pytest.approx(expected.mean().item())
    for claim, name in zip(short.claims[5:], ("TV-GP-UCB", "GP-UCB", AT_PAPER_RATE), strict=True):
        assert claim.claim.startswith(f"{BEST_OF_TRAINING} minus {name}, ")
        assert claim.figure == pytest.approx(total[BEST_OF_TRAINING] - total[name])


@pytest.mark.slow
def test_every_claim_has_its_figure(short):
    rate, at_or_below, clearly_below, overall, at_paper_rate = short.to_dict()["claims"][:5]
    assert rate["figure"] == short.settings["forgetting_rate"]
    assert 0 <= clearly_below["figure"] <= at_or_below["figure"] <= 3
    assert overall["figure"] == short.results["all days"]["GP-UCB minus TV-GP-UCB"]
    assert overall["standard_error"] == short.results["all days"]["standard_error"]
    total = short.results["all days"]
    assert at_paper_rate["figure"] == pytest.approx(total["GP-UCB"] - total[AT_PAPER_RATE])


def test_rate_of_independent_days_is_found(drawn):
    fit = fit_training_days(drawn)
    low, high = fit.forgetting_rate_interval
    # The empirical covariance is an estimate, and the noise is not that of these draws.
    assert low / 2 < RATE < high * 2
    assert fit.time_unit == "5min"


def test_rounds_follow_a_plain_loop_from_the_first_sensor(drawn):
    """The posterior (7)-(8) and β of round 2, 3, ... in plain algebra."""
    problem = PanelProblem(drawn.test[0] - drawn.mean)
    values = problem.values
    covar = drawn.covar_module(problem.choices).to_dense().detach()
    arms = [4]
    for t in range(2, STEPS + 1):
        then = torch.tensor(arms)
        times = torch.arange(1, t, dtype=torch.float64)
        decay = (1 - RATE) ** ((times.unsqueeze(-1) - times).abs() / 2)
        K = covar[then][:, then] * decay + 5.0 * torch.eye(t - 1, dtype=torch.float64)
        k = covar[:, then] * (1 - RATE) ** ((t - times) / 2)
        observed = values[torch.arange(t - 1), then]
        mean = k @ torch.linalg.solve(K, observed)
        variance = covar.diagonal() - (k * torch.linalg.solve(K, k.mT).mT).sum(dim=1)
        beta = 0.2 * max(0.0, torch.tensor(0.4 * t).log().item())
        arms.append(int((mean + (beta * variance).sqrt()).argmax()))
    expected = values.amax(dim=1) - values[torch.arange(STEPS), torch.tensor(arms)]
    make = _algorithms(drawn, problem.choices, RATE)["TV-GP-UCB"]
    torch.testing.assert_close(_regret_from(make(), problem, first=4), expected)


@pytest.mark.slow
def test_short_on_the_recorded_days(data_folder):
    data = traffic(data_folder)
    data = dataclasses.replace(data, test=data.test[:2, :12], test_days=data.test_days[:2])
    one, other = (bogunovic_fig3cf(data, trials=2, progress=False) for _ in range(2))
    assert one.to_dict() == other.to_dict()
    assert len(one.settings["sensors"]) == 50
    assert list(one.results) == ["day 16", "day 19", "all days"]
    assert one.settings["noise_variance"] == 5.0
    assert (one.settings["c1"], one.settings["c2"]) == (0.2, 0.4)
    assert one.settings["forgetting_rate"] == pytest.approx(0.26, abs=0.01)
