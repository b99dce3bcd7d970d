"""Backtests, against plain loops over the panel."""

import json
import math
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError

from tvbo import recipes
from tvbo.evaluation import (
    BacktestResult,
    Fold,
    backtest,
    block_estimate,
    panel_algorithms,
    rolling_folds,
)
from tvbo.evaluation.backtesting import fit_panel_drift
from tvbo.optimizers import FixedAction, RandomSearch
from tvbo.spaces import FiniteSpace

T, N, TRAIN = 90, 4, 50
ARMS = torch.arange(float(N), dtype=torch.float64).unsqueeze(-1)
CHEAP = ["always_best", "last_best", "random", "sw_ucb", "d_ucb"]


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


@pytest.mark.parametrize("seed", range(3))
def test_constant_rules_against_a_plain_loop(seed):
    values = panel(seed)
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
    values = panel()
    seen, told = [], []

    class Watched(RandomSearch):
        def _learn(self, trial, observation):
            told.append((trial.t, int(trial.X.item()), observation.Y.item()))

    def make(train_values, train_times, generator):
        seen.append((train_values, train_times))
        return Watched(recipes.random_search(choices=ARMS).search_space, generator=generator)

    times = 10 + torch.arange(T, dtype=torch.float64) / 2
    result = quiet(values, {"mine": make}, times=times, train=slice(5, 30), test=slice(40, 60))
    assert len(seen) == 1
    assert torch.equal(seen[0][0], values[5:30])
    assert torch.equal(seen[0][1], times[5:30])
    arms = result.arms_chosen["mine"]
    expected = [
        (times[40 + i].item(), arm, values[40 + i, arm].item())
        for row in arms.tolist()
        for i, arm in enumerate(row)
    ]
    assert told == expected
    assert not torch.equal(arms[0], arms[1])
    assert result.subject == "mine"


