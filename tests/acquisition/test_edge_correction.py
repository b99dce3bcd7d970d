"""UCB whose deviation counts less at the edge of a box."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.kernels import MaternKernel
from torch import Generator

from tvbo import recipes
from tvbo.acquisition import UCB, ConstantBeta, ThompsonSampling
from tvbo.acquisition.ucb import EdgeCorrectedUCB
from tvbo.models import EnsembleGP, TimeVaryingGP
from tvbo.models.closed_form import HyperparameterSets
from tvbo.optim.maximize import maximize
from tvbo.retention import SizeLimit
from tvbo.spaces import AskContext, Box, FiniteSpace, MixedSpace, Parameters
from tvbo.spaces.observations import InputLayout, Observations

BOUNDS = torch.tensor([[0.0, -2.0], [1.0, 3.0]], dtype=torch.float64)
NOW = 20.0


def make_model(lengthscales, dim=2, bounds=BOUNDS):
    """Eight outcomes near zero, and a set of hyperparameters for each row of ``lengthscales``."""
    lengthscales = torch.as_tensor(lengthscales, dtype=torch.float64)
    s = len(lengthscales)
    unit = torch.rand(8, dim + 1, dtype=torch.float64, generator=Generator().manual_seed(3))
    X = torch.cat([bounds[0] + (bounds[1] - bounds[0]) * unit[:, :-1], NOW * unit[:, -1:]], dim=-1)
    sets = HyperparameterSets(
        kernel="RBFKernel",
        num_actions=lengthscales.shape[-1],
        lengthscales=lengthscales * (bounds[1] - bounds[0]),
        rates=torch.full((s,), -0.5 * math.log1p(-0.02), dtype=torch.float64),
        is_smooth=torch.zeros(s, dtype=torch.float64),
        variance=torch.ones(s, dtype=torch.float64),
        mean=torch.zeros(s, dtype=torch.float64),
        noise=torch.full((s,), 0.1, dtype=torch.float64),
        log_weights=torch.arange(s, dtype=torch.float64),
        shares=torch.ones(s, 1, dtype=torch.float64),
    )
    return EnsembleGP.from_sets(sets, X, 0.01 * unit[:, :1])


def context_of(search_space):
    layout = InputLayout(num_actions=search_space.dim)
    none = Observations.empty(layout.num_columns)
    return AskContext(9, NOW, None, layout, none, search_space, Generator().manual_seed(0))


def rows(X):
    X = torch.as_tensor(X, dtype=torch.float64)
    return torch.cat([X, torch.full((len(X), 1), NOW, dtype=torch.float64)], dim=-1).unsqueeze(-2)


def share_inside(acq_function, X):
    return acq_function.share(X.detach().squeeze(-2))


def test_the_share_is_the_integral_of_the_squared_correlation():
    lengthscales = [[0.2, 0.6], [1.5, 0.1]]
    rule = UCB(ConstantBeta(1.0), edge_correction=True)
    acq_function = rule(make_model(lengthscales), context_of(Box(BOUNDS)))
    assert isinstance(acq_function, EdgeCorrectedUCB)
    nodes, node_weights = np.polynomial.legendre.leggauss(200)
    weights = np.exp([0.0, 1.0]) / np.exp([0.0, 1.0]).sum()

    def integral(x, lengthscale):
        """Over the box scaled to the unit square, with 200 nodes in each column."""
        value = 1.0
        for x_j, scale in zip(x, lengthscale, strict=True):
            z = 0.5 + 0.5 * nodes
            value *= 0.5 * (node_weights * np.exp(-0.5 * ((x_j - z) / scale) ** 2) ** 2).sum()
        return value

    for x in [(0.0, 0.0), (1.0, 0.0), (0.03, 0.5), (0.4, 0.9), (0.5, 0.5)]:
        expected = sum(
            weight * integral(x, scales) / integral((0.5, 0.5), scales)
            for weight, scales in zip(weights, lengthscales, strict=True)
        )
        raw = BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * torch.tensor(x, dtype=torch.float64)
        share = share_inside(acq_function, rows(raw.unsqueeze(0)))
        assert share.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("lengthscale", "expected"), [(1e-3, 1 / 8), (1e3, 1.0)])
def test_the_share_at_a_corner(lengthscale, expected):
    bounds = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64)
    model = make_model([[lengthscale] * 3], dim=3, bounds=bounds)
    acq_function = EdgeCorrectedUCB(model, beta=1.0, search_space=Box(bounds))
    corners = share_inside(acq_function, rows(list(product([0.0, 1.0], repeat=3))))
    torch.testing.assert_close(corners, torch.full_like(corners, expected), rtol=1e-5, atol=0)


def test_value_and_gradient():
    model = make_model([[0.2, 0.6], [1.5, 0.1]])
    X = rows([[0.1, -1.9], [0.5, 1.0], [1.0, 3.0]]).requires_grad_()
    corrected = EdgeCorrectedUCB(model, beta=4.0, search_space=Box(BOUNDS))
    posterior = model.posterior(X)
    share = share_inside(corrected, X)
    expected = posterior.mean.flatten() + 2 * (share * posterior.variance.flatten()).sqrt()
    torch.testing.assert_close(corrected(X), expected, rtol=1e-9, atol=1e-9)
    inside = rows([[0.1, -1.9], [0.5, 1.0], [0.9, 2.0]]).requires_grad_()
    assert torch.autograd.gradcheck(corrected, (inside,), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("beta", [1.0, 4.0])
def test_a_drawn_function_deviates_from_the_mean_by_the_same_share(beta):
    model, box = make_model([[0.2, 0.6], [1.5, 0.4]]), Box(BOUNDS)
    plain, corrected = (
        ThompsonSampling(beta, edge_correction=each)(model, context_of(box))
        for each in (False, True)
    )
    X = rows([[0.0, -2.0], [0.1, 2.5], [0.5, 0.5]]).requires_grad_()
    share = share_inside(EdgeCorrectedUCB(model, beta, box), X)
    mean = model.posterior(X).mean.flatten()
    torch.testing.assert_close(corrected(X), mean + share.sqrt() * (plain(X) - mean))
    assert torch.autograd.gradcheck(corrected, X)
    finite = context_of(FiniteSpace(BOUNDS))
    torch.testing.assert_close(
        ThompsonSampling(beta, edge_correction=True)(model, finite).values,
        ThompsonSampling(beta)(model, context_of(FiniteSpace(BOUNDS))).values,
    )


def test_the_search_in_closed_form_is_that_of_botorch():
    acq_function = EdgeCorrectedUCB(make_model([[0.2, 0.6], [1.5, 0.1]]), 1.0, Box(BOUNDS))

    class ByAutograd(AcquisitionFunction):
        def forward(self, X):
            return acq_function(X)

    found, expected = (
        maximize(each, Box(BOUNDS), context_of(Box(BOUNDS)), torch.Generator().manual_seed(1))
        for each in (acq_function, ByAutograd(acq_function.model))
    )
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    others = draw_sobol_samples(BOUNDS, n=500, q=1, seed=1).squeeze(-2)
    assert acq_function(rows(found)) > acq_function(rows(others)).max()


def test_exploration_leaves_the_corners():
    bounds = torch.tensor([[0.0] * 4, [1.0] * 4], dtype=torch.float64)
    model = make_model([[0.5] * 4], dim=4, bounds=bounds)
    corners = rows(list(product([0.0, 1.0], repeat=4)))
    inside = rows(draw_sobol_samples(0.2 + 0.6 * bounds, n=512, q=1, seed=0).squeeze(-2))
    largest_at_corner = []
    for edge_correction in (False, True):
        rule = UCB(ConstantBeta(1.0), edge_correction)
        acq_function = rule(model, context_of(Box(bounds)))
        largest_at_corner.append(bool(acq_function(corners).max() > acq_function(inside).max()))
    assert largest_at_corner == [True, False]


@pytest.mark.parametrize("rules", [["a", "b"], ["a", "b", "c"]])
def test_categories_have_no_edge(rules):
    parameters = Parameters.of({"rate": (0.0, 1.0), "rule": rules})
    space, d = MixedSpace(parameters), parameters.dim
    model = make_model([[0.2] + [0.1] * (d - 1)], dim=d, bounds=space.bounds)
    acq_function = UCB(ConstantBeta(1.0), edge_correction=True)(model, context_of(space))
    X = torch.stack([parameters.encode({"rate": x, "rule": "b"}) for x in (0.0, 0.5)])
    share = share_inside(acq_function, rows(X.view(2, d)))
    # Half of the information at one end of an interval of five lengthscales.
    expected = [0.5 * math.erf(5) / math.erf(2.5), 1.0]
    torch.testing.assert_close(share, torch.tensor(expected).to(share), rtol=1e-6, atol=0)


def test_plain_ucb_elsewhere():
    rule = UCB(ConstantBeta(1.0), edge_correction=True)
    finite = FiniteSpace(torch.tensor([[0.0, 0.0], [0.5, 1.0]], dtype=torch.float64))
    assert not isinstance(rule(make_model([[0.3, 0.3]]), context_of(finite)), EdgeCorrectedUCB)
    X = rows([[0.5, 0.0]]).squeeze(-2)
    dense = TimeVaryingGP(X, torch.zeros(1, 1, dtype=torch.float64), forgetting_rate=0.1).eval()
    assert not isinstance(rule(dense, context_of(Box(BOUNDS))), EdgeCorrectedUCB)


CONTEXTS = {"context_bounds": [(0.0, 1.0)]}
LEARNED = {
    "tv_gp_ucb": lambda **given: recipes.tv_gp_ucb(**given),
    "given rate": lambda **given: recipes.tv_gp_ucb(forgetting_rate=0.1, **given),
    "gp_ucb": lambda **given: recipes.gp_ucb(**given),
    "r_gp_ucb": lambda **given: recipes.r_gp_ucb(every=30.0, **given),
    "compressed_gp": lambda **given: recipes.compressed_gp(**given),
    "tv_cgp_ucb": lambda **given: recipes.tv_cgp_ucb(**CONTEXTS, **given),
    "cgp_ucb": lambda **given: recipes.cgp_ucb(**CONTEXTS, **given),
}


@pytest.mark.parametrize("recipe", LEARNED)
def test_recipes_have_it_on_a_box_whose_kernel_is_learned(recipe):
    make = LEARNED[recipe]
    acquisition = make(bounds=BOUNDS).acquisition
    assert acquisition.edge_correction
    assert acquisition.beta(7) == pytest.approx(2.5)
    assert make(bounds=BOUNDS, beta=3.0).acquisition.edge_correction
    assert make(bounds=BOUNDS, beta=3.0).acquisition.beta(7) == pytest.approx(3.0)
    kernel = MaternKernel().double()
    assert not make(bounds=BOUNDS, covar_module=kernel).acquisition.edge_correction
    assert not make(choices=BOUNDS.clone()).acquisition.edge_correction


@pytest.mark.parametrize(("rate", "limit"), [(None, 100), (0.1, 100), (0.0, 200)])
def test_gp_ts_has_it_on_a_box_whose_kernel_is_learned(rate, limit):
    learned = recipes.gp_ts(bounds=BOUNDS, forgetting_rate=rate)
    assert learned.acquisition == ThompsonSampling(0.5, edge_correction=True)
    assert learned.retention == SizeLimit(limit)
    given = recipes.gp_ts(bounds=BOUNDS, forgetting_rate=rate or 0.0, covar_module=MaternKernel())
    assert given.acquisition == ThompsonSampling(1.0)
