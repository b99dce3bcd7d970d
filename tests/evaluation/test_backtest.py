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

from tvbo import fit_drift, recipes
from tvbo.evaluation import BacktestResult, backtest, rolling_folds, tune_exploration
from tvbo.evaluation.backtesting.algorithms import panel_algorithms
from tvbo.evaluation.backtesting.backtest import Fold, simulate_backtest
from tvbo.evaluation.backtesting.rivals import FixedAction, LastBest
from tvbo.logs import fit_panel
from tvbo.logs.drift_fit import fit_panel_drift
from tvbo.spaces import FiniteSpace
from tvbo.test_functions.drifting_gp import drifting_gp_log

T, N, TRAIN = 90, 4, 50
ARMS = torch.arange(float(N), dtype=torch.float64).unsqueeze(-1)
CHEAP = ["always_best", "last_best", "random", "sw_ucb", "d_ucb"]
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
    result = quiet(values, ["always_best", "last_best"])
    rest = values[TRAIN:].numpy()
    best = int(values[:TRAIN].mean(dim=0).argmax())
    expected = rest.max(axis=1) - rest[:, best]
    np.testing.assert_allclose(result.regret["always_best"].numpy(), [expected, expected])
    newest = values[TRAIN - 1].numpy().copy()
    for i, row in enumerate(rest):
        arm = newest.argmax()
        assert result.arms_chosen["last_best"][:, i].tolist() == [arm, arm]
        newest[arm] = row[arm]
    assert result.labels["always_best"] == f"always taking arm {best}"


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
    fit = fit_panel_drift(values[:TRAIN], times[:TRAIN], progress=False)
    shared = {
        "choices": ARMS,
        "covar_module": fit.covar_module,
        "mean_module": fit.mean_module,
        "noise_variance": fit.noise_variance,
    }
    first, every = times[TRAIN].item(), fit.block_length * fit.round_length
    made = {
        "gp_ucb": recipes.gp_ucb(**shared),
        "r_gp_ucb": recipes.r_gp_ucb(every=every, start=first, **shared),
        "tv_gp_ucb": recipes.tv_gp_ucb(forgetting_rate=fit.forgetting_rate, **shared),
    }
    for name, optimizer in made.items():
        optimizer.generator.manual_seed(7)
        check_played(result, name, optimizer, values, times)


def test_fitted_is_the_panel_model_of_full_training_times():
    values, times = panel(3), 5 * torch.arange(T, dtype=torch.float64)
    values[7, 2] = values[9, 1] = math.nan
    algorithms = panel_algorithms(["fitted"], horizon=40, fit_options=PLAIN)
    result = quiet(values, algorithms, times=times, starts=1)
    full = [t for t in range(TRAIN) if t not in (7, 9)]
    fit = fit_panel(values[full], times[full], season=None)
    check_played(result, "fitted", recipes.tv_gp_ucb(**fit.settings()), values, times)
    assert any("2 of 50 times" in message for message in result.messages)
    assert result.verdict.startswith("TV-GP-UCB with a mean for each arm, mean regret ")


@pytest.mark.slow
def test_beta_is_chosen_within_the_training_stretch():
    values, times = panel(5), torch.arange(T, dtype=torch.float64)
    train = values[:TRAIN].clone(), times[:TRAIN]
    # What is played later has no part in the choice.
    values[TRAIN:, 0] += 50
    algorithms = panel_algorithms(["fitted"], horizon=40, tune_beta=True, fit_options=PLAIN)
    result = quiet(values, algorithms, times=times, starts=1)
    fit = fit_panel(*train, season=None)
    expected = tune_exploration(fit, *train)
    assert expected.reason in result.messages
    optimizer = recipes.tv_gp_ucb(**fit.settings(), beta=expected.beta)
    check_played(result, "fitted", optimizer, values, times)


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
        block_length=blocks,
        **options,
    )


def test_errors_are_from_blocks_and_differences_paired():
    generator = torch.Generator().manual_seed(2)
    shared = torch.rand(3, 48, dtype=torch.float64, generator=generator)
    extra = 0.1 * torch.rand(3, 48, dtype=torch.float64, generator=generator)
    result = result_of({"fitted": shared, "other": shared + extra}, 6.0, unit="°C")
    mean, error = result.results["fitted"]
    blocks = shared.mean(dim=0).reshape(8, 6).mean(dim=1)
    assert mean == pytest.approx(shared.mean().item())
    assert error == pytest.approx(blocks.std().item() / math.sqrt(8))
    gap, error = result.difference("fitted", "other")
    blocks = extra.mean(dim=0).reshape(8, 6).mean(dim=1)
    assert gap == pytest.approx(extra.mean().item())
    assert error == pytest.approx(blocks.std().item() / math.sqrt(8))
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
    assert len(rounds) == len(CHEAP) * 2 * (T - TRAIN)
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


