"""Files as people have them, and the one line that says what to do."""

import re

import numpy as np
import pandas as pd
import pytest

from tvbo.logs.reading import read_log, read_table

ROWS = [(t, (7 * t % 11) / 11, 0.01 * (37 * t % 61)) for t in range(40)]
COLUMNS = ["--time", "t", "--reward", "y", "--action", "x"]


def table(form="{}", header="t,y,x", sep=","):
    rows = [f"{t},{y:.3f}," + form.format(f"{x:.2f}") for t, y, x in ROWS]
    return "\n".join([header, *rows]).replace(",", sep) + "\n"


def clicks():
    return "t,y,x\n" + "".join(f"{t},{int(t == 137)},{t % 7}\n" for t in range(500))


def panel(cells):
    rows = [",".join([str(t), *cells(t)]) for t in range(20)]
    return "\n".join(["t,north,south,east", *rows]) + "\n"


GERMAN = table(header="t,y,größe", sep=";").replace(".", ",")

READ = {
    "semicolons": table(sep=";"),
    "decimal commas": GERMAN,
    "latin-1": GERMAN.encode("latin-1"),
    "UTF-16": GERMAN.encode("utf-16"),
    "UTF-16 without a mark": table().encode("utf-16-le"),
    "UTF-16, big-endian": table().encode("utf-16-be"),
    "tabs": table(sep="\t"),
    "spaces": table(sep=" "),
}


@pytest.mark.parametrize("content", READ.values(), ids=READ.keys())
def test_a_file_is_read_as_it_is_written(tmp_path, content):
    path = tmp_path / "log.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    column = read_table(path).columns[-1]
    log = read_log(path, "t", "y", [column])
    assert log.train_X.tolist() == [[round(x, 2), t] for t, _, x in ROWS]


REFUSED = {
    "commas": (table(), ["--sep", ";"], ["--sep ','"]),
    "no UTF-16": (table(), ["--encoding", "utf-16"], ["--encoding 'utf-8'"]),
    "no encoding": (table(), ["--encoding", "klingon"], ["klingon"]),
    "two characters": (table(), ["--sep", ";;"], ["--sep", "';;'"]),
    "workbook": (b"PK\x03\x04\x14\xfd\x00\x08", [], ["Excel"]),
    "name twice": (table(header="t,y, y"), [], ["'y'"]),
    "name twice in a panel": ("t,a,a\n1,2,3\n2,3,4\n", ["--panel"], ["'a'"]),
    "percent": (table("{}%"), [], ["'0.00%'", "line 2"]),
    "dollars": (table("${}"), [], ["'$0.00'"]),
    "unit": (table("{} ms"), [], ["'0.00 ms'"]),
    "quoted decimal comma": (
        table('"{}"').replace("0.", "0;").replace(";", ","),
        [],
        ["--decimal"],
    ),
    "thousands beside decimal commas": (
        GERMAN.replace("\n3;0,909;", "\n3;1.018;"),
        ["--action", "größe"],
        ["'1.018'", "line 5"],
    ),
    "empty column": (table("").replace("x", "x"), [], ["40"]),
    "one click": (clicks(), [], ["500", "0 "]),
    "arm without two readings": (
        panel(lambda t: (str(t), "1" if t == 4 else "", f"{t % 3}")),
        ["--panel"],
        ["Got 1 of arm south"],
    ),
    "irregular panel": (
        panel(lambda t: [str(t + k) for k in range(3)]).replace("\n7,", "\n7.4,"),
        ["--panel", "--temporal", "vector"],
        ["vector"],
    ),
}


@pytest.mark.parametrize(("content", "options", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_a_file_that_cannot_be_fitted_is_one_line(tvbo, tmp_path, content, options, named):
    path = tmp_path / "log.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, _, err = tvbo("fit", path, *([] if "--panel" in options else COLUMNS), *options)
    line = err.splitlines()[-1]
    assert (code, err.count("\n")) == (2, 1)
    assert line.startswith("tvbo: ")
    assert [value for value in named if value not in line] == []


@pytest.mark.parametrize("head", ["# made by x", "my value"])
def test_a_title_is_no_row_of_columns(tvbo, tmp_path, head):
    path = tmp_path / "log.csv"
    path.write_text(f"{head}\n1\n2\n")
    code, _, err = tvbo("fit", path, *COLUMNS)
    assert (code, "--sep" in err) == (2, False)


@pytest.mark.parametrize("column", [[{"a": 1}, {"a": 2}, {"a": 3}], [np.ones(1)] * 3])
def test_a_parquet_column_of_structs_is_one_line(tvbo, tmp_path, monkeypatch, column):
    path = tmp_path / "log.parquet"
    path.write_bytes(b"PAR1")
    frame = pd.DataFrame({"t": [1, 2, 3], "y": [1.0, 2.0, 4.0], "x": column})
    monkeypatch.setattr(pd, "read_parquet", lambda _: frame)
    code, _, err = tvbo("fit", path, *COLUMNS)
    assert (code, err.count("\n")) == (2, 1)
    assert repr(column[0]) in err


def test_a_fit_says_beforehand_what_it_does(tvbo, tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(table())
    code, out, err = tvbo("fit", path, *COLUMNS, "--noise-variance", "0.1")
    assert code == 0
    assert re.fullmatch(r"fitting 40 rows: about \d+ s of CPU\n", err)
    assert "40 rows" not in out
