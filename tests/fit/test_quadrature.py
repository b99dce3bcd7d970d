"""Averages over hyperparameters, against integrals over a grid, and in the loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from botorch.acquisition import LogExpectedImprovement
from default_model import assign, default_model
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from torch import Generator

from tvbo import recipes
from tvbo.fit.log_posterior import LogPosterior
from tvbo.models import EnsembleGP, TimeVaryingGP
from tvbo.models.closed_form import Covariances
from tvbo.spaces.observations import Observations
from tvbo.test_functions import MovingPeak

SIDE = torch.tensor([[0.0], [1.0]], dtype=torch.float64)


def fitted(form: int, n: int) -> tuple[TimeVaryingGP, LogPosterior, np.ndarray]:
    """A model with two hyperparameters at their mode: its lengthscale, and one of time."""
    generator = Generator().manual_seed(n)
    X = torch.rand(n, 2, dtype=torch.float64, generator=generator)
    X[:, 1] = torch.arange(n)
    Y = torch.sin(5 * X[:, :1] + 0.1 * X[:, 1:])
    Y = Y + 0.3 * torch.randn(n, 1, dtype=torch.float64, generator=generator)
    observations = Observations(X, (Y - Y.mean()) / Y.std(), torch.full_like(Y, 0.09) / Y.var())
    model, posterior = default_model(observations, SIDE, is_smooth=bool(form))
    return model, posterior, posterior.maximize(None)[1]


def on_a_grid(posterior: LogPosterior, mode: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Log evidence, points and weights of a fine grid over both logarithms."""
    sides = [
        np.linspace(max(m - 5, low), min(m + 5, high), 61)
        for m, (low, high) in zip(mode, posterior.bounds, strict=True)
    ]
    points = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)
    logs = np.array([posterior(point)[0] for point in points])
    cell = math.prod(side[1] - side[0] for side in sides)
    weights = np.exp(logs - logs.max())
    return math.log(cell * weights.sum()) + logs.max(), points, weights / weights.sum()


def noise_of(posterior: LogPosterior) -> torch.Tensor:
    """The noise variances that are known, ``n x 1``."""
    return torch.from_numpy(posterior.noise).unsqueeze(-1)


def log_likelihood(average: EnsembleGP, noise: torch.Tensor) -> torch.Tensor:
    """By each set, at the prior mean that is most likely."""
    X, Y = average.train_inputs[0], average.train_targets
    covars = Covariances.apply(X, X, average.sets) + noise.flatten().diag()
    inverses = covars.inverse()
    means = (inverses @ Y).sum(-1, keepdim=True) / inverses.sum((-2, -1)).unsqueeze(-1)
    normal = torch.distributions.MultivariateNormal(means.expand(-1, len(Y)), covars)
    return normal.log_prob(Y)


@pytest.mark.parametrize("form", [0, 1])
def test_the_weights_sum_to_the_evidence_and_average_as_integrals_do(form):
    model, posterior, mode = fitted(form, 40)
    evidence, points, weights = on_a_grid(posterior, mode)
    sets = posterior.sigma_points(mode)
    assert len(sets.mean) == 4
    X, Y = model.train_inputs[0], model.train_targets.unsqueeze(-1)
    average = EnsembleGP.from_sets(sets, X, Y, noise_of(posterior)).weighed_by_likelihood()
    logs = sets.log_weights + log_likelihood(average, noise_of(posterior))
    # In nats; forms of drift that differ by a tenth are alike.
    assert logs.logsumexp(0).item() == pytest.approx(evidence, abs=0.1)
    shares = average.weights
    torch.testing.assert_close(shares, logs.softmax(0), rtol=1e-8, atol=0)
    logarithms = sets.lengthscales[:, 0].log()
    exact = (weights @ points)[0]
    spread = math.sqrt(weights @ (points[:, 0] - exact) ** 2)
    mean = (shares @ logarithms).item()
    assert mean == pytest.approx(exact, abs=0.15 * spread)
    found = math.sqrt((shares @ (logarithms - mean).square()).item())
    assert found == pytest.approx(spread, rel=0.2)


@pytest.mark.slow_cases("1")
@pytest.mark.parametrize("form", [0, 1])
def test_predictions_are_those_of_the_integral(form):
    model, posterior, mode = fitted(form, 16)
    X, Y = model.train_inputs[0], model.train_targets.unsqueeze(-1)
    sets = posterior.sigma_points(mode)
    at = torch.tensor([[[0.2, 17.0]], [[0.8, 30.0]]], dtype=torch.float64)
    average = EnsembleGP.from_sets(sets, X, Y, noise_of(posterior)).weighed_by_likelihood()
    found = average.posterior(at)
    _, points, weights = on_a_grid(posterior, mode)
    mean, second = torch.zeros(2).double(), torch.zeros(2).double()
    heavy = np.flatnonzero(weights > 1e-2 * weights.max())[::4]
    for point, weight in zip(points[heavy], weights[heavy] / weights[heavy].sum(), strict=True):
        model.train()
        assign(model, posterior, point)
        with torch.no_grad():
            each = model.eval().posterior(at)
        mean += weight * each.mean.flatten()
        second += weight * (each.variance + each.mean.square()).flatten()
    deviation = (second - mean.square()).sqrt()
    # Relative to the standard deviation of the prediction.
    assert ((found.mean.flatten() - mean).abs() < 0.2 * deviation).all()
    torch.testing.assert_close(found.variance.flatten().sqrt(), deviation, rtol=0.15, atol=0)


