"""The maximum of an acquisition function over a box and over a finite set."""

import pytest
import torch
from botorch.acquisition import UpperConfidenceBound

from tvbo.models import TimeVaryingGP
from tvbo.optim.maximize import maximize
from tvbo.spaces import AskContext, Box, FiniteSpace, InputLayout
from tvbo.spaces.observations import Observations


@pytest.fixture
def observations(generator):
    X = torch.rand(10, 3, generator=generator, dtype=torch.float64)
    X[:, 2] = torch.arange(10)
    return Observations(X, torch.sin(5 * X[:, :1]))


@pytest.fixture
def acquisition(observations):
    model = TimeVaryingGP(
        observations.X, observations.Y, torch.full_like(observations.Y, 0.01), forgetting_rate=0.05
    )
    return UpperConfidenceBound(model, beta=1.0)


@pytest.fixture
def ask_context(observations):
    return AskContext(11, 11.0, None, InputLayout(2), observations)


def flat(X):
    return torch.zeros(len(X))


def test_box_finds_the_maximum_at_the_present_time(acquisition, ask_context, generator):
    box = Box(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    found = maximize(acquisition, box, ask_context, generator)
    side = torch.linspace(0, 1, 60, dtype=torch.float64)
    grid = ask_context.rows(torch.cartesian_prod(side, side)).unsqueeze(-2)
    with torch.no_grad():
        assert acquisition(ask_context.rows(found)) >= acquisition(grid).max() - 1e-4
    assert torch.equal(box.snap(found), found)


def test_a_finite_set_is_searched_as_a_whole(acquisition, ask_context, generator):
    points = torch.rand(1000, 2, generator=generator, dtype=torch.float64)
    found = maximize(acquisition, FiniteSpace(points), ask_context, generator)
    with torch.no_grad():
        values = acquisition(ask_context.rows(points).unsqueeze(-2))
    assert torch.equal(found[0], points[values.argmax()])


def test_ties_are_broken_at_random_and_repeatably(observations):
    choices = FiniteSpace(torch.arange(40.0).unsqueeze(-1))
    ask_context = AskContext(1, 1.0, None, InputLayout(1), observations)

    def first(seed):
        return maximize(flat, choices, ask_context, torch.Generator().manual_seed(seed)).item()

    assert first(0) == first(0)
    assert len({first(seed) for seed in range(10)}) > 3


def test_the_action_found_is_a_copy(generator, observations):
    choices = FiniteSpace(torch.tensor([[1.0], [2.0]]))
    ask_context = AskContext(1, 1.0, None, InputLayout(1), observations)
    maximize(flat, choices, ask_context, generator).mul_(100)
    assert choices.choices.flatten().tolist() == [1.0, 2.0]
