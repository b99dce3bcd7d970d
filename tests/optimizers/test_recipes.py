"""What all recipes have in common: their options, and which are refused."""

import inspect
import pickle
import re

import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo import recipes
from tvbo.acquisition import UCB, ConstantBeta, LogBeta, LogEI, ThompsonSampling
from tvbo.optimizers import GPOptimizer, RefitEvery
from tvbo.recipes import ContextualGPOptions, GPOptions, LoopOptions
from tvbo.retention import (
    EntropyThreshold,
    KeepAll,
    Reset,
    SizeLimit,
    SlidingWindow,
    StaleCutoff,
)

CHOICES = torch.linspace(0, 1, 5, dtype=torch.float64).unsqueeze(-1)
CONTEXTS = {"contexts": torch.tensor([[0.0], [1.0]], dtype=torch.float64)}


def kernel():
    made = RBFKernel().double()
    made.lengthscale = 0.3
    return made


GIVEN = {"choices": CHOICES, "covar_module": kernel(), "noise_variance": 0.01}
WITH_GP = {
    "tv_gp_ucb": GIVEN | {"forgetting_rate": 0.05},
    "gp_ucb": GIVEN,
    "r_gp_ucb": GIVEN | {"every": 10},
    "gp_ts": GIVEN,
    "compressed_gp": GIVEN,
    "tv_cgp_ucb": GIVEN | CONTEXTS | {"forgetting_rate": 0.05},
    "cgp_ucb": GIVEN | CONTEXTS,
    "linear_ucb": {"choices": CHOICES} | CONTEXTS,
}
OTHERS = {
    "bpe_delay": GIVEN | {"horizon": 20},
    "random_search": {"choices": CHOICES},
}
ANY = pytest.mark.parametrize("name", recipes.__all__)
GP = pytest.mark.parametrize("name", WITH_GP)


def made(name, **options):
    return getattr(recipes, name)(**{**(WITH_GP | OTHERS)[name], **options})


@ANY
def test_a_misspelt_option_is_refused(name):
    with pytest.raises(TypeError, match=rf"{name}.*minimise"):
        made(name, minimise=None)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gp_ucb", {"forgetting_rate": 0.1}),
        ("tv_gp_ucb", CONTEXTS),
        ("gp_ts", {"structure": "both"}),
        ("linear_ucb", {"covar_module": kernel()}),
        ("linear_ucb", {"structure": "additive"}),
        *((name, {"has_contexts": True}) for name in ("tv_gp_ucb", "cgp_ucb")),
        ("gp_ucb", {"admission": EntropyThreshold(0.1)}),
        *(("bpe_delay", {name: None}) for name in ("acquisition", "beta", "retention", "refit")),
        ("random_search", {"beta": 1.0}),
    ],
)
def test_an_option_of_another_recipe_is_refused(name, options):
    with pytest.raises(TypeError):
        made(name, **options)


@GP
def test_acquisition_and_beta_mean_the_same_everywhere(name):
    own = ThompsonSampling if name == "gp_ts" else UCB
    defaults = {"gp_ts": ThompsonSampling(1.0), "linear_ucb": UCB(ConstantBeta(1.0))}
    assert made(name).acquisition == defaults.get(name, UCB(LogBeta()))
    assert made(name, acquisition=LogEI()).acquisition == LogEI()
    assert made(name, beta=4.0).acquisition == own(4.0 if name == "gp_ts" else ConstantBeta(4.0))
    assert made(name, beta=LogBeta(c1=0.5)).acquisition == own(LogBeta(c1=0.5))
    with pytest.raises(ValueError):
        made(name, acquisition=LogEI(), beta=4.0)


@GP
def test_several_objectives_have_no_upper_bound(name):
    if name == "gp_ts":
        return
    optimizer = made(name, objectives=["a", "b"])
    assert optimizer.goals.num_objectives == 2
    with pytest.raises(ValueError):
        made(name, objectives=["a", "b"], beta=1.0)


@GP
def test_retention_means_the_same_everywhere(name):
    """It replaces the default, and is joined to the recipe's own rule."""
    window, retention = SlidingWindow(7), made(name, retention=SlidingWindow(7)).retention
    if name == "r_gp_ucb":
        assert retention.policies == (Reset(every=10, start=1.0), window)
    elif name == "compressed_gp":
        assert retention.policies[0] == window
        assert isinstance(retention.policies[1], EntropyThreshold)
    else:
        assert retention == window
        assert isinstance(made(name).retention, StaleCutoff if "tv" in name else KeepAll)


def test_a_limit_on_the_size_counts_what_a_reset_left():
    """Were it the other way round, what is new would go to make room for what the reset drops."""
    optimizer = made("r_gp_ucb", retention=SizeLimit(2))
    # There is a model to weigh observations by.
    optimizer.ask(t=7.0)
    for place, t in ((0, 8.0), (4, 9.0), (2, 11.0), (2, 12.0)):
        optimizer.tell(optimizer.attach(CHOICES[place], t=t), 1.0)
    optimizer.ask(t=13.0)
    assert optimizer.observations.X[:, -1].tolist() == [11.0, 12.0]


@GP
def test_a_loop_of_other_parts(name):
    """Ten rounds, each outcome told two rounds late."""
    options = {"acquisition": LogEI(), "retention": SizeLimit(4), "refit": RefitEvery(5)}
    optimizer, trials = made(name, **options), []
    context = None if optimizer.contexts is None else CONTEXTS["contexts"][1]
    for t in range(10):
        trials.append(optimizer.ask(t=float(t), context=context))
        if t >= 2 and not trials[-3].skipped:
            optimizer.tell(trials[-3], trials[-3].X.sin().item())
    optimizer.ask(t=10.0, context=context)
    assert type(optimizer) is GPOptimizer
    assert 1 <= len(optimizer.observations) <= 4
    assert all((trial.X == CHOICES).any() for trial in trials)


@ANY
def test_a_recipe_can_be_sent_to_another_process(name):
    recipe = getattr(recipes, name)
    assert pickle.loads(pickle.dumps(recipe)) is recipe


@pytest.mark.parametrize(
    ("options", "base"),
    [
        (LoopOptions, None),
        (GPOptions, LoopOptions),
        (ContextualGPOptions, GPOptions),
    ],
)
def test_every_option_is_documented_once(options, base):
    inherited = getattr(base, "__annotations__", {})
    arguments = inspect.getdoc(options).split("Args:")[1].split("Raises:")[0]
    documented = re.findall(r"^    (\w+):", arguments, re.MULTILINE)
    assert documented == [name for name in options.__annotations__ if name not in inherited]