def test_of_many_outcomes_the_mode_stands_alone():
    _, posterior, mode = fitted(0, 260)
    sets = posterior.sigma_points(mode)
    assert len(sets.mean) == 1
    assert sets.lengthscales.item() == pytest.approx(math.exp(mode[0]))


def test_a_parameter_at_a_bound_is_held():
    """Outcomes that scatter alike at any time: no drift, at the least ε."""
    _, posterior, _ = fitted(0, 40)
    posterior.bounds[1] = -12.0, -11.0
    mode = posterior.maximize(None)[1]
    sets = posterior.sigma_points(mode)
    assert len(sets.mean) == 3
    assert (2 * sets.rates).log().tolist() == pytest.approx([mode[1]] * 3)


def played(scale: float = 1.0, **options):
    problem = MovingPeak(noise_variance=0.01)
    optimizer = recipes.tv_gp_ucb(
        bounds=problem.bounds, generator=Generator().manual_seed(0), **options
    )
    for t in range(1, 14):
        trial = optimizer.ask(t=float(t))
        outcome = problem(problem.layout.rows(trial.X, float(t))).item()
        optimizer.tell(trial, scale * outcome)
    optimizer.ask(t=14.0)
    return optimizer


def test_the_default_on_a_box_averages():
    optimizer = played()
    model = optimizer.model
    assert len(model.weights) > 1
    # Two forms, and four hyperparameters in each.
    assert model.weights.shape == (12,)
    assert model.weights.sum().item() == pytest.approx(1)
    assert model.covar_module(model.train_inputs[0][:2]).shape == (2, 2)
    again = optimizer.ask(t=14.0)
    # The pending trial lowers the deviation at its row.
    row = optimizer.layout.rows(optimizer.open_trials[0].X, 14.0)
    assert optimizer.model.posterior(row).variance < model.posterior(row).variance
    assert not torch.equal(again.X, optimizer.open_trials[0].X)
    recommended = optimizer.recommend(t=15.0)
    assert len(optimizer.model.weights) > 1
    at = optimizer.model.posterior(optimizer.layout.rows(recommended.X, 15.0))
    assert recommended.mean == pytest.approx(at.mean.item())


@pytest.mark.slow
def test_other_loops_take_one_form():
    auto = {"temporal_kernel": "auto"}
    own = ScaleKernel(RBFKernel(ard_num_dims=2)).double()
    for options in (
        {**auto, "covar_module": own},
        {**auto, "mean_module": ConstantMean().double()},
    ):
        model = played(**options).model
        assert not isinstance(model, EnsembleGP) or len(model.weights) == 1


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_a_given_rate_is_averaged_over_the_other_hyperparameters(rate):
    model = played(forgetting_rate=rate).model
    assert len(model.weights) > 1


def test_other_acquisitions_take_it():
    optimizer = played(
        acquisition=lambda model, context: LogExpectedImprovement(model, best_f=0.5), beta=None
    )
    assert len(optimizer.model.weights) > 1


def test_initial_is_how_many_actions_fill_the_space():
    bounds = MovingPeak().bounds
    filling = recipes.tv_gp_ucb(bounds=bounds, initial=3, generator=Generator().manual_seed(1))
    first = [filling.ask(t=float(t)).X for t in range(3)]
    default = recipes.tv_gp_ucb(bounds=bounds, generator=Generator().manual_seed(1))
    assert (default.initial, filling.initial) == (10, 3)
    for t, X in enumerate(first):
        torch.testing.assert_close(default.ask(t=float(t)).X, X)
    # The fourth no longer fills the space: with three pending trials it avoids them.
    assert not torch.allclose(filling.ask(t=3.0).X, default.ask(t=3.0).X)
    with pytest.raises(ValueError, match="initial"):
        recipes.tv_gp_ucb(bounds=bounds, initial=-1)


@pytest.mark.slow
def test_many_rounds_of_a_box_some_outcomes_lost():
    generator = Generator().manual_seed(0)
    problem = MovingPeak(period=100.0, noise_variance=0.01, generator=generator)
    optimizer = recipes.tv_gp_ucb(bounds=problem.bounds, generator=generator)
    fates = torch.rand(220, generator=generator)
    regret, sizes = [], []
    for t in range(1, 221):
        optimizer.expire_overdue(float(t), max_delay=20.0)
        trial = optimizer.ask(t=float(t))
        row = problem.layout.rows(trial.X, float(t))
        outcome = problem(row).item()
        if fates[t - 1] >= 0.1:
            optimizer.tell(trial, outcome)
        elif fates[t - 1] >= 0.05:
            optimizer.fail(trial, "NaN")
        regret.append(1.0 - problem.evaluate_true(row).item())
        sizes.append(optimizer.model_size)
    # It counts what is told after the ask as well.
    assert max(sizes) == 101
    assert min(sizes[150:]) >= 90
    assert len(optimizer.open_trials) <= 20
    # A random action loses 0.66, and one that stays where the peak once was 0.56.
    assert np.mean(regret[100:]) < 0.4
