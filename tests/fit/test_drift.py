"""The drift that a loop learns: its prior, and the form that the observations favour."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from gpytorch.kernels import MaternKernel, RBFKernel
from gpytorch.means import ConstantMean, ZeroMean
from scipy.stats import norm

from tvbo import recipes
from tvbo.fit.model_fitter import ModelFitter
from tvbo.kernels import TemporalDecayKernel, TemporalMaternKernel
from tvbo.models import TimeVaryingGP
from tvbo.spaces import InputLayout
from tvbo.spaces.observations import Observations

BOUNDS = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
HALF_LIFE = 2 * math.log(2) / -math.log1p(-0.05)


def drawn(kernel, n=60, seed=0, gap=1.0) -> Observations:
    """Outcomes of a function that drifts by a temporal kernel, at random actions."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 1, dtype=torch.float64, generator=generator)
    over_actions = RBFKernel().double()
    over_actions.lengthscale = 0.3
    times = torch.arange(n, dtype=torch.float64).unsqueeze(-1)
    with torch.no_grad():
        covar = over_actions(X).to_dense() * kernel.double()(times).to_dense()
        root = torch.linalg.cholesky(covar + 1e-8 * torch.eye(n))
    normal = torch.randn(2, n, dtype=torch.float64, generator=generator)
    Y = root @ normal[0] + 0.1 * normal[1]
    return Observations(torch.cat([X, gap * times], dim=-1), Y.unsqueeze(-1))


def fitted(observations: Observations, **options) -> TimeVaryingGP:
    fitter = ModelFitter(InputLayout(1), BOUNDS, **options)
    fitter.fit(observations, len(observations), torch.Generator())
    return fitter.last_model


@pytest.mark.parametrize(
    ("observations", "expected"),
    [
        (drawn(TemporalMaternKernel(2.5)), TemporalMaternKernel),
        (drawn(TemporalDecayKernel(), n=120), TemporalDecayKernel),
    ],
)
def test_auto_takes_the_form_that_the_outcomes_have(observations, expected):
    model = fitted(observations, temporal_kernel="auto")
    assert isinstance(model.temporal_kernel, expected)


@pytest.mark.parametrize("form", [None, "auto"])
def test_the_unit_of_time_makes_no_difference(form):
    """Drift is fitted, and forms are compared, per round."""
    kernel = TemporalMaternKernel(2.5)
    one, other = (
        fitted(drawn(kernel, n=30, gap=gap), temporal_kernel=form) for gap in (1.0, 900.0)
    )
    assert type(one.temporal_kernel) is type(other.temporal_kernel)
    if form == "auto":
        expected = one.temporal_kernel.lengthscale.item() * 900
        assert other.temporal_kernel.lengthscale.item() == pytest.approx(expected, rel=1e-4)
    else:
        rate, slow = (-math.log1p(-m.forgetting_rate.item()) for m in (one, other))
        assert slow * 900 == pytest.approx(rate, rel=1e-4)


@pytest.mark.parametrize("form", [None, "auto"])
def test_a_round_is_as_long_as_those_of_all_outcomes(form):
    """A later fit ends where that of a new fitter does, whose prior is of all outcomes."""
    observations = drawn(TemporalDecayKernel(), n=60)
    X = observations.X
    X[30:, -1] = 30 + 0.1 * torch.arange(30)
    observations = replace(observations, X=X)
    learning = ModelFitter(InputLayout(1), BOUNDS, temporal_kernel=form)
    learning.fit(observations[:30], 30, torch.Generator())
    learning.fit(observations, 60, torch.Generator())
    model = learning.last_model
    expected = fitted(observations, temporal_kernel=form)
    for (name, value), other in zip(
        model.covar_module.state_dict().items(),
        expected.covar_module.state_dict().values(),
        strict=True,
    ):
        assert torch.allclose(value, other, rtol=1e-4), name


