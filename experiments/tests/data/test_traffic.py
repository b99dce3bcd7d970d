import gzip

import pytest
import torch

from experiments.data.traffic import FILE, traffic
from tvbo.logs.reading import TableError

SENSORS = ("a", "b", "c")


def speed(day, step, sensor):
    return day + 0.1 * step + 10 * sensor


def rows(days, steps):
    return [
        f"{day},{step}," + ",".join(str(speed(day, step, i)) for i in range(len(SENSORS)))
        for day in days
        for step in range(steps)
    ]


@pytest.fixture
def folder(tmp_path):
    """A data folder; gives a function that writes the file of speeds into it."""

    def write(lines, header=("day", "step", *SENSORS)):
        path = tmp_path / FILE
        path.parent.mkdir(exist_ok=True)
        with gzip.open(path, "wt") as file:
            file.write("\n".join([",".join(header), *lines]) + "\n")
        return tmp_path

    return write


def test_two_thirds_of_the_days_are_for_training(folder):
    data = traffic(folder(rows([9, 1, 2, 5, 7], steps=4)))
    assert (data.train_days, data.test_days) == ([1, 2, 5], [7, 9])
    assert data.train.shape == (3, 4, 3)
    assert data.test.shape == (2, 4, 3)
    assert data.train.dtype == torch.float64
    for i, day in enumerate(data.test_days):
        for step in range(4):
            for sensor in range(3):
                assert data.test[i, step, sensor].item() == speed(day, step, sensor)
    assert (data.arms, data.time_unit) == (["a", "b", "c"], "5min")
    assert data.mean == pytest.approx(data.train.mean().item())


def test_rows_in_any_order(folder):
    lines = rows([1, 2, 3], steps=3)
    expected = traffic(folder(lines))
    shuffled = traffic(folder(lines[::-1]))
    assert torch.equal(shuffled.train, expected.train)
    assert torch.equal(shuffled.test, expected.test)


def test_sensors_are_drawn_with_their_names(folder):
    data = traffic(folder(rows([1, 2, 3], steps=3)))
    drawn, again = (data.sample_sensors(2, torch.Generator().manual_seed(4)) for _ in range(2))
    assert drawn.arms == again.arms
    assert len(set(drawn.arms)) == 2
    for place, name in enumerate(drawn.arms):
        assert torch.equal(drawn.train[..., place], data.train[..., SENSORS.index(name)])
        assert torch.equal(drawn.test[..., place], data.test[..., SENSORS.index(name)])
    with pytest.raises(ValueError):
        data.sample_sensors(4, torch.Generator())


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[:4],
        lambda lines: lines[:-1],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [*lines[:-1], "3,3,1,,2"],
        lambda lines: [*lines[:-1], "3,3,1,fast,2"],
    ],
)
def test_a_bad_file(folder, change):
    with pytest.raises(TableError):
        traffic(folder(change(rows([1, 2, 3], steps=4))))


def test_recorded_days(data_folder):
    data = traffic(data_folder)
    assert data.train.shape == (13, 60, 105)
    assert data.test.shape == (6, 60, 105)
    assert data.train_days[0] == 1
    assert data.test_days == [16, 19, 20, 21, 22, 23]
    assert data.train.max() <= 70
