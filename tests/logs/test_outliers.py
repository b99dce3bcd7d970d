import math

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from gpytorch.kernels import RBFKernel
from scipy.stats import norm

from tvbo.logs import DriftLog, OutlierSearch, fit_drift, panel_rows
from tvbo.logs.outliers import LogModel, Outliers, clipped, find_outliers
from tvbo.test_functions import drifting_gp_log

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
    covar = np.exp(-0.5 * square / 0.3**2 - 0.5 * model.rate * np.abs(t[:, None] - t))
    covar *= log.segments.numpy()[:, None] == log.segments.numpy()
    noise = np.full(len(t), model.noise_variance) if log.Yvar is None else log.Yvar.numpy()
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
    model = LogModel(known_kernel(), 0.05, 0.1, 0.3, unit=1.0)
    torch.testing.assert_close(
        model.residuals(log, kept, given),
        left_out_one_by_one(log, kept, given, model),
        rtol=1e-9,
        atol=1e-9,
    )


def test_a_long_log_is_judged_window_by_window(monkeypatch):
    X, Y = draw(90)
    log, kept = DriftLog.from_rows(X, Y, None, -1), torch.ones(90, dtype=torch.bool)
    model = LogModel(known_kernel(), 1.5, 0.1, 0.0, unit=1.0)
    whole = model.residuals(log, kept, log.Y)
    monkeypatch.setattr("tvbo.logs.outliers.WINDOW", 60)
    monkeypatch.setattr("tvbo.logs.outliers.MARGIN", 20)
    # Rows more than 20 apart say nothing about each other here.
    parts = model.residuals(log, kept, log.Y)
    assert not torch.equal(parts, whole)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-5)


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
    assert fit.forgetting_rate == without.forgetting_rate
    assert fit.forgetting_rate_interval == without.forgetting_rate_interval
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


def test_rows_are_named_by_their_numbers():
    X, Y = draw()
    Y[20] += 1000.0
    fit = fit_drift(X, Y, row_numbers=range(2, 102), **OPTIONS)
    assert fit.outliers[0][0] == 22
    with pytest.raises(BotorchTensorDimensionError):
        fit_drift(X, Y, row_numbers=[1, 2, 3])


def test_threshold_bounds_the_chance_that_any_row_is_named():
    search = OutlierSearch(false_alarm_rate=0.05)
    assert 300 * 2 * norm.sf(search.threshold(300)) == pytest.approx(0.05)
    generator = torch.Generator().manual_seed(0)
    kept = torch.ones(300, dtype=torch.bool)
    named = [
        search.among(torch.randn(300, generator=generator), kept).any().item() for _ in range(400)
    ]
    assert sum(named) / 400 < 0.08
    # Where all residuals are ten times too large, none stands out.
    assert not search.among(10 * torch.linspace(-2, 2, 300), kept).any()


def test_where_the_others_are_equal_there_are_no_outliers():
    X, _ = draw(19)
    Y = torch.zeros(19, 1)
    Y[3] = 100.0
    log = DriftLog.from_rows(X, Y, None, -1)
    model = LogModel(known_kernel(), 0.05, 1e-6, 0.0, unit=1.0)
    assert OutlierSearch().among(model.residuals(log, log.Y == log.Y, log.Y), log.Y == log.Y)[3]
    found = find_outliers(log, lambda part: model, OutlierSearch(max_refits=1), model)
    assert found.kept.all()
    assert found.settled


def test_many_outliers_and_a_search_without_end_are_said():
    kept = torch.ones(100, dtype=torch.bool)
    kept[:7] = False
    messages = Outliers(kept, torch.full((100,), 9.0), settled=False).messages(range(100))
    assert "row 4 (9), and 2 more." in messages[0]
    assert messages[1].startswith("7% of the rows are outliers")
    assert messages[2] == "The outliers still changed with the last refit."


def test_long_panels_are_searched_only_if_asked(monkeypatch):
    values = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    values[5, 2] += 1000.0
    X, Y = panel_rows(values, torch.arange(12.0))
    options = {"covar_module": RBFKernel().requires_grad_(False), "num_starts": 1}
    monkeypatch.setattr("tvbo.logs.outliers.MAX_PANEL", 40)
    assert fit_drift(X, Y, **options).outliers == []
    [(row, _)] = fit_drift(X, Y, outliers=OutlierSearch(), **options).outliers
    assert row == 22


def test_arguments_of_a_search():
    for wrong in ({"false_alarm_rate": 0.0}, {"max_refits": 0}):
        with pytest.raises(ValueError):
            OutlierSearch(**wrong)
