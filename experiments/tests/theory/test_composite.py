import math
from itertools import combinations, combinations_with_replacement

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel

from experiments.theory.composite import (
    additive_covariance,
    additive_information_gain,
    cgp_ucb_regret_bound,
    product_covariance,
    product_information_gain,
)
from experiments.theory.greedy import greedy_information_gain
from experiments.theory.information import mutual_information
from experiments.theory.regret_bounds import tv_gp_ucb_regret_bound
from tvbo.acquisition.contextual_beta import FiniteBeta
from tvbo.kernels import ContextActionKernel

pytestmark = pytest.mark.usefixtures("double_by_default")

BOUND = {"horizon": 200, "beta": 20.0, "information_gain": 60.0, "noise_variance": 0.04}


def kernel_matrix(kernel, points, lengthscale=0.3):
    kernel = kernel.double()
    kernel.lengthscale = lengthscale
    return kernel(points.unsqueeze(-1)).to_dense().detach()


def low_rank(count, rank, generator):
    """A covariance of this rank with ones on the diagonal."""
    root = torch.randn(count, rank, generator=generator)
    root = root / root.norm(dim=-1, keepdim=True)
    return root @ root.mT


def largest_gain(covar, horizon, noise_variance, choose):
    """γ by trying every choice of points."""
    best = 0.0
    for points in choose(range(len(covar)), min(horizon, len(covar))):
        rows = torch.tensor(points)
        best = max(best, mutual_information(covar[rows][:, rows], noise_variance).item())
    return best


def gain_of_sequences(covar, horizon, noise_variance):
    best = 0.0
    for points in combinations_with_replacement(range(len(covar)), horizon):
        rows = torch.tensor(points)
        best = max(best, mutual_information(covar[rows][:, rows], noise_variance).item())
    return best


def test_covariances_of_pairs_are_a_double_loop(generator):
    actions, contexts = low_rank(3, 2, generator), low_rank(4, 3, generator)
    product, additive = (
        product_covariance(actions, contexts),
        additive_covariance(actions, contexts),
    )
    assert product.shape == additive.shape == (12, 12)
    for i in range(3):
        for j in range(4):
            for k in range(3):
                for m in range(4):
                    entry = product[4 * i + j, 4 * k + m]
                    assert entry == actions[i, k] * contexts[j, m]
                    entry = additive[4 * i + j, 4 * k + m]
                    assert entry == actions[i, k] + contexts[j, m]


def test_covariances_are_those_of_the_kernel(generator):
    actions, contexts = torch.rand(4, 1, generator=generator), torch.rand(3, 1, generator=generator)
    pairs = torch.cat([actions.repeat_interleave(3, dim=0), contexts.repeat(4, 1)], dim=-1)
    structures = {"product": product_covariance, "additive": additive_covariance}
    for structure, covariance in structures.items():
        joint = ContextActionKernel(
            RBFKernel(), MaternKernel(), structure, action_features=[0], context_features=[1]
        ).double()
        expected = joint(pairs).to_dense().detach()
        ours = covariance(
            RBFKernel().double()(actions).to_dense().detach(),
            MaternKernel().double()(contexts).to_dense().detach(),
        )
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


def test_rank_of_the_product_is_the_product_of_ranks(generator):
    actions, contexts = low_rank(5, 3, generator), low_rank(4, 2, generator)
    assert torch.linalg.matrix_rank(product_covariance(actions, contexts)) == 6
    # The constant is in the span of neither.
    assert torch.linalg.matrix_rank(additive_covariance(actions, contexts)) == 5


def test_theorem_2_is_printed():
    assert product_information_gain(horizon=50, rank=3, factor_gain=7.0) == pytest.approx(
        3 * 7 + 3 * math.log(50), rel=1e-14
    )
    assert product_information_gain(horizon=1, rank=3, factor_gain=7.0) == 21.0


def test_theorem_3_is_printed():
    bound = additive_information_gain(horizon=50, action_gain=7.0, context_gain=2.0)
    assert bound == pytest.approx(9 + 2 * math.log(50), rel=1e-14)


