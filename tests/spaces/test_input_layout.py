import math

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError

from tvbo import recipes
from tvbo.kernels.temporal import check_forgetting_rate
from tvbo.spaces import Box, ContextBounds, InputLayout, as_bounds
from tvbo.spaces.observations import check_finite, split_context, split_time

X = torch.tensor([[0.1, 0.2], [0.3, 0.4]], dtype=torch.float64)


def test_rows_are_action_context_time():
    layout = InputLayout(2, 2)
    rows = layout.rows(X, 3.5, torch.tensor([7.0, 8.0]))
    assert rows.tolist() == [[0.1, 0.2, 7, 8, 3.5], [0.3, 0.4, 7, 8, 3.5]]
    assert rows.dtype == torch.float64
    assert (layout.num_columns, layout.time_feature, layout.context_features) == (5, 4, [2, 3])
    batch = layout.rows(X.expand(3, 2, 2), 3.5, torch.tensor([[7.0, 8.0]]))
    assert torch.equal(batch, rows.expand(3, 2, 5))


def test_rows_without_context():
    assert InputLayout(2).rows(X, 1).tolist() == [[0.1, 0.2, 1], [0.3, 0.4, 1]]
    assert InputLayout(2).context_features == []


def test_fixed_features_are_those_of_the_rows():
    fixed = InputLayout(2, 2).fixed_features(3.5, torch.tensor([7.0, 8.0]))
    assert fixed == {2: 7.0, 3: 8.0, 4: 3.5}
    assert InputLayout(2).fixed_features(3.5) == {2: 3.5}


@pytest.mark.parametrize(
    ("context", "time", "expected"),
    [
        ([2], 3, ([0, 1], [2], 3)),
        ([2], None, ([0, 1, 3], [2], None)),
        ([-1], 0, ([1, 2], [3], 0)),
        ([3, 1], -4, ([2], [3, 1], 0)),
        (range(1, 3), -1, ([0], [1, 2], 3)),
        ([0], None, ([1, 2, 3], [0], None)),
    ],
)
def test_split_context(context, time, expected):
    assert split_context(context, time, 4) == expected


@pytest.mark.parametrize(("context", "time"), [([2], 2), ([3], -1), ([1, 1], None), ([1, -3], 0)])
def test_context_and_time_are_different_columns(context, time):
    with pytest.raises(ValueError, match="to be different columns. Got context_features=.* of 4"):
        split_context(context, time, 4)


@pytest.mark.parametrize(
    ("context", "time", "width"), [([], 3, 4), ([], None, 4), ([0, 1], 2, 3), ([0], None, 1)]
)
def test_there_is_a_context_and_an_action(context, time, width):
    with pytest.raises(BotorchTensorDimensionError, match="at least one context column and one"):
        split_context(context, time, width)


@pytest.mark.parametrize(("context", "time"), [([4], None), ([-5], None), ([1], 4), ([1], -5)])
def test_context_and_time_are_columns(context, time):
    with pytest.raises(ValueError, match="4"):
        split_context(context, time, 4)


@pytest.mark.parametrize(("time", "expected"), [(-1, (2, [0, 1])), (0, (0, [1, 2]))])
def test_split_time(time, expected):
    assert split_time(time, 3) == expected


def test_time_is_a_column_beside_others():
    with pytest.raises(BotorchTensorDimensionError, match="at least one other column. Got 1"):
        split_time(0, 1)
    with pytest.raises(ValueError, match="3"):
        split_time(3, 3)


@pytest.mark.parametrize("context", [[7.0], [7.0, 8.0, 9.0], 7.0, []])
def test_context_has_the_width_declared(context):
    context = torch.tensor(context)
    for call in (
        lambda: InputLayout(2, 2).rows(X, 1.0, context),
        lambda: InputLayout(2, 2).fixed_features(1.0, context),
    ):
        with pytest.raises(
            BotorchTensorDimensionError, match="Expected context with last dimension 2. Got"
        ):
            call()


def test_one_context_for_all_rows():
    with pytest.raises(BotorchTensorDimensionError, match="Expected .*context.*Got"):
        InputLayout(2, 2).rows(X, 1.0, torch.zeros(2, 2))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_context_is_finite(bad):
    with pytest.raises(InputDataError, match=r"Expected finite context. Got .* at index \(1,\)"):
        InputLayout(2, 2).rows(X, 1.0, torch.tensor([0.0, bad]))


def test_context_is_given_where_and_only_where_declared():
    with pytest.raises(BotorchTensorDimensionError, match="2 context columns; got no context"):
        InputLayout(2, 2).rows(X, 1.0)
    with pytest.raises(BotorchTensorDimensionError, match="2 context columns; got no context"):
        InputLayout(2, 2).fixed_features(1.0)
    with pytest.raises(BotorchTensorDimensionError, match="declared without context"):
        InputLayout(2).rows(X, 1.0, torch.zeros(1))


