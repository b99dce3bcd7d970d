"""Contexts as declared, and what a loop does with those that are none of them."""

import math

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from reference import rbf

from tvbo import recipes
from tvbo.spaces import Box, FiniteSpace
from tvbo.spaces.search_space import make_search_space

CHOICES = torch.rand(7, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


BOUNDS = tensor([-1.0, 0.1], [2.0, 0.3])
LISTED = tensor([-1.0, 0.1], [0.0, 0.3], [2.0, 0.1])


def make(recipe=recipes.tv_cgp_ucb, **declared):
    options = {"forgetting_rate": 0.03}
    if recipe is recipes.tv_cgp_ucb:
        options |= {"action_kernel": rbf(0.5), "context_kernel": rbf(0.5)}
    else:
        options |= {"covar_module": rbf(0.5)}
    return recipe(choices=CHOICES, noise_variance=0.01, **options, **declared)


# What each kind refuses: context, error.
SAME = [
    (None, BotorchTensorDimensionError),
    (tensor(0.0), BotorchTensorDimensionError),
    (torch.tensor(0.1), BotorchTensorDimensionError),
    (tensor(0.0, 0.3, 0.0), BotorchTensorDimensionError),
    (LISTED[:2], BotorchTensorDimensionError),
    (tensor(0.0, math.nan), InputDataError),
    (tensor(-math.inf, 0.3), InputDataError),
]
OUTSIDE = {
    "list": [tensor(0.0, 0.1), tensor(1e-9, 0.3), tensor(2.0, 0.1 * (1 + 1e-5))],
    "bounds": [tensor(2.1, 0.2), tensor(-1.1, 0.2), tensor(0.0, 0.31), tensor(0.0, 0.3 + 1e-5)],
}
REFUSED = {
    kind: [*SAME, *((context, InputDataError) for context in contexts)]
    for kind, contexts in OUTSIDE.items()
}
DECLARED = {"list": {"contexts": LISTED}, "bounds": {"context_bounds": BOUNDS}}
CASES = [(kind, *case) for kind, cases in REFUSED.items() for case in cases]


@pytest.mark.parametrize(("kind", "context", "error"), CASES)
def test_a_context_that_is_none_of_those_declared(kind, context, error):
    with pytest.raises(error):
        make_search_space(
            DECLARED[kind].get("context_bounds"), DECLARED[kind].get("contexts"), "context"
        ).read(context)


@pytest.mark.parametrize("kind", ["list", "bounds"])
def test_a_refused_context_leaves_the_loop_as_it_was(kind):
    disturbed, twin = (make(**DECLARED[kind]) for _ in range(2))
    for step in range(1, 5):
        good = LISTED[step % 3]
        for context, error in REFUSED[kind]:
            with pytest.raises(error):
                disturbed.ask(t=100.0, context=context)
            with pytest.raises(error):
                disturbed.attach(CHOICES[0], t=100.0, context=context)
            with pytest.raises(error):
                disturbed.recommend(context=context, t=100.0)
            if context is not None and context.shape == (2,):
                with pytest.raises(error):
                    disturbed.policy(torch.stack([good, context]), t=100.0)
        assert disturbed.open_trials == ()
        mine, other = disturbed.ask(context=good), twin.ask(context=good)
        assert (mine.id, mine.t) == (other.id, other.t) == (step, float(step))
        assert torch.equal(mine.X, other.X)
        assert torch.equal(disturbed.generator.get_state(), twin.generator.get_state())
        for optimizer, trial in ((disturbed, mine), (twin, other)):
            optimizer.tell(trial, math.sin(5 * step))


@pytest.mark.parametrize("kind", ["list", "bounds"])
def test_single_precision_is_undone(kind):
    """0.1 and 0.3 in single precision lie above what they stand for."""
    optimizer = make(**DECLARED[kind])
    context = torch.tensor([0.0, 0.3], dtype=torch.float32)
    assert context[1].double() > 0.3
    trial = optimizer.ask(context=context)
    assert trial.context.dtype == torch.float64
    assert trial.context.tolist() == [0.0, 0.3]
    optimizer.tell(trial, 1.0)
    assert optimizer.observations.X[0, 2:4].tolist() == [0.0, 0.3]
    other = optimizer.attach(CHOICES[1], 1.0, context=torch.tensor([[2.0, 0.1]]))
    assert other.context.tolist()[0] == 2.0
    assert other.context[1].item() == pytest.approx(0.1, abs=1e-8)


@pytest.mark.parametrize("context", [0.3, [0.3], [[0.3]], torch.tensor(0.3), tensor([0.3])])
@pytest.mark.parametrize(
    "contexts",
    [FiniteSpace(tensor([0.3], [0.7]), name="context"), Box(tensor([0.1], [0.3]), name="context")],
)
def test_one_number_where_there_is_one_context_column(contexts, context):
    assert contexts.dim == 1
    assert contexts.read(context).tolist() == [[0.3]]


def test_the_callers_tensors_may_change():
    bounds, listed, context = BOUNDS.clone(), LISTED.clone(), LISTED[1].clone()
    for optimizer in (make(context_bounds=bounds), make(contexts=listed)):
        trial = optimizer.ask(context=context)
        bounds.zero_()
        listed.zero_()
        context.fill_(9.0)
        assert trial.context.tolist() == [0.0, 0.3]
        assert optimizer.ask(context=LISTED[0]).context.tolist() == [-1.0, 0.1]
        context.copy_(LISTED[1])
        listed.copy_(LISTED)


@pytest.mark.parametrize("recipe", [recipes.tv_gp_ucb, recipes.random_search])
def test_a_context_though_none_was_declared(recipe):
    known = {"covar_module": rbf(0.5), "forgetting_rate": 0.0, "noise_variance": 0.1}
    optimizer = recipe(choices=CHOICES, **(known if recipe is recipes.tv_gp_ucb else {}))
    for refused in (
        lambda: optimizer.ask(context=tensor(0.0)),
        lambda: optimizer.attach(CHOICES[0], 1.0, context=tensor(0.0)),
    ):
        with pytest.raises(BotorchTensorDimensionError):
            refused()
    if recipe is recipes.tv_gp_ucb:
        for refused in (
            lambda: optimizer.recommend(context=tensor(0.0), t=1.0),
            lambda: optimizer.policy(tensor([0.0]), t=1.0),
        ):
            with pytest.raises(BotorchTensorDimensionError):
                refused()
    assert optimizer.open_trials == ()


def test_a_column_whose_context_is_constant():
    bounds = tensor([0.0, 4.0], [1.0, 4.0])
    assert Box(bounds, name="context").read(torch.tensor([0.5, 4.0])).tolist() == [[0.5, 4.0]]
    with pytest.raises(InputDataError):
        Box(bounds, name="context").read(tensor(0.5, 4.1))
    # Default kernels, on which the column is scaled: no division by zero.
    for actions in ({"choices": CHOICES}, {"bounds": tensor([0.0], [1.0])}):
        optimizer = recipes.cgp_ucb(**actions, context_bounds=bounds)
        for i in range(3):
            optimizer.tell(optimizer.ask(context=tensor(i / 3, 4.0)), i / 2)
        best = optimizer.recommend(context=tensor(0.5, 4.0))
        assert math.isfinite(best.mean)
        assert best.standard_deviation > 0


@pytest.mark.parametrize(
    ("make_declared", "error"),
    [
        (lambda: Box(tensor(0.0, 1.0), name="context"), BotorchTensorDimensionError),
        (lambda: Box(torch.zeros(3, 1), name="context"), BotorchTensorDimensionError),
        (lambda: Box(torch.zeros(2, 0), name="context"), BotorchTensorDimensionError),
        (lambda: Box(tensor([0.0], [math.nan]), name="context"), InputDataError),
        (lambda: Box(tensor([0.0], [math.inf]), name="context"), InputDataError),
        (lambda: Box(tensor([1.0], [0.0]), name="context"), InputDataError),
        (lambda: FiniteSpace(tensor(0.0, 1.0), name="context"), BotorchTensorDimensionError),
        (lambda: FiniteSpace(torch.zeros(0, 2), name="context"), BotorchTensorDimensionError),
        (lambda: FiniteSpace(torch.zeros(2, 0), name="context"), BotorchTensorDimensionError),
        (lambda: FiniteSpace(tensor([math.nan]), name="context"), InputDataError),
        (
            lambda: FiniteSpace(tensor([1.0, 2.0], [0.0, 2.0], [1.0, 2.0]), name="context"),
            InputDataError,
        ),
        (lambda: make_search_space(BOUNDS, LISTED, "context"), ValueError),
        (lambda: make_search_space(None, None, "context"), ValueError),
    ],
)
def test_bad_declarations(make_declared, error):
    with pytest.raises(error):
        make_declared()


@pytest.mark.parametrize(
    "recipe",
    [recipes.cgp_ucb, recipes.tv_cgp_ucb, recipes.linear_ucb],
)
def test_every_recipe_wants_contexts_in_one_form(recipe):
    for declared, got in (
        ({}, "neither"),
        ({"contexts": LISTED, "context_bounds": BOUNDS}, "both"),
    ):
        with pytest.raises(ValueError, match=str(got)):
            recipe(choices=CHOICES, **declared)