@pytest.mark.parametrize("noise_variance", [1e-3, 0.1, 10.0])
def test_theorems_hold_for_any_sequence_without_their_logarithms(noise_variance, generator):
    """What the proof says, choice by choice: no maximum hides a slip."""
    rank, seen_close = 2, 0.0
    for length in (1, 2, 5, 20):
        for _ in range(25):
            actions, contexts = low_rank(6, 4, generator), low_rank(5, rank, generator)
            a = torch.randint(6, (length,), generator=generator)
            c = torch.randint(5, (length,), generator=generator)
            of_actions = mutual_information(actions[a][:, a], noise_variance)
            of_contexts = mutual_information(contexts[c][:, c], noise_variance)
            pairs = 5 * a + c
            product = product_covariance(actions, contexts)[pairs][:, pairs]
            additive = additive_covariance(actions, contexts)[pairs][:, pairs]
            gain = mutual_information(product, noise_variance)
            assert gain <= rank * of_actions + 1e-9
            seen_close = max(seen_close, (gain / (rank * of_actions)).item())
            assert mutual_information(additive, noise_variance) <= of_actions + of_contexts + 1e-9
            both = mutual_information(product + additive, noise_variance)
            assert both <= (rank + 1) * of_actions + of_contexts + 1e-9
    assert seen_close > 0.5


@pytest.mark.parametrize("noise_variance", [0.01, 1.0])
@pytest.mark.parametrize("horizon", [1, 2, 3, 4])
def test_theorems_hold_for_maxima_over_all_sequences(horizon, noise_variance, generator):
    actions = kernel_matrix(RBFKernel(), torch.linspace(0, 1, 3))
    contexts = low_rank(3, 2, generator)
    of_actions = gain_of_sequences(actions, horizon, noise_variance)
    of_contexts = gain_of_sequences(contexts, horizon, noise_variance)
    product = gain_of_sequences(product_covariance(actions, contexts), horizon, noise_variance)
    additive = gain_of_sequences(additive_covariance(actions, contexts), horizon, noise_variance)
    assert product <= 2 * of_actions + 1e-9
    assert additive <= of_actions + of_contexts + 1e-9
    # The roles reversed: three actions have rank 3.
    assert product <= 3 * of_contexts + 1e-9
    # As printed, the logarithms included.
    assert product <= product_information_gain(horizon=horizon, rank=2, factor_gain=of_actions)
    assert additive <= additive_information_gain(
        horizon=horizon, action_gain=of_actions, context_gain=of_contexts
    )


@pytest.mark.parametrize("kernel", [RBFKernel(), MaternKernel(nu=2.5)], ids=["se", "matern"])
@pytest.mark.parametrize("noise_variance", [0.01, 1.0])
def test_greedy_gains_on_a_product_grid(kernel, noise_variance, generator):
    horizon = 150
    actions = kernel_matrix(kernel, torch.linspace(0, 1, 25), 0.2)
    contexts = low_rank(5, 2, generator)

    def greedy(covar):
        return greedy_information_gain(covar, horizon, noise_variance)

    product = greedy(product_covariance(actions, contexts)).information
    additive = greedy(additive_covariance(actions, contexts)).information
    of_actions, of_contexts = greedy(actions).ceiling, greedy(contexts).ceiling
    for t in (1, 10, 50, 150):
        a, c = of_actions[t - 1].item(), of_contexts[t - 1].item()
        assert product[t - 1] <= product_information_gain(horizon=t, rank=2, factor_gain=a)
        assert product[t - 1] <= 2 * a + 1e-9
        bound = additive_information_gain(horizon=t, action_gain=a, context_gain=c)
        assert additive[t - 1] <= bound
        assert additive[t - 1] <= a + c + 1e-9


def test_theorem_2_without_its_logarithm_is_attained():
    """Unrelated arms, contexts that do not matter: the pairs tell what the arms tell."""
    arms, trials, noise = 10, 100, 1.0
    of_arms = greedy_information_gain(torch.eye(arms), trials, noise).information[-1]
    pairs = product_covariance(torch.eye(arms), torch.ones(10, 10))
    of_pairs = greedy_information_gain(pairs, trials, noise).information[-1]
    assert of_pairs == pytest.approx(of_arms.item(), rel=1e-12)
    assert of_arms == pytest.approx(arms / 2 * math.log(1 + trials / arms), rel=1e-12)


