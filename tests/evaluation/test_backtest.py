"""Backtests, against plain loops over the panel, and on drawn functions."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import RBFKernel
from gpytorch.means import ConstantMean

from tvbo import fit_drift, recipes
from tvbo.evaluation import BacktestResult, backtest, rolling_folds
from tvbo.evaluation.backtesting.algorithms import panel_algorithms
from tvbo.evaluation.backtesting.backtest import Fold, simulate_backtest
from tvbo.evaluation.backtesting.rivals import LastBest
from tvbo.kernels import CovarianceMatrixKernel
from tvbo.logs import fit_panel
from tvbo.spaces import FiniteSpace
from tvbo.test_functions.drifting_gp import drifting_gp_log

T, N, TRAIN = 90, 4, 50
ARMS = torch.arange(float(N), dtype=torch.float64).unsqueeze(-1)
CHEAP = ["always_best", "last_best", "random", "sw_ucb", "d_ucb"]
ALL = [*CHEAP, "fitted", "untuned", "best_of_hour", "weighted_means", "independent", "vector"]
ALL += ["gp_ucb", "r_gp_ucb", "tv_gp_ucb"]
PLAIN = {"season": None, "temporal_kernel": "exponential"}


def panel(seed=0, drift=0.3):
    """Arms that walk about means of their own."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(T, N, dtype=torch.float64, generator=generator)
    values = torch.empty_like(steps)
    values[0] = steps[0]
    for t in range(1, T):
        values[t] = 0.9 * values[t - 1] + drift * steps[t]
    return values + 0.2 * torch.arange(N)


def quiet(values, algorithms=CHEAP, **options):
    given = {"train": slice(0, TRAIN), "starts": 2, "progress": False, "time_unit": "10min"}
    return backtest(values, options.pop("times", None), algorithms, **given | options)


def check_played(result, name, optimizer, values, times):
    """The arms of a result are those that an optimizer chooses in a plain loop."""
    first = len(times) - len(result.times)
    for i in range(first, len(times)):
        trial = optimizer.ask(t=times[i].item())
        arm = int(trial.X.item())
        assert arm == result.arms_chosen[name][0, i - first]
        optimizer.tell(trial, values[i, arm].item())


def test_constant_rules_against_a_plain_loop():
    values = panel()
    result = quiet(values, ["always_best", "last_best", "random"], starts=3)
    rest = values[TRAIN:].numpy()
    best = int(values[:TRAIN].mean(dim=0).argmax())
    expected = rest.max(axis=1) - rest[:, best]
    np.testing.assert_allclose(result.regret["always_best"].numpy(), [expected])
    newest = values[TRAIN - 1].numpy().copy()
    for i, row in enumerate(rest):
        arm = newest.argmax()
        assert result.arms_chosen["last_best"][:, i].tolist() == [arm]
        newest[arm] = row[arm]
    assert result.labels["always_best"] == f"always taking arm {best}"
    # Starts that are the same are shown once.
    assert len(result.regret["random"].unique(dim=0)) == 3


def test_an_algorithm_sees_training_and_what_it_chose():
    values, seen, told = panel(), [], []

    def make(train_values, train_times, generator):
        seen.append((train_values, train_times))
        return LastBest(FiniteSpace(ARMS), generator)

    times = 10 + torch.arange(T, dtype=torch.float64) / 2
    result = quiet(values, {"mine": make}, times=times, train=slice(5, 30), test=slice(40, 60))
    [(train_values, train_times)] = seen
    assert torch.equal(train_values, values[5:30])
    assert torch.equal(train_times, times[5:30])
    for arms in result.arms_chosen["mine"].tolist():
        told = dict.fromkeys(range(N), math.inf)
        for i, arm in enumerate(arms):
            # What was never tried comes first.
            assert told[arm] == max(told.values())
            told[arm] = values[40 + i, arm].item()
    assert result.subject == "mine"


