"""Forms of drift of a long log."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from tvbo import recipes
from tvbo.kernels import TemporalMaternKernel
from tvbo.logs import DriftFit, fit_drift
from tvbo.models import TimeVaryingGP

N, NOISE = 120, 0.01


def log(n=N, seed=1):
    """A log whose drift is Matérn-3/2 with lengthscale 12, in units far from one."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, dtype=torch.float64, generator=generator)
    X[:, 1] = 0.5 * torch.arange(n)
    over_actions, in_time = RBFKernel().double(), TemporalMaternKernel().double()
    over_actions.lengthscale, in_time.lengthscale = 0.4, 6.0
    lags = (X[:, 1:] - X[:, 1]).abs()
    with torch.no_grad():
        covar = over_actions(X[:, :1]).to_dense() * in_time.correlation(lags)
    covar += NOISE * torch.eye(n)
    root = torch.linalg.cholesky(covar)
    return X, 50 + 200 * root @ torch.randn(n, 1, dtype=torch.float64, generator=generator)


@pytest.fixture(scope="module")
def fit():
    return fit_drift(*log(), temporal_kernel="auto", time_unit="h")


@pytest.mark.slow
def test_the_form_of_the_truth_is_chosen(fit):
    chosen = fit.comparison
    assert [row.temporal_kernel for row in chosen.evidence] == [
        "exponential", "matern32", "two-scales",
    ]  # fmt: skip
    assert chosen.evidence[chosen.chosen].temporal_kernel == "matern32"
    assert "matern32" in chosen.reason
    assert chosen.temporal_kernels[0].lengthscale.item() == pytest.approx(6.0, rel=0.4)
    # So short a log says little of small noise but that it is small.
    assert chosen.noise_variance < 10 * 200**2 * NOISE


def test_exponential_decay_has_the_likelihood_of_the_fit_of_its_rate(fit):
    row = fit.comparison.evidence[0]
    # Two searches for the same maximum.
    assert row.log_likelihood == pytest.approx(fit.log_likelihood, abs=1e-2)
    assert row.evidence == row.log_likelihood - 0.5 * row.num_parameters * math.log(N)
    # Lengthscale, scale, rate, noise; the mean is integrated out.
    assert row.num_parameters == 4
    assert fit.comparison.evidence[2].num_parameters == 6


def test_settings_are_the_model_of_the_chosen_form(fit):
    X, Y = log()
    settings = fit.settings()
    assert "forgetting_rate" not in settings
    model = TimeVaryingGP(
        X,
        Y,
        torch.full_like(Y, settings["noise_variance"]),
        covar_module=settings["covar_module"],
        temporal_kernel=settings["temporal_kernel"],
        mean_module=settings["mean_module"],
        outcome_transform=None,
    )
    with torch.no_grad():
        outcomes = model.likelihood(model.train()(X), X)
        density = outcomes.log_prob(model.train_targets).item()
        # The mean is integrated out.
        density += 0.5 * math.log(2 * math.pi / outcomes.covariance_matrix.inverse().sum().item())
    assert density == pytest.approx(fit.comparison.evidence[1].log_likelihood, rel=1e-8)
    choices = torch.linspace(0, 1, 5, dtype=torch.float64).unsqueeze(-1)
    assert recipes.tv_gp_ucb(choices=choices, **settings).ask(t=61.0).X.shape == (1, 1)


@pytest.mark.slow
def test_prediction_is_that_of_the_conditional_distribution():
    X, Y = log()
    cut = math.ceil(0.75 * N)
    options = {"noise_variance": 400.0, "temporal_kernel": "matern32", "outliers": False}
    whole, first = (fit_drift(X[:n], Y[:n], **options).comparison for n in (N, cut))
    with torch.no_grad():
        covar = first.covar_modules[0](X[:, :1]).to_dense()
        covar *= first.temporal_kernels[0].correlation((X[:, 1:] - X[:, 1]).abs())
    covar = covar.numpy() + first.noise_variance * np.eye(N)
    residual = (Y - first.mean).squeeze(-1).numpy()
    solved = np.linalg.solve(covar[:cut, :cut], covar[:cut, cut:])
    below = covar[cut:, cut:] - covar[cut:, :cut] @ solved
    error = residual[cut:] - solved.T @ residual[:cut]
    density = -0.5 * (error @ np.linalg.solve(below, error) + np.linalg.slogdet(below)[1])
    density -= 0.5 * len(error) * math.log(2 * math.pi)
    # Two searches for the same maximum.
    assert whole.evidence[0].predictive_score == pytest.approx(density / len(error), abs=2e-3)


def test_a_file_holds_the_comparison(fit, tmp_path):
    fit.save(tmp_path / "fit.json")
    loaded = DriftFit.load(tmp_path / "fit.json")
    assert loaded.to_dict() == fit.to_dict()
    one, other = (each.settings()["temporal_kernel"] for each in (fit, loaded))
    lags = torch.arange(5.0, dtype=torch.float64)
    torch.testing.assert_close(one.correlation(lags), other.correlation(lags), rtol=0, atol=0)


@pytest.mark.slow
def test_a_long_log_is_compared_on_its_newest_rows():
    X, Y = log(1020)
    kernel = ScaleKernel(RBFKernel()).double()
    kernel.outputscale = 200.0**2
    kernel.base_kernel.requires_grad_(False)
    options = {"noise_variance": 400.0, "mean": 50.0, "num_starts": 1, "outliers": False}
    options["covar_module"] = kernel
    fit, newest = (
        fit_drift(x, y, temporal_kernel="exponential", **options)
        for x, y in ((X, Y), (X[20:], Y[20:]))
    )
    # Two searches for the same maximum, of 1,000 rows.
    assert fit.comparison.evidence[0].log_likelihood == pytest.approx(
        newest.log_likelihood, abs=0.1
    )
    assert len(fit.comparison.messages) == 1
    assert fit.settings()["forgetting_rate"] == fit.forgetting_rate


def test_bad_arguments():
    X, Y = log(20)
    with pytest.raises(ValueError):
        fit_drift(X, Y, temporal_kernel="linear")
    with pytest.raises(ValueError):
        fit_drift(X, Y, temporal_kernel="auto", segments=torch.arange(20) // 10)
