"""Backtests that choose β on the training stretch, and those on drawn functions."""

import math

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import RBFKernel

from tvbo import fit_drift, recipes
from tvbo.evaluation import (
    FittedAlgorithm,
    PanelModel,
    TunedAlgorithm,
    backtest,
    panel_algorithms,
    simulate_backtest,
    tune_exploration,
)
from tvbo.evaluation.backtesting.simulation import drifting_draw
from tvbo.logs import fit_panel
from tvbo.test_functions import drifting_gp_log

N = 5


def model():
    """A fit of a log of few actions."""
    generator = torch.Generator().manual_seed(4)
    actions = torch.linspace(0, 1, N, dtype=torch.float64)
    arms = torch.randint(N, (80,), generator=generator)
    train_X = torch.stack([actions[arms], 0.5 * torch.arange(80)], dim=-1)
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.3
    train_Y = 20 + drifting_gp_log(train_X, kernel, 0.1, 0.05, generator=generator)
    return fit_drift(train_X, train_Y, covar_module=kernel, num_starts=1), train_X


@pytest.fixture(scope="module")
def fitted():
    return model()


@pytest.mark.slow
def test_beta_is_chosen_within_the_training_stretch():
    generator = torch.Generator().manual_seed(5)
    steps = torch.randn(56, 3, dtype=torch.float64, generator=generator)
    values = 0.3 * steps.cumsum(dim=0) + torch.arange(3)
    times = torch.arange(56, dtype=torch.float64)
    train = values[:44], times[:44]
    # What is played later has no part in the choice.
    values[44:, 0] += 50
    tuned = TunedAlgorithm(PanelModel(options={"season": None, "temporal_kernel": "exponential"}))
    given = {"train": slice(0, 44), "starts": 1, "progress": False, "time_unit": "1min"}
    result = backtest(values, times, {"fitted": tuned}, **given)
    fit = fit_panel(*train, season=None)
    expected = tune_exploration(fit, *train)
    assert tuned.exploration == expected
    assert expected.reason in result.messages
    optimizer = recipes.tv_gp_ucb(**fit.settings(), beta=expected.beta)
    for i, t in enumerate(range(44, 56)):
        trial = optimizer.ask(t=times[t].item())
        arm = int(trial.X.item())
        assert arm == result.arms_chosen["fitted"][0, i]
        optimizer.tell(trial, values[t, arm].item())


@pytest.mark.slow
def test_a_simulation_says_so_and_scores_the_drawn_function(fitted):
    fit, train_X = fitted
    names = ["always_best", "last_best", "random", "tv_gp_ucb"]
    result = simulate_backtest(fit, train_X, names, horizon=40, draws=3, progress=False, unit="V")
    assert result.simulated
    assert result.verdict.startswith(
        "In a simulation, on 3 functions drawn from the fitted model: "
    )
    assert result.times.tolist() == [*(39.5 + 0.5 * i for i in range(1, 41))] * 3
    assert list(result.arms) == ["0", "0.25", "0.5", "0.75", "1"]
    # Without noise in the regret, some choice is the best one exactly.
    for rows in result.regret.values():
        assert (rows >= 0).all()
        assert (rows == 0).any()
    assert result.results["tv_gp_ucb"].mean < result.results["random"].mean
    again = simulate_backtest(fit, train_X, names, horizon=40, draws=3, progress=False)
    assert torch.equal(again.regret["tv_gp_ucb"], result.regret["tv_gp_ucb"])


def test_a_log_that_says_nothing_gives_no_verdict():
    generator = torch.Generator().manual_seed(0)
    X = torch.stack([torch.arange(20) % 3 / 3, torch.arange(20)], dim=-1).double()
    Y = torch.randn(20, 1, dtype=torch.float64, generator=generator)
    fit = fit_drift(X, Y, num_starts=1)
    assert fit.forgetting_rate_interval == (0, 1)
    result = simulate_backtest(fit, X, ["random", "always_best"], horizon=3, draws=2)
    assert result.messages[: len(fit.messages)] == fit.messages != []
    assert "better" not in result.verdict
    assert "worse" not in result.verdict


