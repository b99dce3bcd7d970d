"""Sets of actions: what they hold, give out and refuse."""

import math

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError

from tvbo import recipes
from tvbo.spaces import Box, FiniteSpace, MixedSpace
from tvbo.spaces.search_space import make_search_space

MIXED = {"x": (-1.0, 1.0), "n": (1, 6), "kind": ["a", "b", "c"], "flag": [True, False]}


def test_the_space_fits_the_types():
    assert isinstance(make_search_space({"x": (0.0, 1.0), "k": 3}, None), Box)
    assert isinstance(make_search_space(MIXED, None), MixedSpace)
    finite = make_search_space({"n": (1, 6), "kind": ["a", "b", "c"]}, None)
    assert isinstance(finite, FiniteSpace)
    assert len(finite.choices) == 18
    assert isinstance(make_search_space({"n": (1, 2000), "kind": ["a", "b"]}, None), MixedSpace)
    named = make_search_space(None, {"arm": ["a", "b", "c"]})
    assert isinstance(named, FiniteSpace)
    assert named.parameters.names == ["arm"]
    for bounds, choices in ((None, MIXED), (None, None), ([(0, 1)], [[0.0]])):
        with pytest.raises((ValueError, InputDataError)):
            make_search_space(bounds, choices)


@pytest.mark.parametrize(
    "space",
    [
        Box(torch.tensor([[0.0, 5.0], [1.0, 6.0]])),
        FiniteSpace(torch.eye(3)),
        make_search_space(MIXED, None),
    ],
)
def test_samples_lie_in_the_space_and_are_copies(space, generator):
    for _ in range(5):
        X = space.sample(generator)
        assert torch.equal(space.snap(X), X)
        X.mul_(100)
        with pytest.raises(InputDataError):
            space.snap(X + 1)


def test_single_precision_is_undone():
    """torch's default is float32: what a user writes as 0.1 must be found again."""
    choices = FiniteSpace(torch.tensor([[0.1], [0.2]]))
    assert choices.snap(torch.tensor([[0.1]], dtype=torch.float64)).item() == choices.choices[0, 0]
    box = Box(torch.tensor([[0.0], [0.7]]))
    assert box.snap(torch.tensor([[0.7]], dtype=torch.float64)).item() == box.bounds[1, 0]


def test_actions_outside():
    box = Box(torch.tensor([[0.0], [1.0]]))
    with pytest.raises(InputDataError, match=r"\[1.5\]"):
        box.snap(torch.tensor([[0.5], [1.5]], dtype=torch.float64))
    with pytest.raises(InputDataError, match=r"\[0.5\]"):
        FiniteSpace(torch.tensor([[0.0], [1.0]])).snap(torch.tensor([[0.5]], dtype=torch.float64))
    with pytest.raises(BotorchTensorDimensionError):
        box.snap(torch.zeros(1, 2))


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
    optimizer = recipes.random_search(bounds=bounds, context_bounds=bounds)
    for found in (optimizer.search_space.bounds, optimizer.contexts.bounds):
        assert found.dtype == torch.float64
        assert found.tolist() == expected


@pytest.mark.parametrize("name", ["action", "context"])
def test_two_pairs_that_may_be_meant_either_way_are_refused(name):
    with pytest.raises(InputDataError) as refusal:
        Box([(0, 1), (10, 20)], name=name)
    for reading in (PAIRS, [[0.0, 1.0], [10.0, 20.0]]):
        assert f"torch.tensor({reading}" in str(refusal.value)


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
        (torch.tensor([[1.0], [0.0]]), InputDataError),
        (torch.tensor([[0.0], [math.inf]]), InputDataError),
    ],
)
def test_bad_bounds(bounds, error):
    with pytest.raises(error):
        recipes.tv_gp_ucb(bounds=bounds)


@pytest.mark.parametrize(
    ("choices", "error"),
    [
        (torch.zeros(3), BotorchTensorDimensionError),
        (torch.zeros(0, 2), BotorchTensorDimensionError),
        (torch.zeros(2, 2), InputDataError),
        (torch.tensor([[math.nan]]), InputDataError),
    ],
)
def test_bad_choices(choices, error):
    with pytest.raises(error):
        recipes.tv_gp_ucb(choices=choices)
