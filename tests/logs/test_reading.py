import gzip

import pandas as pd
import pytest
import torch

from tvbo.logs.reading import TableError, read_log, read_panel


@pytest.fixture
def write(tmp_path):
    def write_file(text):
        path = tmp_path / "log.csv"
        path.write_text(text)
        return path

    return write_file


PANEL = """when,a,b
2020-01-01 00:00,1,2
2020-01-01 00:05,3,4
2020-01-01 00:10,5,6
2020-01-01 00:15,7,9
"""


def test_panel_of_timestamps(write):
    panel = read_panel(write(PANEL))
    assert panel.axis.unit == "5min"
    assert panel.axis.times.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert panel.values.tolist() == [[1, 2], [3, 4], [5, 6], [7, 9]]
    assert panel.arms == ["a", "b"]


def test_panel_resampled_and_cut(write):
    panel = read_panel(write(PANEL), resample="10min", rows="1:2")
    assert panel.axis.unit == "10min"
    assert panel.values.tolist() == [[6.0, 7.5]]
    assert read_panel(write(PANEL), rows=":3").values.shape == (3, 2)


def test_panel_with_gaps_where_they_are_allowed(write):
    text = "when,a,b\n2020-01-01 00:00,1,\n2020-01-01 00:30,,4\n"
    panel = read_panel(write(text))
    assert panel.values.isnan().tolist() == [[False, True], [True, False]]
    assert panel.values.nansum() == 5.0
    resampled = read_panel(write(text), resample="10min")
    # Steps without a reading are no rows.
    assert resampled.values.shape == (2, 2)
    assert resampled.axis.times.tolist() == [0.0, 3.0]
    assert resampled.num_dropped == 2


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("t,a,b\n1,1,\n2,2,\n", {}),
        (PANEL + "2020-01-01 00:20,,3\n", {"rows": "4:5"}),
        ("t,a\n1,1\n2,x\n", {}),
        ("t,a\n1,1\n2,inf\n", {}),
        ("t,a\n1,1\n,2\n", {}),
    ],
)
def test_panels_that_are_of_no_use_with_gaps_either(write, text, options):
    with pytest.raises(TableError):
        read_panel(write(text), **options)


def test_a_file_without_a_header_is_refused(write):
    for cell in ("2020-01-01 00:00", "01.01.2020"):
        with pytest.raises(TableError, match="header"):
            read_panel(write(f"{cell},1,2\n2020-01-02 00:00,3,4\n"))
    # Numbers are names of arms.
    assert read_panel(write("20200101,1,2\n0,3,4\n1,5,6\n")).arms == ["1", "2"]


def test_a_time_that_comes_twice_is_averaged_by_resampling(write):
    twice = PANEL + "2020-01-01 00:05,5,6\n"
    assert read_panel(write(twice), resample="10min").values.tolist() == [[3, 4], [6, 7.5]]
    with pytest.raises(TableError, match="1ns"):
        read_panel(write(twice), resample="1ns")


def test_rows_without_any_value_are_left_out(write):
    panel = read_panel(write("t,a,b\n1,2,3\n,,\n2,,\n3,4,5\n,,\n"), rows="1:")
    assert (panel.axis.times.tolist(), panel.values.tolist()) == ([3.0], [[4.0, 5.0]])
    assert panel.num_dropped == 3
    # Those of a log in the columns that are used.
    log = read_log(write("t,y,x,of\n1,2,3,a\n,,,\n,,,b\n2,3,4,c\n"), "t", "y", ["x"])
    assert (log.lines, log.num_dropped) == ([2, 5], 2)


PLAIN = "t,y,größe,k\n0.5,1.25,2,a b\n1.5,-3.5,4,c\n2,4,6.25,c\n"