def test_the_error_of_a_simulation_is_from_function_to_function(fitted):
    fit, train_X = fitted
    names = ["random", "always_best"]
    one, two = (
        simulate_backtest(fit, train_X, names, horizon=9, draws=draws).difference(*names)
        for draws in (1, 2)
    )
    assert one.standard_error is None
    # Half of what the two differ by.
    assert two.standard_error == pytest.approx(abs(one.mean - two.mean))
    result = simulate_backtest(fit, train_X, names, horizon=9, draws=2)
    assert "not told apart" in result.verdict


def test_drawn_functions_have_the_covariance_of_the_model():
    generator = torch.Generator().manual_seed(0)
    root = torch.linalg.cholesky(torch.tensor([[2.0, 0.6], [0.6, 1.0]], dtype=torch.float64))
    times = torch.tensor([0.0, 1.0, 4.0], dtype=torch.float64)
    draws = torch.stack([drifting_draw(root, times, 0.2, generator) for _ in range(4_000)])
    flat = draws.flatten(1)
    lags = (times.unsqueeze(-1) - times).abs()
    expected = torch.kron(0.8 ** (lags / 2), root @ root.mT)
    # Standard errors are at most 2 sqrt(2 / 4,000).
    torch.testing.assert_close(flat.mT @ flat / len(flat), expected, atol=0.18, rtol=0)


def test_bad_simulations(fitted):
    fit, train_X = fitted
    with pytest.raises(ValueError, match="Got 'fited'"):
        simulate_backtest(fit, train_X, ["fited"])
    with pytest.raises(ValueError, match="Expected from 2 to 5000 choices. Got 1"):
        simulate_backtest(fit, train_X, choices=[[0.0]])
    with pytest.raises(InputDataError):
        simulate_backtest(fit, train_X, choices=[[0.1], [0.2]], progress=False)
    with pytest.raises(ValueError, match="draws to be a whole number"):
        simulate_backtest(fit, train_X, draws=0)


def test_bandits_are_tuned_to_the_horizon_in_units_of_time():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(40, N, dtype=torch.float64, generator=generator)
    times = 10 * torch.arange(40, dtype=torch.float64)
    made = panel_algorithms(["sw_ucb", "d_ucb"], horizon=100)
    generator = torch.Generator().manual_seed(0)
    window = made["sw_ucb"](values, times, generator)
    discounted = made["d_ucb"](values, times, generator)
    assert window.window == pytest.approx(10 * 2 * math.sqrt(100 * math.log(100)))
    assert discounted.discount**10 == pytest.approx(1 - 1 / 40)
    assert window.reward_bounds == (values.min().item(), values.max().item())
    # One outcome of each arm, from the last row.
    counts, totals = window.weighted_sums(400.0)
    assert counts.tolist() == [1.0] * N
    span = values.max() - values.min()
    torch.testing.assert_close(totals * span + values.min(), values[-1])


def test_fitted_is_the_panel_model_of_full_training_times():
    generator = torch.Generator().manual_seed(3)
    steps = torch.randn(70, N, dtype=torch.float64, generator=generator)
    values = 0.3 * steps.cumsum(dim=0) + torch.arange(N)
    values[7, 2] = values[9, 1] = math.nan
    times = 5 * torch.arange(70, dtype=torch.float64)
    model = PanelModel(options={"season": None, "temporal_kernel": "exponential"})
    algorithms = {"fitted": FittedAlgorithm.of_panel(model)}
    given = {"train": slice(0, 50), "starts": 1, "progress": False, "time_unit": "1min"}
    result = backtest(values, times, algorithms, **given)
    full = [t for t in range(50) if t not in (7, 9)]
    fit = fit_panel(values[full], times[full], season=None)
    optimizer = recipes.tv_gp_ucb(**fit.settings())
    for t in range(50, 70):
        trial = optimizer.ask(t=times[t].item())
        arm = int(trial.X.item())
        assert arm == result.arms_chosen["fitted"][0, t - 50]
        optimizer.tell(trial, values[t, arm].item())
    assert any("2 of 50 times have an arm without" in m for m in result.messages)
    assert result.verdict.startswith("TV-GP-UCB with a mean for each arm, mean regret ")
