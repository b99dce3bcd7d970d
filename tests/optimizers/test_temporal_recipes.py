"""Recipes with temporal kernels: the form of their posterior, and that it is the dense one."""

import math

import pytest
import torch
from gpytorch.kernels import ScaleKernel
from gpytorch.means import ZeroMean
from reference import dense_gp, rbf, with_lengthscale

from tvbo import recipes
from tvbo.kernels import (
    ConstantTemporalKernel,
    SeasonalKernel,
    TemporalDecayKernel,
    TemporalKernel,
    TemporalMaternKernel,
)
from tvbo.kernels.temporal import memory_length
from tvbo.logs import fit_panel
from tvbo.models import EnsembleGP, StreamingGP
from tvbo.optimizers import RefitEvery, RefitNever
from tvbo.optimizers.pending import IgnorePending
from tvbo.retention import SlidingWindow
from tvbo.test_functions.drifting_gp import unit_grid

CHOICES = unit_grid(4)
CONTEXTS = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
NOISE = 0.01


def matern():
    return with_lengthscale(TemporalMaternKernel().double(), 6.0)


def decay(rate):
    kernel = TemporalDecayKernel().double()
    kernel.forgetting_rate = rate
    return kernel


def slow_and_fast():
    """Kernels over actions and over time of a constant part and one that drifts."""
    fast = ScaleKernel(rbf(0.2)).double()
    fast.outputscale = 0.5
    return {
        "covar_module": [rbf(0.5), fast],
        "temporal_kernel": [ConstantTemporalKernel(), decay(0.2)],
    }


def reward(trial):
    return math.sin(4 * trial.X.sum().item() + trial.t / 9) + 0.1 * math.sin(7.0 * trial.id)


def play(optimizer, rounds, check=None, context=None):
    """Every third outcome comes a round late."""
    late = None
    for t in range(1, rounds + 1):
        trial = optimizer.ask(float(t), context)
        if check is not None:
            check(optimizer, float(t))
        if late is not None:
            optimizer.tell(late, reward(late))
        late = trial if t % 3 == 0 else None
        if late is None:
            optimizer.tell(trial, reward(trial))


def same_as_dense(form, kernels, context=None):
    """Return a check that the posterior is that of the dense model of the outcomes told."""

    def check(optimizer, t):
        assert isinstance(optimizer.model, form)
        X, Y = optimizer.observations.X, optimizer.observations.Y
        columns = [CHOICES, torch.full((len(CHOICES), 1), t, dtype=torch.float64)]
        if context is not None:
            columns.insert(1, context.expand(len(CHOICES), -1))
        rows = torch.cat(columns, dim=-1)
        dense = dense_gp(X, Y, NOISE, None, **kernels)
        got, expected = (model.posterior(rows.unsqueeze(1)) for model in (optimizer.model, dense))
        for name in ("mean", "variance"):
            one, two = getattr(got, name), getattr(expected, name)
            torch.testing.assert_close(one, two, rtol=0, atol=1e-8)

    return check


@pytest.mark.parametrize(
    "kernels", [{"covar_module": rbf(0.4), "temporal_kernel": matern()}, slow_and_fast()]
)
def test_finite_set_with_all_given_is_streamed(kernels):
    optimizer = recipes.tv_gp_ucb(
        choices=CHOICES, noise_variance=NOISE, pending=IgnorePending(), **kernels
    )
    play(optimizer, 25, same_as_dense(StreamingGP, kernels))


def test_box_with_all_given_is_incremental():
    kernels = slow_and_fast()
    optimizer = recipes.tv_gp_ucb(
        bounds=BOX, noise_variance=NOISE, pending=IgnorePending(), **kernels
    )
    play(optimizer, 8, same_as_dense(EnsembleGP, kernels))


