"""The command line as a user meets it: exit codes, one line on stderr, files."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo import recipes
from tvbo.cli import COMMANDS
from tvbo.logs import DriftFit
from tvbo.test_functions.drifting_gp import drifting_gp_log


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


def check_one_line(code, err):
    assert code == 2
    assert err.startswith("tvbo: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err


LONG = ["--time", "t", "--reward", "y", "--action", "x1,x2"]
"""Options of a fit of the log."""


@pytest.fixture
def unworkable(monkeypatch):
    """Fails where a fit, or the demo, begins."""

    def begin(*_, **__):
        raise AssertionError

    for name in ("panel.read_log", "fit.read_panel", "demo.fit_log"):
        monkeypatch.setattr(f"tvbo.cli.{name}", begin)


@pytest.mark.slow
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


def test_from_a_saved_fit_to_a_tuner_in_one_line(tvbo, log, tmp_path):
    saved = tmp_path / "fit.json"
    code, _, _ = tvbo("fit", log, *LONG, "--rows", "0:40", "--save", saved)
    assert code == 0
    space = {"x1": (0.0, 1.0), "x2": (0.0, 1.0)}
    optimizer = recipes.tv_gp_ucb(bounds=space, **DriftFit.load(saved).settings())
    fit = DriftFit.load(saved)
    assert set(optimizer.ask(t=60.0).parameters) == {"x1", "x2"}
    assert optimizer.model.forgetting_rate.item() == pytest.approx(fit.forgetting_rate)


@pytest.mark.slow
def test_fit_takes_parquet(tvbo, log, tmp_path, monkeypatch):
    frame = pd.read_csv(log)
    path = tmp_path / "log.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setattr(pd, "read_parquet", lambda _: frame)
    options = (*LONG, "--rows", "0:40")
    assert tvbo("fit", path, *options)[:2] == tvbo("fit", log, *options)[:2]


@pytest.fixture
def kinds(log, tmp_path):
    """A log with a context, two machines, an outlier in line 12 and empty cells in line 5."""
    frame = pd.read_csv(log)
    frame["load"] = frame.t % 7
    frame["machine"] = ["mill", "lathe"] * 30
    frame.loc[10, "y"] += 1e5
    frame.loc[3, ["load", "x1"]] = float("nan")
    path = tmp_path / "kinds.csv"
    frame.to_csv(path, index=False)
    return path


def test_fit_with_contexts_categories_and_an_outlier(tvbo, kinds, tmp_path):
    code, out, _ = tvbo(
        *("fit", kinds, *LONG[:-1], "x1", "--context", "load,machine"),
        *("--rows", "0:36", "--noise-variance", "0.01"),
        *("--save", tmp_path / "fit.tvbo", "--json", tmp_path / "fit.json"),
    )
    assert code == 0
    assert "1 of 36 rows have an empty cell" in out
    assert "column 'machine' is text: 2 categories" in out
    assert "row 12 (" in out
    fit = DriftFit.load(tmp_path / "fit.tvbo")
    assert [row for row, _ in fit.outliers] == [12]
    assert fit.n_observations == 34
    assert not any("end of its range: outputscale" in message for message in fit.messages)
    # Of x1 and load, and of the machine.
    assert len(fit.lengthscales) == 3
    assert fit.to_dict() == json.loads((tmp_path / "fit.json").read_text())


def test_fit_compares_forms_of_drift_without_outliers(tvbo, kinds, tmp_path):
    code, out, _ = tvbo(
        *("fit", kinds, *LONG[:-1], "x1", "--temporal", "auto"),
        *("--rows", "0:36", "--noise-variance", "0.01", "--save", tmp_path / "fit.tvbo"),
    )
    assert code == 0
    assert "Candidates" in out
    assert "it has the largest evidence" in out
    chosen = DriftFit.load(tmp_path / "fit.tvbo").comparison
    assert [row.temporal_kernel for row in chosen.evidence] == [
        "exponential", "matern32", "two-scales",
    ]  # fmt: skip
    # The outlier of 1e5 would make it unlikely.
    assert chosen.evidence[0].log_likelihood > -100
    assert chosen.noise_variance == pytest.approx(0.01)


@pytest.mark.slow
def test_fit_by_group(tvbo, kinds, tmp_path):
    options = ["--by", "machine", "--noise-variance", "0.01"]
    code, out, _ = tvbo("fit", kinds, *LONG, *options, "--json", tmp_path / "fit.json")
    assert code == 0
    assert "Drift by group" in out
    assert "mill: Left out as outliers: 1 of 30 rows" in out
    fit = json.loads((tmp_path / "fit.json").read_text())
    assert sorted(fit["groups"]) == ["lathe", "mill"]
    assert fit["together"]["n_observations"] == 58


def test_fit_ends_in_advice(tvbo, kinds, tmp_path):
    code, out, _ = tvbo(
        *("fit", kinds, *LONG[:-1], "x1", "--context", "load=3,machine", "--noise-variance"),
        *("0.01", "--recommend", "--at", "100", "--json", tmp_path / "fit.json"),
    )
    assert code == 0
    advice = json.loads((tmp_path / "fit.json").read_text())["recommendation"]
    assert (advice["t"], advice["X"][1]) == (100.0, 3.0)
    assert advice["interval"][0] < advice["mean"] < advice["interval"][1]
    line = out.splitlines()[-2]
    # The machine is that of the last row.
    assert line.startswith("next, at 100: x1 ")
    assert "load 3, machine lathe: expect " in line


@pytest.mark.slow
def test_fit_by_group_in_processes(tvbo, kinds):
    options = ["--by", "machine", "--noise-variance", "0.01"]
    alone = tvbo("fit", kinds, *LONG, *options)
    assert tvbo("fit", kinds, *LONG, *options, "--workers", "2")[:2] == alone[:2]


def test_fit_with_its_outliers(tvbo, kinds, tmp_path):
    options = ["--keep-outliers", "--noise-variance", "0.01"]
    code, out, _ = tvbo("fit", kinds, *LONG, *options, "--json", tmp_path / "fit.json")
    assert code == 0
    assert "Left out" not in out
    assert json.loads((tmp_path / "fit.json").read_text())["n_observations"] == 59


def test_advice_at_unix_times_for_a_flag(tvbo, kinds, tmp_path):
    frame = pd.read_csv(kinds).assign(flag=lambda frame: frame.load > frame.load.median())
    frame.assign(t=frame.t + 1740888000).to_csv(kinds, index=False)
    options = ["--context", "flag=True", "--recommend", "--at", "1740888100"]
    code, out, _ = tvbo("fit", kinds, *LONG[:-1], "x1", "--noise-variance", "0.01", *options)
    assert code == 0
    assert "next, at 1740888100: x1 " in out
    assert "flag 1: expect " in out


@pytest.mark.parametrize(
    "options",
    [
        ["--context", "x1=2"],
        ["--context", "load=heavy", "--recommend"],
        ["--context", "load=3"],
        ["--context", "load=nan", "--recommend"],
        ["--recommend", "--at", "3"],
        ["--recommend", "--at", "soon"],
        ["--at", "100"],
        ["--workers", "2"],
        ["--by", "machine", "--workers", "2", "--dask", "tcp://127.0.0.1:1"],
        ["--by", "machine", "--recommend"],
        ["--by", "x9"],
        ["--by", "t2", "--rows", "0:3"],
        ["--context", "x1"],
    ],
)
def test_groups_and_contexts_that_cannot_be_fitted(tvbo, kinds, options):
    pd.read_csv(kinds).assign(t2=lambda frame: (frame.t > 1).astype(int)).to_csv(kinds, index=False)
    code, _, err = tvbo("fit", kinds, *LONG, *options)
    check_one_line(code, err)


@pytest.mark.slow
def test_fit_of_the_temperatures(tvbo, data_folder, tmp_path):
    code, out, _ = tvbo(
        "fit", data_folder / "intel_lab/temperature.csv.gz", "--panel", "--resample", "10min",
        "--rows", "0:432", "--temporal", "exponential", "--json", tmp_path / "fit.json",
    )  # fmt: skip
    assert code == 0
    assert "time in 10min" in out
    fit = json.loads((tmp_path / "fit.json").read_text())
    low, high = fit["forgetting_rate_interval"]
    assert low < fit["drift"][0]["forgetting_rate"] < high
    assert (fit["time_unit"], fit["round_length"]) == ("10min", 1.0)
    assert fit["season_length"] == pytest.approx(144)


def test_a_step_without_a_value_is_left_empty(tvbo, tmp_path):
    """As docs/api/command_line.md says."""
    path = tmp_path / "panel.csv"
    rows = ["00:00,1,2", "00:12,,2.5", "01:10,3,2", "01:20,1,2.2", "01:30,0,2", "01:40,0,1.2"]
    rows += ["01:50,4,2", "02:00,1,1", "02:15,3,"]
    path.write_text("\n".join(["t,a,b", *("2020-01-01 " + row for row in rows)]) + "\n")
    options = ["--panel", "--resample", "10min", "--temporal", "exponential"]
    assert tvbo("fit", path, *options, "--json", tmp_path / "fit.json")[0] == 0
    fit = json.loads((tmp_path / "fit.json").read_text())
    assert (fit["num_times"], fit["last_time"]) == (9, 13.0)


@pytest.mark.parametrize(
    ("command", "section"),
    [
        ("fit", "tvbo fit"),
        ("demo", "tvbo demo"),
        ("runs show", "tvbo runs"),
        ("runs export", "tvbo runs"),
        ("runs plot", "tvbo runs"),
    ],
)
def test_the_page_of_the_command_line_knows_every_option(tvbo, command, section):
    page = (Path(__file__).parents[2] / "docs" / "api" / "command_line.md").read_text()
    [described] = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    _, out, _ = tvbo(*command.split(), "--help")
    options = set(re.findall(r"--[a-z-]+", out)) - {"--help"}
    assert options
    assert options <= set(re.findall(r"--[a-z-]+", described))


@pytest.mark.slow
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
    code, _, _ = tvbo("fit", path, *columns, "--json", tmp_path / "fit.json")
    assert code == 0
    fit = json.loads((tmp_path / "fit.json").read_text())
    assert fit["n_observations"] == n
    assert fit["noise_variance"] is None


@pytest.mark.parametrize(
    "content",
    [
        "t,y,x1\n1,2,3\n",
        "t,y,x1,x2\n1,2,3,4\n2,bad,3,4\n",
        "t,y,x1,x2\n",
        "t,y,x1,x2\n1,2,3,4\n",
        "t,y,x1,x2\n1,2,3,4\n2,2,4,4\n3,2,5,5\n",
        "t,y,x1,x2\n1,2,3,4\n2,,4,4\n3,2,5,5\n",
        "t,y,x1,x2\n1,2,3,4\n2,inf,4,4\n3,2,5,5\n",
    ],
)
def test_fit_of_a_bad_log(tvbo, tmp_path, content):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    code, _, err = tvbo("fit", path, "--time", "t", "--reward", "y", "--action", "x1,x2")
    check_one_line(code, err)


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit"],
        ["fit", "nothing.csv", "--panel"],
        ["fit", "x.csv"],
        ["fit", "x.csv", "--time", "t", "--reward", "y"],
        ["fit", "x.csv", "--panel", "--kernel", "rbf"],
        ["runs"],
        ["fit", "x.csv", "--panel", "--time", "t"],
        ["fit", "x.csv", "--resample", "1h"],
        ["fit", "x.csv", "--bogus"],
        ["fit", "x.csv", "--kernel", "cubic"],
        ["demo", "--rounds", "1"],
        ["nonsense"],
    ],
)
def test_bad_input(tvbo, arguments):
    code, _, err = tvbo(*arguments)
    check_one_line(code, err)


def test_demo(tvbo, tmp_path, monkeypatch):
    monkeypatch.setattr("tvbo.cli.demo.LOG_TIMES", 20)
    out_option = ["--out", tmp_path / "demo"]
    code, out, _ = tvbo("demo", *out_option, "--rounds", 12, "--points", 8, "--replicates", 2)
    assert code == 0
    names = ["tvbo, drift rate learned", "ordinary Bayesian optimization", "sliding window"]
    assert re.findall(r"│ (\S.*?\S) +│ +\d\.\d{3} ± \d", out) == [*names, "random"]
    files = {path.name for path in (tmp_path / "demo").iterdir()}
    assert files == {"tracking.png", "rounds.csv", "fit.json"}
    table = pd.read_csv(tmp_path / "demo" / "rounds.csv")
    rounds = table.groupby(["algorithm", "replicate"]).t.agg(list)
    assert len(rounds) == 8
    assert all(times == list(range(21, 33)) for times in rounds)
    # What is printed is the mean over replicates of what is in the table.
    printed = [
        float(mean) for mean in re.findall(r"│ +(\d\.\d{3}) ± \d\.\d{3} │ +\d\.\d{3} ±", out)
    ]
    means = table.groupby("algorithm").regret.mean()
    assert printed == [pytest.approx(means[name], abs=6e-4) for name in [*names, "random"]]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command(tvbo, name):
    code, out, err = tvbo(name, "--help")
    assert (code, err) == (0, "")
    # The list of commands says the same, without importing any.
    assert COMMANDS[name][1] in " ".join(out.split())


def test_without_a_command_shows_the_help(tvbo):
    code, out, err = tvbo()
    assert (code, err) == (0, "")
    assert [name for name in COMMANDS if f" {name} " not in out] == []


@pytest.mark.parametrize(("given", "expected"), [(None, 1), ("2", 2)])
def test_one_thread_unless_the_environment_says_otherwise(tvbo, monkeypatch, given, expected):
    monkeypatch.delenv("OMP_NUM_THREADS")
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        tvbo("--version")
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_module_and_version():
    result = subprocess.run(
        [sys.executable, "-m", "tvbo", "--version"], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"tvbo \d+\.\d+\.\d+\n", result.stdout)


@pytest.mark.parametrize("option", ["--json", "--plot"])
@pytest.mark.parametrize("way", ["itself", "relative", "symbolic link", "hard link"])
def test_a_log_is_not_written_over(tvbo, log, tmp_path, monkeypatch, unworkable, option, way):
    # A log may end like a picture.
    log = log.rename(tmp_path / "log.png")
    other = tmp_path / "other.png"
    if way == "symbolic link":
        other.symlink_to(log)
    elif way == "hard link":
        other.hardlink_to(log)
    else:
        other = log if way == "itself" else Path("../" + tmp_path.name) / log.name
        monkeypatch.chdir(tmp_path)
    before = log.read_bytes()
    code, _, err = tvbo("fit", log, *LONG, option, other)
    check_one_line(code, err)
    assert log.read_bytes() == before


@pytest.mark.parametrize(
    "files",
    [
        ["--json", "none/fit.json"],
        ["--plot", "none/fit.png"],
        ["--plot", "fit.xyz"],
        ["--plot", "fit"],
        ["--json", "here"],
        ["--json", "x" * 300],
        ["--json", "same.png", "--plot", "here/../same.png"],
        ["--json", "a.png", "--plot", "b.png"],
        ["--json", "/proc/fit.json"],
    ],
)
def test_files_are_checked_before_the_work(tvbo, tmp_path, monkeypatch, unworkable, files):
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    Path("a.png").touch()
    Path("b.png").symlink_to("a.png")
    if files[1].startswith("/proc") and not Path("/proc").is_dir():
        pytest.skip("there is no folder that nobody can write in")
    code, _, err = tvbo("fit", "log.csv", "--panel", *files)
    check_one_line(code, err)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "b.png", "here"]


@pytest.mark.parametrize(
    ("content", "arguments", "shown"),
    [
        ("t,y\x1b[31m\x07,x\n1,2,3\n", LONG, r"Got columns t, y\x1b[31m\x07, x"),
        ("t,y,x1,x2\n1,\x1b]0;a\x07,3,4\n", LONG, r"Got '\x1b]0;a\x07' in line 2"),
        ("t,y,x1,x2\n\u202e,2,3,4\n", LONG, r"Got '\u202e' in line 2"),
        ("t,a\x9b2J\n1,b\n", ["--panel"], r"column 'a\x9b2J'"),
    ],
)
def test_escape_sequences_of_a_log_are_shown(tvbo, tmp_path, content, arguments, shown):
    path = tmp_path / "log.csv"
    path.write_text(content)
    code, out, err = tvbo("fit", path, *arguments)
    check_one_line(code, err)
    assert shown in err
    assert all(c.isprintable() for c in (out + err).replace("\n", ""))


def test_a_fault_shows_its_traceback(tvbo, log, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("a worker said \x1b[31mred\x07\nand more")

    monkeypatch.setattr("tvbo.cli.panel.read_log", broken)
    code, _, err = tvbo("fit", log, *LONG)
    assert code == 1
    assert r"RuntimeError: a worker said \x1b[31mred\x07" in err
    assert "Traceback" in err
    assert all(c.isprintable() for c in err.replace("\n", ""))


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "tvbo: interrupted\n"),
        (OSError(28, "No space left on device"), 2, "tvbo: [Errno 28] No space left on device\n"),
        (MemoryError(), 1, None),
    ],
)
def test_errors_end_a_command(tvbo, log, monkeypatch, error, code, line):
    def broken(*_, **__):
        raise error

    monkeypatch.setattr("tvbo.cli.panel.read_log", broken)
    found, _, err = tvbo("fit", log, *LONG)
    assert found == code
    assert line is None or err == line


@pytest.mark.parametrize("fixed", [False, True])
def test_a_fit_says_what_the_noise_does_to_the_rate(tvbo, log, tmp_path, fixed):
    options = ["--noise-variance", "0.03"] if fixed else []
    code, out, _ = tvbo("fit", log, *LONG, *options, "--json", tmp_path / "fit.json")
    assert code == 0
    fit = json.loads((tmp_path / "fit.json").read_text())
    by_noise = fit["forgetting_rate_by_noise"]
    ratios = [variance / fit["noise_variance"] for variance, _ in by_noise]
    assert ratios == pytest.approx([0.1, 0.5, 1.0, 2.0, 10.0])
    assert by_noise[2] == [fit["noise_variance"], fit["forgetting_rate"]]
    words = " ".join(out.replace("│", "").split())
    assert f"{by_noise[3][1]:.4g} with {by_noise[3][0]:.4g}" in words