def test_mean_and_error_of_blocks_against_the_direct_formula():
    generator = torch.Generator().manual_seed(1)
    series = torch.randn(60, dtype=torch.float64, generator=generator)
    mean, error = block_estimate(series, torch.arange(60) // 6)
    blocks = series.reshape(10, 6).mean(dim=1)
    assert mean == pytest.approx(series.mean().item())
    assert error == pytest.approx(blocks.std().item() / math.sqrt(10))
    # Unequal blocks and a missing value: means of those that are there, weighed by their number.
    labels = torch.tensor([0, 0, 0, 1, 3, 3])
    mean, error = block_estimate(torch.tensor([1.0, 2.0, math.nan, 4.0, 5.0, 6.0]).double(), labels)
    assert mean == pytest.approx(3.6)
    sums = [2 * (1.5 - 3.6), 4 - 3.6, 2 * (5.5 - 3.6)]
    assert error == pytest.approx(math.sqrt(3 / 2 * sum(s**2 for s in sums)) / 5)
    assert block_estimate(series, torch.zeros(60)).standard_error is None


def test_differences_are_paired():
    times = torch.arange(48, dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    shared = torch.rand(3, 48, dtype=torch.float64, generator=generator)
    extra = 0.1 * torch.rand(3, 48, dtype=torch.float64, generator=generator)
    result = BacktestResult(
        regret={"fitted": shared, "other": shared + extra},
        arms_chosen={"fitted": torch.zeros(3, 48).long(), "other": torch.ones(3, 48).long()},
        times=times,
        fold_of_time=torch.zeros(48, dtype=torch.long),
        labels={"fitted": "A", "other": "B"},
        arms=["x", "y"],
        block_length=6.0,
        unit="°C",
    )
    gap, error = result.difference("fitted", "other")
    blocks = extra.mean(dim=0).reshape(8, 6).mean(dim=1)
    assert gap == pytest.approx(extra.mean().item())
    assert error == pytest.approx(blocks.std().item() / math.sqrt(8))
    assert error < result.results["fitted"].standard_error / 3
    assert result.differences["other"]["fitted"].mean == pytest.approx(-gap)
    mean = shared.mean().item()
    assert result.verdict.startswith(f"A, mean regret {mean:.3g} °C; 0.0")
    assert result.verdict.endswith(" better than B.")


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
    assert best != 0
    expected = values[TRAIN:].nan_to_num(nan=-9).amax(dim=1) - values[TRAIN:, best]
    assert expected.isnan().sum() == 2
    row = result.regret["always_best"][0]
    torch.testing.assert_close(row, expected, equal_nan=True)
    assert result.results["always_best"].mean == pytest.approx(expected.nanmean().item())
    assert any("4 of the 80 choices of always_best" in message for message in result.messages)
    assert (result.rounds_frame()["regret"].dropna() >= 0).all()


def test_workers_play_the_same(recwarn):
    values = panel()
    with ThreadPoolExecutor(2) as executor:
        spread = quiet(values, executor=executor)
    serial = quiet(values)
    for name in CHEAP:
        assert torch.equal(spread.regret[name], serial.regret[name])


def test_algorithms_with_a_gp_are_those_of_the_training_fit():
    values = panel()
    times = 5 * torch.arange(T, dtype=torch.float64)
    names = ["gp_ucb", "r_gp_ucb", "tv_gp_ucb"]
    result = quiet(values, names, times=times, starts=1, seed=7)
    fit = fit_panel_drift(values[:TRAIN], times[:TRAIN])
    shared = {
        "choices": ARMS,
        "covar_module": fit.covar_module,
        "mean_module": fit.mean_module,
        "noise_variance": fit.noise_variance,
    }
    first = times[TRAIN].item()
    every = fit.block_length * fit.round_length
    made = {
        "gp_ucb": recipes.gp_ucb(**shared),
        "r_gp_ucb": recipes.r_gp_ucb(every=every, start=first, **shared),
        "tv_gp_ucb": recipes.tv_gp_ucb(forgetting_rate=fit.forgetting_rate, **shared),
    }
    for name, optimizer in made.items():
        optimizer.generator.manual_seed(7)
        for t in range(TRAIN, T):
            trial = optimizer.ask(t=times[t].item())
            arm = int(trial.X.item())
            assert arm == result.arms_chosen[name][0, t - TRAIN]
            optimizer.tell(trial, values[t, arm].item())


def test_rolling_folds_move_through_the_rows():
    folds = rolling_folds(range(10, 30), range(32, 45), 3)
    assert [(f.train, f.test) for f in folds] == [
        (range(10, 30), range(32, 36)),
        (range(14, 34), range(36, 40)),
        (range(18, 38), range(40, 45)),
    ]


def test_blocks_begin_anew_with_each_fold():
    folds = [Fold(range(0, 20), range(20, 33)), Fold(range(30, 60), range(70, 80))]
    result = quiet(panel(), ["random"], train=folds)
    # An hour is six steps.
    assert result.blocks.tolist() == [0] * 6 + [1] * 6 + [2] + [3] * 6 + [4] * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": slice(0, 2)}, "at least 3 times. Got 2, rows 0:2"),
        ({"train": slice(0, T)}, "Expected rows to play"),
        ({"train": slice(0, 50), "test": slice(40, 60)}, "begins after its training"),
        ({"folds": 99}, "from 1 to 40 folds"),
        ({"starts": 0}, "starts to be a whole number"),
        ({"block_length": -1.0}, "block_length > 0"),
        ({"train": []}, "at least one fold"),
        (
            {"train": [Fold(range(9), range(20, 40)), Fold(range(30), range(39, 50))]},
            "do not overlap. Got rows 20:40 and 39:50",
        ),
        ({"algorithms": ["sw_ucb", "tv_gp_ubc"]}, "Got 'tv_gp_ubc'. Did you mean 'tv_gp_ucb'?"),
        ({"algorithms": ["random", "random"]}, "each once"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        quiet(panel(), **options)


def test_bad_panels():
    values = panel()
    values[60] = math.nan
    with pytest.raises(InputDataError, match="at least one arm at each time. Got none at t=61"):
        quiet(values)
    values = panel()
    values[:TRAIN, 2] = math.nan
    with pytest.raises(InputDataError, match="every arm in the training stretch.*'2' in rows 0:50"):
        quiet(values)
    with pytest.raises(InputDataError, match="times that increase"):
        quiet(panel(), times=torch.zeros(T))
    with pytest.raises(InputDataError, match="finite values"):
        quiet(torch.full((T, N), math.inf))
    with pytest.raises(BotorchTensorDimensionError, match="at least two arms"):
        quiet(torch.zeros(T, 1))
    with pytest.raises(
        BotorchTensorDimensionError, match="over 4 choices, one for each arm, of 'x'"
    ):
        quiet(panel(), {"x": lambda *_: recipes.random_search(choices=ARMS[:2])})


def test_times_without_a_unit_are_said():
    result = quiet(panel(), ["random", "sw_ucb"], time_unit="1")
    assert result.block_length == 6
    assert "Times have no unit: standard errors are from blocks of 6 rounds" in result.messages[0]
    assert quiet(panel(), ["random"], time_unit="1D").block_length == 1


def test_blocks_that_depend_on_one_another_are_said():
    values = panel()
    # One arm is much better, for the first and again for the last part.
    values[TRAIN:60, 0] += 9
    values[80:, 0] += 9
    algorithms = {
        name: lambda *_, arm=arm: FixedAction(FiniteSpace(ARMS), [arm])
        for name, arm in {"first": 0.0, "second": 1.0}.items()
    }
    result = quiet(values, algorithms, block_length=2.0)
    assert any("correlate from one block of 2 × 10min" in m for m in result.messages)


def test_names_are_the_nine_of_every_backtest():
    assert [*panel_algorithms(horizon=10)] == [
        "fitted",
        "always_best",
        "last_best",
        "random",
        "sw_ucb",
        "d_ucb",
        "gp_ucb",
        "r_gp_ucb",
        "tv_gp_ucb",
    ]


def test_progress_names_what_is_fitted_and_played(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # Which Rich takes for a terminal.
    quiet(panel(), ["random", "always_best"], progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "fitting" in shown.err
    assert "playing" in shown.err
    assert "4/4" in shown.err
