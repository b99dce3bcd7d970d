"""What observations tell, and which of them go, against dense models fitted anew without them."""

import math
from dataclasses import replace

import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models import ModelListGP
from gpytorch.kernels import RBFKernel
from reference import dense_gp, rbf

from tvbo import recipes
from tvbo.kernels import CovarianceMatrixKernel
from tvbo.models import IncrementalGP, StreamingGP
from tvbo.retention import SlidingWindow
from tvbo.retention.size_limit import SizeLimit, marginal_information
from tvbo.spaces.observations import Observations

RATE = 0.05
NOISE = 0.02
NOW = 30.0
SIDE = torch.linspace(0, 1, 6, dtype=torch.float64)
CHOICES = torch.cartesian_prod(SIDE, SIDE)


def dense(observations, rate=RATE, noise=NOISE, kernel=None):
    noise = noise if observations.Yvar is None else observations.Yvar
    return dense_gp(observations.X, observations.Y, noise, rate, kernel or rbf()).eval()


def observed(n, generator, own_noise=False):
    """Choices in any order at times up to now, some of them twice."""
    X = CHOICES[torch.randint(len(CHOICES), (n,), generator=generator)]
    t = NOW * torch.rand(n, 1, dtype=torch.float64, generator=generator)
    Y = torch.randn(n, 1, dtype=torch.float64, generator=generator)
    Yvar = 0.01 + torch.rand(n, 1, dtype=torch.float64, generator=generator) if own_noise else None
    return Observations(torch.cat([X, t], dim=-1), Y, Yvar)


def by_refits(observations, rate=RATE, t=NOW):
    """A model of all, and one without each: variances of the function at present."""
    told = []
    for i in range(len(observations)):
        others = torch.arange(len(observations)) != i
        present = observations.X[i : i + 1].clone()
        present[:, -1] = t
        with torch.no_grad():
            with_it = dense(observations, rate).posterior(present).variance.item()
            without = dense(observations[others], rate).posterior(present).variance.item()
        told.append(0.5 * math.log(without / with_it))
    return torch.tensor(told, dtype=torch.float64)


@pytest.mark.parametrize("own_noise", [False, True])
@pytest.mark.parametrize("rate", [0.0, RATE, 0.6])
@pytest.mark.combinations
def test_information_is_that_of_refits(generator, rate, own_noise):
    observations = observed(14, generator, own_noise)
    expected = by_refits(observations, rate)
    told = marginal_information(dense(observations, rate), observations, NOW)
    torch.testing.assert_close(told, expected, rtol=0, atol=1e-8)


def test_without_drift_it_is_the_entropy_that_admits_a_point(generator):
    """1/2 log(1 + variance without it / noise), at any time."""
    observations = observed(12, generator)
    model = dense(observations, rate=0.0)
    for i, told in enumerate(marginal_information(model, observations, NOW).tolist()):
        others = torch.arange(12) != i
        with torch.no_grad():
            without = dense(observations[others], 0.0).posterior(observations.X[i : i + 1])
        assert told == pytest.approx(0.5 * math.log(1 + without.variance.item() / NOISE), abs=1e-8)


def test_the_same_from_each_model(generator):
    observations = observed(25, generator, own_noise=True)
    streaming = StreamingGP(CHOICES, rbf(), RATE, NOISE)
    incremental = IncrementalGP.from_model(dense(observations[:0]), NOISE)
    told = [
        marginal_information(model, observations, NOW)
        for model in (dense(observations), streaming, incremental)
    ]
    torch.testing.assert_close(told[1], told[0], rtol=0, atol=1e-8)
    torch.testing.assert_close(told[2], told[0], rtol=0, atol=1e-8)
    plain = Observations(observations.X, observations.Y)
    told = [marginal_information(m, plain, NOW) for m in (dense(plain), streaming, incremental)]
    torch.testing.assert_close(told[1], told[0], rtol=0, atol=1e-8)
    torch.testing.assert_close(told[2], told[0], rtol=0, atol=1e-8)


