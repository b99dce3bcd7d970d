"""Thompson sampling: how often each action is chosen, and how a box is searched."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, RBFKernel
from reference import rbf
from scipy.stats import norm

from tvbo.acquisition import ThompsonSampling
from tvbo.acquisition.thompson import DrawnFunction
from tvbo.kernels import TemporalDecayKernel
from tvbo.models import EnsembleGP, StreamingGP
from tvbo.optim.maximize import maximize
from tvbo.spaces import AskContext, Box, FiniteSpace, InputLayout

pytestmark = pytest.mark.usefixtures("double_by_default")

TWO = torch.tensor([[0.0], [0.35]], dtype=torch.float64)


def ask_context(search_space, seed=0, t=3.0, **options):
    options = {"generator": torch.Generator().manual_seed(seed), **options}
    return AskContext(1, t, None, InputLayout(1), None, search_space, **options)


def two_armed(rate=0.1):
    model = StreamingGP(TWO, rbf(), rate, 0.2)
    model.observe(torch.tensor([[0.0, 1.0], [0.35, 2.0]]), torch.tensor([[0.4], [0.9]]))
    return model


@pytest.mark.parametrize("beta", [0.25, 4.0])
def test_an_action_is_chosen_as_often_as_it_is_best(beta):
    """Of two actions the difference is normal; by the dense formulas, within five standard
    errors."""
    K = np.exp(-(np.subtract.outer([0, 0.35], [0, 0.35]) ** 2) / (2 * 0.3**2))
    lag = np.abs(np.subtract.outer([1, 2], [1, 2]))
    A = K * 0.9 ** (lag / 2) + 0.2 * np.eye(2)
    k = K * 0.9 ** (np.array([2, 1])[:, None] / 2)
    mean = k.T @ np.linalg.solve(A, [0.4, 0.9])
    covar = beta * (K - k.T @ np.linalg.solve(A, k))
    gap = mean[1] - mean[0]
    expected = norm.cdf(gap / math.sqrt(covar[0, 0] + covar[1, 1] - 2 * covar[0, 1]))
    search_space, model = FiniteSpace(TWO), two_armed()
    now = ask_context(search_space)
    n = 500
    second = 0
    for _ in range(n):
        acquisition = ThompsonSampling(beta)(model, now)
        second += int(acquisition.candidates[acquisition.values.argmax()].item() == 0.35)
    assert abs(second / n - expected) < 5 * math.sqrt(expected * (1 - expected) / n)


def test_a_schedule_is_asked_by_round():
    rounds = []

    def schedule(t):
        rounds.append(t)
        return 0.0

    model, now = two_armed(), ask_context(FiniteSpace(TWO))
    drawn = ThompsonSampling(schedule)(model, now)
    assert rounds == [1]
    # Without a spread, the posterior mean.
    torch.testing.assert_close(drawn.values, model.marginals(3.0)[0])
    assert drawn.candidates[drawn.values.argmax()].tolist() == [0.35]


LOWEST, HIGHEST = -2.0, 5.0


def on_an_interval(t=3.0, seed=0):
    """A box, a model with two observations of a drifting function, and an ask."""
    drift = TemporalDecayKernel(active_dims=[1]).double()
    model = EnsembleGP(rbf_over_rows() * drift, 0.01)
    model = model.condition_on_observations(
        torch.tensor([[-1.0, 1.0], [3.0, 2.0]]), torch.tensor([[1.0], [0.5]])
    )
    return model, ask_context(Box([(LOWEST, HIGHEST)]), seed, t)


def test_a_box_is_searched_for_the_best_of_the_function():
    """No action of a fine grid is better, whatever the unit; each round draws a new function."""
    model, now = on_an_interval()
    grid = now.rows(torch.linspace(LOWEST, HIGHEST, 2001).unsqueeze(-1)).unsqueeze(-2)
    found = []
    for _ in range(5):
        drawn = ThompsonSampling()(model, now)
        assert isinstance(drawn, DrawnFunction)
        X = maximize(drawn, now.search_space, now, now.generator)
        assert drawn(now.rows(X)[None]).item() >= drawn(grid).max().item() - 1e-9
        found.append(X.item())
    assert len({round(x, 6) for x in found}) == 5


@pytest.mark.slow
def test_where_the_best_action_lies_on_a_box():
    """As often in each third as by joint draws on a grid with the dense formulas, 5 standard
    errors."""
    model, now = on_an_interval()
    grid = torch.linspace(LOWEST, HIGHEST, 71).unsqueeze(-1)
    posterior = model.posterior(now.rows(grid))
    root = torch.linalg.cholesky(posterior.distribution.covariance_matrix + 1e-9 * torch.eye(71))
    normal = torch.randn(71, 20_000, generator=now.generator)
    best = grid[(posterior.mean + root @ normal).argmax(dim=0), 0]
    n = 60
    chosen = [
        maximize(ThompsonSampling()(model, now), now.search_space, now, now.generator).item()
        for _ in range(n)
    ]
    edges = torch.linspace(LOWEST, HIGHEST, 4)[1:-1]
    expected = torch.bincount(torch.bucketize(best, edges), minlength=3) / 20_000
    observed = torch.bincount(torch.bucketize(torch.tensor(chosen), edges), minlength=3) / n
    bound = 5 * (expected * (1 - expected) / n).sqrt()
    assert ((observed - expected).abs() <= bound).all()


@pytest.mark.parametrize("beta", [0.0, 0.25, 4.0])
def test_beta_stretches_the_deviation_from_the_mean(beta):
    model, now = on_an_interval()
    X = torch.linspace(LOWEST, HIGHEST, 7)[:, None, None]
    rows = now.rows(X)
    one, stretched = (
        ThompsonSampling(b)(model, ask_context(now.search_space, seed=4)) for b in (1.0, beta)
    )
    mean = model.posterior(rows).mean.flatten()
    expected = mean + math.sqrt(beta) * (one(rows) - mean)
    torch.testing.assert_close(stretched(rows), expected)


def test_a_kernel_without_features_is_drawn_at_points_of_the_box():
    """All within the bounds, new ones in each round, the best of them taken."""
    bounds = torch.tensor([[-2.0], [5.0]])
    search_space = Box(bounds)
    model = EnsembleGP(LinearKernel(active_dims=[0]), 0.01)
    model = model.condition_on_observations(torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0]]))
    now = ask_context(search_space)
    one, two = (ThompsonSampling(num_candidates=64)(model, now) for _ in range(2))
    for drawn in (one, two):
        assert drawn.candidates.shape == (64, 1)
        assert (drawn.candidates >= bounds[0]).all()
        assert (drawn.candidates <= bounds[1]).all()
        # One in each part of the box, as Sobol points are.
        parts = ((drawn.candidates + 2) / 7 * 64).floor().flatten().sort().values
        assert torch.equal(parts, torch.arange(64.0))
        best = maximize(drawn, now.search_space, now, now.generator)
        assert best.item() == drawn.candidates[drawn.values.argmax()].item()
    assert not torch.equal(one.candidates, two.candidates)


def rbf_over_rows():
    kernel = RBFKernel(active_dims=[0])
    kernel.lengthscale = 1.0
    return kernel


def test_seeds_repeat():
    model = EnsembleGP(rbf_over_rows(), 0.01)
    finite, box = FiniteSpace(TWO), Box(torch.tensor([[0.0], [1.0]]))
    one, two = (ThompsonSampling()(model, ask_context(finite, seed=4)) for _ in range(2))
    assert torch.equal(one.values, two.values)
    # Before any observation a function is drawn at points.
    one, two = (ThompsonSampling()(model, ask_context(box, seed=4)) for _ in range(2))
    assert torch.equal(one.values, two.values)
    model, now = on_an_interval()
    for space in (box, now.search_space):
        asks = [ask_context(space, seed=4) for _ in range(2)]
        one, two = (
            maximize(ThompsonSampling()(model, each), space, each, each.generator) for each in asks
        )
        assert torch.equal(one, two)
