"""``tvbo report``: the page of a run as a file."""

import pytest

from tvbo import recipes


@pytest.fixture
def run(tmp_path):
    with recipes.tv_gp_ucb(bounds={"x": (0.0, 1.0)}) as optimizer:
        optimizer.record(tmp_path / "run.db")
        optimizer.tell(optimizer.ask(), 1.0)
    return tmp_path / "run.db"


def test_a_page_is_written(tvbo, run, tmp_path):
    assert tvbo("report", run, "--html", tmp_path / "page.html")[::2] == (0, "")
    page = (tmp_path / "page.html").read_text()
    assert "<title>run.db</title>" in page
    assert "Recommended now" in page
    assert 'http-equiv="refresh"' not in page


@pytest.mark.parametrize("name", ["run.db", "none/page.html"])
def test_what_cannot_be_written(tvbo, run, tmp_path, name):
    before = run.read_bytes()
    code, out, err = tvbo("report", run, "--html", tmp_path / name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert name in err
    assert run.read_bytes() == before


def test_no_run(tvbo, tmp_path):
    code, _, err = tvbo("report", tmp_path / "none.db", "--html", tmp_path / "page.html")
    assert (code, err.count("\n")) == (2, 1)
    assert not (tmp_path / "page.html").exists()
