import gzip

import pandas as pd
import pytest
import torch

from experiments.data import recorded
from experiments.data.intel_lab import FILE, POSITIONS, build_intel_lab, intel_lab, intel_lab_days
from tvbo.logs.reading import TableError


def write_raw(path, readings):
    lines = (" ".join(map(str, reading)) for reading in readings)
    with gzip.open(path, "wt") as file:
        file.write("\n".join(lines) + "\n")


def reading(time, mote, temperature, humidity=40.0, voltage=2.7, date="2004-03-05"):
    return date, time, 1, mote, temperature, humidity, 50.0, voltage


def test_bins_are_means_of_plausible_readings(tmp_path):
    raw = tmp_path / "data.txt.gz"
    write_raw(
        raw,
        [
            reading("10:00:01.5", 1, 20.0),
            reading("10:04:59.9", 1, 22.0),
            reading("10:01:00", 1, 122.1),  # implausible temperature
            reading("10:01:00", 1, 30.0, voltage=1.8),  # failing battery
            reading("10:01:00", 1, 30.0, humidity=-4.0),  # implausible humidity
            reading("10:01:00", 18, 25.0),  # a mote left out
            reading("10:10:00", 1, 25.0),
            reading("10:10:00", 2, 30.0),
            reading("10:10:00", 1, 99.0, date="2004-02-28"),  # another day
            ("2004-03-05", "10:10:00", 7, "1"),  # a truncated line
        ],
    )
    panel = build_intel_lab(raw)
    assert panel.shape == (5 * 288, 2)
    assert list(panel.columns) == ["1", "2"]
    at = panel["1"]
    assert at["2004-03-05 10:00"] == 21.0
    assert at["2004-03-05 10:10"] == 25.0
    # The empty bin between them, by linear interpolation; the ends, by the nearest value.
    assert at["2004-03-05 10:05"] == 23.0
    assert at["2004-03-04 00:00"] == 21.0
    assert panel["2"].iloc[-1] == 30.0


def test_rebuilds_the_recorded_file(data_folder, tmp_path):
    """From the gappy log of 51 motes, written out as raw readings, to the file of 46 without."""
    gappy = pd.read_csv(
        data_folder / "intel_lab/temperature_51_unfilled.csv.gz", index_col=0, parse_dates=True
    )
    stacked = gappy.stack()
    write_raw(
        tmp_path / "data.txt.gz",
        [
            reading(stamp.time(), mote, value, date=stamp.date())
            for (stamp, mote), value in stacked.items()
        ],
    )
    built = build_intel_lab(tmp_path / "data.txt.gz")
    expected = pd.read_csv(
        data_folder / "intel_lab/temperature.csv.gz", index_col=0, parse_dates=True
    )
    assert list(built.columns) == list(expected.columns)
    assert (built.index == expected.index).all()
    assert abs(built.to_numpy() - expected.to_numpy()).max() < 1.01e-4  # the last decimal


def test_raw_file_without_usable_readings(tmp_path):
    write_raw(tmp_path / "data.txt.gz", [reading("10:00:00", 1, 20.0, date="2004-01-01")])
    with pytest.raises(TableError):
        build_intel_lab(tmp_path / "data.txt.gz")
    with pytest.raises(TableError):
        build_intel_lab(tmp_path / "missing.gz")


def test_stretches(data_folder):
    data = intel_lab(data_folder)
    assert data.train.shape == (432, 46)
    assert data.test.shape == (288, 46)
    assert data.time_unit == "10min"
    assert len(data.covar_module.covar_matrix) == 46


def test_data_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("TVBO_DATA", raising=False)
    with pytest.raises(FileNotFoundError):
        recorded.data_folder()
    with pytest.raises(FileNotFoundError):
        recorded.data_folder(tmp_path / "missing")
    monkeypatch.setenv("TVBO_DATA", str(tmp_path))
    assert recorded.data_folder() == tmp_path


@pytest.fixture
def two_motes(tmp_path):
    """A data folder of five days in which the reading is day, hour and mote in one number."""
    stamps = pd.date_range("2004-03-04", periods=5 * 288, freq="5min", name="timestamp")
    hours = (stamps - stamps[0]) / pd.Timedelta("1h")
    (tmp_path / "intel_lab").mkdir()
    panel = pd.DataFrame({mote: hours + 1000 * mote for mote in (7, 3)}, index=stamps)
    panel.to_csv(tmp_path / FILE)
    (tmp_path / POSITIONS).write_text("id,x,y\n1,0,0\n3,1.5,2\n7,8,9.25\n")
    return tmp_path


def test_days_come_with_hours_and_places(two_motes):
    data = intel_lab_days(two_motes)
    assert data.values.shape == (4 * 288, 2)
    assert data.arms == ["7", "3"]
    assert data.positions.tolist() == [[8, 9.25], [1.5, 2]]
    steps = torch.arange(4 * 288, dtype=torch.float64)
    torch.testing.assert_close(data.times, steps / 12, rtol=0, atol=1e-12)
    torch.testing.assert_close(data.values[:, 1], 3000 + steps / 12)


def test_other_days_begin_at_their_own_midnight(two_motes):
    data = intel_lab_days(two_motes, first_day=3, days=2)
    assert data.values.shape == (2 * 288, 2)
    assert (data.times[0].item(), data.times[288].item()) == (0, 24)
    assert data.values[0].tolist() == [7072, 3072]
    for first_day, days in ((0, 6), (3, 3), (-1, 2), (0, 0)):
        with pytest.raises(ValueError):
            intel_lab_days(two_motes, first_day, days)


def test_recorded_days_with_places(data_folder):
    data = intel_lab_days(data_folder)
    assert data.values.shape == (1152, 46)
    assert data.positions.shape == (46, 2)
    # The laboratory is about 40 m long and 30 m wide.
    assert data.positions.min() >= 0
    assert (data.positions.amax(dim=0) < torch.tensor([45, 35])).all()
    tens = intel_lab(data_folder).train
    torch.testing.assert_close(data.values[:864].reshape(432, 2, 46).mean(dim=1), tens)
