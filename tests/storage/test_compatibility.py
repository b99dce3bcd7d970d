"""A journal of another problem."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel

from tvbo import recipes
from tvbo.optimizers import Optimizer
from tvbo.optimizers.random_search import RandomSearch
from tvbo.spaces import FiniteSpace
from tvbo.storage import JournalError, compatibility
from tvbo.storage.state import State


def check_compatibility(recorded, given, path):
    compatibility.check_compatibility(State.of(recorded), State.of(given), path)


def test_each_setting_is_named(make_streaming, changed_settings, tmp_path):
    for make in changed_settings.values():
        with pytest.raises(JournalError):
            check_compatibility(make_streaming(), make(), tmp_path / "run.db")


def test_what_differs_is_shown(make_streaming, changed_settings, tmp_path):
    changed = changed_settings["posterior_state.fitter.noise_variance"]()
    with pytest.raises(JournalError):
        check_compatibility(make_streaming(), changed, tmp_path / "run.db")


def test_another_class(recorded, make_streaming):
    run = recorded(4)
    with pytest.raises(JournalError):
        Optimizer.open(run, like=make_streaming())


def test_another_domain(recorded):
    run = recorded(4)
    other = recipes.random_search(bounds=torch.tensor([[0.0], [2.0]]))
    with pytest.raises(JournalError):
        Optimizer.open(run, like=other)


def test_other_contexts(tmp_path):
    made = [
        recipes.linear_ucb(choices=[[0.0], [1.0]], contexts=torch.eye(n).double()) for n in (2, 3)
    ]
    with pytest.raises(JournalError):
        check_compatibility(*made, tmp_path / "run.db")


def test_what_was_asked_and_told_does_not_matter(make, play, tmp_path):
    one, two = make(), make()
    play(one, 7)
    torch.rand(3, generator=two.generator)
    check_compatibility(one, two, tmp_path / "run.db")


@pytest.mark.slow_cases("0.2")
@pytest.mark.parametrize("delta", [0.1, 0.2])
def test_what_was_planned_and_learned_does_not_matter(play, tmp_path, make_learning, delta):
    def made(delta=0.1):
        return recipes.bpe_delay(
            choices=torch.linspace(0, 1, 10).unsqueeze(-1),
            covar_module=MaternKernel(nu=2.5).double(),
            noise_variance=0.01,
            horizon=60,
            delta=delta,
        )

    begun, learned = made(), make_learning()
    play(begun, 50)
    play(learned, 16)
    assert learned.posterior_state.fitter.newest_fit is not None
    check_compatibility(learned, make_learning(), tmp_path / "run.db")
    if delta == 0.1:
        check_compatibility(begun, made(), tmp_path / "run.db")
    else:
        with pytest.raises(JournalError):
            check_compatibility(begun, made(delta), tmp_path / "run.db")


class Scaled:
    """A β of a user's, which keeps its argument to itself."""

    def __init__(self, scale):
        self._scale = scale
        self.calls = 0

    def __call__(self, t):
        self.calls += 1
        return 1.0


@pytest.mark.parametrize(
    ("one", "two", "alike"),
    [
        (1.0, 1.0, True),
        (1.0, 2.0, False),
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (np.array([1.0, math.nan]), np.array([1.0, math.nan]), True),
        (np.array([1.0, 2.0]), np.array([1.0, 3.0]), False),
        (np.array(["a"]), np.array(["a"]), True),
        ({1, 2}, {2, 1}, True),
        (torch.tensor([1, 2]), torch.tensor([1, 2]), True),
        # Equal sets, which are walked in another order.
        ({frozenset([0, 8]): 1.0}, {frozenset([8, 0]): 1.0}, True),
    ],
)
def test_arguments_of_a_class_of_ones_own(make_streaming, play, tmp_path, one, two, alike):
    recorded, given = make_streaming(beta=Scaled(one)), make_streaming(beta=Scaled(two))
    play(recorded, 3)
    if alike:
        check_compatibility(recorded, given, tmp_path / "run.db")
    else:
        with pytest.raises(JournalError):
            check_compatibility(recorded, given, tmp_path / "run.db")


@pytest.mark.parametrize(
    ("one", "two", "words"),
    [
        (1, 1.0, "it has 1, where 1.0"),
        ([1.0, "a"], (1.0, "a"), "it has list [1.0, 'a'], where tuple [1.0, 'a']"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "it has [1, 2], where [1, 3]"),
        (torch.zeros(0), torch.zeros(0, 1), "it has [], where []"),
        (torch.float32, torch.float64, "it has 'torch.float32', where 'torch.float64'"),
        (range(3), range(4), "[1]: it has 3, where 4"),
        (np.array(["a"]), np.array(["b"]), "it has array(['a'], dtype='<U1'), where array(['b']"),
        ({("a", 1): 1.0}, {("a", 1): 2.0}, "[tuple ['a', 1]]: it has 1.0, where 2.0"),
        (
            {frozenset([0, 8]): 1.0},
            {frozenset([8, 0]): 2.0},
            "[frozenset [0, 8]]: it has 1.0, wh",
        ),
        (
            {torch.float32: 1.0},
            {torch.float32: 2.0},
            "[dtype ['torch.float32']]: it has 1",
        ),
    ],
)
def test_what_differs_is_named_and_shown(make_streaming, tmp_path, one, two, words):
    recorded, given = make_streaming(beta=Scaled(one)), make_streaming(beta=Scaled(two))
    with pytest.raises(JournalError):
        check_compatibility(recorded, given, tmp_path / "run.db")


def test_of_another_class_nothing_else_is_compared(make_random, make_streaming):
    states = State.of(make_random()), State.of(make_streaming())
    assert list(compatibility.differences(*states)) == [("class", "RandomSearch", "GPOptimizer")]


def test_a_module_is_compared_beyond_its_state(tmp_path):
    made = [
        recipes.tv_gp_ucb(
            choices=[[0.0], [1.0]],
            covar_module=MaternKernel(nu=nu).double(),
            forgetting_rate=0.1,
            noise_variance=0.1,
        )
        for nu in (1.5, 2.5)
    ]
    with pytest.raises(JournalError):
        check_compatibility(*made, tmp_path / "run.db")


def test_the_chunks_of_a_domain_are_a_setting(tmp_path):
    choices = torch.tensor([[0.0], [1.0]])
    made = [RandomSearch(FiniteSpace(choices, chunk=chunk)) for chunk in (1, 2)]
    with pytest.raises(JournalError, match="search_space.chunk"):
        check_compatibility(*made, tmp_path / "run.db")
