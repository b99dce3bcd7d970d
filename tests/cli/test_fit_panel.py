"""``tvbo fit --panel`` with a model of the panel."""

import json

import numpy as np
import pandas as pd
import pytest

from tvbo import recipes
from tvbo.cli import main
from tvbo.logs import PanelFit


@pytest.fixture
def panel(tmp_path):
    rng = np.random.default_rng(0)
    steps = 60
    walk = np.cumsum(0.3 * rng.normal(size=(steps, 3)), axis=0) + np.arange(3)
    frame = pd.DataFrame(walk + 0.1 * rng.normal(size=(steps, 3)), columns=["a", "b", "c"])
    frame.insert(0, "time", pd.date_range("2024-01-01", periods=steps, freq="1h"))
    path = tmp_path / "panel.csv"
    frame.to_csv(path, index=False)
    return path


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["fit", *map(str, arguments)])
    return ended.value.code


def test_the_model_is_printed_and_saved(panel, tmp_path, capsys):
    saved, numbers = tmp_path / "model.json", tmp_path / "fit.json"
    options = ["--temporal", "exponential", "--season", "none"]
    assert not run(panel, "--panel", *options, "--save", saved, "--json", numbers)
    out = capsys.readouterr().out
    assert "Drift of the log" in out
    assert "Model of the panel" in out
    assert "arm c" in out
    fit = PanelFit.load(saved)
    assert fit.time_unit == "1h"
    assert fit.num_arms == 3
    assert json.loads(numbers.read_text())["panel"]["mean"] == fit.mean
    # A tuner in one line.
    tuner = recipes.tv_gp_ucb(**PanelFit.load(saved).settings())
    assert tuner.ask(t=60.0).X.item() in (0.0, 1.0, 2.0)


def test_times_with_an_empty_cell_are_left_out_on_request(panel, tmp_path, capsys):
    lines = panel.read_text().splitlines()
    lines[5] = lines[5].rpartition(",")[0] + ","
    panel.write_text("\n".join(lines) + "\n")
    options = ["--temporal", "exponential", "--season", "none"]
    assert run(panel, "--panel", *options) == 2
    err = capsys.readouterr().err
    assert "arm 'c' at 2024-01-01 04:00:00" in err
    assert "--drop-missing" in err
    saved = tmp_path / "model.json"
    assert not run(panel, "--panel", *options, "--drop-missing", "--save", saved)
    assert "1 of 60 times have an arm without a value" in " ".join(capsys.readouterr().out.split())
    assert PanelFit.load(saved).num_times == 59


@pytest.mark.parametrize(
    "options",
    [
        ["--panel", "--season", "fortnight"],
        ["--panel", "--season", "2D"],
        ["--temporal", "auto", "--by", "x"],
    ],
)
def test_bad_options_are_refused(panel, options, capsys):
    assert run(panel, *options) == 2
