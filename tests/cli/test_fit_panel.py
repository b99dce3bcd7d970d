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


PLAIN = ["--panel", "--temporal", "exponential", "--season", "none"]


def test_one_model_is_printed_saved_drawn_and_written(panel, tmp_path, capsys):
    saved, numbers, drawn = (tmp_path / name for name in ("model.json", "fit.json", "fit.png"))
    files = ["--save", saved, "--json", numbers, "--plot", drawn]
    assert not run(panel, *PLAIN, "--level", 0.9, *files)
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    fit = PanelFit.load(saved)
    assert (fit.time_unit, fit.num_arms, fit.level) == ("1h", 3, 0.9)
    assert json.loads(numbers.read_text()) == json.loads(json.dumps(fit.to_dict()))
    assert drawn.read_bytes().startswith(b"\x89PNG")
    low, high = fit.forgetting_rate_interval
    rate = fit.temporal_kernels[0].forgetting_rate.item()
    for text in (f"{low:.4g} to {high:.4g}", f"forgetting rate {rate:.4g}", "arm c"):
        assert text in out
    assert f"{fit.log_likelihood:.2f}" in out
    assert fit.tuning.reason in out
    assert "Drift of the log" not in out
    # A tuner in one line.
    assert recipes.tv_gp_ucb(**fit.settings()).ask(t=60.0).X.item() in (0.0, 1.0, 2.0)
    assert fit.optimizer().ask(t=60.0).X.item() in (0.0, 1.0, 2.0)


@pytest.mark.slow
def test_all_forms_are_compared_by_default(panel, tmp_path, capsys):
    assert not run(panel, "--panel", "--save", tmp_path / "model.json")
    out = " ".join(capsys.readouterr().out.split())
    fit = PanelFit.load(tmp_path / "model.json")
    names = ["exponential", "matern32", "two-scales", "independent", "vector"]
    assert [row.temporal_kernel for row in fit.evidence] == names
    assert all(f" {name} " in out for name in names)
    assert fit.reason in out


def test_empty_cells_are_fitted(panel, tmp_path):
    lines = panel.read_text().splitlines()
    lines[5] = lines[5].rpartition(",")[0] + ","
    panel.write_text("\n".join(lines) + "\n")
    saved = tmp_path / "model.json"
    assert not run(panel, *PLAIN, "--save", saved)
    assert PanelFit.load(saved).num_times == 60


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--panel", "--season", "fortnight"], "fortnight"),
        (["--panel", "--season", "2D"], "48"),
        (["--panel", "--temporal", "rbf"], "rbf"),
        (["--panel", "--noise-variance", "0.1"], "--noise-variance"),
        (["--panel", "--drop-missing"], "--drop-missing"),
        (["--panel", "--kernel", "rbf"], "--kernel"),
        (["--panel", "--keep-outliers"], "--keep-outliers"),
        (["--temporal", "auto", "--by", "x"], "--temporal"),
    ],
)
def test_bad_options_are_refused(panel, options, named, capsys):
    assert run(panel, *options) == 2
    assert named in capsys.readouterr().err
