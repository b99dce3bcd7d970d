"""The profile's ends against a fine grid, with and without other parameters, and its steps."""

import math

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from scipy.optimize import brentq
from scipy.stats import chi2

from tvbo.logs.dataset import DriftLog
from tvbo.logs.likelihood import LogLikelihood
from tvbo.logs.maximize import (
    RATE,
    ROOT_TOLERANCE,
    LikelihoodMaximizer,
    Profile,
    at_rate,
)
from tvbo.test_functions.drifting_gp import drifting_gp_log

pytestmark = pytest.mark.usefixtures("double_by_default")

DROP = 0.5 * chi2.ppf(0.95, 1)


def make_maximizer(noise_variance, learns_scale, n=80, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, generator=generator)
    X[:, 1] = torch.arange(n)
    kernel = ScaleKernel(RBFKernel()).double().requires_grad_(False)
    kernel.base_kernel.lengthscale = 0.3
    kernel.outputscale = 1.0
    Y = drifting_gp_log(X, kernel, 0.1, 0.05, generator=generator)
    kernel.raw_outputscale.requires_grad_(learns_scale)
    log = DriftLog.from_rows(X, Y, None, -1)
    likelihood = LogLikelihood(log, kernel, None)
    return LikelihoodMaximizer(likelihood, kernel, noise_variance, Y.var().item(), (2e-6 / n, 32.0))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("noise", "learns_scale"), [(0.05, False), (None, False), (None, True)])
@pytest.mark.combinations
def test_ends_lie_on_the_threshold_to_the_tolerance(noise, learns_scale, seed):
    maximizer = make_maximizer(noise, learns_scale, seed=seed)
    profile = Profile(maximizer, 3, 0.95, lambda step: None)

    def excess(log_rate):
        rough = maximizer.explore(at_rate(profile.best.theta, log_rate), RATE)
        point, _ = maximizer.refine(rough.theta, RATE)
        return point.log_likelihood - profile.best.log_likelihood + DROP

    for end, outwards in zip(profile.interval, (-1.0, 1.0), strict=True):
        inside = math.log(end) - outwards * 0.1
        expected = brentq(excess, inside, math.log(end) + outwards * 0.1, xtol=1e-8)
        assert math.log(end) == pytest.approx(expected, abs=ROOT_TOLERANCE)


@pytest.mark.parametrize(("noise", "learns_scale"), [(0.05, False), (None, True)])
def test_rates_with_the_noise_held(noise, learns_scale):
    maximizer = make_maximizer(noise, learns_scale)
    profile = Profile(maximizer, 3, 0.95, lambda step: None)
    pairs = profile.rates_by_noise([3.0])
    assert len(pairs) == 3
    for variance, rate in pairs:
        held = Profile(make_maximizer(variance, learns_scale), 3, 0.95, lambda step: None)
        assert rate == pytest.approx(math.exp(held.best.log_rate), rel=1e-3)
