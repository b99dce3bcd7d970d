import json
import math
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from ConfigSpace import (
    Categorical,
    ConfigurationSpace,
    Constant,
    EqualsCondition,
    Float,
    Integer,
    Normal,
)

from tvbo import recipes
from tvbo.spaces import Parameters
from tvbo.spaces.parameters import Category, Number

SPACE = {
    "rate": Float("rate", (1e-5, 0.1), log=True),
    "share": (0.0, 2.0),
    "layers": (1, 8),
    "width": Integer("width", (1, 1024), log=True),
    "size": Categorical("size", ["s", "m", "l"], ordered=True),
    "rule": ["adam", "sgd", "rms", 3],
    "warm": [True, False],
    "version": 4,
}
VALUES = {
    "rate": 0.01,
    "share": 1.25,
    "layers": 3,
    "width": 64,
    "size": "m",
    "rule": "sgd",
    "warm": False,
    "version": 4,
}


@pytest.fixture
def parameters():
    return Parameters.of(SPACE)


def test_columns_of_each_type(parameters):
    # Log rate, share, layers, log width, place of the size, four of the rule, one of warm.
    expected = [math.log(0.01), 1.25, 3, math.log(64), 1, 0, 1, 0, 0, 1]
    assert parameters.encode(VALUES).tolist() == pytest.approx(expected, rel=1e-15)
    assert parameters.names == list(SPACE)
    low, high = parameters.bounds.tolist()
    assert low == pytest.approx([math.log(1e-5), 0, 1, 0, 0, 0, 0, 0, 0, 0], rel=1e-15)
    assert high == pytest.approx([math.log(0.1), 2, 8, math.log(1024), 2, 1, 1, 1, 1, 1])


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"rate": 1e-5, "width": 1024, "share": 0.0},
        {"rate": 0.1, "size": "l", "rule": 3, "warm": True},
        {"rate": 0.003, "width": 7, "layers": 8},
    ],
)
def test_values_come_back_as_they_were(parameters, change):
    values = VALUES | change
    found = parameters.decode(parameters.encode(values))
    assert found == values
    assert [type(value) for value in found.values()] == [type(each) for each in values.values()]


def test_values_of_numpy_and_pandas(parameters):
    given = VALUES | {"layers": np.int64(3), "rate": np.float64(0.01), "rule": np.str_("sgd")}
    given |= {"share": np.float32(1.25), "warm": np.bool_(False)}
    expected = parameters.encode(VALUES)
    assert torch.equal(parameters.encode(given), expected)
    assert torch.equal(parameters.encode(pd.Series(given)), expected)
    table = pd.DataFrame([VALUES, VALUES | {"rule": "rms"}]).assign(other=1)
    rows = parameters.encode_table(table)
    assert torch.equal(rows[0], expected)
    assert parameters.decode(rows[1])["rule"] == "rms"


def test_a_fixed_parameter_may_be_left_out_but_not_changed(parameters):
    left = {name: value for name, value in VALUES.items() if name != "version"}
    assert torch.equal(parameters.encode(left), parameters.encode(VALUES))
    with pytest.raises(InputDataError, match="5"):
        parameters.encode(VALUES | {"version": 5})


@pytest.mark.parametrize(
    "change",
    [
        {"rule": "adma"},
        {"rule": True},
        {"warm": 1},
        {"rate": 0.2},
        {"rate": "0.01"},
        {"rate": math.nan},
        {"layers": 3.5},
        {"layers": math.nan},
        {"layers": math.inf},
        {"layers": True},
        {"size": None},
        {"extra": 1},
    ],
)
def test_bad_values(parameters, change):
    with pytest.raises(InputDataError):
        parameters.encode(VALUES | change)


def test_a_misspelt_name_is_told_with_the_nearest(parameters):
    values = {("raet" if name == "rate" else name): value for name, value in VALUES.items()}
    with pytest.raises(InputDataError):
        parameters.encode(values)


def test_a_table_names_the_row(parameters):
    table = pd.DataFrame([VALUES] * 3, index=["a", "b", "c"])
    table.loc["b", "share"] = 7.0
    with pytest.raises(InputDataError):
        parameters.encode_table(table)
    with pytest.raises(InputDataError):
        parameters.encode_table(table.drop(columns="share"))


def conditional():
    space = ConfigurationSpace({"a": [1, 2], "b": (0.0, 1.0)})
    space.add(EqualsCondition(space["b"], space["a"], 1))
    return space


@pytest.mark.parametrize(
    "space",
    [
        {},
        {"a": 3},
        {"a": (1, 2, 3)},
        {"a": []},
        {"a": ["x", "x"]},
        {"a": (2.0, 1.0)},
        {"a": Float("b", (0, 1))},
        {"a": Float("a", (0.0, 1.0), distribution=Normal(0.5, 1.0))},
        {"a": [None, 1]},
        conditional(),
    ],
)
def test_bad_spaces(space):
    with pytest.raises(InputDataError):
        Parameters.of(space)


def test_a_configuration_space_is_read(parameters):
    made = [SPACE[name] for name in ("rate", "width", "size")]
    made += [Float("share", (0, 2)), Constant("version", 4), Integer("layers", (1, 8))]
    made += [Categorical("rule", SPACE["rule"]), Categorical("warm", [True, False])]
    space = ConfigurationSpace()
    space.add(*made)
    found = Parameters.of(space)
    assert sorted(found.parts, key=str) == sorted(parameters.parts, key=str)


