"""Functions drawn as a whole: mean and covariance, across times, against the exact posterior."""

import math

import pytest
import torch
from botorch.acquisition.utils import get_optimal_samples
from botorch.models.deterministic import MatheronPathModel
from reference import dense_gp, rbf
from scipy.stats import norm

from tvbo import recipes
from tvbo.kernels import (
    SeasonalKernel,
    TemporalDecayKernel,
    TemporalMaternKernel,
)
from tvbo.models import ContextualGP, EnsembleGP, TimeVaryingGP
from tvbo.models.pathwise import draw_path, has_paths
from tvbo.randomness import seeded

pytestmark = pytest.mark.usefixtures("double_by_default")

BOX = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)


def make_data(n=10):
    """Rows [two numbers | time], outcomes."""
    generator = torch.Generator().manual_seed(3)
    X = torch.rand(n, 3, generator=generator)
    X[:, 2] = torch.arange(1.0, n + 1)
    Y = 3 * torch.sin(5 * X[:, :1]) + 0.1 * X[:, 2:] + 10
    return X, Y


def contextual(structure, context_kernel):
    X, Y = make_data()
    X[:, 1] = torch.arange(10) % 3
    return ContextualGP(
        X,
        Y,
        torch.full_like(Y, 0.01),
        context_features=[1],
        time_feature=2,
        structure=structure,
        action_kernel=rbf(),
        context_kernel=context_kernel,
        forgetting_rate=0.05,
    )


def loop(pending, **options):
    """The model behind an ask of a loop on a box."""
    optimizer = recipes.tv_gp_ucb(bounds=BOX, **options)
    X, Y = make_data(20)
    for row, y in zip(X, Y, strict=True):
        trial = optimizer.attach(row[:2], row[2].item())
        if trial.t <= 20 - pending:
            optimizer.tell(trial, y.item())
    optimizer.ask(21.0)
    return optimizer.outcome_models[0].newest.model


def incremental(pending):
    return loop(
        pending, covar_module=rbf(0.4), forgetting_rate=0.05, noise_variance=0.01, mean_module=None
    )


MODELS = {
    "drift": lambda: TimeVaryingGP(*make_data(), forgetting_rate=0.05, covar_module=rbf()),
    "known noise": lambda: dense_gp(*make_data(), 0.01, 0.05, rbf()),
    "smooth and season": lambda: TimeVaryingGP(
        *make_data(), temporal_kernel=[TemporalMaternKernel(), SeasonalKernel(7.0)]
    ),
    "two functions": lambda: TimeVaryingGP(
        *make_data(),
        covar_module=[rbf(0.2), rbf(1.0)],
        temporal_kernel=[TemporalDecayKernel(), TemporalMaternKernel()],
    ),
    "no drift": lambda: TimeVaryingGP(*make_data(), time_feature=None),
    "contexts": lambda: contextual("product", rbf(1.0)),
    "contexts, both": lambda: contextual("both", rbf(0.7)),
    "incremental": lambda: incremental(pending=0),
    "incremental, pending": lambda: incremental(pending=3),
    "dense, pending": lambda: loop(3, temporal_kernel=TemporalMaternKernel().double(), initial=0),
    "averaged": lambda: loop(0, initial=0),
    "averaged, pending": lambda: loop(3, initial=0),
}


def rows_at_times():
    """Before, between, at and after the times of the observations."""
    X = torch.rand(6, 3, generator=torch.Generator().manual_seed(4))
    X[:, 1] = torch.arange(6) % 3
    X[:, 2] = torch.tensor([-2.0, 4.5, 10.0, 21.0, 21.0, 25.0])
    return X