@pytest.mark.parametrize(
    ("text", "encoding", "options"),
    [
        (PLAIN.replace(",", ", "), "utf-8", {}),
        (PLAIN.replace(",", " , "), "utf-8-sig", {}),
        (PLAIN.replace(",", "\t"), "utf-16", {}),
        (PLAIN.replace(",", "\t"), "utf-8", {"sep": r"\t"}),
        (PLAIN.replace("a b", "ab").replace(",", "  "), "utf-8", {"sep": r"\s+"}),
        (
            PLAIN.replace(",", ";").replace(".", ","),
            "latin-1",
            {"sep": ";", "decimal": ",", "encoding": "latin-1"},
        ),
    ],
)
def test_a_log_may_be_written_in_other_ways(tmp_path, text, encoding, options):
    path = tmp_path / "log.csv"
    path.write_bytes(text.encode(encoding))
    log = read_log(path, "t", "y", ["größe"], contexts=["k"], **options)
    rows = [[2.0, 0.0, 0.5], [4.0, 1.0, 1.5], [6.25, 1.0, 2.0]]
    assert (log.train_X.tolist(), log.Y.flatten().tolist()) == (rows, [1.25, -3.5, 4.0])


def test_a_cell_that_is_no_number_is_named_among_decimal_commas(write):
    with pytest.raises(TableError):
        read_panel(write("t;a\n1;0,5\n2;soon\n"), sep=";", decimal=",")


def test_a_few_sizes_are_categories(write):
    rows = "".join(f"{t},{t * t},{10 + 2 * (t % 3)} mm\n" for t in range(9))
    log = read_log(write(f"t,y,x\n{rows}"), "t", "y", ["x"])
    assert log.categories == {0: ["10 mm", "12 mm", "14 mm"]}


@pytest.mark.parametrize(
    "label",
    [
        lambda i: f"{2000 + i // 12}-{i % 12 + 1:02}",
        lambda i: f"{i}a{7 * i % 13}f",
        lambda i: f"{i}{'st' if i % 3 else 'nd'}",
        lambda i: f"#{i}",
        lambda i: f"10.0.0.{i}",
    ],
)
def test_labels_may_begin_with_a_number(write, label):
    rows = "".join(f"{i},{i % 3},{label(i)}\n" for i in range(40))
    log = read_log(write(f"t,y,x\n{rows}"), "t", "y", ["x"])
    assert log.categories == {0: sorted(map(label, range(40)))}


def test_a_label_with_a_comma_keeps_it(write):
    text = "t;y;x;k\n1;0,5;1,5;1,2\n2;0,7;2;both\n3;0,9;3;none\n"
    log = read_log(write(text), "t", "y", ["x"], group="k", sep=";", decimal=",")
    assert (log.groups, log.Y.flatten().tolist()) == (["1,2", "both", "none"], [0.5, 0.7, 0.9])


def test_panel_in_another_unit(write):
    assert read_panel(write(PANEL), time_unit="1h").axis.times[-1].item() == 0.25


def test_panel_of_numbers_is_used_as_it_is(write):
    panel = read_panel(write("t,a\n3.5,1\n1.25,2\n"))
    assert panel.axis.times.tolist() == [1.25, 3.5]
    assert panel.values.tolist() == [[2.0], [1.0]]
    assert read_panel(write("t,a\n1,1\n2,2\n"), time_unit="minute").axis.unit == "minute"


def test_log(write):
    log = read_log(
        write("t,y,x1,x2,v\n1,0.5,3,4,0.1\n2.5,0.7,5,6,0.2\n"),
        "t",
        "y",
        ["x2", "x1"],
        reward_variance="v",
    )
    assert log.train_X.tolist() == [[4.0, 3.0, 1.0], [6.0, 5.0, 2.5]]
    assert log.Y.dtype == torch.float64
    assert log.Yvar.flatten().tolist() == [0.1, 0.2]
    assert log.axis.unit == "1 (t)"


def log_at(write, times, **options):
    rows = [f"{t},{i % 3},{i % 5}" for i, t in enumerate(times)]
    return read_log(write("\n".join(["t,y,x", *rows])), "t", "y", ["x"], **options)