def test_plain_data_and_back(parameters):
    assert Parameters.from_json(json.loads(json.dumps(asdict(parameters)))) == parameters


def test_words(parameters):
    assert str(parameters) == (
        "rate from 1e-05 to 0.1, logarithmic; share from 0 to 2; layers from 1 to 8; "
        "width from 1 to 1024, logarithmic; size in s < m < l; rule in adam, sgd, rms, 3; "
        "warm in True, False; version = 4"
    )


def test_draws_have_each_value_equally_often(parameters, generator):
    n = 4000
    unit = torch.rand(n, len(parameters.varying), dtype=torch.float64, generator=generator)
    rows = parameters.from_unit(unit)
    assert torch.equal(parameters.snap(rows), rows)
    found = pd.DataFrame([parameters.decode(row) for row in rows])
    for name, count in {"layers": 8, "size": 3, "rule": 4, "warm": 2}.items():
        share = 1 / count
        bound = 5 * math.sqrt(n * share * (1 - share))
        assert (found[name].value_counts() - n * share).abs().max() < bound, name
        assert found[name].nunique() == count
    # Half of the draws lie below the geometric mean of the bounds.
    assert abs((found.rate < 1e-3).mean() - 0.5) < 5 * 0.5 / math.sqrt(n)


def test_what_is_searched_is_what_is_encoded(parameters):
    searched = [[math.log(0.01), 1.25, 3, math.log(64), 1, 1, 1]]
    searched = torch.tensor(searched, dtype=torch.float64)
    assert torch.equal(parameters.expand(searched).squeeze(0), parameters.encode(VALUES))
    searched.requires_grad_()
    parameters.expand(searched).sum().backward()
    # The places of one-hot categories have no gradient.
    assert searched.grad.tolist() == [[1, 1, 1, 1, 1, 0, 1]]


def test_columns_in_single_precision_are_taken_and_others_refused(parameters):
    exact = parameters.encode(VALUES).unsqueeze(0)
    assert torch.allclose(parameters.snap(exact.float().double()), exact, rtol=1e-6, atol=0)
    for column, value in ((2, 3.4), (3, math.log(64.5)), (4, 0.5), (6, 0.7), (0, 0.0)):
        wrong = exact.clone()
        wrong[0, column] = value
        with pytest.raises(InputDataError):
            parameters.snap(wrong)
    two = exact.clone()
    two[0, 5] = 1.0
    with pytest.raises(InputDataError):
        parameters.snap(two)


def test_combinations_are_all_and_distinct():
    parameters = Parameters.of({"a": (1, 3), "b": ["x", "y", "z"], "c": [True, False], "d": 1})
    rows = parameters.combinations()
    assert len(rows) == parameters.count == 18
    assert len({tuple(parameters.decode(row).values()) for row in rows}) == 18
    with pytest.raises(InputDataError):
        Parameters.of({"x": (0.0, 1.0)}).combinations()


def test_columns_of_a_table_say_what_they_are():
    table = pd.DataFrame({"price": [1, 5], "weight": [0.5, 0.25], "color": ["red", "blue"]})
    assert Parameters.of_table(table).parts == (
        Number("price", 1, 5, is_integer=True),
        Number("weight", 0.25, 0.5),
        Category("color", ("red", "blue")),
    )


def test_bounds_of_two_types_are_floats():
    for bounds in ((0, 1.5), (0.0, 1), (0.5, 3)):
        [part] = Parameters.of({"a": bounds}).parts
        assert (part.lower, part.upper, part.is_integer) == (*bounds, False)


def test_a_logarithm_has_no_slack_at_zero():
    parameters = Parameters.of({"a": Float("a", (1e-8, 1.0), log=True)})
    for value in (0.0, -1e-7, 1e-12, 0.9e-8):
        with pytest.raises(InputDataError):
            parameters.encode({"a": value})
    assert parameters.decode(parameters.encode({"a": 1e-8})) == {"a": 1e-8}


def test_weights_and_values_of_the_same_text_are_refused():
    with pytest.raises(InputDataError):
        Parameters.of({"a": Categorical("a", ["x", "y"], weights=[0.9, 0.1])})
    with pytest.raises(InputDataError):
        Parameters.of({"a": ["1", 1]})


def test_an_ordered_column_of_a_table():
    sizes = pd.Categorical(["s", "l"], categories=["s", "m", "l"], ordered=True)
    [part] = Parameters.of_table(pd.DataFrame({"size": sizes})).parts
    assert part == Category("size", ("s", "m", "l"), is_ordered=True)


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame({0: [1, 2]}),
        pd.DataFrame([[1, 2]], columns=["a", "a"]),
        pd.DataFrame({"a": ["x"]}),
    ],
)
def test_bad_tables(table):
    with pytest.raises(InputDataError):
        Parameters.of_table(table)


@pytest.mark.parametrize("column", [[1.0, math.nan], ["x", None]])
def test_a_table_with_an_empty_cell_is_refused_by_its_column(column):
    with pytest.raises(InputDataError, match="weight"):
        Parameters.of_table(pd.DataFrame({"price": [1, 5], "weight": column}))


@pytest.mark.parametrize("bounds", [(0.0, 1e-30), (0.0, 1e-9 / 3)])
def test_bounds_are_not_rounded(bounds):
    optimizer = recipes.random_search(bounds={"x": bounds})
    for end in bounds:
        assert optimizer.attach({"x": end}, t=1.0).parameters == {"x": end}
