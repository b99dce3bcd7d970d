"""The command line as a user meets it: exit codes, one line on stderr, files."""

import json
import re
import subprocess
import sys

import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo.cli import main
from tvbo.problems import drifting_gp_log


@pytest.fixture
def tvbo(capsys):
    """Run a command; give exit code, stdout and stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        return stop.value.code, output.out, output.err

    return run


@pytest.fixture
def log(tmp_path):
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(60, 3, generator=generator, dtype=torch.float64)
    X[:, 2] = torch.arange(60)
    Y = drifting_gp_log(X, RBFKernel().double(), 0.1, 0.01, generator=generator)
    path = tmp_path / "log.csv"
    lines = (f"{t},{y},{a},{b}" for (a, b, t), [y] in zip(X.tolist(), Y.tolist(), strict=True))
    path.write_text("\n".join(["t,y,x1,x2", *lines]) + "\n")
    return path


def check_one_line(code, err, message):
    assert code == 2
    assert err.startswith("tvbo: ")
    assert err.count("\n") == 1
    assert re.search(message, err), err
    assert "Traceback" not in err


def test_fit_of_a_long_log(tvbo, log, tmp_path):
    code, out, _ = tvbo(
        "fit",
        log,
        "--time",
        "t",
        "--reward",
        "y",
        "--action",
        "x1,x2",
        "--json",
        tmp_path / "fit.json",
        "--plot",
        tmp_path / "fit.png",
    )
    assert code == 0
    assert "forgetting rate ε" in out
    assert "per 1 (t)" in out
    fit = json.loads((tmp_path / "fit.json").read_text())
    assert fit["n_observations"] == 60
    assert len(fit["lengthscales"]) == 2
    low, high = fit["forgetting_rate_interval"]
    assert low <= fit["forgetting_rate"] <= high
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")


def test_fit_with_a_matern_kernel_and_fixed_noise(tvbo, log, tmp_path):
    code, _, _ = tvbo(
        "fit",
        log,
        "--time",
        "t",
        "--reward",
        "y",
        "--action",
        "x1,x2",
        "--kernel",
        "matern",
        "--noise-variance",
        "0.02",
        "--rows",
        "10:50",
        "--json",
        tmp_path / "fit.json",
    )
    assert code == 0
    fit = json.loads((tmp_path / "fit.json").read_text())
    assert fit["noise_variance"] == 0.02
    assert fit["n_observations"] == 40


def test_fit_of_the_temperatures(tvbo, data_folder, tmp_path):
    code, out, _ = tvbo(
        "fit",
        data_folder / "intel_lab/temperature.csv.gz",
        "--panel",
        "--resample",
        "10min",
        "--rows",
        "0:432",
        "--noise-variance",
        "0.5",
        "--json",
        tmp_path / "fit.json",
    )
    assert code == 0
    assert "per 10min" in out
    fit = json.loads((tmp_path / "fit.json").read_text())
    assert 0.02 <= fit["forgetting_rate"] <= 0.04
    assert fit["time_unit"] == "10min"
    assert (fit["round_length"], fit["block_length"]) == (1.0, 30)
    assert any("empirical covariance" in message for message in fit["messages"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("t,y,x1\n1,2,3\n", "column 'x2' in .* Got columns t, y, x1"),
        ("t,y,x1,x2\n1,2,3,4\n2,bad,3,4\n", "Got 'bad' in line 3"),
        ("t,y,x1,x2\n", "empty log"),
        ("t,y,x1,x2\n1,2,3,4\n", "at least 3 observations. Got 1"),
        ("t,y,x1,x2\n1,2,3,4\n2,2,4,4\n3,2,5,5\n", "reward that varies. Got the constant 2"),
        ("t,y,x1,x2\n1,2,3,4\n2,,4,4\n3,2,5,5\n", "Got an empty cell in line 3"),
        ("t,y,x1,x2\n1,2,3,4\n2,inf,4,4\n3,2,5,5\n", "Got an infinity in line 3"),
    ],
)
def test_fit_of_a_bad_log(tvbo, tmp_path, content, message):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    code, _, err = tvbo("fit", path, "--time", "t", "--reward", "y", "--action", "x1,x2")
    check_one_line(code, err, message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit"], "Missing argument"),
        (["fit", "nothing.csv", "--panel"], "Got nothing.csv, which is no file"),
        (["fit", "x.csv"], "Got no --panel and no --time, --reward, --action"),
        (["fit", "x.csv", "--time", "t", "--reward", "y"], "Got no --panel and no --action"),
        (["fit", "x.csv", "--panel", "--kernel", "rbf"], "Expected no --kernel with --panel"),
        (["data"], "Missing command"),
        (["fit", "x.csv", "--panel", "--time", "t"], "Expected no --time with --panel. Got 't'"),
        (["fit", "x.csv", "--resample", "1h"], "Expected no --resample with a long log"),
        (["fit", "x.csv", "--bogus"], "No such option"),
        (["fit", "x.csv", "--kernel", "cubic"], "cubic"),
        (["reproduce", "fig99"], "reproduction: bogunovic-fig3a. Got fig99"),
        (["reproduce"], "Expected the name of a reproduction"),
        (["data", "intel-lab", "--from", "nothing.gz"], "nothing.gz, which is no file"),
        (["demo", "--rounds", "1"], "rounds"),
        (["nonsense"], "No such command"),
    ],
)
def test_bad_input(tvbo, arguments, message):
    code, _, err = tvbo(*arguments)
    check_one_line(code, err, message)


def test_a_bad_noise_variance(tvbo, log):
    code, _, err = tvbo(
        "fit", log, "--time", "t", "--reward", "y", "--action", "x1,x2", "--noise-variance", "-1"
    )
    check_one_line(code, err, "noise_variance > 0. Got -1")


def test_reproduce_without_data_says_so(tvbo, monkeypatch):
    monkeypatch.delenv("TVBO_DATA", raising=False)
    code, _, err = tvbo("reproduce", "bogunovic-fig3a")
    check_one_line(code, err, "environment variable TVBO_DATA")


def test_reproduce_lists_its_names(tvbo):
    code, out, _ = tvbo("reproduce", "--list")
    assert code == 0
    assert "bogunovic-fig3a" in out


def test_demo(tvbo, tmp_path, monkeypatch):
    monkeypatch.delenv("TVBO_DATA", raising=False)
    code, out, _ = tvbo(
        "demo", "--out", tmp_path / "demo", "--rounds", "12", "--points", "8", "--functions", "2"
    )
    assert code == 0
    assert "TV-GP-UCB" in out
    assert "TVBO_DATA is not set" in out
    names = {path.name for path in (tmp_path / "demo").iterdir()}
    assert names == {"tracking.png", "rounds.csv", "fit.json"}


def test_data_is_built(tvbo, tmp_path):
    raw = tmp_path / "data.txt"
    raw.write_text("2004-03-05 10:00:00 1 1 20.5 40 50 2.7\n")
    code, _, _ = tvbo("data", "intel-lab", "--from", raw, "--out", tmp_path / "data")
    assert code == 0
    assert (tmp_path / "data/intel_lab/temperature.csv.gz").stat().st_size > 0


def test_without_a_command_shows_the_help(tvbo):
    code, out, err = tvbo()
    assert (code, err) == (0, "")
    assert "reproduce" in out


def test_module_and_version():
    result = subprocess.run(
        [sys.executable, "-m", "tvbo", "--version"], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"tvbo \d+\.\d+\.\d+\n", result.stdout)
