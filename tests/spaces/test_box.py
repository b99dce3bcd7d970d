import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError

from tvbo.models import TimeVaryingGP
from tvbo.spaces import AskContext, Box, FiniteSpace, InputLayout, make_search_space
from tvbo.spaces.base import EVALUATION_CHUNK
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


def test_box_finds_the_maximum_at_the_present_time(acquisition, ask_context, generator):
    box = Box(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    found = box.maximize(acquisition, ask_context, generator)
    side = torch.linspace(0, 1, 60, dtype=torch.float64)
    grid = ask_context.rows(torch.cartesian_prod(side, side)).unsqueeze(-2)
    with torch.no_grad():
        assert acquisition(ask_context.rows(found)) >= acquisition(grid).max() - 1e-4
    assert torch.equal(box.snap(found), found)


def test_choices_find_the_maximum_over_all_chunks(acquisition, ask_context, generator):
    points = torch.rand(EVALUATION_CHUNK + 100, 2, generator=generator, dtype=torch.float64)
    found = FiniteSpace(points).maximize(acquisition, ask_context, generator)
    with torch.no_grad():
        values = acquisition(ask_context.rows(points).unsqueeze(-2))
    assert torch.equal(found[0], points[values.argmax()])


@pytest.mark.parametrize("chunk", [1, 7, 30, 1000])
def test_choices_are_evaluated_in_chunks(acquisition, ask_context, generator, chunk):
    points = torch.rand(30, 2, generator=generator, dtype=torch.float64)
    sizes = []

    def counted(X):
        sizes.append(len(X))
        return acquisition(X)

    found = FiniteSpace(points, chunk=chunk).maximize(counted, ask_context, generator)
    assert sizes == [chunk] * (30 // chunk) + [30 % chunk] * (30 % chunk > 0)
    with torch.no_grad():
        values = acquisition(ask_context.rows(points).unsqueeze(-2))
    assert torch.equal(found[0], points[values.argmax()])


def test_ties_are_broken_at_random_and_repeatably(ask_context):
    choices = FiniteSpace(torch.arange(40.0).unsqueeze(-1))
    flat = AskContext(1, 1.0, None, InputLayout(1), ask_context.observations)

    def first(seed):
        return choices.maximize(
            lambda X: torch.zeros(len(X)), flat, torch.Generator().manual_seed(seed)
        ).item()

    assert first(0) == first(0)
    assert len({first(seed) for seed in range(10)}) > 3


def test_samples_lie_in_the_domain(generator):
    for search_space in (Box(torch.tensor([[0.0, 5.0], [1.0, 6.0]])), FiniteSpace(torch.eye(3))):
        for _ in range(5):
            X = search_space.sample(generator)
            assert torch.equal(search_space.snap(X), X)


def test_index_of_choices():
    choices = FiniteSpace(torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
    assert choices.index(torch.tensor([[2.0, 3.0], [0.0, 1.0]], dtype=torch.float64)).tolist() == [
        1,
        0,
    ]


@pytest.mark.parametrize(
    ("bounds", "error"),
    [
        ([0.0, 1.0], BotorchTensorDimensionError),
        ([[0.0], [1.0], [2.0]], BotorchTensorDimensionError),
        ([[1.0], [0.0]], InputDataError),
        ([[0.0], [float("inf")]], InputDataError),
    ],
)
def test_bad_bounds(bounds, error):
    with pytest.raises(error):
        Box(torch.tensor(bounds))


@pytest.mark.parametrize(
    ("choices", "error"),
    [
        (torch.zeros(3), BotorchTensorDimensionError),
        (torch.zeros(0, 2), BotorchTensorDimensionError),
        (torch.zeros(2, 2), InputDataError),
        (torch.tensor([[float("nan")]]), InputDataError),
    ],
)
def test_bad_choices(choices, error):
    with pytest.raises(error):
        FiniteSpace(choices)


def test_actions_outside():
    box = Box(torch.tensor([[0.0], [1.0]]))
    with pytest.raises(InputDataError, match=r"\[1.5\]"):
        box.snap(torch.tensor([[0.5], [1.5]], dtype=torch.float64))
    with pytest.raises(InputDataError, match=r"\[0.5\]"):
        FiniteSpace(torch.tensor([[0.0], [1.0]])).snap(torch.tensor([[0.5]], dtype=torch.float64))
    with pytest.raises(BotorchTensorDimensionError):
        box.snap(torch.zeros(1, 2))


def test_single_precision_is_undone():
    """torch's default is float32: what a user writes as 0.1 must be found again."""
    choices = FiniteSpace(torch.tensor([[0.1], [0.2]]))
    assert choices.snap(torch.tensor([[0.1]], dtype=torch.float64)).item() == choices.choices[0, 0]
    box = Box(torch.tensor([[0.0], [0.7]]))
    assert box.snap(torch.tensor([[0.7]], dtype=torch.float64)).item() == box.bounds[1, 0]


def test_actions_given_out_are_copies(generator, ask_context):
    given = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    choices = FiniteSpace(given)
    choices.sample(generator).mul_(100)
    flat = AskContext(1, 1.0, None, InputLayout(1), ask_context.observations)
    choices.maximize(lambda X: torch.zeros(len(X)), flat, generator).mul_(100)
    given.mul_(100)
    assert choices.choices.flatten().tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (ValueError, lambda: make_search_space(None, None)),
        (ValueError, lambda: make_search_space(torch.tensor([[0.0], [1.0]]), torch.zeros(1, 1))),
        (ValueError, lambda: FiniteSpace(torch.zeros(1, 1), chunk=0)),
    ],
)
def test_what_is_refused(error, call):
    with pytest.raises(error):
        call()