def test_algorithms_with_a_gp_are_those_of_the_training_fit():
    values, times = panel(), 5 * torch.arange(T, dtype=torch.float64)
    result = quiet(values, ["gp_ucb", "r_gp_ucb", "tv_gp_ucb"], times=times, starts=1, seed=7)
    fit = fit_panel(values[:TRAIN], times[:TRAIN], time_unit="10min", **PLAIN)
    [kernel], [covariance] = fit.temporal_kernels, fit.covariances
    about = fit.arm_means - fit.arm_means.mean()
    mean = ConstantMean().double()
    mean.constant = fit.arm_means.mean()
    shared = {
        "choices": ARMS,
        "covar_module": CovarianceMatrixKernel(covariance + about.outer(about)),
        "mean_module": mean.requires_grad_(False),
        "noise_variance": fit.noise_variances.mean().item(),
    }
    rate = kernel.forgetting_rate.item()
    made = {
        "gp_ucb": recipes.gp_ucb(**shared),
        "tv_gp_ucb": recipes.tv_gp_ucb(forgetting_rate=rate, **shared),
    }
    for name, optimizer in made.items():
        optimizer.generator.manual_seed(7)
        check_played(result, name, optimizer, values, times)
    assert result.regret["r_gp_ucb"].shape == (1, T - TRAIN)


@pytest.mark.slow
def test_fitted_rows_are_the_tuners_of_the_training_panel():
    values, times = panel(3), 5 * torch.arange(T, dtype=torch.float64)
    values[7, 2] = values[9, 1] = math.nan
    names = ["fitted", "untuned", "independent", "vector"]
    algorithms = panel_algorithms(names, horizon=40, fit_options=PLAIN)
    result = quiet(values, algorithms, times=times, starts=1, block_length=5.0)
    train = values[:TRAIN], times[:TRAIN]
    fit = fit_panel(*train, **PLAIN)
    check_played(result, "fitted", fit.optimizer(), values, times)
    check_played(result, "untuned", fit.optimizer(beta=4.0), values, times)
    for name in ("independent", "vector"):
        other = fit_panel(*train, season=None, temporal_kernel=name)
        check_played(result, name, other.optimizer(), values, times)
    assert {fit.reason, fit.tuning.reason} <= set(result.messages)
    assert result.verdict.startswith("the fitted tuner (exponential), mean regret ")


def test_arms_of_the_fit_have_their_names_and_rows_that_are_played_a_reading():
    values = panel()
    values[7, 2] = 1e6
    names = [f"arm number {arm}" for arm in range(N)]
    options = {"starts": 1, "arms": names, "train": slice(0, TRAIN), "progress": False}
    result = backtest(values, None, ["fitted"], **options)
    assert any("of arm arm number 2 at 8" in message for message in result.messages)
    values[TRAIN:] = math.nan
    with pytest.raises(InputDataError, match=str(TRAIN)):
        backtest(values, None, ["always_best"], **options)


def test_bandits_are_tuned_to_the_horizon_in_units_of_time():
    values, times = panel(), 10 * torch.arange(T, dtype=torch.float64)
    made = panel_algorithms(["sw_ucb", "d_ucb"], horizon=100)
    window, discounted = (make(values, times, torch.Generator()) for make in made.values())
    assert window.window == pytest.approx(10 * 2 * math.sqrt(100 * math.log(100)))
    assert discounted.discount**10 == pytest.approx(1 - 1 / 40)
    assert window.reward_bounds == (values.min().item(), values.max().item())
    # One outcome of each arm, from the last row.
    counts, totals = window.weighted_sums(10.0 * T)
    assert counts.tolist() == [1.0] * N
    span = values.max() - values.min()
    torch.testing.assert_close(totals * span + values.min(), values[-1])


def result_of(regret, blocks, **options):
    """A result with these regrets, by name, in blocks of so many times."""
    first = next(iter(regret.values()))
    return BacktestResult(
        regret=regret,
        arms_chosen={name: torch.full_like(first, i).long() for i, name in enumerate(regret)},
        times=torch.arange(first.shape[1], dtype=torch.float64),
        fold_of_time=torch.zeros(first.shape[1], dtype=torch.long),
        labels={name: name.upper() for name in regret},
        arms=["x", "y"],
        given_block=blocks,
        **options,
    )


