"""The first actions where hyperparameters are learned."""

from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo import recipes
from tvbo.acquisition import UCB, LogBeta
from tvbo.fit.model_fitter import ModelFitter
from tvbo.optim.space_filling import space_filling_action
from tvbo.optimizers import GPOptimizer, OutcomeModel
from tvbo.spaces import Box, FiniteSpace, InputLayout

BOX = {"bounds": torch.tensor([[0.0, -5.0], [1.0, 5.0]], dtype=torch.float64)}
ARMS = {"choices": torch.tensor([[0.0], [0.2], [0.4], [1.0]], dtype=torch.float64)}
CONTEXTS = {"context_bounds": torch.tensor([[0.0], [1.0]], dtype=torch.float64)}
LEARNING = {
    "tv_gp_ucb": (recipes.tv_gp_ucb, {}),
    "gp_ucb": (recipes.gp_ucb, {}),
    "r_gp_ucb": (recipes.r_gp_ucb, {"every": 100.0}),
    "gp_ts": (recipes.gp_ts, {}),
    "compressed_gp": (recipes.compressed_gp, {}),
    "tv_cgp_ucb": (recipes.tv_cgp_ucb, CONTEXTS),
    "cgp_ucb": (recipes.cgp_ucb, CONTEXTS),
}


def kernel() -> RBFKernel:
    made = RBFKernel().double()
    made.lengthscale = 0.3
    return made


def context_of(optimizer) -> torch.Tensor | None:
    return None if optimizer.contexts is None else torch.tensor([0.5], dtype=torch.float64)


def sobol(n: int, seed: int) -> torch.Tensor:
    """The points that an optimizer with this seed begins with."""
    box, none = Box(BOX["bounds"]), torch.empty(0, 2, dtype=torch.float64)
    return torch.cat([space_filling_action(box, none, i, seed) for i in range(1, n + 1)])


@pytest.mark.parametrize("name", list(LEARNING))
def test_every_recipe_that_learns_begins_with_the_same_points(name):
    recipe, options = LEARNING[name]
    optimizer = recipe(**BOX, **options, generator=5)
    X = torch.cat([optimizer.ask(t=1.0, context=context_of(optimizer)).X for _ in range(6)])
    assert torch.equal(X, sobol(6, 5))
    assert not torch.equal(X, sobol(6, 6))


def test_points_spread_over_the_box():
    """Of 8 points of a Sobol sequence, each eighth of each column has one."""
    X = sobol(8, 1)
    lower, upper = BOX["bounds"]
    cell = ((X - lower) / (upper - lower) * 8).long()
    for column in cell.T:
        assert column.sort().values.tolist() == list(range(8))


@pytest.mark.parametrize(
    ("given", "number"),
    [
        ({}, 10),  # two length-scales, ε, noise, mean
        ({"noise_variance": 0.1}, 8),
        ({"forgetting_rate": 0.1, "noise_variance": 0.1}, 6),
        ({"covar_module": kernel(), "noise_variance": 0.1}, 6),
        ({"covar_module": kernel(), "noise_variance": 0.1, "forgetting_rate": 0.1}, 0),
    ],
)
def test_as_many_as_the_first_fit_waits_for(given, number):
    assert recipes.tv_gp_ucb(**BOX, **given).initial == number


def attached(optimizer: GPOptimizer, n: int, told: bool = True) -> None:
    for i in range(n):
        trial = optimizer.attach(torch.tensor([0.1 * i, 0.0]), t=1.0)
        if told:
            optimizer.tell(trial, 0.1 * i)


@pytest.mark.parametrize("told", [True, False])
def test_attached_and_open_trials_count(told):
    optimizer = recipes.tv_gp_ucb(**BOX, generator=5)
    attached(optimizer, 8, told)
    first, second, third = (optimizer.ask(t=2.0).X for _ in range(3))
    assert torch.equal(torch.cat([first, second]), sobol(10, 5)[8:])
    assert not (third == sobol(11, 5)[10]).any()


def test_a_point_that_another_process_has_begun_is_left_out():
    """A trial of the host that is open at the point of the next number, though not under it."""
    optimizer = recipes.tv_gp_ucb(**BOX, generator=5)
    optimizer.attach(sobol(2, 5)[1] + 1e-12, t=1.0)
    X = torch.cat([optimizer.ask(t=1.0).X for _ in range(3)])
    assert torch.equal(X[1:], sobol(4, 5)[2:])
    assert (X[0] - sobol(2, 5)[1]).abs().max() > 1e-3


def test_a_lost_trial_does_not_count():
    optimizer = recipes.tv_gp_ucb(**BOX, generator=5)
    attached(optimizer, 9)
    trial = optimizer.ask(t=2.0)
    optimizer.fail(trial, "no power")
    again = optimizer.ask(t=3.0)
    assert torch.equal(torch.cat([trial.X, again.X]), sobol(11, 5)[9:])


def test_each_choice_is_tried_at_most_once_for_the_start():
    """Of few actions, the best soon gets most of the rounds, also before the first fit."""
    optimizer = recipes.tv_gp_ucb(**ARMS, generator=5)
    optimizer.tell(optimizer.attach(ARMS["choices"][1], t=1.0), 0.0)
    X = []
    for t in range(2, 8):
        trial = optimizer.ask(t=t)
        X.append(trial.X.item())
        optimizer.tell(trial, 1.0 if X[-1] == 1.0 else -1.0)
    assert optimizer.initial == 8
    assert sorted(X[:3]) == [0.0, 0.4, 1.0]
    assert X[3:] == [1.0, 1.0, 1.0]


def test_choices_are_those_nearest_to_points_that_spread():
    grid = torch.cartesian_prod(*2 * [torch.linspace(0, 1, 21, dtype=torch.float64)])
    points = sobol(8, 5) / torch.tensor([1.0, 10.0]) + torch.tensor([0.0, 0.5])
    for number, point in enumerate(points, start=1):
        X = space_filling_action(FiniteSpace(grid), grid[:0], number, 5)
        assert (X - point).abs().max() <= 0.025 + 1e-9


def test_the_model_is_there_from_the_first_ask_on():
    optimizer = recipes.tv_gp_ucb(**BOX)
    assert optimizer.model is None
    for t in range(1, 4):
        optimizer.tell(optimizer.ask(t=t), float(t))
        assert optimizer.model.forgetting_rate.item() == pytest.approx(0.05, rel=1e-6)


def test_a_loop_by_hand_has_no_start_unless_asked_for():
    def make(**options):
        search_space = Box(BOX["bounds"])
        fitter = ModelFitter(InputLayout(2), search_space.bounds)
        return GPOptimizer(
            search_space, [OutcomeModel(fitter)], UCB(LogBeta()), generator=5, **options
        )

    assert make().initial == 0
    optimizer = make(initial=2)
    X = torch.cat([optimizer.ask(t=1.0).X for _ in range(3)])
    assert torch.equal(X[:2], sobol(2, 5))
    assert not torch.equal(X[2:], sobol(3, 5)[2:])


@pytest.mark.parametrize("bad", [-1, 1.5])
def test_a_number_of_actions_that_is_none(bad):
    search_space = Box(BOX["bounds"])
    fitter = ModelFitter(InputLayout(2), search_space.bounds)
    with pytest.raises(ValueError, match=str(bad)):
        GPOptimizer(search_space, [OutcomeModel(fitter)], UCB(LogBeta()), initial=bad)
