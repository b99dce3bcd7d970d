"""What all recipes have in common: the options of the builder, and how a wrong one is refused."""

import inspect
import pickle
import re
from itertools import product
from pathlib import Path

import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo import recipes
from tvbo.acquisition import UCB, ConstantBeta, LogBeta, LogEI, ThompsonSampling
from tvbo.optimizers import (
    DenseState,
    Hallucinate,
    IgnorePending,
    RefitEvery,
    UnitOptions,
)
from tvbo.optimizers.builder import (
    ContextOptions,
    ContextualGPOptions,
    GPOptions,
    OutcomeOptions,
)
from tvbo.retention import (
    Chain,
    EntropyThreshold,
    KeepAll,
    Reset,
    SizeLimit,
    SlidingWindow,
    StaleCutoff,
)

CHOICES = torch.linspace(0, 1, 5, dtype=torch.float64).unsqueeze(-1)
CONTEXTS = {"contexts": torch.tensor([[0.0], [1.0]], dtype=torch.float64)}
PAGE = Path(__file__).parents[2] / "docs/api/recipes.md"


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
ANY = pytest.mark.parametrize("name", recipes.__all__)
GP = pytest.mark.parametrize("name", WITH_GP)


def made(name, **options):
    return getattr(recipes, name)(**{**WITH_GP[name], **options})


def fitter(optimizer):
    return optimizer.posterior_state.fitter


def shown(name):
    return inspect.signature(getattr(recipes, name)).parameters


def test_these_are_all():
    assert {*WITH_GP, "bpe_delay", "random_search"} == set(recipes.__all__)


@ANY
def test_a_misspelt_option_is_refused_with_the_nearest_right_one(name):
    wrong = {"generatr": "generator"}
    if name in WITH_GP:
        wrong |= {"aquisition": "acquisition", "noise_varience": "noise_variance"}
    for misspelt, right in wrong.items():
        with pytest.raises(TypeError) as refused:
            getattr(recipes, name)(**{misspelt: None})
        assert str(refused.value) == (
            f"{name}() got an unexpected keyword argument {misspelt!r}. Did you mean {right!r}?"
        )


def test_an_option_like_no_other_is_refused_without_a_guess():
    with pytest.raises(TypeError, match="keyword argument 'xyz'$"):
        recipes.gp_ucb(xyz=1)


def test_an_option_of_another_recipe_is_refused():
    with pytest.raises(TypeError, match=r"^gp_ucb\(\) got .* 'forgetting_rate'"):
        recipes.gp_ucb(forgetting_rate=0.1, **GIVEN)
    with pytest.raises(TypeError, match=r"^tv_gp_ucb\(\) got .* 'contexts'"):
        recipes.tv_gp_ucb(**GIVEN, **CONTEXTS)


DEFINED = [
    *product(["bpe_delay"], ["acquisition", "beta", "retention", "pending", "refit"]),
    ("linear_ucb", "covar_module"),
]


@pytest.mark.parametrize(("name", "option"), DEFINED)
def test_what_the_rule_of_a_recipe_defines_is_refused_in_words(name, option):
    words = rf"Expected no {option} in {name}\(\): [a-z].{{20,}}\. Got {option}=KeepAll\(\)\.$"
    with pytest.raises(TypeError, match=words):
        getattr(recipes, name)(**{option: KeepAll()})
    assert option not in shown(name)


@GP
def test_all_options_are_shown(name):
    options = set(GPOptions.__annotations__)
    if "contexts" in WITH_GP[name]:
        options |= set(ContextOptions.__annotations__)
    if name in ("cgp_ucb", "tv_cgp_ucb"):
        options |= set(ContextualGPOptions.__annotations__)
    defined = {option for each, option in DEFINED if each == name}
    assert options - defined <= set(shown(name))
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in shown(name).values())
    assert shown(name)["acquisition"].annotation.startswith("Acquisition | ")
    assert {shown(name)[option].default for option in options - defined} == {None}