@pytest.mark.parametrize(
    ("times", "unit"),
    [
        (["2020-01-01", "2020-01-02", "2020-01-03", "2020-01-07"], "1D"),
        (pd.Timestamp(0) + 3458 * pd.to_timedelta([0.0, 0.9, 2.0, 3.2, 4.1, 5.6], "s"), "1h"),
        (pd.Timestamp(0) + pd.to_timedelta([0, 9.18505, 9.9e3, 1.5e4, 1.9e4], "s"), "1h"),
        (pd.Timestamp(0) + pd.to_timedelta([0, 5, 10, 15], "us"), "5us"),
        (pd.Timestamp(0) + pd.to_timedelta([0, 5, 11, 18], "us"), "10us"),
        (pd.date_range("2020-01-01", periods=24, freq="MS"), "30D"),
        (pd.date_range("2020-01-01", periods=9, freq="7min"), "7min"),
    ],
)
def test_the_unit_of_timestamps_is_their_gap_or_a_round_one(write, times, unit):
    log = log_at(write, times)
    assert log.axis.unit == unit
    seconds = (pd.to_datetime(pd.Series(times)) - pd.Timestamp(times[0])).dt.total_seconds()
    expected = seconds / pd.Timedelta(unit).total_seconds()
    assert log.axis.times.tolist() == pytest.approx(expected.tolist())
    assert any(unit in remark for remark in log.axis.remarks)


@pytest.mark.parametrize(
    ("times", "unit"),
    [
        *((["2020-01-01", "2020-01-02"], unit) for unit in ("60", "1.5", "soon", "0s")),
        # Of numbers it is a name.
        *(([1, 2], unit) for unit in ("60", "1.5")),
    ],
)
def test_a_unit_of_time_has_a_letter(write, times, unit):
    with pytest.raises(TableError):
        log_at(write, times, time_unit=unit)


@pytest.mark.parametrize("form", ["%Y%m", "%Y%m%d", "%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S"])
def test_dates_of_digits_are_dates(write, form):
    times = pd.date_range("2024-11-01", periods=20, freq="MS")
    log = log_at(write, times.strftime(form))
    assert log.axis.origin == times[0]
    days = log.axis.times * (pd.Timedelta(log.axis.unit) / pd.Timedelta("1D"))
    assert days.tolist() == pytest.approx([(t - times[0]).days for t in times])


@pytest.mark.parametrize(
    "times", [range(1990, 2030), range(20250170, 20250210), range(1737331200, 1737331220)]
)
def test_other_numbers_are_numbers(write, times):
    assert log_at(write, times).axis.times.tolist() == list(times)


@pytest.mark.parametrize("wrong", [20250230, 2025012, 20250131.5, 21250120])
def test_a_mistyped_date_of_digits_is_named(write, wrong):
    with pytest.raises(TableError) as error:
        log_at(write, [20250120, wrong, 20250122])
    assert str(wrong) in str(error.value)


@pytest.mark.parametrize("factor", [1e3, 1e6, 1e9])
@pytest.mark.parametrize("start", [1, 1737331200])
def test_a_change_from_seconds_to_smaller_units_is_refused(write, start, factor):
    seconds = [start + 60 * i for i in range(10)]
    times = [t if i < 4 else round(t * factor) for i, t in enumerate(seconds)]
    with pytest.raises(TableError):
        log_at(write, times)
    assert log_at(write, [round(t * factor) for t in seconds]).axis.unit == "1 (t)"


def test_a_german_log_is_read_as_it_is(tmp_path):
    path = tmp_path / "log.csv"
    text = "Zeit;Güte;Größe;Werk\n10.01.2025 06:10;1,5;2,25;Köln\n9.1.2025 06:10:30;;1;Bonn\n"
    text += "11.01.2025 06:10;2,5;1,75;Bonn\n1.02.2025 06:10;0,5;3;Köln\n"
    path.write_bytes(text.encode("latin-1"))
    log = read_log(path, "Zeit", "Güte", ["Größe"], contexts=["Werk"], time_unit="1D")
    assert log.train_X.tolist() == [[2.25, 1.0, 0.0], [1.75, 0.0, 1.0], [3.0, 1.0, 22.0]]
    assert (log.Y.flatten().tolist(), log.num_dropped) == ([1.5, 2.5, 0.5], 1)
    assert log.axis.origin == pd.Timestamp("2025-01-10 06:10")
    assert len(log.axis.remarks) == 2


