from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError

from tvbo import recipes
from tvbo.spaces import Parameters
from tvbo.spaces.labels import Labels, TimeScale


def test_times_of_any_type_are_the_same_number():
    scale = TimeScale("15min")
    times = [
        pd.Timestamp("2026-03-01 06:30"),
        datetime(2026, 3, 1, 6, 30),
        np.datetime64("2026-03-01T06:30"),
    ]
    expected = (datetime(2026, 3, 1, 6, 30) - datetime(1970, 1, 1)) / timedelta(minutes=15)
    assert [scale.to_number(t) for t in times] == [expected] * 3
    assert scale.to_stamp(expected) == times[0]


def test_zones_are_converted_and_not_mixed():
    scale = TimeScale("1h", "Europe/Berlin")
    noon = pd.Timestamp("2026-07-01 12:00", tz="Europe/Berlin")
    expected = scale.to_number(noon)
    assert scale.to_number(noon.tz_convert("Asia/Tokyo")) == expected
    assert scale.to_number(datetime(2026, 7, 1, 10, tzinfo=UTC)) == expected
    assert scale.to_stamp(expected) == noon
    assert str(scale.to_stamp(expected).tz) == "Europe/Berlin"
    # An hour is an hour, also where clocks are set back.
    late = pd.Timestamp("2026-10-25 00:30", tz="Europe/Berlin")
    assert scale.to_number(late + pd.Timedelta("5h")) - scale.to_number(late) == 5
    with pytest.raises(InputDataError):
        scale.to_number(datetime(2026, 7, 1, 12))
    with pytest.raises(InputDataError):
        TimeScale("1h").to_number(noon)


@pytest.mark.parametrize("unit", ["", "an hour", "-1h", "0s", 3.5, None, "60", "01:00:00"])
def test_bad_units(unit):
    with pytest.raises(ValueError, match=repr(unit)):
        TimeScale(unit)


def test_a_bad_zone():
    with pytest.raises(ValueError):
        TimeScale("1h", "Mars/Olympus")


def test_numbers_stay_numbers_and_timestamps_need_a_unit():
    labels = Labels()
    assert labels.number(3) == 3.0
    assert labels.stamp(3.0) == 3.0
    for t in (pd.Timestamp(0), datetime(2026, 1, 1), np.datetime64("2026-01-01")):
        with pytest.raises(InputDataError):
            labels.number(t)
    with pytest.raises(InputDataError, match="NaT"):
        Labels(time=TimeScale("1h")).number(pd.NaT)


def test_spans():
    labels = Labels(time=TimeScale("30min"))
    assert labels.span(timedelta(hours=2)) == labels.span(pd.Timedelta("2h")) == 4
    assert labels.span(np.timedelta64(2, "h")) == 4
    assert labels.span(3) == 3
    for span in (np.timedelta64("NaT"), np.timedelta64(1, "Y"), timedelta.max):
        with pytest.raises(InputDataError) as error:
            labels.span(span)
        assert repr(span) in str(error.value)


def test_a_row_has_names_where_there_are_any():
    actions = Parameters.of({"x": (0.0, 1.0), "kind": ["a", "b", "c"]})
    context = torch.tensor([2.0, 3.0])
    row = Labels(actions).to_row(actions.encode({"x": 0.5, "kind": "b"}), 4.0, context)
    assert row == {"t": 4.0, "x": 0.5, "kind": "b", "context_0": 2.0, "context_1": 3.0}


def test_names_stand_for_one_column_each():
    one = Parameters.of({"x": (0.0, 1.0)})
    with pytest.raises(ValueError, match="x"):
        Labels(one, one)
    with pytest.raises(ValueError, match="outcome"):
        Labels(Parameters.of({"outcome": (0.0, 1.0)}))


def test_plain_data_and_back():
    labels = Labels(Parameters.of({"n": (1, 4)}), None, TimeScale("1h", "UTC"))
    assert Labels.from_json(labels.to_json()) == labels
    assert Labels.from_json(Labels().to_json()) == Labels()


@pytest.mark.parametrize("name", ["", " "])
@pytest.mark.parametrize("kind", ["bounds", "choices", "context_bounds"])
def test_an_empty_name_is_none(kind, name):
    given = {"bounds": {"x": (0.0, 1.0)}} if kind == "context_bounds" else {}
    recipe = recipes.tv_cgp_ucb if kind == "context_bounds" else recipes.tv_gp_ucb
    value = ["a", "b"] if kind == "choices" else (0.0, 1.0)
    with pytest.raises(ValueError, match=repr(name)):
        recipe(**given, **{kind: {name: value}})
