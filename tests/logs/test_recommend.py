"""Advice of a log against the conditional distribution, written out."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import RBFKernel

from tvbo.logs import fit_drift
from tvbo.logs.recommend import recommend
from tvbo.test_functions.drifting_gp import drifting_gp_log

pytestmark = pytest.mark.usefixtures("double_by_default")

NOISE, LENGTHSCALE = 0.02, 0.3


def draw(n, arms=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, generator=generator)
    if arms is not None:
        X[:, 0] = torch.randint(arms, (n,), generator=generator) / arms
    X[:, 1] = torch.arange(n)
    kernel = RBFKernel().double().requires_grad_(False)
    kernel.lengthscale = LENGTHSCALE
    Y = 7 + drifting_gp_log(X, kernel, 0.05, NOISE, generator=generator)
    fit = fit_drift(X, Y, covar_module=kernel, noise_variance=NOISE, mean=7.0, num_starts=1)
    return X, Y, fit


def conditional(X, Y, fit, places, t):
    """Mean and variance of an outcome at some places."""
    rate = -math.log1p(-fit.forgetting_rate)

    def covar(a, s, b, u):
        square = (a[:, None] - b) ** 2 / LENGTHSCALE**2
        return np.exp(-0.5 * square - 0.5 * rate * np.abs(s[:, None] - u))

    (x, s), at = X.numpy().T, np.full(len(places), t)
    inner = covar(x, s, x, s) + NOISE * np.eye(len(x))
    across = covar(places, at, x, s)
    mean = 7 + across @ np.linalg.solve(inner, Y.numpy()[:, 0] - 7)
    return mean, 1 + NOISE - (across * np.linalg.solve(inner, across.T).T).sum(1)


def test_the_best_of_few_actions_with_its_band():
    X, Y, fit = draw(60, arms=5)
    advice = recommend(fit, X, Y)
    places = np.arange(5) / 5
    mean, variance = conditional(X, Y, fit, places, 60.0)
    assert (advice.t, advice.X.item()) == (60.0, places[mean.argmax()])
    assert advice.mean == pytest.approx(mean.max(), rel=1e-9)
    reach = 1.959964 * variance[mean.argmax()] ** 0.5
    assert advice.interval == pytest.approx((mean.max() - reach, mean.max() + reach), rel=1e-6)
    # Past the log, a lead decays like the correlation.
    assert advice.holds_for == pytest.approx(fit.half_life, rel=1e-4)
    words = advice.describe(["speed"], {})
    assert words.startswith(f"speed {advice.X.item():.4g}: expect {mean.max():.4g} (95%: ")


def test_of_many_actions_it_may_be_one_between():
    X, Y, fit = draw(260)
    advice = recommend(fit, X, Y, t=270.0)
    places = np.linspace(X[:, 0].min().item(), X[:, 0].max().item(), 2001)
    mean, _ = conditional(X, Y, fit, places, 270.0)
    assert advice.mean == pytest.approx(mean.max(), rel=1e-4)
    assert advice.t == 270.0


def test_what_is_known_is_not_chosen():
    X, Y, fit = draw(60, arms=5)
    wide = torch.cat([X[:, :1], 0 * X[:, :1], X[:, 1:]], dim=-1)
    advice = recommend(fit, wide, Y, context={1: 0.25}, categories=[0])
    assert advice.X.tolist()[1] == 0.25
    assert advice.describe(["kind", "load"], {0: dict.fromkeys(range(5), "a")}).startswith("kind a")


def test_a_lead_is_over_what_is_usual():
    X, Y, fit = draw(60, arms=5)
    advice = recommend(replace(fit, mean=9.0), X, Y)
    assert advice.mean < advice.usual == 9
    assert advice.holds_for == 0
    assert advice.describe(["speed"], {}).endswith("nothing is known to be better than usual")


def test_without_drift_a_lead_does_not_fade():
    X, Y, fit = draw(60, arms=5)
    advice = recommend(replace(fit, forgetting_rate=0.0, mean=5.0), X, Y)
    assert advice.holds_for == math.inf
    assert advice.describe(["speed"], {}).endswith("the lead hardly fades")


def test_a_time_that_is_past_is_refused():
    X, Y, fit = draw(20, arms=3)
    with pytest.raises(InputDataError):
        recommend(fit, X, Y, t=5.0)


def test_a_band_is_in_proportion_to_the_outcomes():
    X, Y, _ = draw(60, arms=5)
    one, other = (
        recommend(fit_drift(X, scale * (Y - 7), num_starts=1), X, scale * (Y - 7))
        for scale in (1.0, 1e-9)
    )
    assert other.interval == pytest.approx([1e-9 * end for end in one.interval], rel=1e-3)