def test_theorem_2_is_false_for_sets_of_distinct_points():
    """The same arms and contexts, all pairs once: 11.99 nats where 8.07 are allowed."""
    arms, contexts, noise = 10, 10, 1.0
    horizon = arms * contexts
    everything = product_covariance(torch.eye(arms), torch.ones(contexts, contexts))
    gain = mutual_information(everything, noise).item()
    assert gain == pytest.approx(5 * math.log(11), rel=1e-12)
    # At most ``arms`` distinct arms can be tried, each once; rank 1.
    of_set = mutual_information(torch.eye(arms), noise).item()
    printed = product_information_gain(horizon=horizon, rank=1, factor_gain=of_set)
    assert printed == pytest.approx(5 * math.log(2) + math.log(100), rel=1e-12)
    assert gain > printed + 3.9
    # What the proof gives: one logarithm for each eigenvalue, halved.
    assert gain <= of_set + arms / 2 * math.log(horizon)
    # Points that may come again: true.
    repeated = greedy_information_gain(torch.eye(arms), horizon, noise).information[-1].item()
    assert gain <= repeated + 1e-9


def test_theorem_3_is_false_for_sets_of_distinct_points():
    arms, contexts, noise = 20, 20, 1.0
    horizon = arms * contexts
    constant = torch.ones(contexts, contexts)
    gain = mutual_information(additive_covariance(torch.eye(arms), constant), noise).item()
    assert gain == pytest.approx((19 * math.log(21) + math.log(421)) / 2, rel=1e-12)
    printed = additive_information_gain(
        horizon=horizon,
        action_gain=mutual_information(torch.eye(arms), noise).item(),
        context_gain=mutual_information(constant, noise).item(),
    )
    assert printed == pytest.approx(10 * math.log(2) + math.log(21) / 2 + 2 * math.log(400))
    assert gain > printed + 11
    repeated = [
        greedy_information_gain(covar, horizon, noise).information[-1].item()
        for covar in (torch.eye(arms), constant)
    ]
    assert gain <= sum(repeated) + 1e-9


@pytest.mark.parametrize("horizon", [2, 3, 4])
def test_corrected_theorem_2_for_sets(horizon, generator):
    """``d γ + (d / 2) min(T, rank k_S) log T``, every set tried."""
    actions = kernel_matrix(RBFKernel(), torch.linspace(0, 1, 3))
    contexts = low_rank(3, 1, generator)
    of_actions = largest_gain(actions, horizon, 0.01, combinations)
    pairs = largest_gain(product_covariance(actions, contexts), horizon, 0.01, combinations)
    assert pairs <= of_actions + min(horizon, 3) / 2 * math.log(horizon) + 1e-9


def test_theorem_2_needs_contexts_of_unit_variance():
    actions, contexts = torch.eye(3), torch.full((1, 1), 100.0)
    gain = greedy_information_gain(product_covariance(actions, contexts), 3, 1.0).information[-1]
    of_actions = greedy_information_gain(actions, 3, 1.0).information[-1].item()
    assert gain > product_information_gain(horizon=3, rank=1, factor_gain=of_actions)


def test_regret_bound_is_theorem_1():
    # C1 = 8 / log 26; 8 * 200 * 20 * 60 / log 26 = 589,301.6, whose root is 767.66.
    assert cgp_ucb_regret_bound(**BOUND) == pytest.approx(767.66 + 2, abs=0.01)
    assert cgp_ucb_regret_bound(**BOUND) == pytest.approx(
        tv_gp_ucb_regret_bound(**BOUND), rel=1e-14
    )


def test_regret_bound_is_the_same_in_every_unit():
    """Rewards in tenths: variances a hundredfold, the root tenfold; the + 2 stays."""
    tenths = {**BOUND, "noise_variance": 4.0, "prior_variance": 100.0}
    assert cgp_ucb_regret_bound(**tenths) - 2 == pytest.approx(
        10 * (cgp_ucb_regret_bound(**BOUND) - 2), rel=1e-12
    )


def test_step_of_the_proof_for_an_additive_kernel(generator):
    """Squared widths against information, for a prior variance of 2."""
    noise = 0.3
    covar = additive_covariance(low_rank(4, 2, generator), low_rank(3, 3, generator))
    assert torch.allclose(covar.diagonal(), torch.tensor(2.0))
    gains = greedy_information_gain(covar, 40, noise).information.diff(prepend=torch.zeros(1))
    variance = noise * torch.expm1(2 * gains)
    constant = 8 * 2 / math.log1p(2 / noise)
    assert (4 * variance).sum() <= constant * gains.sum() + 1e-9
    # The first round is at the prior variance, where the step is an equality.
    assert 4 * variance[0] == pytest.approx((constant * gains[0]).item(), rel=1e-9)
    # With the paper's constant, made for variance 1, it is false here.
    assert 4 * variance[0] > 8 / math.log1p(1 / noise) * gains[0] * (1 + 1e-3)


