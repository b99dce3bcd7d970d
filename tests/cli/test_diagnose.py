"""``tvbo diagnose`` as a user meets it."""

import json
import math
import sqlite3

import pytest
from gpytorch.kernels import RBFKernel

from tvbo import recipes, run


@pytest.fixture
def recorded(tmp_path):
    """A closed run of 25 rounds."""
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.3
    optimizer = recipes.tv_gp_ucb(
        bounds=[(0.0, 1.0)], covar_module=kernel, forgetting_rate=0.05, noise_variance=0.01
    )
    optimizer.record(tmp_path / "run.db")
    run(lambda trial: math.sin(3 * trial.X.item()), optimizer, horizon=25, progress=False)
    optimizer.close()
    return tmp_path / "run.db"


def test_table_sentences_and_files(tvbo, recorded, tmp_path):
    before = recorded.read_bytes()
    options = ["--save", tmp_path / "page.png", "--json", tmp_path / "out.json"]
    code, out, err = tvbo("diagnose", recorded, *options)
    assert (code, err) == (0, "")
    for words in ("25 told", "outcomes judged", "exponential decay", "ε = 0.05 a round"):
        assert words in out
    found = json.loads((tmp_path / "out.json").read_text())
    assert all(sentence in out for sentence in found["sentences"])
    assert len(found["trials"]) == 25
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    assert recorded.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [None, b"t,y\n1,2\n"],
    ids=["missing", "text"],
)
def test_bad_input(tvbo, tmp_path, content):
    if content is not None:
        (tmp_path / "run.db").write_bytes(content)
    code, out, err = tvbo("diagnose", tmp_path / "run.db")
    assert (code, out) == (2, "")
    assert err.startswith("tvbo: Expected a run")
    assert err.count("\n") == 1


def test_a_run_without_a_gaussian_process(tvbo, tmp_path):
    optimizer = recipes.random_search(bounds=[(0.0, 1.0)])
    optimizer.record(tmp_path / "run.db")
    optimizer.tell(optimizer.ask(), 0.2)
    code, _, err = tvbo("diagnose", tmp_path / "run.db")
    assert code == 2
    assert "Expected an optimizer with a Gaussian process" in err
    assert err.count("\n") == 1


def test_outputs_are_checked_first(tvbo, recorded, tmp_path):
    assert "another file for --json" in tvbo("diagnose", recorded, "--json", recorded)[2]
    assert "ends in one of" in tvbo("diagnose", recorded, "--save", tmp_path / "x.xyz")[2]


def test_a_damaged_prediction_is_named(tvbo, recorded):
    with sqlite3.connect(recorded) as connection:
        connection.execute('UPDATE trials SET predicted = \'{"mean": "\x1b[2J"}\' WHERE id = 11')
    connection.close()
    code, out, err = tvbo("diagnose", recorded)
    assert (code, out) == (2, "")
    assert "trial 11" in err
    assert err.count("\n") == 1
    assert err.rstrip("\n").isprintable()