def test_errors_are_from_blocks_and_differences_paired():
    generator = torch.Generator().manual_seed(2)
    shared = torch.rand(3, 60, dtype=torch.float64, generator=generator)
    extra = 0.1 * torch.rand(3, 60, dtype=torch.float64, generator=generator)
    result = result_of({"fitted": shared, "other": shared + extra}, 6.0, unit="°C")
    mean, error = result.results["fitted"]
    blocks = shared.mean(dim=0).reshape(10, 6).mean(dim=1)
    assert mean == pytest.approx(shared.mean().item())
    assert error == pytest.approx(blocks.std().item() / math.sqrt(10))
    gap, error = result.difference("fitted", "other")
    blocks = extra.mean(dim=0).reshape(10, 6).mean(dim=1)
    assert gap == pytest.approx(extra.mean().item())
    assert error == pytest.approx(blocks.std().item() / math.sqrt(10))
    assert result.difference("other", "fitted").mean == pytest.approx(-gap)
    assert result.verdict.startswith(f"FITTED, mean regret {mean:.3g} °C; 0.0")
    assert result.verdict.endswith(" better than OTHER.")
    # Unequal blocks and a missing value: means of those that are there, weighed by their number.
    regret = torch.tensor([[1.0, 2.0, math.nan, 4.0, 5.0]], dtype=torch.float64)
    mean, error = result_of({"fitted": regret}, 3.0).results["fitted"]
    sums = [2 * (1.5 - 3.0), 2 * (4.5 - 3.0)]
    assert mean == pytest.approx(3.0)
    assert error == pytest.approx(math.sqrt(2 * sum(s**2 for s in sums)) / 4)
    assert result_of({"fitted": regret}, 9.0).results["fitted"].standard_error is None


def test_tables_agree_with_the_rounds(tmp_path):
    result = quiet(panel(), folds=2, block_length=5.0, arms=["a", "b", "c", "d"], unit="°C")
    rounds = result.rounds_frame()
    # Random arms alone differ from start to start.
    assert len(rounds) == (len(CHEAP) + 1) * (T - TRAIN)
    by_name = rounds.groupby("algorithm")["regret"].mean()
    frame = result.to_frame()
    pd.testing.assert_series_equal(frame["mean_regret"].sort_index(), by_name, check_names=False)
    result.to_json(tmp_path / "result.json")
    result.to_csv(tmp_path / "rounds.csv")
    saved = json.loads((tmp_path / "result.json").read_text())
    assert saved["verdict"] == result.verdict
    assert saved["folds"][1] == {"train": [20, 70], "test": [70, 90]}
    assert saved["num_blocks"] == 8
    for name in CHEAP:
        each = saved["results"][name]
        assert each["mean_regret"] == pytest.approx(by_name[name])
        assert each["standard_error"] == result.results[name].standard_error
        assert np.mean(each["mean_regret_by_fold"]) == pytest.approx(by_name[name])
    assert len(pd.read_csv(tmp_path / "rounds.csv")) == len(rounds)
    assert result.verdict in repr(result)


def test_a_choice_without_a_reading_counts_as_the_worst_one_and_is_said():
    values = panel()
    best = int(values[:TRAIN].mean(dim=0).argmax())
    values[TRAIN + 3 : TRAIN + 23, best] = math.nan
    values[TRAIN + 30] = math.nan
    values[10, (best + 1) % N] = math.nan
    result = quiet(values, [*CHEAP, "weighted_means", "fitted"], starts=1)
    # A time without any reading is left out.
    rest = values[[row for row in range(TRAIN, T) if row != TRAIN + 30]]
    assert len(result.times) == len(rest) == 39
    most, least = (rest.nan_to_num(nan=x) for x in (-9.0, 9.0))
    taken = torch.where(rest[:, best].isnan(), least.amin(dim=1), rest[:, best])
    torch.testing.assert_close(result.regret["always_best"][0], most.amax(dim=1) - taken)
    assert any("20 of the 39 choices of always_best" in message for message in result.messages)
    # A tuner that sees that an arm is dead leaves it out.
    dead = result.arms_chosen["fitted"][0, 3:23] == best
    assert dead.sum() <= 5