def test_actions_have_the_width_declared():
    with pytest.raises(BotorchTensorDimensionError, match="Expected X with last dimension 3. Got"):
        InputLayout(3).rows(X, 1.0)


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_forgetting_rate_is_a_share(bad):
    with pytest.raises(ValueError, match=r"Expected forgetting_rate in \[0, 1\]. Got"):
        check_forgetting_rate(bad)


def test_check_finite_names_the_first_place():
    with pytest.raises(InputDataError, match=r"Expected finite x. Got nan at index \(1, 0\)"):
        check_finite("x", torch.tensor([[0.0, 1.0], [float("nan"), float("inf")]]))
    check_finite("x", torch.zeros(0, 3))


PAIRS = [[0.0, 10.0], [1.0, 20.0]]
"""Two pairs, (0, 1) and (10, 20), as BoTorch writes them."""


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ([(0.1, 1)], [[0.1], [1.0]]),
        ([(0, 1), (0, 1)], [[0.0, 0.0], [1.0, 1.0]]),
        ((([0, 1]), np.array([-3, 5])), [[0.0, -3.0], [1.0, 5.0]]),
        ([(0, 1), (2, 3), (4, 5)], [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]),
        # Both readings are the same.
        ([(0, 1), (1, 2)], [[0.0, 1.0], [1.0, 2.0]]),
        (torch.tensor(PAIRS), PAIRS),
        (np.array(PAIRS), PAIRS),
    ],
)
def test_bounds_of_a_list_are_pairs_and_those_of_a_tensor_2_x_d(bounds, expected):
    for found in (as_bounds("bounds", bounds), Box(bounds).bounds, ContextBounds(bounds).bounds):
        assert found.dtype == torch.float64
        assert found.tolist() == expected
    optimizer = recipes.random_search(bounds=bounds, context_bounds=bounds)
    assert optimizer.search_space.bounds.tolist() == optimizer.contexts.bounds.tolist() == expected


def test_bounds_are_a_copy():
    bounds = torch.tensor(PAIRS, dtype=torch.float64)
    as_bounds("bounds", bounds)[0, 0] = 7.0
    assert bounds.tolist() == PAIRS


@pytest.mark.parametrize("make", [Box, ContextBounds])
def test_two_pairs_that_may_be_meant_either_way_are_refused(make):
    with pytest.raises(InputDataError) as refusal:
        make([(0, 1), (10, 20)])
    message = str(refusal.value)
    assert (
        "x1 in [0, 1], x2 in [10, 20], which is torch.tensor([[0.0, 10.0], [1.0, 20.0]]" in message
    )
    assert (
        "x1 in [0, 10], x2 in [1, 20], which is torch.tensor([[0.0, 1.0], [10.0, 20.0]]" in message
    )


@pytest.mark.parametrize(
    ("bounds", "error", "message"),
    [
        ([[0, 0], [1, 1]], InputDataError, r"write torch.tensor\(\[\[0.0, 0.0\], \[1.0, 1.0\]\]"),
        ([[0], [1]], BotorchTensorDimensionError, r"2 x d tensor, write .*\[\[0.0\], \[1.0\]\]"),
        ([[0, 0, 0], [1, 1, 1]], BotorchTensorDimensionError, "of shape .2, 3.. For a 2 x d"),
        ([[0, 1, 2]], BotorchTensorDimensionError, "of shape .1, 3..$"),
        ([(1, 0), (3, 2)], InputDataError, "a pair is not in order"),
        ([(1, 0)], InputDataError, "lower bounds below upper bounds"),
        ([(0, math.nan)], InputDataError, "finite bounds"),
        ((0, 1), BotorchTensorDimensionError, r"pairs \(lower, upper\)"),
        ([(0, 1), (0,)], InputDataError, "bounds"),
        ([("a", "b")], InputDataError, "'a'"),
        ([(0, 10**400)], InputDataError, "bounds"),
        ([], BotorchTensorDimensionError, "list of d pairs"),
        (torch.zeros(3, 2), BotorchTensorDimensionError, r"bounds.shape=\(3, 2\)"),
    ],
)
def test_bad_bounds(bounds, error, message):
    with pytest.raises(error, match=message):
        recipes.tv_gp_ucb(bounds=bounds)


def test_context_bounds_may_be_constant():
    constant = [(1, 1), (0, 2)]
    assert ContextBounds(constant).bounds.tolist() == [[1.0, 0.0], [1.0, 2.0]]
    with pytest.raises(InputDataError, match="a pair is not in order"):
        ContextBounds([(3, 0), (4, 1)])
    with pytest.raises(InputDataError, match="x1 in .0, 0., x2 in .1, 1..* x1 in .0, 1., x2 in .0"):
        ContextBounds([(0, 0), (1, 1)])
