"""The command line as a user meets it: exit codes, one line on stderr, files."""

import json
import re
import subprocess
import sys

import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo.cli import main
from tvbo.commands.experiments import EXPERIMENTS, Experiment
from tvbo.plotting import plot_regret_against
from tvbo.problems import drifting_gp_log
from tvbo.reproduce import Claim, Reproduction


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


@pytest.fixture
def gappy_panel(tmp_path):
    """A panel of a few arms that move together and drift, a tenth of its cells empty."""
    generator = torch.Generator().manual_seed(0)
    shared, own = (torch.randn(80, k, generator=generator).cumsum(0) for k in (1, 3))
    values = (0.95 ** torch.arange(80).flip(0))[:, None] * (shared + 0.3 * own)
    empty = torch.rand(80, 3, generator=generator) < 0.1
    path = tmp_path / "panel.csv"
    rows = [
        ",".join([str(t), *("" if gap else f"{y:.6f}" for y, gap in zip(*cells, strict=True))])
        for t, cells in enumerate(zip(values.tolist(), empty.tolist(), strict=True))
    ]
    path.write_text("\n".join(["t,a,b,c", *rows]) + "\n")
    return path, int((~empty).sum())


def test_fit_of_a_panel_with_gaps(tvbo, gappy_panel, tmp_path):
    path, readings = gappy_panel
    code, out, err = tvbo("fit", path, "--panel", "--json", tmp_path / "fit.json")
    assert (code, err) == (0, "")
    assert "forgetting rate ε" in out
    fit = json.loads((tmp_path / "fit.json").read_text())
    assert fit["n_observations"] == readings < 240
    low, high = fit["forgetting_rate_interval"]
    assert low <= fit["forgetting_rate"] <= high


def test_fit_of_arms_that_were_never_read_together(tvbo, tmp_path):
    path = tmp_path / "panel.csv"
    path.write_text("t,a,b\n1,1,\n2,,2\n3,2,\n4,,3\n")
    code, _, err = tvbo("fit", path, "--panel")
    check_one_line(code, err, "two arms to be read at one time .* Got arms 0 and 1")


def test_fit_of_a_long_log_over_few_arms(tvbo, tmp_path):
    """Longer than the dense likelihood would take, at irregular times, with known noise."""
    generator = torch.Generator().manual_seed(0)
    n = 3200
    arm = torch.randint(4, (n,), generator=generator)
    times = (10 * torch.rand(n, generator=generator, dtype=torch.float64)).cumsum(0) / 10
    wave = torch.sin(times / 40 + arm) + 0.3 * torch.randn(n, generator=generator)
    lines = (
        f"{t},{y},{x},0.09"
        for t, y, x in zip(times.tolist(), wave.tolist(), arm.tolist(), strict=True)
    )
    path = tmp_path / "long.csv"
    path.write_text("\n".join(["t,y,x,v", *lines]) + "\n")
    columns = ["--time", "t", "--reward", "y", "--action", "x", "--reward-variance", "v"]
    code, _, err = tvbo("fit", path, *columns, "--json", tmp_path / "fit.json")
    assert (code, err) == (0, "")
    fit = json.loads((tmp_path / "fit.json").read_text())
    assert fit["n_observations"] == n
    assert fit["noise_variance"] is None


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
        (["reproduce", "fig99"], "reproduction: .*bogunovic-fig3a, .*. Got fig99"),
        (["reproduce", "bogunovic-fig3a", "--trials", "0"], "value for '--trials'"),
        (["reproduce", "bogunovic-fig3a", "--trials", "-3"], "value for '--trials'"),
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


@pytest.mark.parametrize(
    "name", ["bogunovic-fig3a", "bogunovic-fig3cf", "krause-fig2", "krause-fig3"]
)
def test_reproduce_without_data_says_so(tvbo, monkeypatch, name):
    monkeypatch.delenv("TVBO_DATA", raising=False)
    code, _, err = tvbo("reproduce", name)
    check_one_line(code, err, "environment variable TVBO_DATA")


def test_reproduce_refuses_more_trials_than_sensors(tvbo, data_folder, monkeypatch):
    monkeypatch.setenv("TVBO_DATA", str(data_folder))
    code, _, err = tvbo("reproduce", "bogunovic-fig3cf", "--trials", "51")
    check_one_line(code, err, "trials from 1 to 50, .* Got 51")


def test_reproduce_lists_its_names(tvbo):
    code, out, _ = tvbo("reproduce", "--list")
    assert code == 0
    assert "bogunovic-fig3a" in out
    assert "bogunovic-fig3cf" in out


@pytest.fixture
def made_up(monkeypatch):
    """An experiment registered by one entry; gives what it was run with."""
    runs = []

    def run(trials, seed, executor):
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

    monkeypatch.setitem(EXPERIMENTS, "made-up", Experiment("Nothing.", run, plot, trials=200))
    return runs


def test_reproduce_runs_prints_and_saves(tvbo, made_up, tmp_path):
    files = tmp_path / "x.json", tmp_path / "x.png"
    code, out, _ = tvbo(
        "reproduce", "made-up", "--seed", "7", "--json", files[0], "--plot", files[1]
    )
    assert code == 0
    assert "ε assumed" in out
    assert "it is made up" in out
    assert json.loads(files[0].read_text())["settings"] == {"trials": 200, "seed": 7}
    assert files[1].read_bytes().startswith(b"\x89PNG")
    tvbo("reproduce", "made-up", "--trials", "3")
    assert made_up == [(200, 7), (3, 0)]


def test_reproduce_list_tells_the_default_trials(tvbo, made_up):
    _, out, _ = tvbo("reproduce", "--list")
    assert re.search(r"made-up\s*│ Nothing\.\s*│ 200", out)


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