def test_cells_without_a_reading_are_left_out_and_said():
    values = panel()
    values[TRAIN + 3] = math.nan
    values[TRAIN + 3, 0] = 1.0
    values[TRAIN + 8, 1:] = math.nan
    values[10, 2] = math.nan
    result = quiet(values)
    best = int(values[:TRAIN].nanmean(dim=0).argmax())
    expected = values[TRAIN:].nan_to_num(nan=-9).amax(dim=1) - values[TRAIN:, best]
    assert expected.isnan().sum() == 2
    torch.testing.assert_close(result.regret["always_best"][0], expected, equal_nan=True)
    assert result.results["always_best"].mean == pytest.approx(expected.nanmean().item())
    assert any("4 of the 80 choices of always_best" in message for message in result.messages)


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
    # An hour is six steps.
    blocks = quiet(panel(), ["random"], train=folds).blocks.tolist()
    assert blocks == [0] * 6 + [1] * 6 + [2] + [3] * 6 + [4] * 4


def test_times_without_a_unit_and_blocks_that_depend_on_one_another_are_said():
    result = quiet(panel(), ["random", "sw_ucb"], time_unit="1")
    assert result.block_length == 6
    assert "blocks of 6 rounds" in result.messages[0]
    assert quiet(panel(), ["random"], time_unit="1D").block_length == 1
    values = panel()
    # One arm is much better, for the first and again for the last part.
    values[TRAIN:60, 0] += 9
    values[80:, 0] += 9
    algorithms = {
        str(arm): lambda *_, arm=arm: FixedAction(FiniteSpace(ARMS), [arm]) for arm in (0.0, 1.0)
    }
    result = quiet(values, algorithms, block_length=2.0)
    assert any("correlate from one block of 2 × 10min" in message for message in result.messages)


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
    empty_row, empty_arm = panel(), panel()
    empty_row[60] = empty_arm[:TRAIN, 2] = math.nan
    for values, value in (
        (empty_row, "61"),
        (empty_arm, "'2'"),
        (torch.full((T, N), math.inf), "inf"),
    ):
        with pytest.raises(InputDataError, match=value):
            quiet(values)
    with pytest.raises(InputDataError):
        quiet(panel(), times=torch.zeros(T))
    with pytest.raises(BotorchTensorDimensionError):
        quiet(torch.zeros(T, 1))
    with pytest.raises(BotorchTensorDimensionError, match="'x'"):
        quiet(panel(), {"x": lambda *_: recipes.random_search(choices=ARMS[:2])})


def test_progress_names_what_is_fitted_and_played(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # Which Rich takes for a terminal.
    monkeypatch.setattr("tvbo.terminal.PATIENCE", 0.0)
    quiet(panel(), ["random", "always_best"], progress=True)
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
    one = simulate_backtest(*fitted, names, draws=1, **given).difference(*names)
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


# The exploration of a tuner.


@pytest.fixture(scope="module")
def log():
    values, times = panel()[:48], torch.arange(48, dtype=torch.float64)
    return fit_panel(values, times, season=None), values, times


def test_each_fold_is_played_with_a_fit_of_all_before_it(log):
    _, values, times = log
    played = []

    def play(model, beta, part, later):
        played.append((model.num_times, beta, later))
        torch.testing.assert_close(part, values[later.long()])
        return torch.ones(len(later))

    tune_exploration(*log, multipliers=(0.5, 0.0), play=play)
    assert [number for number, *_ in played] == [24, 24, 32, 32, 40, 40]
    assert [beta for _, beta, _ in played] == [0.0, 0.25] * 3
    assert torch.equal(torch.cat([later for *_, later in played[::2]]), times[24:])


@pytest.mark.parametrize(("gap", "expected"), [(0.01, 0.0), (10.0, 1.0)], ids=["near", "far"])
def test_the_smallest_within_one_standard_error_is_taken(log, gap, expected):
    wave = torch.sin(7 * log[2])

    def play(model, beta, part, later):
        worse = {0.0: gap, 1.0: 0.0, 4.0: 5.0}[beta]
        return 1 + worse + (0.5 if beta == 0 else 0.0) * wave[later.long()]

    found = tune_exploration(*log, multipliers=(0.0, 1.0, 2.0), play=play)
    assert found.multiplier == expected
    assert found.beta == expected**2
    assert found.difference[1.0] == 0.0
    assert found.standard_error[2.0] == pytest.approx(0.0, abs=1e-6)


def test_segments_are_played_from_their_beginning():
    times = torch.arange(10, dtype=torch.float64).repeat(6)
    segments, stretches = torch.arange(6).repeat_interleave(10), []
    values = panel()[:60]
    fit = fit_panel(values, times, segments=segments, season=None)

    def play(model, beta, part, later):
        stretches.append((model.num_times, later))
        return torch.ones(len(later))

    tune_exploration(fit, values, times, segments=segments, multipliers=(0.0,), play=play)
    assert [number for number, _ in stretches] == [30, 40, 50]
    assert all(torch.equal(later, times[:10]) for _, later in stretches)


@pytest.mark.parametrize(
    "options", [{"multipliers": ()}, {"multipliers": (-1.0,)}, {"folds": 0}, {"folds": 20}]
)
def test_options_of_the_exploration_that_are_refused(log, options):
    with pytest.raises(ValueError, match=r"multipliers|folds"):
        tune_exploration(*log, **options)
