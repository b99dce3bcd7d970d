"""``tvbo backtest`` as a user meets it."""

import json

import pandas as pd
import pytest
import torch


@pytest.fixture
def panel(tmp_path):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(60, 3, dtype=torch.float64, generator=generator).cumsum(dim=0)
    times = pd.date_range("2025-03-01", periods=60, freq="10min", name="time")
    path = tmp_path / "panel.csv"
    pd.DataFrame(values.numpy(), index=times, columns=["a", "b", "c"]).to_csv(path)
    return path


CHEAP = ["--algorithms", "always_best, last_best,random,sw_ucb"]


def test_results_in_all_forms(tvbo, panel, tmp_path):
    files = {name: tmp_path / f"result.{name}" for name in ("json", "csv", "png")}
    options = ["--json", files["json"], "--csv", files["csv"], "--plot", files["png"]]
    code, out, err = tvbo(
        "backtest", panel, "--train", "0:40", "--unit", "°C", "--starts", 2, "--block", "20min",
        *CHEAP, *options,
    )  # fmt: skip
    assert (code, err) == (0, "")
    saved = json.loads(files["json"].read_text())
    assert list(saved["results"]) == ["always_best", "last_best", "random", "sw_ucb"]
    for each in saved["results"].values():
        assert each["mean_regret"] >= 0
        assert each["standard_error"] > 0
    assert set(saved["differences"]["random"]) == {"always_best", "last_best", "sw_ucb"}
    assert saved["verdict"] in out
    assert (saved["block_length"], saved["num_blocks"]) == (2, 10)
    # Only random arms differ from start to start.
    assert len(pd.read_csv(files["csv"])) == (3 + 2) * 20
    assert files["png"].read_bytes().startswith(b"\x89PNG")


def test_drift_and_season_of_the_tuner_may_be_named(tvbo, panel):
    options = ["--algorithms", "fitted,always_best", "--temporal", "two-scales", "--season", "2h"]
    code, out, _ = tvbo("backtest", panel, "--train", "0:40", "--block", "20min", *options)
    assert code == 0
    words = "the fitted tuner (two-scales, season (period 12 × 10min)), mean regret"
    assert words in " ".join(out.split())


def test_a_block_is_a_day_at_least_and_few_give_no_verdict(tvbo, panel):
    code, out, _ = tvbo("backtest", panel, "--train", "0:40", *CHEAP)
    assert code == 0
    assert "No verdict: the 20 times that were played are 1 independent blocks of 144" in out


@pytest.mark.slow
def test_all_algorithms(tvbo, panel, tmp_path):
    code, out, _ = tvbo(
        "backtest", panel, "--train", "0:40", "--test", "40:52", "--starts", 1,
        "--folds", 2, "--block", "20min", "--seed", 3, "--json", tmp_path / "result.json",
    )  # fmt: skip
    assert code == 0
    saved = json.loads((tmp_path / "result.json").read_text())
    assert len(saved["results"]) == 14
    assert saved["num_blocks"] == 6
    assert any("of the standard deviation" in message for message in saved["messages"])
    assert out.count("│ fitted ") == 1


@pytest.mark.parametrize(
    "options",
    [
        ["--train", "0:40", "--algorithms", "randon"],
        ["--train", "0:2"],
        ["--train", "0:60"],
        ["--train", "0:40", "--test", "30:50"],
        ["--train", "0-40"],
        ["--train", "0:40", "--folds", "21"],
        ["--train", "0:40", "--block", "soon"],
        ["--train", "0:40", "--starts", "0"],
        ["--train", "0:40", "--season", "soon"],
        ["--train", "0:40", "--plot", "picture.xyz"],
        [],
        ["--train", "0:40", "--draws", "3"],
        ["--time", "time", "--reward", "a"],
        ["--train", "0:40", "--drop-missing"],
        ["--time", "time", "--reward", "a", "--action", "b", "--block", "1h"],
        ["--time", "time", "--reward", "a", "--action", "b", "--season", "none"],
    ],
)
def test_bad_options_are_one_line(tvbo, panel, options):
    code, out, err = tvbo("backtest", panel, *options)
    assert (code, out) == (2, "")
    assert err.startswith("tvbo: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("option", ["--block", "--season"])
def test_a_duration_is_no_number_of_units(tvbo, tmp_path, option):
    path = tmp_path / "panel.csv"
    path.write_text("t,a,b\n" + "".join(f"{i},{i % 3},{i % 5}\n" for i in range(20)))
    code, _, err = tvbo("backtest", path, "--train", "0:12", option, "1h")
    assert (code, err.count("\n"), "'1h'" in err) == (2, 1, True)


@pytest.mark.parametrize("options", [[], ["--resample", "10min"]])
def test_times_without_a_reading_are_left_out(tvbo, panel, tmp_path, options):
    lines = panel.read_text().splitlines()
    lines[46] = lines[46].split(",")[0] + ",,,"
    panel.write_text("\n".join([*lines[:50], *lines[52:]]) + "\n")
    result = tmp_path / "result.json"
    code, out, _ = tvbo("backtest", panel, "--train", "0:40", *CHEAP, *options, "--json", result)
    assert code == 0
    assert json.loads(result.read_text())["num_times"] == 17
    assert f"left out: {3 if options else 1} rows" in out


@pytest.mark.slow
def test_a_long_log_is_simulated(tvbo, tmp_path):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(4, (50,), generator=generator) / 4
    y = torch.sin(6 * x + torch.arange(50) / 9) + 0.1 * torch.randn(50, generator=generator)
    frame = pd.DataFrame({"t": range(50), "x": x.numpy(), "y": y.numpy()})
    frame.to_csv(tmp_path / "log.csv", index=False)
    code, out, _ = tvbo(
        "backtest", tmp_path / "log.csv", "--time", "t", "--reward", "y", "--action", "x",
        "--horizon", 30, "--draws", 2, "--json", tmp_path / "result.json",
        "--plot", tmp_path / "result.png",
    )  # fmt: skip
    assert code == 0
    assert "In a simulation, on 2 functions drawn from the fitted model: " in out
    saved = json.loads((tmp_path / "result.json").read_text())
    assert saved["simulated"]
    assert saved["num_times"] == 60
    assert "fitted" not in saved["results"]
    assert len(saved["results"]) == 8