@GP
def test_none_is_the_default(name):
    options = dict.fromkeys(shown(name).keys() & GPOptions.__annotations__.keys())
    explicit, left_out = made(name, **{**options, **WITH_GP[name]}), made(name)
    assert explicit.acquisition == left_out.acquisition
    assert repr(explicit.retention) == repr(left_out.retention)
    assert explicit.pending == left_out.pending
    assert fitter(explicit).refit == fitter(left_out).refit
    assert fitter(explicit).noise_variance == fitter(left_out).noise_variance


def test_default_acquisitions():
    default = {name: made(name).acquisition for name in WITH_GP}
    assert default.pop("gp_ts") == ThompsonSampling(1.0)
    assert default.pop("linear_ucb") == UCB(ConstantBeta(1.0))
    assert set(default.values()) == {UCB(LogBeta())}


@GP
def test_acquisition_and_beta_mean_the_same_everywhere(name):
    assert made(name, acquisition=LogEI()).acquisition == LogEI()
    own = ThompsonSampling(4.0) if "gp_ts" in name else UCB(ConstantBeta(4.0))
    assert made(name, beta=4.0).acquisition == own
    schedule = LogBeta(c1=0.5)
    own = ThompsonSampling(schedule) if "gp_ts" in name else UCB(schedule)
    assert made(name, beta=schedule).acquisition == own
    with pytest.raises(ValueError, match="Expected either acquisition or beta.* Got both"):
        made(name, acquisition=LogEI(), beta=4.0)


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
        drifts = "tv" in name
        assert isinstance(made(name).retention, StaleCutoff if drifts else KeepAll)


def test_a_limit_on_the_size_counts_what_a_reset_left():
    """Were it the other way round, what is new would go to make room for what the reset drops."""
    optimizer = made("r_gp_ucb", retention=SizeLimit(2))
    assert isinstance(optimizer.retention, Chain)
    # There is a model to weigh observations by.
    optimizer.ask(t=7.0)
    for place, t in ((0, 8.0), (4, 9.0), (2, 11.0), (2, 12.0)):
        optimizer.tell(optimizer.attach(CHOICES[place], t=t), 1.0)
    optimizer.ask(t=13.0)
    assert optimizer.observations.X[:, -1].tolist() == [11.0, 12.0]


@GP
def test_pending_means_the_same_everywhere(name):
    assert made(name).pending == Hallucinate()
    assert made(name, pending=IgnorePending()).pending == IgnorePending()


@GP
def test_refit_means_the_same_everywhere(name):
    optimizer = made(name, refit=RefitEvery(4))
    assert fitter(optimizer).refit == RefitEvery(4)
    # The posterior is updated between fits.
    assert not isinstance(optimizer.posterior_state, DenseState)
    assert isinstance(made(name, refit=RefitEvery(1)).posterior_state, DenseState)


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
    assert 1 <= len(optimizer.observations) <= 4
    assert all((trial.X == CHOICES).any() for trial in trials)


@ANY
def test_a_recipe_can_be_sent_to_another_process(name):
    recipe = getattr(recipes, name)
    assert pickle.loads(pickle.dumps(recipe)) is recipe


@pytest.mark.parametrize(
    ("options", "base"),
    [
        (UnitOptions, dict),
        (OutcomeOptions, dict),
        (GPOptions, (UnitOptions, OutcomeOptions)),
        (ContextOptions, GPOptions),
        (ContextualGPOptions, ContextOptions),
    ],
)
def test_every_option_is_documented_once(options, base):
    bases = base if isinstance(base, tuple) else (base,)
    inherited = [name for each in bases for name in getattr(each, "__annotations__", {})]
    arguments = inspect.getdoc(options).split("Args:")[1].split("Raises:")[0]
    documented = re.findall(r"^    (\w+):", arguments, re.MULTILINE)
    assert documented == [name for name in options.__annotations__ if name not in inherited]


@ANY
def test_the_page_of_recipes_tells_what_is_a_recipes_own(name):
    begin = f"| {{func}}`~tvbo.optimizers.recipes.{name}` |"
    (row,) = [line for line in PAGE.read_text().splitlines() if line.startswith(begin)]
    told = set(re.findall(r"`(\w+)`", row.rsplit("|", 2)[1]))
    own = set(shown(name)) - set(ContextualGPOptions.__annotations__)
    assert own <= told <= set(shown(name))
