import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from scipy.stats import norm

from tvbo.logs import fit_drift
from tvbo.logs.dataset import DriftLog
from tvbo.logs.outliers import FALSE_ALARM_RATE, LogModel, clipped, is_outlier
from tvbo.test_functions.drifting_gp import drifting_gp_log

pytestmark = pytest.mark.usefixtures("double_by_default")


def known_kernel():
    kernel = RBFKernel().double().requires_grad_(False)
    kernel.lengthscale = 0.3
    return kernel


OPTIONS = {"covar_module": known_kernel(), "num_starts": 1}


def draw(n=100, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, generator=generator)
    X[:, 1] = torch.arange(n)
    return X, drifting_gp_log(X, known_kernel(), 0.05, 0.05, generator=generator)


def left_out_one_by_one(log, kept, given, model):
    """The residual of each row, with a covariance matrix of its own for each of them."""
    X, t = log.actions.numpy(), log.times.numpy()
    square = ((X[:, None] - X) ** 2).sum(-1)
    covar = np.exp(-0.5 * square / 0.3**2 - 0.5 * 0.05 * np.abs(t[:, None] - t))
    covar *= log.segments.numpy()[:, None] == log.segments.numpy()
    noise = np.full(len(t), 0.1) if log.Yvar is None else log.Yvar.numpy()
    residuals = []
    for i in range(len(t)):
        others = [j for j in range(len(t)) if j != i and kept[j]]
        inner = covar[np.ix_(others, others)] + np.diag(noise[others])
        weights = np.linalg.solve(inner, covar[others, i])
        mean = model.mean + weights @ (given.numpy()[others] - model.mean)
        variance = covar[i, i] + noise[i] - weights @ covar[others, i]
        residuals.append((log.Y[i].item() - mean) / math.sqrt(variance))
    return torch.tensor(residuals)


@pytest.mark.parametrize("known_noise", [False, True])
def test_residuals_are_those_of_leaving_out_each_row(known_noise, generator):
    X, Y = draw(30)
    Y[3] += 50.0
    order = torch.randperm(30, generator=generator)
    Yvar = 0.02 + torch.rand(30, 1, generator=generator) if known_noise else None
    days = (X[:, 1] > 17).double()
    log = DriftLog.from_rows(X[order], Y[order], Yvar, -1, days[order])
    kept = torch.rand(30, generator=generator) > 0.2
    given = clipped(log.Y)
    assert not torch.equal(given, log.Y)
    model = LogModel(known_kernel(), 0.3, np.log([0.05, 0.1]))
    torch.testing.assert_close(
        model.residuals(log, kept, given),
        left_out_one_by_one(log, kept, given, model),
        rtol=1e-9,
        atol=1e-9,
    )


@pytest.mark.slow
@pytest.mark.parametrize("size", [3.0, 1000.0])
def test_outliers_are_named_and_left_out(size):
    X, Y = draw()
    planted = [20, 70]
    Y[planted] += torch.tensor([[size], [-size]])
    fit = fit_drift(X, Y, **OPTIONS)
    assert [row for row, _ in fit.outliers] == planted
    assert fit.outliers[0][1] > 5 > -5 > fit.outliers[1][1]
    assert fit.messages[0].startswith("Left out as outliers: 2 of 100 rows")
    assert "row 20 (" in fit.messages[0]
    rest = [row for row in range(100) if row not in planted]
    without = fit_drift(X[rest], Y[rest], outliers=False, **OPTIONS)
    assert fit.forgetting_rate == pytest.approx(without.forgetting_rate, rel=1e-6)
    assert fit.forgetting_rate_interval == pytest.approx(without.forgetting_rate_interval, rel=1e-4)
    assert fit.n_observations == 98
    low, high = fit.forgetting_rate_interval
    assert low < 0.05 < high
    kept = fit_drift(X, Y, outliers=False, **OPTIONS)
    assert (kept.outliers, kept.n_observations) == ([], 100)


def test_a_log_without_outliers_is_fitted_as_it_is():
    X, Y = draw()
    fit = fit_drift(X, Y, **OPTIONS)
    assert fit.outliers == []
    assert fit.to_dict() == fit_drift(X, Y, outliers=False, **OPTIONS).to_dict()


def test_threshold_bounds_the_chance_that_any_row_is_named():
    generator = torch.Generator().manual_seed(0)
    kept = torch.ones(300, dtype=torch.bool)
    edge = norm.isf(0.5 * FALSE_ALARM_RATE / 300)
    residuals = torch.randn(300, generator=generator)
    residuals[:2] = torch.tensor([0.999 * edge, -1.001 * edge])
    assert is_outlier(residuals, kept).nonzero().flatten().tolist() == [1]
    # Where all residuals are ten times too large, none stands out.
    assert not is_outlier(10 * torch.linspace(-2, 2, 300), kept).any()
