"""The width of BKB against the theorem's formula in the paper's own units."""

import math

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from gpytorch.kernels import RBFKernel, ScaleKernel

from tvbo.acquisition.bkb_beta import BKBBeta, bkb_qbar
from tvbo.models import IncrementalGP
from tvbo.models.nystrom_gp import NystromGP
from tvbo.spaces import AskContext, InputLayout
from tvbo.spaces.observations import Observations

pytestmark = pytest.mark.usefixtures("double_by_default")

LAM, SCALE, LENGTHSCALE = 0.04, 2.5, 0.3


def kernel():
    scaled = ScaleKernel(RBFKernel()).double()
    scaled.outputscale, scaled.base_kernel.lengthscale = SCALE, LENGTHSCALE
    return scaled


def data(n):
    generator = torch.Generator().manual_seed(n)
    return torch.rand(n, 1, generator=generator), torch.randn(n, 1, generator=generator)


def inducing(m=4):
    return torch.linspace(0, 1, m).unsqueeze(-1)


def sketch(n=15, m=4, Yvar=None):
    X, Y = data(n)
    return NystromGP(kernel(), LAM, inducing(m), X, Y, Yvar)


def k(A, B):
    return SCALE * np.exp(-((A - B.T) ** 2) / (2 * LENGTHSCALE**2))


def paper_sigma(rows, X, S):
    """σ̃ of the paper, in units of the root of λ, with its V."""
    values, vectors = np.linalg.eigh(k(S, S))
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    Z, z = k(X, S) @ root, k(rows, S) @ root
    V = Z.T @ Z + LAM * np.eye(len(S))
    explained = (z @ Z.T @ Z @ np.linalg.inv(V) * z).sum(axis=1)
    return np.sqrt((SCALE - explained) / LAM)


def test_the_index_is_that_of_the_theorem():
    X, Y = data(15)
    S = inducing().numpy()
    norm_bound, delta, epsilon, xi, kappa2 = 3.0, 0.05, 0.3, 0.7, 4.0
    alpha = 1.3 / 0.7
    total = (paper_sigma(X.numpy(), X.numpy(), S) ** 2).sum()
    width = 2 * xi * math.sqrt(alpha * math.log(kappa2 * 15) * total + math.log(1 / delta))
    width += (1 + 1 / math.sqrt(0.7)) * math.sqrt(LAM) * norm_bound
    model = sketch()
    rule = BKBBeta(norm_bound, delta, epsilon, noise_scale=xi, kernel_bound=kappa2)
    acquisition = rule(model, AskContext(16, 16.0, None, InputLayout(1), Observations(X, Y)))
    rows = torch.linspace(-0.5, 1.5, 9).unsqueeze(-1)
    mean = model.posterior(rows).mean.flatten().numpy()
    expected = mean + width * paper_sigma(rows.numpy(), X.numpy(), S)
    np.testing.assert_allclose(acquisition(rows.unsqueeze(-2)), expected, rtol=0, atol=1e-8)


def test_defaults_are_the_noise_of_the_model_and_outcomes_in_units_of_the_prior():
    model = sketch()
    given = BKBBeta(noise_scale=math.sqrt(LAM), kernel_bound=1.0)
    assert BKBBeta().beta(model) == pytest.approx(given.beta(model), rel=1e-12)


def test_own_noise_equal_for_all_is_one_noise():
    Yvar = torch.full((15, 1), LAM)
    assert BKBBeta().beta(sketch(Yvar=Yvar)) == pytest.approx(BKBBeta().beta(sketch()), rel=1e-12)


def test_without_observations_only_delta_and_the_norm_count():
    expected = (2 * math.sqrt(math.log(10)) + (1 + math.sqrt(2)) * 3) ** 2
    model = sketch(n=0, m=0)
    assert BKBBeta(3.0).beta(model) == pytest.approx(expected, rel=1e-12)
    scaled = (2 * 0.8 / 0.2 * math.sqrt(math.log(10)) + (1 + math.sqrt(2)) * 3) ** 2
    assert BKBBeta(3.0, noise_scale=0.8).beta(model) == pytest.approx(scaled, rel=1e-12)


def test_a_logarithm_below_zero_counts_as_zero():
    model = sketch(n=1, m=1)
    small = BKBBeta(kernel_bound=0.5).beta(model)
    assert small == pytest.approx(BKBBeta().beta(sketch(n=0, m=0)), rel=1e-12)


def test_qbar_of_the_theorem():
    assert bkb_qbar(1000, 0.1, 0.5) == pytest.approx(6 * 3 * math.log(40_000) / 0.25)


def test_the_sketch_of_that_qbar_has_variances_within_alpha():
    """Theorem 1 on 300 rows drawn as it says from the exact variances."""
    X, Y = data(300)
    epsilon = 0.5
    exact = IncrementalGP(kernel(), LAM)
    exact.observe(X, Y)
    with torch.no_grad():
        true = exact.posterior(X.unsqueeze(-2)).variance.flatten()
    p = (bkb_qbar(300, 0.1, epsilon) / 20 * true / LAM).clamp_max(1.0)
    for seed in range(20):
        drawn = torch.rand(300, generator=torch.Generator().manual_seed(seed)) < p
        ratio = NystromGP(kernel(), LAM, X[drawn], X, Y).observed_variance / true
        assert ratio.min() > 1 / 3
        assert ratio.max() < 3


def test_another_model():
    with pytest.raises(UnsupportedError, match="Expected a NystromGP"):
        BKBBeta().beta(IncrementalGP(kernel(), LAM))


@pytest.mark.parametrize("norm_bound", [-1.0, math.inf, math.nan])
def test_norm_bound_out_of_range(norm_bound):
    with pytest.raises(ValueError, match="Expected norm_bound >= 0"):
        BKBBeta(norm_bound)


@pytest.mark.parametrize("name", ["delta", "epsilon"])
@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, math.nan])
def test_probability_out_of_range(name, value):
    with pytest.raises(ValueError, match=rf"Expected {name} in \(0, 1\)"):
        BKBBeta(**{name: value})
    with pytest.raises(ValueError, match=rf"Expected {name} in \(0, 1\)"):
        bkb_qbar(100, **{name: value})


@pytest.mark.parametrize("name", ["noise_scale", "kernel_bound"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_scale_out_of_range(name, value):
    with pytest.raises(ValueError, match=f"Expected {name} > 0"):
        BKBBeta(**{name: value})


@pytest.mark.parametrize("horizon", [0, 1.5, math.inf])
def test_horizon_out_of_range(horizon):
    with pytest.raises(ValueError, match="Expected horizon"):
        bkb_qbar(horizon)
