"""``tvbo diagnose`` as a user meets it."""

import json
import math
import sqlite3

import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo import recipes, run


@pytest.fixture
def journal(tmp_path):
    """A closed journal of 25 rounds."""
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.3
    optimizer = recipes.tv_gp_ucb(
        bounds=[(0.0, 1.0)], covar_module=kernel, forgetting_rate=0.05, noise_variance=0.01
    )
    optimizer.record(tmp_path / "run.db")
    run(lambda trial: math.sin(3 * trial.X.item()), optimizer, horizon=25, progress=False)
    optimizer.close()
    return tmp_path / "run.db"


def test_table_sentences_and_files(tvbo, journal, tmp_path, monkeypatch):
    def unpickled(*_, **given):
        assert given.get("weights_only"), "a journal is not unpickled"
        return load(*_, **given)

    load = torch.load
    monkeypatch.setattr(torch, "load", unpickled)
    before = journal.read_bytes()
    options = ["--save", tmp_path / "page.png", "--json", tmp_path / "out.json"]
    code, out, err = tvbo("diagnose", journal, *options)
    assert (code, err) == (0, "")
    for words in ("25 told", "outcomes judged", "exponential decay", "ε = 0.05 a round"):
        assert words in out
    found = json.loads((tmp_path / "out.json").read_text())
    assert all(sentence in out for sentence in found["sentences"])
    assert len(found["trials"]) == 25
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    assert journal.read_bytes() == before


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
    assert err.startswith("tvbo: Expected a journal")
    assert err.count("\n") == 1


def test_a_run_without_a_gaussian_process(tvbo, tmp_path):
    optimizer = recipes.random_search(bounds=[(0.0, 1.0)])
    optimizer.record(tmp_path / "run.db")
    optimizer.tell(optimizer.ask(), 0.2)
    code, _, err = tvbo("diagnose", tmp_path / "run.db")
    assert code == 2
    assert "Expected an optimizer with a Gaussian process" in err
    assert err.count("\n") == 1


def test_outputs_are_checked_first(tvbo, journal, tmp_path):
    assert "another file for --json" in tvbo("diagnose", journal, "--json", journal)[2]
    assert "ends in one of" in tvbo("diagnose", journal, "--save", tmp_path / "x.xyz")[2]


def test_a_damaged_journal_is_diagnosed_as_far_as_it_is_good(tvbo, journal):
    with sqlite3.connect(journal) as connection:
        connection.execute("UPDATE events SET reason = 'forged' WHERE seq = 21")
    connection.close()
    code, out, _ = tvbo("diagnose", journal)
    assert code == 0
    assert "10 told" in out
    assert "Its first 20 records" in " ".join(out.split())