def test_workers_play_the_same():
    values = panel()
    with ThreadPoolExecutor(2) as executor:
        spread = quiet(values, executor=executor)
    serial = quiet(values)
    for name in CHEAP:
        assert torch.equal(spread.regret[name], serial.regret[name])


def test_folds_move_through_the_rows_and_each_begins_a_block():
    folds = rolling_folds(range(10, 30), range(32, 45), 3)
    assert [(f.train, f.test) for f in folds] == [
        (range(10, 30), range(32, 36)),
        (range(14, 34), range(36, 40)),
        (range(18, 38), range(40, 45)),
    ]
    folds = [Fold(range(0, 20), range(20, 33)), Fold(range(30, 60), range(70, 80))]
    blocks = quiet(panel(), ["random"], train=folds, block_length=6.0).blocks.tolist()
    assert blocks == [0] * 6 + [1] * 6 + [2] + [3] * 6 + [4] * 4


def test_blocks_are_as_long_as_differences_correlate_and_a_day_at_least():
    generator = torch.Generator().manual_seed(0)
    noise, other = torch.rand(2, 1, 400, dtype=torch.float64, generator=generator)
    steady = torch.randint(2, (1, 20), generator=generator).double().repeat_interleave(20, dim=1)
    both = {"fitted": noise, "other": noise + steady}
    fast, slow = result_of({"fitted": noise, "other": other}, None), result_of(both, None)
    assert fast.block_length <= 4
    # Twice the time over which levels of twenty steps correlate.
    assert 20 <= slow.block_length <= 80
    assert (
        result_of({"fitted": noise, "other": noise + steady}, None, time_unit="10min").block_length
        == 144
    )
    assert result_of({"fitted": noise}, None).block_length == 1
    gaps = slow.difference("fitted", "other").standard_error
    naive = result_of(both, 1.0)
    assert gaps > 2 * naive.difference("fitted", "other").standard_error
    assert quiet(panel(), ["random", "sw_ucb"], time_unit="1h", starts=1).block_length >= 24


@pytest.mark.parametrize(("length", "is_told"), [(9, False), (10, True)])
def test_there_is_no_verdict_from_fewer_than_ten_blocks(length, is_told):
    regret = torch.arange(4.0 * length).double().unsqueeze(0)
    result = result_of({"fitted": regret, "other": regret + 1}, 4.0)
    assert ("better than OTHER" in result.verdict) == is_told
    assert ("No verdict" in result.verdict) == (not is_told)
    if not is_told:
        assert "9 independent blocks" in result.verdict


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"train": slice(0, 2)}, "0:2"),
        ({"train": slice(0, T)}, "0:90"),
        ({"train": slice(0, 50), "test": slice(40, 60)}, "40:60"),
        ({"folds": 99}, "99"),
        ({"starts": 0}, "0"),
        ({"block_length": -1.0}, "-1"),
        ({"train": []}, "none"),
        ({"train": [Fold(range(9), range(20, 40)), Fold(range(9), range(39, 50))]}, "39:50"),
        ({"algorithms": ["sw_ucb", "tv_gp_ubc"]}, "'tv_gp_ucb'"),
        ({"algorithms": ["random", "random"]}, "random"),
    ],
)
def test_arguments_that_are_refused(options, value):
    with pytest.raises(ValueError, match=value):
        quiet(panel(), **options)


def test_panels_that_are_refused():
    empty_arm = panel()
    empty_arm[:TRAIN, 2] = math.nan
    for values, value in ((empty_arm, "'2'"), (torch.full((T, N), math.inf), "inf")):
        with pytest.raises(InputDataError, match=value):
            quiet(values)
    with pytest.raises(InputDataError):
        quiet(panel(), times=torch.zeros(T))
    one_at_a_time = torch.where(torch.arange(T)[:, None] % N == torch.arange(N), panel(), math.nan)
    with pytest.raises(InputDataError, match="two arms"):
        quiet(one_at_a_time)
    # Times at which there is nothing to choose are not played.
    one_at_a_time[TRAIN + 3 : TRAIN + 9] = panel()[TRAIN + 3 : TRAIN + 9]
    assert len(quiet(one_at_a_time).times) == 6
    with pytest.raises(BotorchTensorDimensionError):
        quiet(torch.zeros(T, 1))
    with pytest.raises(BotorchTensorDimensionError, match="'x'"):
        quiet(panel(), {"x": lambda *_: recipes.random_search(choices=ARMS[:2])})


