"""Recommendations and policies: the best by posterior mean, and no ask."""

import math

import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from tvbo import recipes
from tvbo.optimizers import Policy, Recommendation, RefitEvery
from tvbo.optimizers.pending import ConstantLiar, Hallucinate
from tvbo.retention import Reset, SlidingWindow, StaleCutoff

NOISE = 0.01
RATE = 0.05


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


CHOICES = torch.rand(11, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
LISTED = tensor([0.1], [0.35], [0.5], [1.0])
BOUNDS = tensor([0.0], [2.0])
CONTEXTS = {"list": {"contexts": LISTED}, "bounds": {"context_bounds": tensor([0.0], [1.0])}}
ACTIONS = {"choices": {"choices": CHOICES}, "box": {"bounds": BOUNDS}}
KINDS = [(actions, contexts) for actions in ACTIONS for contexts in CONTEXTS]


def action_kernel():
    kernel = RBFKernel().double()
    kernel.lengthscale = tensor(0.4)
    return kernel


def context_kernel():
    kernel = MaternKernel(nu=1.5).double()
    kernel.lengthscale = tensor(0.6)
    return kernel


def make(actions="choices", contexts="list", **options):
    known = {
        "action_kernel": action_kernel(),
        "context_kernel": context_kernel(),
        "forgetting_rate": RATE,
        "noise_variance": NOISE,
    }
    return recipes.tv_cgp_ucb(**ACTIONS[actions], **CONTEXTS[contexts], **{**known, **options})


def reward(trial):
    x, z = trial.X.sum().item(), 0.0 if trial.context is None else trial.context.item()
    return math.sin(3 * x + 2.5 * z + trial.t / 7) + 0.2 * math.sin(7.0 * trial.id)


def told(optimizer, rounds=15):
    """Some outcomes of actions and contexts drawn at random, from a log."""
    generator = torch.Generator().manual_seed(2)
    for t in range(1, rounds + 1):
        z = LISTED[int(torch.randint(4, (1,), generator=generator))]
        trial = optimizer.attach(optimizer.search_space.sample(generator), float(t), z)
        optimizer.tell(trial, reward(trial))
    return optimizer


def dense(observations, rows):
    """(7)-(8) of Bogunovic et al. (2016), with the product kernel."""

    def covariance(one, two):
        distance = (one[:, None] - two).abs()
        S = torch.exp(-distance[..., :-2].square().sum(-1) / (2 * 0.4**2))
        r = 3**0.5 * distance[..., -2] / 0.6
        return S * (1 + r) * torch.exp(-r) * (1 - RATE) ** (distance[..., -1] / 2)

    X = observations.X
    K = covariance(X, X) + NOISE * torch.eye(len(X), dtype=X.dtype)
    k = covariance(rows, X)
    mean = k @ torch.linalg.solve(K, observations.Y.squeeze(-1))
    variance = 1 - (k * torch.linalg.solve(K, k.mT).mT).sum(-1)
    return mean, variance.sqrt()


def at(actions, context, t):
    return torch.cat([actions, tensor([context, t]).expand(len(actions), 2)], dim=-1)


@pytest.mark.parametrize("contexts", ["list", "bounds"])
@pytest.mark.parametrize("t", [None, 15.0, 40.5])
def test_the_best_choice_by_brute_force(contexts, t):
    optimizer = told(make(contexts=contexts))
    for z in LISTED.flatten().tolist():
        best = optimizer.recommend(context=tensor(z), t=t)
        mean, sd = dense(optimizer.observations, at(CHOICES, z, best.t))
        assert torch.equal(best.X, CHOICES[mean.argmax()].unsqueeze(0))
        assert best.mean == pytest.approx(mean.max().item(), abs=1e-8)
        assert best.standard_deviation == pytest.approx(sd[mean.argmax()].item(), abs=1e-8)
        assert best.t == (15.0 if t is None else t)
        assert best.context.tolist() == [z]


@pytest.mark.parametrize("contexts", ["list", "bounds"])
def test_the_best_of_a_box_against_a_grid(contexts):
    optimizer = told(make("box", contexts))
    grid = torch.linspace(0, 2, 2001, dtype=torch.float64).unsqueeze(-1)
    for z in LISTED.flatten().tolist():
        best = optimizer.recommend(context=tensor(z), t=16.0)
        mean, sd = dense(optimizer.observations, at(torch.cat([best.X, grid]), z, 16.0))
        assert mean[0] >= mean.max() - 1e-6
        assert best.mean == pytest.approx(mean[0].item(), abs=1e-8)
        assert best.standard_deviation == pytest.approx(sd[0].item(), abs=1e-7)


@pytest.mark.parametrize(("actions", "contexts"), KINDS)
def test_a_policy_is_its_recommendations(actions, contexts):
    optimizer = told(make(actions, contexts))
    policy = optimizer.policy(LISTED, t=17.0)
    assert (len(policy), policy.t) == (4, 17.0)
    assert policy.contexts.tolist() == LISTED.tolist()
    for i in range(4):
        alone = optimizer.recommend(context=LISTED[i], t=17.0)
        assert alone.context.tolist() == policy[i].context.tolist() == LISTED[i].tolist()
        torch.testing.assert_close(alone.X, policy[i].X, rtol=0, atol=1e-6)
        assert alone.mean == pytest.approx(policy[i].mean, abs=1e-8)
        assert alone.standard_deviation == pytest.approx(policy[i].standard_deviation, abs=1e-6)
    assert policy.best.mean == policy.mean.max().item()
    assert policy.best.context.tolist() == LISTED[policy.mean.argmax()].tolist()
    assert policy.best.X.shape == (1, 2 if actions == "choices" else 1)


def learning(refit, **options):
    kernels = {"action_kernel": ScaleKernel(action_kernel()), "context_kernel": context_kernel()}
    unknown = {"forgetting_rate": None, "noise_variance": None, "refit": refit}
    return {**kernels, **unknown, **options}


def assert_chooses_as_if_never_asked(rounds, actions, contexts, ahead=1000.0, **options):
    """A loop that was asked for recommendations all along chooses as one that never was."""
    asked, twin = (told(make(actions, contexts, **options)) for _ in range(2))
    for i in range(rounds):
        t, context = 16.0 + i, LISTED[i % 4]
        mine, other = (optimizer.ask(t=t, context=context) for optimizer in (asked, twin))
        assert (mine.id, mine.t) == (other.id, other.t)
        # What is taken in at another moment is rounded otherwise.
        torch.testing.assert_close(mine.X, other.X, atol=1e-6, rtol=0)
        assert len(asked.observations) == len(twin.observations)
        rows = at(asked.search_space.sample(torch.Generator()), 0.35, t)
        means = [optimizer.model.posterior(rows).mean for optimizer in (asked, twin)]
        torch.testing.assert_close(*means, rtol=0, atol=1e-8)
        for optimizer, trial in ((asked, mine), (twin, other)):
            optimizer.tell(trial, reward(trial))
        state = asked.generator.get_state()
        asked.recommend(context=LISTED[1])
        asked.policy(LISTED[1:3], t=t + ahead)
        assert torch.equal(asked.generator.get_state(), state)


@pytest.mark.parametrize("ahead", [4.0, 1000.0])
@pytest.mark.parametrize(
    "retention",
    [None, SlidingWindow(length=7), Reset(every=10), StaleCutoff(RATE, tol=0.7)],
    ids=["all", "window", "reset", "stale"],
)
@pytest.mark.parametrize(
    ("actions", "contexts"), [("choices", "list"), ("choices", "bounds"), ("box", "bounds")]
)
@pytest.mark.combinations
def test_a_recommendation_is_no_ask(actions, contexts, retention, ahead):
    """Also for a time at which retention would drop some of what is held, or all of it."""
    rounds = 8 if actions == "choices" else 2
    assert_chooses_as_if_never_asked(rounds, actions, contexts, ahead, retention=retention)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.OptimizationWarning")
@pytest.mark.parametrize(
    ("actions", "options"),
    [
        ("box", learning(None)),
        ("choices", learning(RefitEvery(1), retention=SlidingWindow(length=12))),
    ],
    ids=["each round", "in a window"],
)
def test_a_recommendation_is_no_ask_where_hyperparameters_are_learned(actions, options):
    """Two observations for each of six numbers come first: the window holds just enough."""
    rounds = 3 if actions == "choices" else 2
    assert_chooses_as_if_never_asked(rounds, actions, "list", ahead=1.0, **options)


@pytest.mark.parametrize("pending", [Hallucinate(), ConstantLiar(-3.0)])
@pytest.mark.parametrize("actions", ["choices", "box"])
def test_pending_trials_do_not_count_in_a_recommendation(actions, pending):
    """Some are answered since the last ask, some are not."""
    rounds = 25 if actions == "choices" else 5
    optimizer = make(actions, pending=pending)
    for i in range(rounds):
        optimizer.ask(t=float(i), context=LISTED[i % 4])
        if i % 3:
            optimizer.tell(optimizer.open_trials[0], math.sin(i))
        best = optimizer.recommend(context=LISTED[1])
        candidates = CHOICES if actions == "choices" else best.X
        mean, sd = dense(optimizer.observations, at(candidates, 0.35, best.t))
        assert best.mean == pytest.approx(mean.max().item(), abs=1e-11)
        assert best.standard_deviation == pytest.approx(sd[mean.argmax()].item(), abs=1e-9)
    # The model that one may look at then says the same, of several rows together, too.
    rows = at(CHOICES[:, :1] if actions == "box" else CHOICES, 0.35, best.t)
    mean, sd = dense(optimizer.observations, rows)
    posterior = optimizer.model.posterior(rows)
    torch.testing.assert_close(posterior.mean.squeeze(-1), mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(posterior.variance.squeeze(-1).sqrt(), sd, rtol=0, atol=1e-8)


def test_a_policy_for_the_far_future_loses_no_observations():
    for retention in (Reset(every=4), SlidingWindow(length=3), StaleCutoff(RATE, tol=0.5)):
        optimizer = told(make(retention=retention))
        optimizer.ask(t=15.0, context=LISTED[0])
        held = optimizer.observations
        assert len(held) > 0
        far = optimizer.policy(t=1e4)
        # Nothing weighs there: the prior.
        torch.testing.assert_close(far.mean, torch.zeros(4, dtype=torch.float64))
        torch.testing.assert_close(far.standard_deviation, torch.ones(4, dtype=torch.float64))
        assert torch.equal(optimizer.observations.X, held.X)
        near = optimizer.recommend(context=LISTED[0], t=15.0)
        mean, _ = dense(held, at(CHOICES, 0.1, 15.0))
        assert near.mean == pytest.approx(mean.max().item(), abs=1e-8)


@pytest.mark.parametrize(("actions", "contexts"), KINDS)
def test_before_any_observation(actions, contexts):
    optimizer = make(actions, contexts)
    with pytest.raises(InputDataError):
        optimizer.recommend(context=LISTED[0])
    with pytest.raises(InputDataError):
        optimizer.policy(LISTED)
    best = optimizer.recommend(context=LISTED[0], t=3.0)
    assert best.mean == pytest.approx(0.0)
    assert best.standard_deviation == pytest.approx(1.0)
    optimizer.search_space.snap(best.X)
    # Time stands where it stood: an earlier ask is fine.
    assert optimizer.ask(t=1.0, context=LISTED[0]).id == 1


def test_without_t_it_is_that_of_the_latest_ask_or_outcome():
    optimizer = make()
    trial = optimizer.attach(CHOICES[0], t=7.5, context=LISTED[0])
    with pytest.raises(InputDataError):
        optimizer.recommend(context=LISTED[0])
    optimizer.tell(trial, 1.0)
    assert optimizer.recommend(context=LISTED[0]).t == 7.5
    optimizer.ask(t=9.0, context=LISTED[1])
    assert optimizer.recommend(context=LISTED[0]).t == 9.0
    optimizer.tell(optimizer.attach(CHOICES[0], t=2.0, context=LISTED[0]), 0.5)
    assert optimizer.policy().t == 9.0


def test_which_contexts_a_policy_takes():
    listed, bounded = told(make(contexts="list")), told(make(contexts="bounds"))
    assert torch.equal(listed.policy().contexts, LISTED)
    with pytest.raises(ValueError):
        bounded.policy()
    assert bounded.policy(tensor([0.77])).contexts.tolist() == [[0.77]]
    with pytest.raises(InputDataError):
        listed.policy(tensor([0.1], [0.77]))
    # One number each, where a context is one number.
    assert torch.equal(bounded.policy(tensor(0.1, 0.5)).contexts, tensor([0.1], [0.5]))
    for contexts in (tensor(0.1).squeeze(), torch.zeros(0, 1)):
        with pytest.raises(ValueError):
            listed.policy(contexts)
    with pytest.raises(BotorchTensorDimensionError):
        bounded.policy(torch.zeros(2, 2))


def test_frame_and_csv(tmp_path):
    policy = Policy(
        [
            Recommendation(tensor([2.0]), 0.25, 0.5, 7.5, tensor(0.0, 5.0)),
            Recommendation(tensor([3.0]), -1.5, 0.125, 7.5, tensor(1.0, 6.0)),
        ]
    )
    frame = policy.to_frame()
    assert frame.to_dict("list") == {
        "context_0": [0.0, 1.0],
        "context_1": [5.0, 6.0],
        "action_0": [2.0, 3.0],
        "mean": [0.25, -1.5],
        "standard_deviation": [0.5, 0.125],
        "t": [7.5, 7.5],
    }
    policy.to_frame().to_csv(tmp_path / "policy.csv", index=False)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "policy.csv"), frame)
    assert policy.best.X.tolist() == [[2.0]]
    assert policy.best.context.tolist() == [0.0, 5.0]
