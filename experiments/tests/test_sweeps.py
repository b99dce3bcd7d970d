"""Replicates side by side against one dense loop at a time."""

import math

import pytest
import torch
from gpytorch.kernels import RBFKernel

from experiments.sweeps import Replicates, ucb_sweep
from tvbo.acquisition import LogBeta
from tvbo.models import StreamingGP, TimeVaryingGP
from tvbo.test_functions.drifting_gp import covariance_root, drifting_values

pytestmark = pytest.mark.usefixtures("double_by_default")

HORIZON, TRIALS, NOISE = 25, 3, 0.05


def make_kernel():
    kernel = RBFKernel()
    kernel.lengthscale = 0.3
    return kernel


@pytest.fixture
def choices(generator):
    # Not a grid: its symmetric points are ties that rounding decides.
    return torch.rand(30, 2, generator=generator)


@pytest.fixture
def replicates(choices):
    root = covariance_root(choices, make_kernel())
    return Replicates.draw(root, 0.1, HORIZON, NOISE, range(TRIALS))


def make_model(choices, rate, b=TRIALS):
    return StreamingGP(choices, make_kernel(), rate, NOISE, batch_shape=torch.Size([b]))


def dense_regret(replicates, trial, choices, rate, beta, reset_every):
    """Algorithms 1 and 2 of the paper, one trial, a dense model built again in each round."""
    X, Y, regret = torch.empty(0, 3), torch.empty(0, 1), []
    for i in range(HORIZON):
        if reset_every is not None and i % reset_every == 0:
            X, Y = X[:0], Y[:0]
        arm = replicates.first[trial, i]
        if len(X) > 0:
            model = TimeVaryingGP(
                X,
                Y,
                torch.full_like(Y, NOISE),
                forgetting_rate=rate,
                covar_module=make_kernel(),
                outcome_transform=None,
            )
            model.mean_module.constant.data.zero_()
            rows = torch.cat([choices, torch.full((len(choices), 1), i + 1.0)], dim=1)
            posterior = model.posterior(rows)
            bound = posterior.mean + math.sqrt(beta(i + 1)) * posterior.variance.sqrt()
            arm = bound.argmax()
        now = replicates.values[trial, i]
        regret.append(now.max() - now[arm])
        row = torch.cat([choices[arm], torch.tensor([i + 1.0])])
        X = torch.cat([X, row.unsqueeze(0)])
        Y = torch.cat([Y, (now[arm] + replicates.noise[trial, i]).reshape(1, 1)])
    return torch.stack(regret)


@pytest.mark.parametrize(("rate", "reset_every"), [(0.1, None), (0.0, None), (0.0, 7)])
def test_same_choices_as_a_dense_loop(replicates, choices, rate, reset_every):
    beta = LogBeta()
    regret = ucb_sweep(make_model(choices, rate), replicates, beta, reset_every)
    for trial in range(TRIALS):
        expected = dense_regret(replicates, trial, choices, rate, beta, reset_every)
        torch.testing.assert_close(regret[trial], expected, rtol=0, atol=1e-12)


def test_trials_do_not_depend_on_their_neighbours(choices):
    root = covariance_root(choices, make_kernel())
    together = Replicates.draw(root, 0.1, HORIZON, NOISE, range(3, 6))
    alone = Replicates.draw(root, 0.1, HORIZON, NOISE, range(4, 5))
    assert torch.equal(together.values[1], alone.values[0])
    assert torch.equal(together.noise[1], alone.noise[0])
    regret = ucb_sweep(make_model(choices, 0.1), together, LogBeta())
    single = ucb_sweep(make_model(choices, 0.1, b=1), alone, LogBeta())
    torch.testing.assert_close(regret[1], single[0], rtol=0, atol=1e-12)


def test_a_sweep_starts_afresh(replicates, choices):
    model = make_model(choices, 0.1)
    first, second = (ucb_sweep(model, replicates, LogBeta()) for _ in range(2))
    assert torch.equal(first, second)


def test_draws_have_the_model_s_covariance(choices):
    root = covariance_root(choices[:4], make_kernel())
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack(
        [drifting_values(root, 0.2, torch.arange(2), generator) for _ in range(20_000)]
    )
    covar = torch.einsum("aij,akl->ijkl", draws, draws) / len(draws)
    k = make_kernel()(choices[:4]).to_dense()
    # Four standard errors of a product of two unit normals.
    torch.testing.assert_close(covar[1, :, 1], k, rtol=0, atol=4 * math.sqrt(2 / len(draws)))
    torch.testing.assert_close(
        covar[0, :, 1], math.sqrt(0.8) * k, rtol=0, atol=4 * math.sqrt(2 / len(draws))
    )