@pytest.mark.slow
def test_all_algorithms_play_by_name():
    result = quiet(panel(4), None, starts=1, time_unit="1h", folds=2, block_length=4.0)
    assert set(result.regret) == set(ALL)
    assert result.subject == "fitted"
    assert all((rows >= 0).all() for rows in result.regret.values())
    with pytest.raises(ValueError, match="'vectr'"):
        quiet(panel(), ["vectr"])


def test_progress_names_what_is_fitted_and_played(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # Which Rich takes for a terminal.
    monkeypatch.setattr("tvbo.terminal.PATIENCE", 0.02)  # With none, a thread would spin.
    algorithms = panel_algorithms(["random", "fitted"], horizon=40, fit_options=PLAIN)
    quiet(panel(), algorithms, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    for words in ("fitting", "playing", "step 4 of 4"):
        assert words in err


# On functions drawn from a fitted model.


@pytest.fixture(scope="module")
def fitted():
    """A fit of a log of few actions, and its rows."""
    generator = torch.Generator().manual_seed(4)
    actions = torch.linspace(0, 1, 5, dtype=torch.float64)
    arms = torch.randint(5, (60,), generator=generator)
    train_X = torch.stack([actions[arms], 0.5 * torch.arange(60)], dim=-1)
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.3
    train_Y = 20 + drifting_gp_log(train_X, kernel, 0.1, 0.05, generator=generator)
    return fit_drift(train_X, train_Y, covar_module=kernel, num_starts=1, progress=False), train_X


def test_a_simulation_says_so_and_scores_the_drawn_function(fitted):
    names, given = ["random", "tv_gp_ucb"], {"horizon": 30, "progress": False}
    result = simulate_backtest(*fitted, names, draws=2, unit="V", **given)
    assert result.verdict.startswith("In a simulation, on 2 functions drawn ")
    assert result.times.tolist() == [*(29.5 + 0.5 * i for i in range(1, 31))] * 2
    assert list(result.arms) == ["0", "0.25", "0.5", "0.75", "1"]
    # Without noise in the regret, some choice is the best one exactly.
    for rows in result.regret.values():
        assert (rows >= 0).all()
        assert (rows == 0).any()
    assert result.results["tv_gp_ucb"].mean < result.results["random"].mean
    # The error is from function to function: half of what the two differ by.
    single = simulate_backtest(*fitted, names, draws=1, **given)
    assert not any(word in single.verdict for word in ("better", "worse"))
    one = single.difference(*names)
    assert one.standard_error is None
    two = result.difference(*names)
    assert two.standard_error == pytest.approx(abs(one.mean - two.mean))


def test_a_log_that_says_nothing_gives_no_verdict():
    generator = torch.Generator().manual_seed(0)
    X = torch.stack([torch.arange(20) % 3 / 3, torch.arange(20)], dim=-1).double()
    Y = torch.randn(20, 1, dtype=torch.float64, generator=generator)
    fit = fit_drift(X, Y, num_starts=1, progress=False)
    assert fit.forgetting_rate_interval == (0, 1)
    names = ["random", "always_best"]
    result = simulate_backtest(fit, X, names, horizon=3, draws=2, progress=False)
    assert result.messages[: len(fit.messages)] == fit.messages != []
    assert "better" not in result.verdict
    assert "worse" not in result.verdict


def test_simulations_that_are_refused(fitted):
    with pytest.raises(ValueError, match="'fited'"):
        simulate_backtest(*fitted, ["fited"])
    with pytest.raises(ValueError, match="1"):
        simulate_backtest(*fitted, choices=[[0.0]])
    with pytest.raises(InputDataError):
        simulate_backtest(*fitted, choices=[[0.1], [0.2]], progress=False)
    with pytest.raises(ValueError, match="draws"):
        simulate_backtest(*fitted, draws=0)
