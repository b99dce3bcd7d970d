"""What an optimizer was built from, as data and back."""

from functools import partial

import pandas as pd
import pytest
import torch
from botorch.acquisition import qLogExpectedImprovement, qUpperConfidenceBound
from botorch.models.kernels import CategoricalKernel
from ConfigSpace import Categorical, Float
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.priors import GammaPrior, LogNormalPrior, NormalPrior
from run_cases import BOX, CASES, GRID, made

from tvbo import recipes
from tvbo.acquisition import (
    EI,
    UCB,
    BestMean,
    BestObserved,
    ConstantBeta,
    LogBeta,
    LogEI,
    MaxMean,
    ThompsonSampling,
)
from tvbo.kernels import TemporalDecayKernel, TemporalMaternKernel
from tvbo.optimizers import (
    ConstantLiar,
    GPOptimizer,
    Hallucinate,
    IgnorePending,
    Optimizer,
    OutcomeModel,
    Pending,
    RefitEvery,
    RefitNever,
)
from tvbo.optimizers.bpe import FiniteSetWidth, SubExponentialDelay
from tvbo.retention import (
    EntropyThreshold,
    EventReset,
    KeepAll,
    Reset,
    Retention,
    SizeLimit,
    SlidingWindow,
    StaleCutoff,
)
from tvbo.spaces import Parameters
from tvbo.storage import StorageError, read_run

GIVEN = {"covar_module": ScaleKernel(RBFKernel()).double(), "noise_variance": 0.01}
CHOICES = {"choices": GRID, **GIVEN}


def learned_kernel() -> ScaleKernel:
    """A kernel with priors, constraints, a parameter that is not learned, and active columns."""
    parts = MaternKernel(
        nu=1.5,
        active_dims=[0],
        lengthscale_prior=LogNormalPrior(0.0, 1.0),
        lengthscale_constraint=GreaterThan(1e-3),
    ) * RBFKernel(active_dims=[1], lengthscale_constraint=Interval(0.01, 3.0))
    made = ScaleKernel(parts, outputscale_prior=GammaPrior(2.0, 0.15)).double()
    made.base_kernel.kernels[1].raw_lengthscale.requires_grad_(False)
    return made


MIXED = {
    "rate": Float("rate", (1e-4, 1e-1), log=True),
    "layers": (1, 8),
    "kind": ["a", "b", "c"],
    "size": Categorical("size", ["s", "m", "l"], ordered=True),
    "fixed": 3,
}