@pytest.mark.parametrize("own_noise", [False, True])
def test_the_least_informative_go_one_by_one(generator, own_noise):
    """Each of six drops is the least of a round of refits of what is left."""
    observations = observed(12, generator, own_noise)
    left = torch.arange(12)
    while len(left) > 6:
        left = left[torch.arange(len(left)) != by_refits(observations[left]).argmin()]
    kept = SizeLimit(6, slack=0.0).keep(observations, dense(observations), NOW)
    assert kept.nonzero().squeeze(-1).tolist() == left.tolist()
    # The same in one go, with room for three more.
    kept = SizeLimit(9, slack=1 / 3).keep(observations, dense(observations), NOW)
    assert kept.nonzero().squeeze(-1).tolist() == left.tolist()


def test_steps_back_equal_weighing_the_rest_anew(generator):
    """Twenty-four drops in a row, for eight sets of observations."""
    for trial in range(8):
        observations = observed(30, generator, own_noise=trial % 2 == 1)
        # No two alike, which would go by age.
        apart = 0.1 * torch.rand(30, 2, dtype=torch.float64, generator=generator)
        X = torch.cat([observations.X[:, :-1] + apart, observations.X[:, -1:]], dim=-1)
        observations = replace(observations, X=X)
        model = dense(observations, rate=(0.0, RATE)[trial // 4])
        left = torch.arange(30)
        while len(left) > 6:
            told = marginal_information(model, observations[left], NOW)
            left = left[torch.arange(len(left)) != told.argmin()]
        kept = SizeLimit(6, slack=0.0).keep(observations, model, NOW)
        assert kept.nonzero().squeeze(-1).tolist() == left.tolist()


def rows(*points):
    X = torch.tensor(points, dtype=torch.float64)
    return Observations(X, torch.zeros(len(X), 1, dtype=torch.float64))


def test_of_near_duplicates_one_stays():
    """Each of the two tells the least, but the other one of them does not once it is alone."""
    observations = rows([0.2, 0.0, 5], [0.2, 0.02, 5], [0.2, 0.4, 5], [0.8, 0.4, 5], [0.2, 0.8, 5])
    model = dense(observations, rate=0.0)
    told = marginal_information(model, observations, NOW)
    assert set(told.argsort()[:2].tolist()) == {0, 1}
    kept = SizeLimit(3, slack=0.0).keep(observations, model, NOW)
    assert kept[:2].sum() == 1


def test_among_those_alike_the_oldest_goes():
    static = rows([0.1, 0.1, 7], [0.1, 0.1, 3], [0.1, 0.1, 3], [0.1, 0.1, 9], [0.9, 0.9, 1])
    kept = SizeLimit(2, slack=0.0).keep(static, dense(static, rate=0.0), NOW)
    assert kept.tolist() == [False, False, False, True, True]


def test_what_no_longer_tells_anything_goes_by_age(generator):
    observations = observed(8, generator)
    kept = SizeLimit(3, slack=0.0).keep(observations, dense(observations, rate=1.0), NOW)
    newest = observations.X[:, -1].argsort()[-3:]
    assert sorted(kept.nonzero().squeeze(-1).tolist()) == sorted(newest.tolist())


def test_drift_makes_the_old_one_go():
    """The same spread of points; without drift the crowded ones would go."""
    observations = rows([0.0, 0.0, 1], [0.5, 0.5, 29], [0.5, 0.6, 30], [1.0, 1.0, 28])
    drifting = SizeLimit(3).keep(observations, dense(observations, rate=0.3), NOW)
    static = SizeLimit(3).keep(observations, dense(observations, rate=0.0), NOW)
    assert drifting.tolist() == [False, True, True, True]
    assert static[[0, 3]].all()
    assert static.sum() == 3


def test_before_there_is_a_model_the_newest_stay():
    observations = rows([0, 0, 4], [0, 0, 1], [0, 0, 4], [0, 0, 9], [0, 0, 2])
    kept = SizeLimit(2, slack=0.0).keep(observations, None, NOW)
    assert kept.tolist() == [False, False, True, True, False]


@pytest.mark.parametrize(("slack", "left"), [(0.0, 10), (0.05, 10), (0.1, 9), (0.35, 7), (0.99, 1)])
def test_slack_frees_a_share_at_once(generator, slack, left):
    observations = observed(11, generator)
    policy = SizeLimit(10, slack=slack)
    for model in (None, dense(observations)):
        assert policy.keep(observations, model, NOW).sum() == left
    assert policy.keep(observations[:10], dense(observations), NOW).all()


def test_asking_changes_nothing(generator):
    observations = observed(20, generator)
    model = StreamingGP(CHOICES, rbf(), RATE, NOISE)
    model.observe(observations.X, observations.Y)
    policy = SizeLimit(5)

    def state():
        held = [observations.X, observations.Y, *model.buffers()]
        return [tensor.clone() for tensor in held]

    before = state()
    first = policy.keep(observations, model, NOW)
    assert torch.equal(first, policy.keep(observations, model, NOW))
    # Spare rows hold whatever stood in memory, a NaN perhaps.
    for one, two in zip(before, state(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)


def test_nothing_observed():
    model = StreamingGP(CHOICES, rbf(), RATE, NOISE)
    assert marginal_information(model, rows([0.0, 0.0, 1.0])[:0], NOW).shape == (0,)
    assert SizeLimit(3).keep(rows([0.0, 0.0, 1.0])[:0], model, NOW).shape == (0,)


def test_without_noise_information_is_large_and_a_repeat_tells_little():
    """A singular covariance of outcomes. Noise counts as 1e-8 of the prior variance."""
    kernel = rbf(0.05)
    model = StreamingGP(CHOICES, kernel, 0.0, 0.0)
    observations = rows([0.0, 0.0, 1], [0.4, 0.4, 1], [0.4, 0.4, 2], [1.0, 0.0, 1])
    told = marginal_information(model, observations, NOW)
    alone = 0.5 * math.log1p(1e8)
    expected = [alone, 0.5 * math.log(2), 0.5 * math.log(2), alone]
    torch.testing.assert_close(told, torch.tensor(expected, dtype=torch.float64), rtol=1e-4, atol=0)
    kept = SizeLimit(3).keep(observations, model, NOW)
    assert kept.tolist() == [True, False, True, True]


def test_nearly_singular_covariances_are_weighed(generator):
    """Noise-free and so smooth that most outcomes are certain: finite, never below zero."""
    model = StreamingGP(CHOICES, rbf(3.0), 0.0, 0.0)
    observations = observed(60, generator)
    told = marginal_information(model, observations, NOW)
    assert told.isfinite().all()
    assert (told >= 0).all()
    kept = SizeLimit(20, slack=0.0).keep(observations, model, NOW)
    assert kept.sum() == 20
    # What stays foretells all the rest nearly as well as everything did.
    X = observations.X
    with torch.no_grad():
        covar = rbf(3.0)(X[:, :-1]).to_dense()
    root = torch.linalg.cholesky(covar[kept][:, kept] + 1e-8 * torch.eye(20, dtype=torch.float64))
    left = 1 - torch.linalg.solve_triangular(root, covar[kept], upper=False).square().sum(dim=0)
    assert left.max() < 1e-5


def test_where_nothing_varies_nothing_is_told():
    """A finite set whose function is known to be zero."""
    zero = CovarianceMatrixKernel(torch.zeros(3, 3, dtype=torch.float64))
    choices = torch.arange(3.0, dtype=torch.float64).unsqueeze(-1)
    model = StreamingGP(choices, zero, 0.1, 0.0)
    observations = rows([0, 5], [1, 4], [2, 6])
    assert marginal_information(model, observations, NOW).tolist() == [0.0, 0.0, 0.0]
    assert SizeLimit(2).keep(observations, model, NOW).tolist() == [True, False, True]


@pytest.mark.parametrize("slack", [0.0, 0.1])
@pytest.mark.parametrize("name", ["gp_ucb", "tv_gp_ucb", "tv_gp_ucb on a box", "cgp_ucb"])
@pytest.mark.combinations
def test_a_loop_never_holds_more(generator, name, slack):
    """Streaming and incremental models, without and with drift and contexts."""
    shared = {"noise_variance": NOISE, "retention": SizeLimit(12, slack=slack)}
    contexts = None
    if name == "gp_ucb":
        optimizer = recipes.gp_ucb(choices=CHOICES, covar_module=rbf(), **shared)
    elif name == "tv_gp_ucb":
        drift = {"forgetting_rate": RATE, **shared}
        optimizer = recipes.tv_gp_ucb(choices=CHOICES, covar_module=rbf(), **drift)
    elif name == "tv_gp_ucb on a box":
        drift = {"forgetting_rate": RATE, **shared}
        bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        optimizer = recipes.tv_gp_ucb(bounds=bounds, covar_module=rbf(), **drift)
    else:
        contexts = torch.rand(40, 1, dtype=torch.float64, generator=generator)
        optimizer = recipes.cgp_ucb(
            choices=CHOICES,
            contexts=contexts,
            action_kernel=rbf(),
            context_kernel=rbf(),
            **shared,
        )
    rounds = 18 if "box" in name else 40
    sizes = []
    for t in range(1, rounds + 1):
        trial = optimizer.ask(context=None if contexts is None else contexts[t - 1])
        sizes.append(optimizer.model_size)
        optimizer.tell(trial, torch.randn(1, dtype=torch.float64, generator=generator).item())
        if t % 10 == 5:
            optimizer.recommend(context=None if contexts is None else contexts[t - 1])
            assert optimizer.model_size == sizes[-1] + 1
    assert max(sizes) == 12
    assert sizes[:13] == list(range(13))
    # One goes for each that comes; or two, and a round later none.
    assert set(sizes[13:]) == ({12} if slack == 0 else {11, 12})


def test_a_loop_decides_as_a_dense_model_of_what_it_holds(generator):
    """At each ask, what is let go is what refits would."""
    optimizer = recipes.tv_gp_ucb(
        choices=CHOICES,
        covar_module=rbf(),
        forgetting_rate=RATE,
        noise_variance=NOISE,
        retention=SizeLimit(6, slack=0.0),
    )
    for t in range(1, 15):
        held = optimizer.observations
        trial = optimizer.ask(t=float(t))
        if len(held) > 6:
            goes = by_refits(held, t=float(t)).argmin()
            expected = held.X[torch.arange(7) != goes]
            assert torch.equal(optimizer.observations.X, expected)
        optimizer.tell(trial, torch.randn(1, dtype=torch.float64, generator=generator).item())
    assert optimizer.model_size == 7


def test_a_window_with_a_limit(generator):
    """The limit counts what the window left."""
    optimizer = recipes.gp_ucb(
        choices=CHOICES,
        covar_module=rbf(),
        noise_variance=NOISE,
        retention=SlidingWindow(20) & SizeLimit(10, slack=0.0),
    )
    for t in range(1, 45):
        trial = optimizer.ask(t=float(t))
        assert optimizer.model_size <= 10
        assert (t - optimizer.observations.X[:, -1] <= 20).all()
        optimizer.tell(trial, torch.randn(1, dtype=torch.float64, generator=generator).item())


def test_more_than_the_limit_told_at_once(generator):
    """Outcomes of many trials that come together are all counted at the next ask."""
    optimizer = recipes.gp_ucb(
        choices=CHOICES, covar_module=rbf(), noise_variance=NOISE, retention=SizeLimit(4)
    )
    trials = [optimizer.ask() for _ in range(9)]
    for trial in trials:
        optimizer.tell(trial, torch.randn(1, dtype=torch.float64, generator=generator).item())
    optimizer.ask()
    assert optimizer.model_size == 4


@pytest.mark.parametrize("limit", [0, -3, 2.5, 30.0, math.nan, True, None, "9"])
def test_bad_limit(limit):
    with pytest.raises(ValueError, match="Expected limit to be a whole number >= 1. Got"):
        SizeLimit(limit)


@pytest.mark.parametrize("slack", [-0.1, 1.0, math.nan])
def test_bad_slack(slack):
    with pytest.raises(ValueError, match=r"Expected slack in \[0, 1\). Got"):
        SizeLimit(10, slack=slack)


@pytest.mark.parametrize("t", [math.nan, math.inf])
def test_bad_time(generator, t):
    observations = observed(4, generator)
    with pytest.raises(InputDataError, match="Expected finite t. Got"):
        marginal_information(dense(observations), observations, t)


def test_a_model_whose_prior_cannot_be_read(generator):
    observations = observed(4, generator)
    model = ModelListGP(dense(observations))
    with pytest.raises(UnsupportedError, match="Got ModelListGP"):
        SizeLimit(3).keep(observations, model, NOW)


def test_a_kernel_that_is_no_covariance():
    class Wrong(RBFKernel):
        def forward(self, x1, x2, diag=False, **params):
            covar = super().forward(x1, x2, diag=diag, **params)
            return covar if diag else covar - 0.9

    model = IncrementalGP(Wrong().double(), NOISE)
    with pytest.raises(InputDataError, match="positive semi-definite, to 1e-8 of its largest"):
        marginal_information(model, rows([0.0, 1.0], [9.0, 1.0], [18.0, 1.0]), NOW)
