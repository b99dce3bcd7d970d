"""What observations tell, and which of them go, against dense models fitted again without them."""

import math

import pytest
import torch
from reference import dense_gp, rbf

from tvbo import recipes
from tvbo.models import EnsembleGP, StreamingGP
from tvbo.retention import SlidingWindow
from tvbo.retention.size_limit import MarginalInformation, SizeLimit
from tvbo.spaces.observations import Observations

RATE = 0.05
NOISE = 0.02
NOW = 30.0
SIDE = torch.linspace(0, 1, 6, dtype=torch.float64)
CHOICES = torch.cartesian_prod(SIDE, SIDE)


def dense(observations, rate=RATE, noise=NOISE, kernel=None):
    noise = noise if observations.Yvar is None else observations.Yvar
    return dense_gp(observations.X, observations.Y, noise, rate, kernel or rbf()).eval()


def model_of(observations, rate=RATE, **options):
    return EnsembleGP.from_model(dense(observations, rate, **options))


def observed(n, generator, own_noise=False):
    """Choices in any order at times up to now, some of them twice."""
    X = CHOICES[torch.randint(len(CHOICES), (n,), generator=generator)]
    t = NOW * torch.rand(n, 1, dtype=torch.float64, generator=generator)
    Y = torch.randn(n, 1, dtype=torch.float64, generator=generator)
    Yvar = 0.01 + torch.rand(n, 1, dtype=torch.float64, generator=generator) if own_noise else None
    return Observations(torch.cat([X, t], dim=-1), Y, Yvar)


def by_refits(observations, rate=RATE, t=NOW, contexts=None):
    """A model of all, and one without each: variances of the function at present.

    With contexts, values of the second column, the mean over these.
    """
    told = []
    for i in range(len(observations)):
        others = torch.arange(len(observations)) != i
        present = observations.X[i].expand(1 if contexts is None else len(contexts), -1).clone()
        present[:, -1] = t
        if contexts is not None:
            present[:, 1] = contexts
        with torch.no_grad():
            with_it = dense(observations, rate).posterior(present).variance
            without = dense(observations[others], rate).posterior(present).variance
        told.append(0.5 * (without / with_it).log().mean())
    return torch.stack(told)


@pytest.mark.parametrize("own_noise", [False, True])
@pytest.mark.parametrize("rate", [0.0, RATE, 0.6])
@pytest.mark.combinations
def test_information_is_that_of_refits(generator, rate, own_noise):
    observations = observed(14, generator, own_noise)
    expected = by_refits(observations, rate)
    told = MarginalInformation(model_of(observations, rate), observations, NOW).information()
    torch.testing.assert_close(told, expected, rtol=0, atol=1e-8)


def test_with_contexts_it_is_about_those_of_the_newest_observations(generator):
    observations = observed(18, generator)
    newest = observations.X[observations.X[:, -1].argsort()[-10:], 1].unique()
    assert 1 < len(newest) < len(observations.X[:, 1].unique()) + 1
    told = MarginalInformation(model_of(observations), observations, NOW, (1,)).information()
    expected = by_refits(observations, contexts=newest)
    torch.testing.assert_close(told, expected, rtol=0, atol=1e-8)
    # Those without the least of it stay.
    kept = SizeLimit(17, slack=0.0, context_columns=(1,)).keep(
        observations, model_of(observations), NOW
    )
    assert (~kept).nonzero().tolist() == [[int(expected.argmin())]]


def test_without_drift_it_is_the_entropy_that_admits_a_point(generator):
    """1/2 log(1 + variance without it / noise), at any time."""
    observations = observed(12, generator)
    model = model_of(observations, rate=0.0)
    for i, told in enumerate(MarginalInformation(model, observations, NOW).information().tolist()):
        others = torch.arange(12) != i
        with torch.no_grad():
            without = dense(observations[others], 0.0).posterior(observations.X[i : i + 1])
        assert told == pytest.approx(0.5 * math.log(1 + without.variance.item() / NOISE), abs=1e-8)


def test_the_same_from_each_model(generator):
    observations = observed(25, generator, own_noise=True)
    streaming = StreamingGP(CHOICES, rbf(), RATE, NOISE)
    incremental = EnsembleGP.from_model(dense(observations[:0]), NOISE)
    told = [
        MarginalInformation(model, observations, NOW).information()
        for model in (model_of(observations), streaming, incremental)
    ]
    torch.testing.assert_close(told[1], told[0], rtol=0, atol=1e-8)
    torch.testing.assert_close(told[2], told[0], rtol=0, atol=1e-8)
    plain = Observations(observations.X, observations.Y)
    models = model_of(plain), streaming, incremental
    told = [MarginalInformation(model, plain, NOW).information() for model in models]
    torch.testing.assert_close(told[1], told[0], rtol=0, atol=1e-8)
    torch.testing.assert_close(told[2], told[0], rtol=0, atol=1e-8)


@pytest.mark.parametrize("own_noise", [False, True])
def test_the_least_informative_go_one_by_one(generator, own_noise):
    """Each of six drops is the least of a round of refits of what is left."""
    observations = observed(12, generator, own_noise)
    left = torch.arange(12)
    while len(left) > 6:
        left = left[torch.arange(len(left)) != by_refits(observations[left]).argmin()]
    kept = SizeLimit(6, slack=0.0).keep(observations, model_of(observations), NOW)
    assert kept.nonzero().squeeze(-1).tolist() == left.tolist()
    # The same in one go, with room for three more.
    kept = SizeLimit(9, slack=1 / 3).keep(observations, model_of(observations), NOW)
    assert kept.nonzero().squeeze(-1).tolist() == left.tolist()


def rows(*points):
    X = torch.tensor(points, dtype=torch.float64)
    return Observations(X, torch.zeros(len(X), 1, dtype=torch.float64))


def test_of_near_duplicates_one_stays():
    """Each of the two tells the least, but the other one of them does not once it is alone."""
    observations = rows([0.2, 0.0, 5], [0.2, 0.02, 5], [0.2, 0.4, 5], [0.8, 0.4, 5], [0.2, 0.8, 5])
    model = model_of(observations, rate=0.0)
    told = MarginalInformation(model, observations, NOW).information()
    assert set(told.argsort()[:2].tolist()) == {0, 1}
    kept = SizeLimit(3, slack=0.0).keep(observations, model, NOW)
    assert kept[:2].sum() == 1


def test_before_there_is_a_model_the_newest_stay():
    observations = rows([0, 0, 4], [0, 0, 1], [0, 0, 4], [0, 0, 9], [0, 0, 2])
    kept = SizeLimit(2, slack=0.0).keep(observations, None, NOW)
    assert kept.tolist() == [False, False, True, True, False]


@pytest.mark.parametrize(("slack", "left"), [(0.0, 10), (0.05, 10), (0.1, 9), (0.35, 7), (0.99, 1)])
def test_slack_frees_a_share_at_once(generator, slack, left):
    observations = observed(11, generator)
    policy = SizeLimit(10, slack=slack)
    for model in (None, model_of(observations)):
        assert policy.keep(observations, model, NOW).sum() == left
    assert policy.keep(observations[:10], model_of(observations), NOW).all()


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


@pytest.mark.parametrize("limit", [0, -3, 2.5, 30.0, math.nan, True, None, "9"])
def test_bad_limit(limit):
    with pytest.raises(ValueError):
        SizeLimit(limit)


@pytest.mark.parametrize("slack", [-0.1, 1.0, math.nan])
def test_bad_slack(slack):
    with pytest.raises(ValueError):
        SizeLimit(10, slack=slack)