def test_regret_stays_below_the_bound(generator):
    """CGP-UCB by hand in setting 1: each round by Lemma 4.1, then all of them by Theorem 1."""
    noise, horizon, contexts = 0.04, 40, 5
    covar = product_covariance(
        kernel_matrix(RBFKernel(), torch.linspace(0, 1, 8)), low_rank(contexts, 2, generator)
    )
    root = torch.linalg.cholesky(covar + 1e-9 * torch.eye(len(covar)))
    truth = (root @ torch.randn(len(covar), 1, generator=generator)).squeeze(-1)
    beta = FiniteBeta(len(covar), 0.1)
    rows, rewards, regret = [], [], 0.0
    for t in range(1, horizon + 1):
        context = int(torch.randint(contexts, (1,), generator=generator))
        here = torch.arange(8) * contexts + context
        mean, variance = torch.zeros(8), covar[here, here]
        if rows:
            seen = torch.tensor(rows)
            weights = torch.linalg.solve(
                covar[seen][:, seen] + noise * torch.eye(len(rows)), covar[seen][:, here]
            )
            mean = weights.mT @ torch.tensor(rewards)
            variance = variance - (weights * covar[seen][:, here]).sum(dim=0)
        width = (beta(t) * variance.clamp_min(0.0)).sqrt()
        best = int((mean + width).argmax())
        chosen = int(here[best])
        lost = (truth[here].max() - truth[chosen]).item()
        assert lost <= 2 * width[best]
        regret += lost
        rows.append(chosen)
        shock = math.sqrt(noise) * torch.randn((), generator=generator)
        rewards.append((truth[chosen] + shock).item())
    gathered = mutual_information(covar[rows][:, rows], noise).item()
    gain = greedy_information_gain(covar, horizon, noise)
    assert gathered <= gain.ceiling[-1]
    bound = cgp_ucb_regret_bound(
        horizon=horizon, beta=beta(horizon), information_gain=gathered, noise_variance=noise
    )
    assert 0 < regret <= bound - 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: product_information_gain(horizon=0, rank=1, factor_gain=1.0),
            "horizon to be a whole number >= 1. Got 0",
        ),
        (
            lambda: product_information_gain(horizon=5, rank=1.5, factor_gain=1.0),
            "rank to be a whole number >= 1. Got 1.5",
        ),
        (
            lambda: product_information_gain(horizon=5, rank=1, factor_gain=-1.0),
            "factor_gain >= 0 and finite. Got -1.0",
        ),
        (
            lambda: additive_information_gain(horizon=0, action_gain=1.0, context_gain=1.0),
            "horizon to be a whole number >= 1. Got 0",
        ),
        (
            lambda: additive_information_gain(horizon=5, action_gain=math.nan, context_gain=1.0),
            "action_gain >= 0 and finite. Got nan",
        ),
        (
            lambda: additive_information_gain(horizon=5, action_gain=1.0, context_gain=-2.0),
            "context_gain >= 0 and finite. Got -2.0",
        ),
        (lambda: cgp_ucb_regret_bound(**{**BOUND, "horizon": 1.5}), "horizon to be a whole"),
        (lambda: cgp_ucb_regret_bound(**{**BOUND, "beta": -1.0}), "beta >= 0 and finite. Got -1"),
        (
            lambda: cgp_ucb_regret_bound(**{**BOUND, "information_gain": math.inf}),
            "information_gain >= 0 and finite. Got inf",
        ),
        (
            lambda: cgp_ucb_regret_bound(**{**BOUND, "noise_variance": 0.0}),
            "noise_variance > 0 and finite. Got 0.0",
        ),
        (
            lambda: cgp_ucb_regret_bound(**BOUND, prior_variance=0.0),
            "prior_variance > 0 and finite. Got 0.0",
        ),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("covariance", [product_covariance, additive_covariance])
def test_bad_covariances(covariance):
    with pytest.raises(ValueError, match=r"one covariance, n x n. Got \(2, 3, 3\)"):
        covariance(torch.eye(3).expand(2, 3, 3), torch.eye(2))
    with pytest.raises(ValueError, match=r"n x n, n >= 1. Got \(2, 3\)"):
        covariance(torch.eye(3), torch.ones(2, 3))
    with pytest.raises(ValueError, match="finite covar"):
        covariance(torch.eye(3), torch.full((2, 2), math.nan))