OPTIONS = {
    "acquisition UCB": partial(recipes.tv_gp_ucb, bounds=BOX, acquisition=UCB(LogBeta(0.5, 3.0))),
    "acquisition UCB at the edge": partial(
        recipes.gp_ucb, bounds=BOX, acquisition=UCB(ConstantBeta(2.0), edge_correction=True)
    ),
    **{
        f"incumbent {type(each).__name__}": partial(
            recipes.tv_gp_ucb, bounds=BOX, acquisition=kind(each)
        )
        for kind, each in ((EI, BestMean()), (LogEI, BestObserved()), (LogEI, MaxMean()))
    },
    "acquisition ThompsonSampling": partial(
        recipes.gp_ts, bounds=BOX, acquisition=ThompsonSampling(LogBeta(), num_candidates=50)
    ),
    "acquisition of BoTorch": partial(
        recipes.tv_gp_ucb, bounds=BOX, acquisition=qLogExpectedImprovement
    ),
    "acquisition partial": partial(
        recipes.tv_gp_ucb, bounds=BOX, acquisition=partial(qUpperConfidenceBound, beta=0.3)
    ),
    "beta number": partial(recipes.gp_ucb, **CHOICES, beta=3),
    "beta schedule": partial(recipes.gp_ucb, **CHOICES, beta=ConstantBeta(3.0)),
    "kernel": partial(recipes.gp_ucb, bounds=BOX, covar_module=learned_kernel()),
    "kernels": partial(
        recipes.tv_gp_ucb,
        bounds=BOX,
        covar_module=[MaternKernel(2.5), RBFKernel()],
        temporal_kernel=[TemporalDecayKernel(), TemporalMaternKernel(nu=2.5)],
    ),
    "temporal kernel auto": partial(recipes.tv_gp_ucb, bounds=BOX, temporal_kernel="auto"),
    "mean": partial(
        recipes.gp_ucb, bounds=BOX, mean_module=ConstantMean(NormalPrior(0.0, 1.0)).double()
    ),
    "retention chain": partial(
        recipes.tv_gp_ucb,
        bounds=BOX,
        retention=SlidingWindow(10.0) & SizeLimit(5, slack=0.2) & Reset(7.0, start=2.0),
    ),
    "retention KeepAll": partial(recipes.tv_gp_ucb, bounds=BOX, retention=KeepAll()),
    "retention StaleCutoff": partial(recipes.gp_ucb, bounds=BOX, retention=StaleCutoff(0.1, 1e-6)),
    "retention EntropyThreshold": partial(
        recipes.gp_ucb, bounds=BOX, retention=EntropyThreshold(0.1, "discard", 4)
    ),
    "retention EventReset": partial(
        recipes.gp_ucb, bounds=BOX, retention=EventReset(0.01, band=0.9, outside=0.6)
    ),
    "pending": partial(recipes.gp_ucb, bounds=BOX, pending=ConstantLiar(0.5)),
    "pending Hallucinate": partial(recipes.gp_ucb, bounds=BOX, pending=Hallucinate()),
    "pending IgnorePending": partial(recipes.gp_ucb, bounds=BOX, pending=IgnorePending()),
    "refit": partial(recipes.gp_ucb, bounds=BOX, refit=RefitEvery(7)),
    "refit never": partial(recipes.gp_ucb, **CHOICES, refit=RefitNever()),
    "initial": partial(recipes.gp_ucb, bounds=BOX, initial=7, failures="nan"),
    "objectives": partial(
        recipes.tv_gp_ucb, bounds=BOX, objectives={"a": 0.0, "b": None}, minimize=["b"]
    ),
    "constraints": partial(
        recipes.tv_gp_ucb,
        bounds=BOX,
        constraints={"c": (None, 0.5), "d": (-1.0, float("inf"))},
        min_feasibility=0.8,
    ),
    "space of parameters": partial(recipes.tv_gp_ucb, bounds=MIXED),
    "space of Parameters": partial(recipes.tv_gp_ucb, bounds=Parameters.of(MIXED)),
    "choices in a table": partial(
        recipes.gp_ucb, choices=pd.DataFrame({"x": [0.0, 0.5, 1.0], "kind": ["a", "b", "a"]})
    ),
    "choices by name": partial(recipes.gp_ucb, choices={"n": (1, 3), "kind": ["a", "b"]}),
    "tensors": partial(recipes.gp_ucb, bounds=torch.tensor([[0.0], [2.0]]), minimize=True),
    "contexts in a table": partial(
        recipes.cgp_ucb, bounds=BOX, contexts=pd.DataFrame({"hour": [1.0, 2.0, 3.0]})
    ),
    "contexts outside": partial(
        recipes.tv_cgp_ucb,
        bounds=BOX,
        context_bounds=[(0.0, 1.0)],
        contexts_outside="extend",
        structure="both",
    ),
    "context kernels": partial(
        recipes.tv_cgp_ucb,
        bounds={"x": (0.0, 1.0)},
        context_bounds={"z": (0.0, 1.0), "kind": ["a", "b"]},
        action_kernel=MaternKernel(1.5),
        context_kernel=CategoricalKernel(active_dims=[1]) * RBFKernel(active_dims=[0]),
    ),
    "time units": partial(recipes.gp_ucb, bounds=BOX, time_unit="15min", time_zone="UTC"),
    "delays": partial(
        recipes.bpe_delay,
        **CHOICES,
        horizon=50,
        delay=SubExponentialDelay(2.0, 3.0, 1.0),
        width=FiniteSetWidth(1.0, 0.1),
    ),
    "width": partial(recipes.bpe_delay, **CHOICES, horizon=50, width=2.5),
    "resets": partial(recipes.r_gp_ucb, bounds=BOX, every=5, start=3, retention=SizeLimit(20)),
    "shared kernel": partial(
        recipes.linear_ucb, choices=GRID, context_bounds=[(0.0, 1.0)], shared_kernel=RBFKernel()
    ),
    "random": partial(recipes.random_search, bounds=BOX, contexts=GRID),
}


def optimizer_of(name: str) -> Optimizer:
    return OPTIONS[name](generator=3) if name in OPTIONS else made(name)


@pytest.mark.parametrize("name", [*OPTIONS, *CASES])
def test_settings_are_the_same_after_the_way_through_a_run(tmp_path, name):
    one, two = tmp_path / "one.db", tmp_path / "two.db"
    optimizer_of(name).record(one)
    again = Optimizer.open(one, read_only=True)
    again.record(two)
    rows, others = read_run(one).run, read_run(two).run
    assert rows["settings"]["recipe"] in recipes.__all__
    for column in ("settings", "labels", "seed", "state", "optimizer"):
        assert rows[column] == others[column]
    # It is one of those that its recipe builds.
    for run in (one, two):
        Optimizer.open(run, like=optimizer_of(name))