def furthest(model, n, generator):
    """How far the moments of n paths are from the posterior's, in multiples of the bound that all
    entries together exceed with a probability of at most 1 %."""
    X = rows_at_times()
    with torch.no_grad():
        drawn = torch.stack([draw_path(model.eval(), generator)(X) for _ in range(n)])
        posterior = model.posterior(X)
        mean, covar = posterior.mean.squeeze(-1), posterior.distribution.covariance_matrix
    centered = drawn - mean
    upper = torch.triu_indices(6, 6)
    products = (centered.unsqueeze(-1) * centered.unsqueeze(-2))[:, *upper]
    entries = torch.cat([centered, products - covar[*upper]], dim=-1)
    scores = entries.mean(dim=0) / entries.std(dim=0) * math.sqrt(n)
    return (scores.abs().max() / norm.isf(0.01 / 2 / entries.shape[-1])).item()


@pytest.mark.slow_cases(*MODELS.keys() - {"drift", "contexts, both"})
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_mean_and_covariance(make, generator):
    """100 paths within 1.5 times the bound."""
    model = make()
    assert has_paths(model)
    assert furthest(model, 100, generator) < 1.5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["drift", "contexts, both", "incremental, pending"])
def test_mean_and_covariance_of_many(name, generator):
    assert furthest(MODELS[name](), 1_000, generator) < 1


def test_without_noise_a_path_goes_through_the_outcomes(generator):
    X, Y = make_data()
    model = EnsembleGP(rbf(active_dims=[0, 1]) * TemporalDecayKernel(active_dims=[2]), 1e-10)
    model = model.condition_on_observations(X, Y)
    for each in (model, model.condition_on_observations(X[:1] + 0.2, Y[:1] - 3)):
        path = draw_path(each, generator)
        torch.testing.assert_close(path(X), Y.squeeze(-1), atol=1e-3, rtol=0)
    assert path(X[:1] + 0.2).item() == pytest.approx(Y[0].item() - 3, abs=1e-3)


def test_a_path_is_a_function(generator):
    """The same at one row as among others; its gradient that of finite differences."""
    for make in (MODELS["contexts"], MODELS["averaged, pending"], MODELS["incremental"]):
        path, X = draw_path(make().eval(), generator), rows_at_times()
        values = path(X)
        torch.testing.assert_close(path(X[:, None]), values[:, None])
        torch.testing.assert_close(path(X.view(2, 3, 3)), values.view(2, 3))
        row = X[:1].requires_grad_()
        step = torch.tensor([[1e-6, 0.0, 0.0]])
        (gradient,) = torch.autograd.grad(path(row).sum(), row)
        slope = (path(row + step) - path(row - step)) / 2e-6
        assert gradient[0, 0].item() == pytest.approx(slope.item(), rel=1e-5)


def test_seeds_repeat():
    model, X = MODELS["averaged"](), rows_at_times()
    one, two, other = (
        draw_path(model, torch.Generator().manual_seed(seed))(X) for seed in (5, 5, 6)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("time_feature", [-1, None])
def test_two_outputs_are_drawn_independently(time_feature, generator):
    """Also where they share a kernel that has no batch."""
    X, Y = make_data()
    Y = torch.cat([Y, Y], dim=-1)
    model = TimeVaryingGP(X, Y, covar_module=rbf(), time_feature=time_feature).eval()
    at = rows_at_times()[-1:]
    with seeded(generator), torch.no_grad():
        drawn = torch.stack([MatheronPathModel(model)(at).squeeze(0) for _ in range(200)])
    correlation = torch.corrcoef(drawn.mT)[0, 1]
    assert abs(correlation) < 5 / math.sqrt(200)


@pytest.mark.parametrize("name", ["drift", "contexts", "incremental, pending", "averaged"])
def test_optima_at_the_present(name, generator):
    """As BoTorch's entropy searches sample them."""
    model = MODELS[name]().eval()
    # BoTorch takes an interval without a width for one of width one.
    bounds = torch.tensor([[0.0, 1.0], [0.0, 1.0], [12.0, 12.001]]).mT
    with seeded(generator):
        inputs, outputs = get_optimal_samples(
            model, bounds, num_optima=4, raw_samples=64, num_restarts=4
        )
    assert inputs.shape == (4, 3)
    assert outputs.shape == (4, 1)
    assert ((inputs >= bounds[0]) & (inputs <= bounds[1])).all()
    assert outputs.isfinite().all()
