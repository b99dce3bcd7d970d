"""Multiplying actions and contexts by any number leaves the choices as they were."""

import math

import pytest
import torch
from botorch.acquisition import qLogNoisyExpectedImprovement
from gpytorch.kernels import RBFKernel

from tvbo import recipes
from tvbo.acquisition import EI, MaxMean
from tvbo.optimizers import RefitEvery

# Powers of two, so that multiplying rounds nothing.
RANGES = [[2.0**30] * 3, [2.0**-30, 2.0**30, 2.0**20]]


def kernel(sizes):
    made = RBFKernel(ard_num_dims=len(sizes)).double()
    made.lengthscale = 0.3 * torch.tensor(sizes, dtype=torch.float64)
    return made


def on_box(recipe, given=True, in_contexts=False, **options):
    def make(sizes):
        space = {"bounds": [(0.0, size) for size in sizes[:2]]}
        if given:
            space |= {"covar_module": kernel(sizes[:2]), "noise_variance": 0.01}
        if in_contexts:
            space["context_bounds"] = [(0.0, sizes[2])]
        if given and in_contexts == "modelled":
            space["covar_module"] = kernel(sizes)
        return recipe(**space, **options)

    return make


MAKERS = {
    "tv_gp_ucb": on_box(recipes.tv_gp_ucb, forgetting_rate=0.03),
    "default": on_box(recipes.tv_gp_ucb, given=False, initial=3),
    "default gp_ts": on_box(recipes.gp_ts, given=False, initial=3, forgetting_rate=None),
    "learned": on_box(recipes.gp_ucb, given=False, initial=3, refit=RefitEvery(4)),
    "gp_ts": on_box(recipes.gp_ts),
    "bpe_delay": on_box(recipes.bpe_delay, horizon=12),
    "EI": on_box(recipes.gp_ucb, acquisition=EI(MaxMean())),
    "qLogNEI": on_box(recipes.gp_ucb, acquisition=qLogNoisyExpectedImprovement),
    "constrained": on_box(
        recipes.tv_gp_ucb, forgetting_rate=0.03, constraints={"other": (None, 0.5)}
    ),
    "tv_cgp_ucb": on_box(recipes.tv_cgp_ucb, in_contexts="modelled", forgetting_rate=0.03),
    "learned, contexts": on_box(
        recipes.tv_cgp_ucb, given=False, in_contexts=True, initial=3, refit=RefitEvery(4)
    ),
}


def play(make, sizes, rounds):
    """Return the actions and the recommendation, in ranges."""
    optimizer, shares = make(sizes), []
    context = None
    for t in range(1, rounds + 1):
        if optimizer.contexts is not None:
            context = torch.tensor([(0.37 * t) % 1 * sizes[2]], dtype=torch.float64)
        trial = optimizer.ask(float(t), context)
        shares.append(trial.X[0] / torch.tensor(sizes[:2], dtype=torch.float64))
        value = math.exp(-4 * (shares[-1] - 0.4).square().sum().item())
        names = optimizer.labels.outcomes
        other = shares[-1][0].item()
        optimizer.tell(trial, dict(zip(names, (value, other), strict=True)) if names else value)
    if hasattr(optimizer, "recommend"):
        found = optimizer.recommend(context=context).X[0]
        shares.append(found / torch.tensor(sizes[:2], dtype=torch.float64))
    return torch.stack(shares)


@pytest.mark.slow_cases("constrained", "qLogNEI", "default gp_ts", "EI", "learned")
@pytest.mark.parametrize("name", MAKERS)
def test_choices_do_not_depend_on_the_range(name):
    expected = play(MAKERS[name], [1.0] * 3, 5)
    assert len(expected.unique(dim=0)) > 3
    for sizes in RANGES:
        found = play(MAKERS[name], sizes, 5)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_space_of_integers_and_categories_in_any_range():
    def chosen(size):
        space = {"x": (0.0, size), "n": (1, 500), "kind": ["a", "b", "c"]}
        optimizer = recipes.tv_gp_ucb(bounds=space, initial=3)
        for _ in range(6):
            trial = optimizer.ask()
            x, n, kind = trial.parameters.values()
            optimizer.tell(trial, -((x / size - 0.3) ** 2) - (n / 500) ** 2 + 0.1 * (kind == "b"))
        found = [trial_x / size for trial_x in optimizer.observations.X[:, 0].tolist()]
        return torch.tensor(found), optimizer.observations.X[:, 1:-1]

    expected = chosen(1.0)
    for size in (2.0**-30, 2.0**30):
        torch.testing.assert_close(chosen(size), expected, rtol=0, atol=1e-5)