def test_contexts():
    kernels = {"covar_module": rbf(0.4), "temporal_kernel": matern()}
    optimizer = recipes.tv_cgp_ucb(
        choices=CHOICES,
        contexts=CONTEXTS,
        noise_variance=NOISE,
        pending=IgnorePending(),
        **kernels,
    )
    play(optimizer, 10, same_as_dense(StreamingGP, kernels, CONTEXTS[1]), CONTEXTS[1])
    by_parts = recipes.tv_cgp_ucb(
        choices=CHOICES,
        contexts=CONTEXTS,
        noise_variance=NOISE,
        action_kernel=rbf(0.4),
        context_kernel=rbf(0.4),
        temporal_kernel=matern(),
    )
    play(by_parts, 3, context=CONTEXTS[0])
    assert isinstance(by_parts.model, StreamingGP)


class OfOnesOwn(TemporalKernel):
    """It has no parameter and inherits ``weight``."""

    num_states = 1

    def correlation(self, lag):
        return torch.exp(-lag / 9)

    def transition(self, lag):
        return self.correlation(lag)[..., None, None]


class Gaussian(OfOnesOwn):
    """Not Markov."""

    def correlation(self, lag):
        return torch.exp(-lag.square() / 200)


@pytest.mark.parametrize(
    "make",
    [
        lambda kernel: recipes.tv_gp_ucb(
            bounds=BOX, covar_module=rbf(), temporal_kernel=kernel, noise_variance=NOISE
        ),
        lambda kernel: recipes.tv_gp_ucb(bounds=BOX, temporal_kernel=[kernel]),
        lambda kernel: StreamingGP(CHOICES, rbf(), noise_variance=NOISE, temporal_kernel=kernel),
        lambda kernel: fit_panel(torch.zeros(9, 3), torch.arange(9), temporal_kernel=kernel),
    ],
)
@pytest.mark.parametrize(("kernel", "error"), [(Gaussian(), ValueError), (rbf(), TypeError)])
def test_a_kernel_that_is_not_markov_is_refused(make, kernel, error):
    with pytest.raises(error) as refused:
        make(kernel)
    for said in (type(kernel).__name__, "Markov", "docs/models.md"):
        assert said in str(refused.value)


def test_refit_learns_what_requires_gradients():
    kernel = matern()
    optimizer = recipes.tv_gp_ucb(
        choices=CHOICES,
        noise_variance=NOISE,
        covar_module=rbf(0.4).requires_grad_(False),
        mean_module=ZeroMean(),
        temporal_kernel=kernel,
        refit=RefitEvery(4),
    )
    fits = []
    optimizer.add_listener(on_fit=fits.append)
    play(optimizer, 9)
    assert isinstance(optimizer.model, StreamingGP)
    [[value]] = fits[-1].values()
    assert value != 6.0
    # On a copy.
    assert kernel.lengthscale.item() == pytest.approx(6.0)


def test_observations_without_weight_are_discarded():
    def retention(**kernels):
        return recipes.tv_gp_ucb(
            choices=CHOICES, noise_variance=NOISE, covar_module=rbf(), **kernels
        ).retention

    window = retention(temporal_kernel=matern())
    assert isinstance(window, SlidingWindow)
    assert 50 < window.length < 150
    assert not isinstance(retention(temporal_kernel=ConstantTemporalKernel()), SlidingWindow)


def test_memory_length():
    rate = decay(0.1)
    expected = math.log(1e-6) / math.log(0.9)
    assert memory_length([rate], 1e-6) == pytest.approx(expected, rel=1e-8)
    assert memory_length([rate, decay(0.3)], 1e-6) == pytest.approx(expected, rel=1e-8)
    assert memory_length([rate, SeasonalKernel(period=3.0)], 1e-6) == math.inf
    length = memory_length([matern()], 1e-6)
    assert matern().weight(torch.tensor(length, dtype=torch.float64)) <= 1e-6
    assert matern().correlation(torch.tensor(length, dtype=torch.float64)) ** 2 <= 1e-6


def test_errors():
    given = {"choices": CHOICES, "noise_variance": NOISE, "covar_module": rbf()}
    for make in (recipes.gp_ucb, recipes.gp_ts):
        with pytest.raises(ValueError):
            make(**given, temporal_kernel=matern())
    with pytest.raises(ValueError):
        recipes.tv_gp_ucb(**given, temporal_kernel=[matern(), decay(0.1)], refit=RefitNever())
    recipes.gp_ts(**given, forgetting_rate=None, temporal_kernel=matern()).ask(1.0)
