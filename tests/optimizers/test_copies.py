"""What a caller does to tensors and modules, given or received, changes no optimizer."""

import pandas as pd
import pytest
import torch
from gpytorch.kernels import RBFKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean

from tvbo import recipes
from tvbo.evaluation import run
from tvbo.kernels import TemporalDecayKernel
from tvbo.optimizers import Optimizer, RefitEvery

GRID = torch.cartesian_prod(*[torch.linspace(0, 1, 4, dtype=torch.float64)] * 2)
LISTED = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
HORIZON = 6


def kernel(made=None):
    made = RBFKernel() if made is None else made
    made.lengthscale = 0.3
    return made.double().requires_grad_(False)


def given(**options):
    parts = {"covar_module": kernel(), "forgetting_rate": 0.1, "noise_variance": 0.01}
    return {"choices": GRID.clone()} | parts | options


def with_contexts(**options):
    return {"contexts": LISTED.clone()} | given(**options)


LOOPS = {
    "box": lambda: recipes.tv_gp_ucb(**given(choices=None, bounds=[(0.0, 1.0)] * 3)),
    "finite": lambda: recipes.tv_gp_ucb(**given()),
    "learned": lambda: recipes.tv_gp_ucb(choices=GRID.clone(), initial=2),
    "named": lambda: recipes.tv_gp_ucb(
        **given(choices=None, bounds={"x": (0.0, 1.0), "n": [1, 2]})
    ),
    "several": lambda: recipes.tv_gp_ucb(**given(objectives=["outcome", "load"])),
    "contexts": lambda: recipes.tv_cgp_ucb(**with_contexts()),
    "bpe": lambda: recipes.bpe_delay(
        choices=GRID.clone(), covar_module=kernel(), noise_variance=0.01, horizon=HORIZON
    ),
    "random_search": lambda: recipes.random_search(bounds=[(0.0, 1.0)] * 3),
}


def outcome(trial):
    Y = -((trial.X[0, 0] - 0.4) ** 2).item() + (0 if trial.context is None else trial.context.sum())
    return {"outcome": Y, "load": 1 - Y} if trial.labels.outcomes else Y


def played(optimizer, objective=outcome):
    contexts = None if optimizer.contexts is None else LISTED.repeat(HORIZON // 2, 1)
    return run(objective, optimizer, horizon=HORIZON, contexts=contexts, progress=False)


@pytest.mark.parametrize("make", LOOPS.values(), ids=LOOPS)
def test_an_objective_that_works_in_place_is_told_at_what_was_asked(make, tmp_path):
    def in_place(trial):
        Y, seen = outcome(trial), [trial.X, *([] if trial.context is None else [trial.context])]
        for each in seen:
            numbers = each.numpy()
            numbers *= 100
        return Y

    optimizer, path = make(), tmp_path / "run.db"
    optimizer.record(path)
    history = played(optimizer, in_place)
    optimizer.close()
    expected = played(make())
    assert torch.equal(history.X, expected.X)
    with Optimizer.open(path, like=make()) as again:
        assert again.num_trials == HORIZON


GIVEN = {
    "covar_module": (lambda: kernel(), lambda k: setattr(k, "lengthscale", 9.0)),
    "mean_module": (
        lambda: ConstantMean().double().requires_grad_(False),
        lambda mean: mean.initialize(constant=9.0),
    ),
    "likelihood": (
        lambda: GaussianLikelihood().double().requires_grad_(False),
        lambda likelihood: likelihood.initialize(noise=9.0),
    ),
    "temporal_kernel": (
        lambda: TemporalDecayKernel().double().requires_grad_(False),
        lambda k: setattr(k, "forgetting_rate", 0.9),
    ),
    "forgetting_rate": (lambda: torch.tensor(0.1), lambda rate: rate.fill_(0.9)),
    "noise_variance": (lambda: torch.tensor(0.01), lambda noise: noise.fill_(9.0)),
    "choices": (lambda: GRID.clone(), lambda choices: choices.mul_(9.0)),
    "bounds": (lambda: torch.tensor([[0.0], [1.0]]), lambda bounds: bounds.mul_(9.0)),
    "contexts": (lambda: LISTED.clone(), lambda contexts: contexts.mul_(9.0)),
}


@pytest.mark.parametrize("option", GIVEN)
def test_what_was_given_may_change_afterwards(option):
    make, change = GIVEN[option]
    instead = {
        "temporal_kernel": {"forgetting_rate": None},
        "likelihood": {"noise_variance": None, "refit": RefitEvery(9)},
        "bounds": {"choices": None},
    }
    options = with_contexts(**instead.get(option, {}))
    part = make()
    optimizer = recipes.tv_cgp_ucb(**options | {option: part})
    expected = recipes.tv_cgp_ucb(**options | {option: make()})
    change(part)
    assert torch.equal(played(optimizer).X, played(expected).X)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"choices": None, "bounds": [(0.0, 1.0)] * 2}])
def test_what_was_passed_and_received_may_change_afterwards(options):
    def recommended(disturbed):
        optimizer = recipes.tv_cgp_ucb(**with_contexts(**options))

        def disturb(*tensors):
            for each in tensors if disturbed else ():
                each.numpy()[:] = 7.0

        for t in range(4):
            context = LISTED[t % 2].clone()
            Y, Yvar = torch.rand(2, 1, generator=generator, dtype=torch.float64).unbind()
            trial = optimizer.ask(float(t), context)
            disturb(trial.X, trial.context, *[each.X for each in optimizer.open_trials])
            optimizer.tell(trial, Y, Yvar)
            held = optimizer.observations
            disturb(context, Y, Yvar, held.X, held.Y, held.Yvar)
            space = optimizer.search_space
            disturb(space.bounds, optimizer.contexts.choices, optimizer.contexts.bounds)
            policy = optimizer.policy()
            disturb(policy.X, policy.mean, policy.contexts, policy[0].X, policy[0].context)
        return policy.to_frame()

    generator = torch.Generator().manual_seed(0)
    disturbed = recommended(True)
    generator.manual_seed(0)
    pd.testing.assert_frame_equal(disturbed, recommended(False))
