"""Outcomes in another unit: the same choices."""

import math
from functools import partial

import pytest
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.means import ConstantMean

from tvbo import recipes
from tvbo.acquisition import BestMean, LogEI
from tvbo.optimizers import ConstantLiar, RefitEvery
from tvbo.optimizers.bpe import SubExponentialDelay
from tvbo.retention import EventReset

EXPONENTS = [-30, 30]
"""Powers of two: scaling by them rounds nothing, so that all that follows must be the same."""

NOISE = 0.01
LATE = SubExponentialDelay.constant(2)
GENERATOR = torch.Generator().manual_seed(3)
CHOICES = torch.rand(30, 2, dtype=torch.float64, generator=GENERATOR)
SCATTER = 0.1 * torch.randn(64, dtype=torch.float64, generator=GENERATOR)
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
CONTEXTS = torch.tensor([[0.1], [0.5], [0.8]], dtype=torch.float64)


def kernel(scale):
    """Of variance ``scale`` squared, to the last bit."""
    scaled = ScaleKernel(
        MaternKernel(nu=2.5), outputscale_constraint=GreaterThan(0.0, transform=None)
    ).to(torch.float64)
    scaled.outputscale = scale**2
    scaled.base_kernel.lengthscale = 0.3
    scaled.raw_outputscale.requires_grad_(False)
    return scaled


def outcome(trial, scale):
    """A drifting function, other in each context, with scatter that is the same each time."""
    place = trial.X[0, 0] - 0.5 - 0.3 * math.sin(0.2 * trial.t)
    context = 0.0 if trial.context is None else trial.context.item()
    value = -3 * place**2 + 0.5 * torch.sin(5 * trial.X[0, 1] + 2 * context) + 0.3
    return scale * (value + SCATTER[trial.id]).item()


def play(optimizer, scale, rounds, at_once=1):
    """The actions asked for, with so many trials open at a time."""
    asked, waiting = [], []
    for i in range(rounds):
        context = None if optimizer.contexts is None else CONTEXTS[i % 3]
        trial = optimizer.ask(t=float(i), context=context)
        asked.append(trial.X)
        if not trial.skipped:
            waiting.append(trial)
        if len(waiting) >= at_once:
            told = waiting.pop(0)
            optimizer.tell(told, outcome(told, scale))
    return torch.cat(asked)


def given(recipe, *, at_once=1, **options):
    """A recipe with everything given, in the unit of the outcomes."""

    def make(scale, **search_space):
        known = {"covar_module": kernel(scale), "noise_variance": NOISE * scale**2}
        own = {name: part(scale) if callable(part) else part for name, part in options.items()}
        return recipe(**search_space, **{**known, **own})

    return make, at_once


def of(scale_free):
    """What does not depend on the scale, where a function of the scale would be called."""
    return lambda scale: scale_free


drifting = partial(given, recipes.tv_gp_ucb, forgetting_rate=0.05)
compressed = partial(given, recipes.compressed_gp, budget=1e-4, mode="discard")

LOOPS = {
    "tv_gp_ucb": drifting(),
    "mean": given(
        recipes.gp_ucb,
        mean_module=lambda scale: ConstantMean(constant_constraint=None).initialize(
            constant=0.2 * scale
        ),
    ),
    "liar": given(recipes.gp_ucb, at_once=4, pending=lambda scale: ConstantLiar(-2.0 * scale)),
    "gp_ts": given(recipes.gp_ts),
    "compressed": compressed(),
    "LogEI": compressed(acquisition=of(LogEI(BestMean()))),
    "EventReset": drifting(retention=of(EventReset(0.05))),
    "bpe_delay": given(recipes.bpe_delay, horizon=24, delay=LATE, at_once=2),
}
LEARNED = {
    "noise": drifting(noise_variance=None, refit=RefitEvery(4)),
    "all": given(recipes.tv_gp_ucb, covar_module=None, noise_variance=None),
    "kernel": given(recipes.gp_ucb, covar_module=None, refit=RefitEvery(6)),
}
WITH_CONTEXTS = {
    "additive": given(
        recipes.tv_cgp_ucb,
        covar_module=None,
        action_kernel=kernel,
        context_kernel=kernel,
        structure="additive",
        forgetting_rate=0.02,
    ),
    "pairs": given(recipes.cgp_ucb),
    "learned": given(
        recipes.tv_cgp_ucb, covar_module=None, noise_variance=None, refit=RefitEvery(6)
    ),
}


def assert_same_choices(make, at_once, rounds, **search_space):
    expected = play(make(1.0, **search_space), 1.0, rounds, at_once)
    assert len(expected.unique(dim=0)) > 4
    for exponent in EXPONENTS:
        scale = math.ldexp(1.0, exponent)
        asked = play(make(scale, **search_space), scale, rounds, at_once)
        torch.testing.assert_close(asked, expected, rtol=0, atol=1e-6)


@pytest.mark.slow_cases("mean", "gp_ts", "kernel", "noise")
@pytest.mark.parametrize("name", LOOPS | LEARNED)
def test_choices_on_a_finite_set(name):
    rounds = 12 if name in LEARNED else 20
    assert_same_choices(*(LOOPS | LEARNED)[name], rounds, choices=CHOICES)


@pytest.mark.slow_cases("gp_ts", "LogEI", "all")
@pytest.mark.parametrize("name", ["tv_gp_ucb", "gp_ts", "LogEI", "all"])
def test_choices_on_a_box(name):
    assert_same_choices(*(LOOPS | LEARNED)[name], 6, bounds=BOUNDS)


@pytest.mark.parametrize("name", WITH_CONTEXTS)
def test_choices_with_contexts(name):
    assert_same_choices(*WITH_CONTEXTS[name], 12, choices=CHOICES, contexts=CONTEXTS)


def test_choices_of_linear_ucb():
    """Its kernel has no scale, so that of the outcomes is the scale of the width."""

    def make(scale, **search_space):
        return recipes.linear_ucb(beta=scale**2, **search_space)

    assert_same_choices(make, 1, 24, choices=CHOICES[:6], contexts=CONTEXTS)
