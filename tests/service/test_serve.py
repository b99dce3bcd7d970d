"""``tvbo serve``: what it refuses, and a server from its start to its end."""

import importlib
import signal
import subprocess
import sys

import pytest

for name in ("fastapi", "prometheus_client", "uvicorn"):
    pytest.importorskip(name)

from tvbo import recipes  # noqa: E402
from tvbo.cli import main  # noqa: E402
from tvbo.service.client import RemoteOptimizer  # noqa: E402
from tvbo.storage import read_run  # noqa: E402

TOKEN = "0123456789abcdef"


MAKE = """
from gpytorch.kernels import RBFKernel
from tvbo import recipes

class OwnKernel(RBFKernel):
    pass

def make():
    return recipes.tv_gp_ucb(bounds={"x": (0.0, 1.0)}, covar_module=OwnKernel())
"""


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run.db"
    with recipes.tv_gp_ucb(bounds={"x": (0.0, 1.0)}) as optimizer:
        optimizer.record(path)
    return path


@pytest.mark.parametrize(
    ("given", "token", "named"),
    [
        (["--host", "0.0.0.0"], None, "0.0.0.0"),
        (["--host", "::"], None, "::"),
        ([], "short", "16"),
        (["--token-file", "none"], None, "none"),
        (["run.db"], None, "run"),
        (["none.db"], None, "none.db"),
        (["--make", "of.nothing:make"], None, "of.nothing"),
        (["--make", "tvbo.recipes"], None, "tvbo.recipes"),
    ],
)
def test_what_is_refused_in_one_line(run, monkeypatch, capsys, given, token, named):
    monkeypatch.chdir(run.parent)
    if token is not None:
        monkeypatch.setenv("TVBO_TOKEN", token)
    with pytest.raises(SystemExit) as ended:
        main(["serve", "run.db", *given])
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert named in line


def test_a_server_from_its_start_to_its_end(tmp_path, monkeypatch):
    (tmp_path / "token").write_text(TOKEN + "\n")
    (tmp_path / "own.py").write_text(MAKE)
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "run.db"
    importlib.import_module("own").make().record(run)
    line = [sys.executable, "-m", "tvbo", "serve", str(run), "--port", "0", "--make", "own:make"]
    line += ["--token-file", "token", "--host", "0.0.0.0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as server:
        address = server.stdout.readline().split()[1].replace("0.0.0.0", "127.0.0.1")
        remote = RemoteOptimizer(address, TOKEN)
        remote.tell(remote.ask(), 0.5)
        with pytest.raises(ValueError, match="Bearer"):
            RemoteOptimizer(address).ask()
        server.send_signal(signal.SIGTERM)
    assert read_run(run).counts["told"] == 1