class Newest(Retention):
    """A policy of one's own."""

    def __init__(self, count: int = 5):
        self.count = count

    def keep(self, observations, model, t):
        return torch.arange(len(observations)) >= len(observations) - self.count


class Nothing(Pending):
    """A policy of one's own for pending trials."""

    def outcomes(self, rows, expected):
        return 0.0 * rows[:, :1]


class Squared(RBFKernel):
    """A kernel of one's own."""


def ascending(round_number: int) -> float:
    return float(round_number)


OWN = {
    "retention": (Newest(3), "Newest"),
    "pending": (Nothing(), "Nothing"),
    "beta": (ascending, "ascending"),
    "acquisition": (lambda model, context: qLogExpectedImprovement(model, 0.0), "lambda"),
    "covar_module": (ScaleKernel(Squared()), "Squared"),
}


@pytest.mark.parametrize("option", OWN)
def test_what_is_of_ones_own_is_given_again(tmp_path, option):
    run, (own, name) = tmp_path / "run.db", OWN[option]

    def make(**options) -> GPOptimizer:
        return recipes.tv_gp_ucb(bounds=BOX, generator=1, **options)

    optimizer = make(**{option: own})
    optimizer.record(run)
    for _ in range(3):
        optimizer.tell(trial := optimizer.ask(), trial.X.sum().item())
    with pytest.raises(StorageError, match=f"{name}.*like="):
        Optimizer.open(run)
    with pytest.raises(StorageError, match=f"options.{option}.*{name}"):
        Optimizer.open(run, like=make())
    again = Optimizer.open(run, like=make(**{option: own}))
    assert again.model_size == 3
    assert again.ask().id == 4


def test_an_optimizer_built_by_hand_is_given_again(tmp_path):
    def make() -> GPOptimizer:
        learned = recipes.gp_ucb(choices=GRID, **GIVEN, generator=1)
        models = [
            OutcomeModel(each.fitter, choices=each.choices) for each in learned.outcome_models
        ]
        return GPOptimizer(learned.search_space, models, UCB(ConstantBeta(1.0)), generator=4)

    optimizer = make()
    optimizer.record(tmp_path / "run.db")
    optimizer.tell(optimizer.ask(), 0.5)
    with pytest.raises(StorageError, match="GPOptimizer.*like="):
        Optimizer.open(tmp_path / "run.db")
    again = Optimizer.open(tmp_path / "run.db", like=make(), read_only=True)
    assert torch.equal(again.ask().X, optimizer.ask().X)
    with pytest.raises(StorageError, match="RandomSearch"):
        Optimizer.open(tmp_path / "run.db", like=made("random"))


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"beta": 2.0}, "options.beta"),
        ({"forgetting_rate": 0.1}, "options.forgetting_rate"),
        ({"noise_variance": 0.02}, "options.noise_variance"),
        ({"choices": 2 * GRID}, "options.choices"),
        ({"covar_module": ScaleKernel(RBFKernel()).double()}, "options.covar_module"),
        ({"retention": SlidingWindow(3.0)}, "options.retention"),
        ({"minimize": True}, "options.minimize"),
        ({"generator": 4}, "seed"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_other_settings_are_refused_by_name(tmp_path, changes, place):
    kernel = ScaleKernel(RBFKernel()).double()
    kernel.outputscale = 1.5
    options = {"choices": GRID, "covar_module": kernel, "noise_variance": 0.01}
    options |= {"forgetting_rate": 0.05, "generator": 3}
    recipes.tv_gp_ucb(**options).record(tmp_path / "run.db")
    with pytest.raises(StorageError, match=place) as error:
        Optimizer.open(tmp_path / "run.db", like=recipes.tv_gp_ucb(**options | changes))
    assert len(str(error.value)) < 800


def test_another_class_than_that_of_the_run_is_refused(tmp_path):
    made("random").record(tmp_path / "run.db")
    with pytest.raises(StorageError, match="GPOptimizer.*RandomSearch"):
        GPOptimizer.open(tmp_path / "run.db")
    told = made("random")
    told.tell(told.ask(), 1.0)
    with pytest.raises(StorageError, match="no trials"):
        Optimizer.open(tmp_path / "run.db", like=told)
    with pytest.raises(StorageError, match="before the first ask"):
        told.record(tmp_path / "other.db")
