"""`python -m experiments` and `python -m experiments.data` as a user meets them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from experiments.claims import Claim, Reproduction
from experiments.command import main
from experiments.data.command import main as data_main
from experiments.plots.regret import plot_regret_against
from experiments.registry import EXPERIMENTS, Experiment

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "experiments" / "docs" / "experiments.md"


@pytest.fixture
def run(capsys):
    """Run a command line; give exit code, stdout and stderr."""

    def run(*arguments, main=main):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        return stop.value.code, output.out, output.err

    return run


def check_one_line(code, err, name="experiments"):
    assert code == 2
    assert err.startswith(f"{name}: ")
    assert err.count("\n") == 1


@pytest.fixture
def unworkable(monkeypatch):
    """Fails where the work begins."""

    def begin(*_, **__):
        raise AssertionError

    monkeypatch.setattr("experiments.command._run", begin)
    monkeypatch.setattr("experiments.data.command.build_intel_lab", begin)


@pytest.fixture
def made_up(monkeypatch):
    """An experiment registered by one entry; gives what it was run with."""
    runs = []

    def figure(trials, seed, executor):
        runs.append((trials, seed))
        return Reproduction(
            name="made-up",
            title="A made-up figure",
            settings={"trials": trials, "seed": seed},
            results={"0.01": {"mean_regret": 1.5}, "0.1": {"mean_regret": 2.5}},
            claims=[Claim("it is made up", True, 1.0, None)],
            regret={"0.01": torch.ones(3, 4), "0.1": torch.full((3, 4), 2.0)},
            row_label="ε assumed",
        )

    def plot(result):
        regret = torch.stack(list(result.regret.values())).mean(dim=2)
        return plot_regret_against(torch.tensor([0.01, 0.1]), regret, label="ε assumed").figure

    monkeypatch.setitem(EXPERIMENTS, "made-up", Experiment("Nothing.", figure, plot, trials=200))
    return runs


def test_runs_prints_and_saves(run, made_up, tmp_path):
    files = tmp_path / "x.json", tmp_path / "x.png"
    code, out, _ = run("made-up", "--seed", "7", "--json", files[0], "--plot", files[1])
    assert code == 0
    assert "ε assumed" in out
    assert "it is made up" in out
    saved = json.loads(files[0].read_text())
    assert list(saved) == ["name", "title", "settings", "results", "claims"]
    assert saved["settings"] == {"trials": 200, "seed": 7}
    assert files[1].read_bytes().startswith(b"\x89PNG")
    run("made-up", "--trials", "3")
    assert made_up == [(200, 7), (3, 0)]


def test_lists_names_and_default_trials(run, made_up):
    code, out, _ = run("--list")
    assert code == 0
    assert re.search(r"made-up\s*│ Nothing\.\s*│ 200", out)
    assert set(EXPERIMENTS) <= set(re.findall(r"[a-z0-9-]+", out))


def test_data_is_read_and_handed_on(made_up, tmp_path):
    def figure(*data, trials, seed, executor):
        return data, trials, seed, executor

    without = Experiment("", figure, None, trials=1)
    assert without.run(2, 3, None) == ((), 2, 3, None)
    usual = Experiment("", figure, None, trials=1, data=lambda: "usual", read=str)
    assert usual.run(2, 3, None) == (("usual",), 2, 3, None)
    assert usual.run(2, 3, None, tmp_path) == ((str(tmp_path),), 2, 3, None)


@pytest.mark.parametrize(
    "arguments",
    [
        ["fig99"],
        ["\x1b[31m"],
        ["bogunovic-fig3a", "--trials", "0"],
        ["bogunovic-fig2a", "--bogus"],
        ["bogunovic-fig2a", "--data", "x"],
        ["bedi-table4", "--data", "none"],
        [],
    ],
)
def test_bad_input(run, arguments):
    code, _, err = run(*arguments)
    check_one_line(code, err)


@pytest.mark.parametrize(
    "name", ["bogunovic-fig3a", "bogunovic-fig3cf", "krause-fig2", "krause-fig3"]
)
def test_without_data_says_so(run, monkeypatch, name):
    monkeypatch.delenv("TVBO_DATA", raising=False)
    code, _, err = run(name)
    check_one_line(code, err)


def test_refuses_more_trials_than_sensors(run, data_folder, monkeypatch):
    monkeypatch.setenv("TVBO_DATA", str(data_folder))
    code, _, err = run("bogunovic-fig3cf", "--trials", "51")
    check_one_line(code, err)


@pytest.mark.parametrize(
    "files",
    [["--json", "none/fit.json"], ["--plot", "fit.xyz"], ["--json", "a.png", "--plot", "b.png"]],
)
def test_files_are_checked_before_the_work(run, tmp_path, monkeypatch, unworkable, files):
    monkeypatch.chdir(tmp_path)
    Path("a.png").touch()
    Path("b.png").symlink_to("a.png")
    code, _, err = run("bogunovic-fig2a", *files)
    check_one_line(code, err)


def test_recorded_data_is_not_written_over(run, tmp_path, monkeypatch, unworkable):
    data = tmp_path / "intel_lab" / "temperature.csv.gz"
    data.parent.mkdir()
    data.write_text("recorded")
    monkeypatch.setenv("TVBO_DATA", str(tmp_path))
    code, _, err = run("bogunovic-fig3a", "--json", data)
    check_one_line(code, err)
    code, _, err = run("intel-lab", "--from", data, "--out", tmp_path, main=data_main)
    check_one_line(code, err, name="experiments.data")
    assert data.read_text() == "recorded"


def test_data_is_built(run, tmp_path):
    raw = tmp_path / "data.txt"
    raw.write_text("2004-03-05 10:00:00 1 1 20.5 40 50 2.7\n")
    code, _, _ = run("intel-lab", "--from", raw, "--out", tmp_path / "data", main=data_main)
    assert code == 0
    assert (tmp_path / "data/intel_lab/temperature.csv.gz").stat().st_size > 0


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["intel-lab", "--from", "nothing.gz"],
        ["intel-lab", "--from", "x", "--out", "file/a"],
    ],
)
def test_bad_input_of_the_data(run, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    code, _, err = run(*arguments, main=data_main)
    check_one_line(code, err, name="experiments.data")


@pytest.mark.parametrize(
    ("section", "main", "arguments"),
    [
        ("python -m experiments", main, []),
        ("python -m experiments.data intel-lab", data_main, ["intel-lab"]),
    ],
)
def test_the_page_of_the_figures_knows_every_option(run, section, main, arguments):
    [described] = re.findall(
        rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    _, out, _ = run(*arguments, "--help", main=main)
    options = set(re.findall(r"--[a-z-]+", out)) - {"--help"}
    assert options
    assert options <= set(re.findall(r"--[a-z-]+", described))


@pytest.mark.slow
@pytest.mark.parametrize("module", ["experiments", "experiments.data"])
def test_modules_are_run_from_the_checkout(module):
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert f"python -m {module}" in done.stdout