@pytest.mark.parametrize("text", ["08/01/2025", "08:00", "now", "today", "2025-13-01", "-2025"])
def test_times_are_in_iso_8601(write, text):
    with pytest.raises(TableError):
        log_at(write, ["2025-01-20", text])


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("when,a\n", {}),
        ("", {}),
        ("when\n2020-01-01\n", {}),
        ("when,a\n2020-01-01,1\nsoon,2\n", {}),
        ("when,a\n2020-01-01,1\n2020-01-02,x7\n", {}),
        ("when,a\n2020-01-01,1\n2020-01-02,inf\n", {}),
        ("when,a\n2020-10-25 02:00,1\n2020-10-25 02:00,2\n", {}),
        ("t,a\n1,1\n2,2\n", {"resample": "10min"}),
        (PANEL, {"resample": "soon"}),
        (PANEL, {"resample": "-5min"}),
        (PANEL, {"resample": "10"}),
        (PANEL, {"time_unit": "60"}),
        ("when,a\n2020-01-01,1,5\n2020-01-02,2,5\n", {}),
        (PANEL, {"rows": "3"}),
        (PANEL, {"rows": "9:12"}),
        ("when,a\n2020-01-01,1\n", {}),
    ],
)
def test_bad_panels(write, text, options):
    with pytest.raises(TableError):
        read_panel(write(text), **options)


def test_a_log_across_a_change_of_the_clocks(write):
    text = "t,y,x\n2020-03-29T01:30:00+01:00,1,1\n2020-03-29T03:30:00+02:00,2,1\n"
    log = read_log(write(text), "t", "y", ["x"])
    assert log.axis.unit == "1h"
    assert log.axis.times.tolist() == [0.0, 1.0]


def test_broken_compressed_files(tmp_path):
    path = tmp_path / "log.csv.gz"
    whole = gzip.compress(PANEL.encode() * 200)
    for broken in (whole[:60], whole[:40] + b"\xff" * 20 + whole[60:]):
        path.write_bytes(broken)
        with pytest.raises(TableError):
            read_panel(path)


LOG = "t,y,x\n1,2,3\n2,3,4\n"


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (LOG, ("t", "z", ["x"])),
        (LOG, ("t", "y", ["x", "w"])),
        (LOG, ("t", "y", [])),
        (LOG, ("t", "y", ["y"])),
        ("t,y,x\n1,2,3\n2,oops,4\n", ("t", "y", ["x"])),
    ],
)
def test_bad_logs(write, text, columns):
    with pytest.raises(TableError):
        read_log(write(text), *columns)


def test_missing_file(tmp_path):
    with pytest.raises(TableError):
        read_panel(tmp_path / "nothing.csv")


MIXED = "t,y,x,machine,shift\n1,2,3,mill,7\n2,3,4,lathe,\n4,5,,drill,9\n5,6,7,mill,10\n"


def test_contexts_categories_and_groups(write):
    log = read_log(write(MIXED), "t", "y", ["x"], rows="0:2", contexts=["machine"])
    assert log.train_X.tolist() == [[3.0, 1.0, 1.0], [4.0, 0.0, 2.0]]
    assert log.categories == {1: ["lathe", "mill"]}
    assert log.lines == [2, 3]


def test_rows_with_empty_cells_are_left_out(write):
    log = read_log(write(MIXED), "t", "y", ["x"], contexts=["shift"], group="machine")
    assert log.train_X.tolist() == [[3.0, 7.0, 1.0], [7.0, 10.0, 5.0]]
    assert (log.groups, log.lines, log.num_dropped) == (["mill", "mill"], [2, 5], 2)
    # A column that is not used may have empty cells.
    assert read_log(write(MIXED), "t", "y", ["shift"]).num_dropped == 1


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("t,y,x,m\n1,2,a,u\n2,3,4,v\n", {}),
        ("t,y,x,m\n1,2,,u\n,3,4,v\n", {}),
    ],
)
def test_bad_categories_and_groups(write, text, options):
    with pytest.raises(TableError):
        read_log(write(text), "t", "y", ["x"], **options)


def parquet(monkeypatch, tmp_path, frame):
    """A Parquet file, without pyarrow to write and read it."""
    path = tmp_path / "log.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setattr(pd, "read_parquet", lambda _: frame)
    return path


