"""Acquisitions of BoTorch in a loop that drifts: incumbents and baselines are those of now."""

import math
from functools import partial

import botorch.acquisition as botorch_acquisition
import pytest
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qMaxValueEntropy,
    qSimpleRegret,
    qUpperConfidenceBound,
)
from botorch.acquisition.analytic import LogProbabilityOfImprovement
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from gpytorch.kernels import RBFKernel

from tvbo import recipes
from tvbo.acquisition import AtPresent, BestMean, LogEI
from tvbo.models import TimeVaryingGP
from tvbo.optimizers import Optimizer
from tvbo.spaces import AskContext, Box, FiniteSpace
from tvbo.spaces.observations import InputLayout, Observations

LAYOUT = InputLayout(num_actions=1, num_contexts=1)
NOW = 30.0
BOX = Box([(0.0, 1.0)])


@pytest.fixture
def observations(generator):
    X = torch.rand(12, 3, dtype=torch.float64, generator=generator)
    X[:, 2] = torch.arange(12)
    X[5:8, 0] = X[0, 0]
    # The level falls: outcomes of long ago are the largest.
    return Observations(X, 5 - X[:, 2:] / 2 + X[:, :1])


@pytest.fixture
def model(observations):
    noise = torch.full_like(observations.Y, 0.01)
    return TimeVaryingGP(observations.X, observations.Y, noise, forgetting_rate=0.1).eval()


def context(observations, search_space=BOX):
    generator = torch.Generator().manual_seed(1)
    return AskContext(13, NOW, torch.tensor([0.4]), LAYOUT, observations, search_space, generator)


@pytest.mark.parametrize("kind", [LogExpectedImprovement, qLogExpectedImprovement])
def test_the_incumbent_is_the_best_mean_now(model, observations, kind):
    acq_function = AtPresent(kind)(model, context(observations))
    rows = torch.cat(
        [observations.X[:, :1], torch.tensor([0.4, NOW]).double().expand(12, 2)], dim=-1
    )
    expected = model.posterior(rows).mean.max().item()
    assert acq_function.best_f.item() == pytest.approx(expected, rel=1e-12)
    assert expected < observations.Y.max().item() - 0.5


def test_the_baseline_is_the_observed_actions_now(model, observations):
    make = partial(qLogNoisyExpectedImprovement, prune_baseline=False)
    acq_function = AtPresent(make)(model, context(observations))
    X = acq_function.X_baseline
    observed = observations.X[:, 0].unique()
    assert (X[:, 1:] == torch.tensor([0.4, NOW]).double()).all()
    assert torch.isin(X[:, 0], observed).all()
    assert len(X[:, 0].unique()) == len(X) < len(observed) == 9
    # The values of those left out are known from those kept.
    rows = torch.cat([observed.unsqueeze(-1), X[:1, 1:].expand(9, 2)], dim=-1)
    covar = model.posterior(rows).distribution.covariance_matrix
    kept = torch.isin(observed, X[:, 0])
    cross = covar[~kept][:, kept]
    left = (
        covar.diagonal()[~kept]
        - (cross @ torch.linalg.solve(covar[kept][:, kept], cross.T)).diagonal()
    )
    assert (left <= 1.01e-4 * covar.diagonal().max()).all()


def test_candidates_are_actions_now(model, observations):
    found = {}

    class Wants(UpperConfidenceBound):
        def __init__(self, model, candidate_set):
            super().__init__(model, beta=1.0)
            found["rows"] = candidate_set

    AtPresent(Wants)(model, context(observations))
    assert (found["rows"][:, 1:] == torch.tensor([0.4, NOW]).double()).all()
    assert found["rows"][:, 0].unique().numel() == 256
    choices = torch.tensor([[0.1], [0.7]]).double()
    AtPresent(Wants)(model, context(observations, FiniteSpace(choices)))
    assert torch.equal(found["rows"][:, :1], choices)


def test_analytic_values_are_those_of_our_own(model, observations):
    ask_context = context(observations)
    ours = LogEI(BestMean())(model, ask_context)
    theirs = AtPresent(LogExpectedImprovement)(model, ask_context)
    rows = ask_context.rows(torch.linspace(0, 1, 9).double().unsqueeze(-1)).unsqueeze(-2)
    with torch.no_grad():
        assert torch.allclose(ours(rows), theirs(rows), rtol=1e-9, atol=1e-9)


def falling_peak(X, t):
    peak = 0.5 + 0.3 * math.cos(t / 10)
    return torch.exp(-((X - peak) ** 2).sum() / 0.1).item(), t / 30


ANY = {
    "qLogNEI": qLogNoisyExpectedImprovement,
    "qLogEI": qLogExpectedImprovement,
    "LogEI": LogExpectedImprovement,
    "UCB": partial(UpperConfidenceBound, beta=1.0),
    "qUCB": partial(qUpperConfidenceBound, beta=1.0),
    "qSimpleRegret": qSimpleRegret,
    "LogPI": LogProbabilityOfImprovement,
    "qMES": qMaxValueEntropy,
}


def mean_regret(acquisition, unit=1.0):
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.2
    optimizer = recipes.tv_gp_ucb(
        bounds=[(0.0, 1.0)],
        covar_module=kernel,
        forgetting_rate=0.05,
        noise_variance=0.01 * unit**2,
        acquisition=acquisition,
        initial=5,
    )
    regret = []
    for t in range(1, 31):
        trial = optimizer.ask(t=float(t))
        value, level = falling_peak(trial.X, t)
        optimizer.tell(trial, unit * (value - level))
        regret.append(1 - value)
    return sum(regret[10:]) / 20


@pytest.mark.slow_cases(*(name for name in ANY if name != "LogEI"))
@pytest.mark.parametrize("make", ANY.values(), ids=ANY)
def test_it_follows_a_peak_whose_level_falls(make):
    # The mean regret of an action at random is 0.53.
    assert mean_regret(make) < 0.4


def test_a_one_shot_acquisition_is_refused():
    with pytest.raises(UnsupportedError):
        recipes.tv_gp_ucb(bounds=[(0.0, 1.0)], acquisition=qKnowledgeGradient)


@pytest.mark.slow_cases("LogExpectedImprovement")
@pytest.mark.parametrize("name", ["qLogNoisyExpectedImprovement", "LogExpectedImprovement"])
def test_every_space_and_a_recorded_run(name, tmp_path):
    optimizer = recipes.tv_cgp_ucb(
        bounds={"x": (0.0, 1.0), "n": (1, 5), "rule": ["a", "b", "c"]},
        context_bounds={"load": (0.0, 5.0)},
        acquisition=getattr(botorch_acquisition, name),
        initial=6,
    )

    def play(optimizer, rounds):
        for n in rounds:
            trial = optimizer.ask(context={"load": n % 5})
            optimizer.tell(trial, trial.parameters["x"] + trial.parameters["n"])

    optimizer.record(tmp_path / "run.db")
    play(optimizer, range(7))
    optimizer.close()
    with Optimizer.open(tmp_path / "run.db") as again:
        play(again, range(7, 9))
        assert again.num_trials == 9


def test_what_a_loop_does_itself_is_refused():
    with pytest.raises(ValueError):
        AtPresent(partial(LogExpectedImprovement, maximize=False))
    transform = ScalarizedPosteriorTransform(torch.ones(1).double())
    with pytest.raises(ValueError):
        AtPresent(partial(LogExpectedImprovement, posterior_transform=transform))
