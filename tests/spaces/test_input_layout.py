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
    with pytest.raises(ValueError):
        split_context(context, time, 4)


@pytest.mark.parametrize(
    ("context", "time", "width"), [([], 3, 4), ([], None, 4), ([0, 1], 2, 3), ([0], None, 1)]
)
def test_there_is_a_context_and_an_action(context, time, width):
    with pytest.raises(BotorchTensorDimensionError):
        split_context(context, time, width)


@pytest.mark.parametrize(("context", "time"), [([4], None), ([-5], None), ([1], 4), ([1], -5)])
def test_context_and_time_are_columns(context, time):
    with pytest.raises(ValueError, match="4"):
        split_context(context, time, 4)


@pytest.mark.parametrize(("time", "expected"), [(-1, (2, [0, 1])), (0, (0, [1, 2]))])
def test_split_time(time, expected):
    assert split_time(time, 3) == expected


@pytest.mark.parametrize("context", [[7.0], [7.0, 8.0, 9.0], 7.0, []])
def test_context_has_the_width_declared(context):
    context = torch.tensor(context)
    for call in (
        lambda: InputLayout(2, 2).rows(X, 1.0, context),
        lambda: InputLayout(2, 2).fixed_features(1.0, context),
    ):
        with pytest.raises(BotorchTensorDimensionError):
            call()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_context_is_finite(bad):
    with pytest.raises(InputDataError):
        InputLayout(2, 2).rows(X, 1.0, torch.tensor([0.0, bad]))


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_forgetting_rate_is_a_share(bad):
    with pytest.raises(ValueError):
        check_forgetting_rate(bad)


def test_check_finite_names_the_first_place():
    with pytest.raises(InputDataError):
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
    ("bounds", "error"),
    [
        ([[0, 0], [1, 1]], InputDataError),
        ([[0], [1]], BotorchTensorDimensionError),
        ([[0, 0, 0], [1, 1, 1]], BotorchTensorDimensionError),
        ([[0, 1, 2]], BotorchTensorDimensionError),
        ([(1, 0), (3, 2)], InputDataError),
        ([(1, 0)], InputDataError),
        ([(0, math.nan)], InputDataError),
        ((0, 1), BotorchTensorDimensionError),
        ([(0, 1), (0,)], InputDataError),
        ([("a", "b")], InputDataError),
        ([(0, 10**400)], InputDataError),
        ([], BotorchTensorDimensionError),
        (torch.zeros(3, 2), BotorchTensorDimensionError),
    ],
)
def test_bad_bounds(bounds, error):
    with pytest.raises(error):
        recipes.tv_gp_ucb(bounds=bounds)


def test_context_bounds_may_be_constant():
    constant = [(1, 1), (0, 2)]
    assert ContextBounds(constant).bounds.tolist() == [[1.0, 0.0], [1.0, 2.0]]
    with pytest.raises(InputDataError):
        ContextBounds([(3, 0), (4, 1)])
    with pytest.raises(InputDataError):
        ContextBounds([(0, 0), (1, 1)])


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (BotorchTensorDimensionError, lambda: split_time(0, 1)),
        (ValueError, lambda: split_time(3, 3)),
        (BotorchTensorDimensionError, lambda: InputLayout(2, 2).rows(X, 1.0, torch.zeros(2, 2))),
        (BotorchTensorDimensionError, lambda: InputLayout(2, 2).rows(X, 1.0)),
        (BotorchTensorDimensionError, lambda: InputLayout(2, 2).fixed_features(1.0)),
        (BotorchTensorDimensionError, lambda: InputLayout(2).rows(X, 1.0, torch.zeros(1))),
        (BotorchTensorDimensionError, lambda: InputLayout(3).rows(X, 1.0)),
    ],
)
def test_what_is_refused(error, call):
    with pytest.raises(error):
        call()