def test_a_parquet_file_is_read_as_a_csv_file(monkeypatch, tmp_path):
    times = pd.date_range("2020-01-01", periods=4, freq="5min", tz="Europe/Berlin")
    frame = pd.DataFrame({"t": times, "x": [0.1, 0.2, 0.3, 0.4], "k": ["a", "b", "a", "b"]})
    frame = frame.assign(y=[1, 2, 3, 4])
    frame.to_csv(tmp_path / "log.csv", index=False)
    path = parquet(monkeypatch, tmp_path, frame)
    one, two = (read_log(each, "t", "y", ["x", "k"]) for each in (tmp_path / "log.csv", path))
    assert torch.equal(one.train_X, two.train_X)
    assert torch.equal(one.Y, two.Y)
    assert (one.axis.unit, one.axis.origin) == (two.axis.unit, two.axis.origin)
    assert one.categories == two.categories == {1: ["a", "b"]}
    # By their lines, and their rows.
    assert (one.lines, two.lines) == ([2, 3, 4, 5], [0, 1, 2, 3])
    frame.loc[2, "x"] = None
    assert read_log(path, "t", "y", ["x", "k"]).lines == [0, 1, 3]


def test_an_index_of_times_is_the_first_column_of_a_panel(monkeypatch, tmp_path):
    times = pd.date_range("2020-01-01", periods=3, freq="10min", name="when")
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]}, index=times)
    panel = read_panel(parquet(monkeypatch, tmp_path, frame))
    assert panel.arms == ["a", "b"]
    assert panel.axis.unit == "10min"
    # Rows that are numbered otherwise, since some were left out.
    numbered = frame.reset_index().iloc[1:]
    assert read_panel(parquet(monkeypatch, tmp_path, numbered)).values[:, 0].tolist() == [2, 3]


def test_parquet_files_that_cannot_be_read(monkeypatch, tmp_path):
    with pytest.raises(TableError):
        read_panel(tmp_path / "log.pq")
    path = parquet(monkeypatch, tmp_path, pd.DataFrame({"t": []}))
    with pytest.raises(TableError):
        read_panel(path)

    def missing(_):
        raise ImportError("Unable to find a usable engine")

    monkeypatch.setattr(pd, "read_parquet", missing)
    with pytest.raises(TableError):
        read_panel(path)


def test_a_parquet_file_of_pyarrow(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "log.parquet"
    times = pd.date_range("2020-01-01", periods=3, freq="10min", name="when")
    pd.DataFrame({"a": [1.0, 2.0, None], "b": [4, 5, 6]}, index=times).to_parquet(path)
    panel = read_panel(path)
    assert panel.arms == ["a", "b"]
    assert panel.values[:, 1].tolist() == [4, 5, 6]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(TableError):
        read_panel(path)


def test_times_with_an_offset_are_shown_with_that_of_the_first(write):
    rows = ["2025-03-01T17:30-08:00,1,1", "2025-03-01T18:30-08:00,2,2", "2025-03-02T03:30Z,3,1"]
    log = read_log(write("\n".join(["t,x,y", *rows])), "t", "y", ["x"])
    assert log.axis.times.tolist() == [0.0, 1.0, 2.0]
    assert log.axis.describe(3.0) == "2025-03-01 20:30:00-08:00"
    # One without an offset has that of the log.
    assert log.axis.number("--at", "2025-03-01 20:30") == 3.0
    assert log.axis.number("--at", "2025-03-02T04:30Z") == 3.0
    bare = read_log(write("t,x,y\n2025-03-01T17:30,1,1\n2025-03-01T18:30,2,2"), "t", "y", ["x"])
    with pytest.raises(TableError, match="offset"):
        bare.axis.number("--at", "2025-03-01 19:30-08:00")
    mixed = write("\n".join(["t,x,y", *rows, "2025-03-01 21:30,4,1"]))
    with pytest.raises(TableError, match="21:30"):
        read_log(mixed, "t", "y", ["x"])


def test_two_lengths_are_no_length(write):
    with pytest.raises(TableError, match="10min,20min"):
        read_panel(write(PANEL), resample="10min,20min")