def test_few_outcomes_do_not_make_a_function_without_memory():
    """New at each time, alike at all actions: ε = 0.9999 is most likely without a prior."""
    X = torch.rand(12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    X[:, 1] = torch.arange(12) // 2
    Y = torch.tensor([1.0, 1.0, -1.0, -1.0] * 3, dtype=torch.float64).unsqueeze(-1)
    free = fitted(Observations(X, Y), temporal_kernel=TemporalDecayKernel().double())
    assert free.forgetting_rate.item() > 0.9
    assert fitted(Observations(X, Y)).forgetting_rate.item() < 0.6


def kernels_of(model):
    return [each for each in model.modules() if isinstance(each, RBFKernel | MaternKernel)]


@pytest.mark.parametrize(("temporal", "kind"), [("auto", MaternKernel), (None, RBFKernel)])
def test_the_kernel_over_actions_is_matern_where_both_forms_are_learned(temporal, kind):
    observations = drawn(TemporalDecayKernel(), n=5)
    mean = ConstantMean().double()
    (kernel,) = kernels_of(fitted(observations, temporal_kernel=temporal, mean_module=mean))
    assert type(kernel) is kind
    # With the priors of BoTorch's default.
    (default,) = kernels_of(get_covar_module_with_dim_scaled_prior(ard_num_dims=1))
    for name in ("loc", "scale"):
        found, expected = (getattr(k.lengthscale_prior, name) for k in (kernel, default))
        assert found == expected


@pytest.mark.parametrize("structure", ["product", "additive"])
def test_contexts_have_a_kernel_of_their_own(structure):
    layout = InputLayout(1, 1)
    bounds = torch.cat([BOUNDS, BOUNDS], dim=-1)
    fitter = ModelFitter(layout, bounds, temporal_kernel="auto", structure=structure)
    fitter.fit(Observations.empty(layout.num_columns), 0, torch.Generator())
    kinds = [type(kernel) for kernel in kernels_of(fitter.last_model)]
    assert kinds == [MaternKernel if structure == "product" else RBFKernel] * 2


def test_another_string_is_refused():
    with pytest.raises(ValueError, match="matern"):
        recipes.tv_gp_ucb(bounds=BOUNDS, temporal_kernel="matern")


def told(optimizer, observations):
    """Tell an optimizer what was observed."""
    for (x, t), y in zip(observations.X.tolist(), observations.Y.tolist(), strict=True):
        optimizer.tell(optimizer.attach([x], t), y[0])
    return optimizer


def test_the_drift_of_an_optimizer_and_its_interval():
    """The interval is by the second derivative of the log posterior, here by its formula."""
    over_actions = RBFKernel().double()
    over_actions.lengthscale = 0.3
    options = {"bounds": BOUNDS, "covar_module": over_actions, "noise_variance": 0.01}
    observations = drawn(TemporalDecayKernel(), n=40)
    optimizer = told(recipes.tv_gp_ucb(mean_module=ZeroMean(), **options), observations)
    drift = optimizer.drift()
    assert drift == optimizer.drift()
    assert drift.form == "exponential decay"
    assert drift.half_life == pytest.approx(2 * math.log(2) / -math.log1p(-drift.forgetting_rate))
    lags = (observations.X[:, 1:] - observations.X[:, 1]).abs()
    in_space = over_actions(observations.X[:, :1]).to_dense().detach()

    def log_posterior(log_half_life):
        pace = 2 * math.log(2) / math.exp(log_half_life)
        covar = in_space * torch.exp(-pace * lags / 2) + 0.01 * torch.eye(40)
        zero = torch.zeros(40, dtype=torch.float64)
        outcomes = torch.distributions.MultivariateNormal(zero, covar)
        prior = norm.logpdf(math.log(pace), math.log(-math.log1p(-0.05)), 1.0)
        return outcomes.log_prob(observations.Y.squeeze(-1)).item() + prior

    center, h = math.log(drift.half_life), 1e-3
    low, middle, high = (log_posterior(center + step) for step in (-h, 0.0, h))
    spread = 1.96 / math.sqrt((2 * middle - low - high) / h**2)
    expected = [math.exp(center - spread), math.exp(center + spread)]
    assert drift.half_life_interval == pytest.approx(expected, rel=1e-2)


def test_the_interval_of_the_default_is_around_the_half_life():
    drift = told(recipes.tv_gp_ucb(bounds=BOUNDS), drawn(TemporalDecayKernel(), n=40)).drift()
    low, high = drift.half_life_interval
    assert low < drift.half_life < high
    assert math.sqrt(low * high) == pytest.approx(drift.half_life)


@pytest.mark.parametrize(
    ("make", "n", "half_life"),
    [
        (lambda: recipes.tv_gp_ucb(bounds=BOUNDS, forgetting_rate=0.05), 8, HALF_LIFE),
        (lambda: recipes.gp_ucb(bounds=BOUNDS), 8, math.inf),
        (lambda: recipes.tv_gp_ucb(bounds=BOUNDS), 4, HALF_LIFE),
    ],
    ids=["given", "none", "not yet learned"],
)
def test_a_drift_that_is_not_learned_has_no_interval(make, n, half_life):
    drift = told(make(), drawn(TemporalDecayKernel(), n=n)).drift()
    assert drift.half_life == pytest.approx(half_life, rel=1e-9)
    assert drift.half_life_interval is None
