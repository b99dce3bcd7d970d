"""A citizen of BoTorch: acquisitions, fantasies, conditioning, sampling."""

import pytest
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qLogNoisyExpectedImprovement,
    qUpperConfidenceBound,
)
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.generation import MaxPosteriorSampling
from botorch.optim import optimize_acqf_discrete
from botorch.sampling import SobolQMCNormalSampler

pytestmark = [
    pytest.mark.usefixtures("double_by_default"),
    pytest.mark.draws_globally,  # BoTorch's samplers do
]

RATE = 0.03


def sampler(n):
    return SobolQMCNormalSampler(torch.Size([n]), seed=0)


@pytest.fixture
def observed(small):
    return small.data([0, 0, 1, 2.5, 4, 4, 3, 7])


@pytest.fixture
def model(small, observed):
    model = small.streaming(RATE)
    model.observe(*observed)
    return model


@pytest.fixture
def dense(small, observed):
    return small.dense(*observed, RATE)


ACQUISITIONS = {
    "UCB": lambda model, rows: UpperConfidenceBound(model, beta=2.0),
    "LogEI": lambda model, rows: LogExpectedImprovement(model, best_f=0.5),
    "qUCB": lambda model, rows: qUpperConfidenceBound(model, 2.0, sampler=sampler(16)),
    "qLogNEI": lambda model, rows: qLogNoisyExpectedImprovement(
        model, rows[:3], sampler=sampler(16), prune_baseline=False, cache_root=False
    ),
    "qKG": lambda model, rows: qKnowledgeGradient(model, num_fantasies=4, sampler=sampler(4)),
}


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_acquisitions_equal_those_of_the_dense_model(small, model, dense, name):
    ahead = small.rows(8.0)
    q = 5 if name == "qKG" else 1
    X = torch.stack([ahead[[i, *range(q - 1)]] for i in range(9)])
    if q > 1:
        X[:, 1:, -1] = 9.0  # what is learned at 8 is used at 9
    with torch.no_grad():
        got, expected = (ACQUISITIONS[name](m, ahead)(X) for m in (model, dense))
    assert got.shape == (9,)
    # The first three are the baseline of qLogNEI: they improve on themselves by rounding alone.
    torch.testing.assert_close(got[3:], expected[3:], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in ACQUISITIONS if name != "qKG"])
def test_acquisitions_optimize_over_the_choices(small, model, name):
    ahead = small.rows(8.0)
    acquisition = ACQUISITIONS[name](model, ahead)
    found, value = optimize_acqf_discrete(acquisition, q=1, choices=ahead)
    values = acquisition(ahead.unsqueeze(-2))
    assert torch.equal(found[0], ahead[values.argmax()])
    torch.testing.assert_close(value.squeeze(), values.max())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_thompson_sampling(small, model):
    draws = MaxPosteriorSampling(model, replacement=True)(small.rows(8.0), num_samples=300)
    assert draws.shape == (300, 3)
    best = small.rows(8.0)[model.marginals(8.0)[0].argmax()]
    share = [(draws == row).all(-1).double().mean().item() for row in small.rows(8.0)]
    assert sum(share) == pytest.approx(1.0)
    assert max(share) == (draws == best).all(-1).double().mean()


def test_posterior_transform(small, model):
    transform = ScalarizedPosteriorTransform(torch.tensor([-2.0]), offset=1.0)
    plain = model.posterior(small.rows(8))
    scaled = model.posterior(small.rows(8), posterior_transform=transform)
    torch.testing.assert_close(scaled.mean, 1 - 2 * plain.mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(scaled.variance, 4 * plain.variance, rtol=0, atol=1e-12)


def test_observation_noise(small, model):
    ahead = small.rows(8)
    plain = model.posterior(ahead).distribution.covariance_matrix
    noises = torch.arange(1.0, 10.0).unsqueeze(-1)
    for noise, expected in ((True, small.noise * torch.eye(9)), (noises, noises * torch.eye(9))):
        noisy = model.posterior(ahead, observation_noise=noise).distribution.covariance_matrix
        torch.testing.assert_close(noisy - plain, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("noise", [None, 0.5])
def test_conditioning_is_observing_on_a_copy(small, model, observed, noise):
    X, Y = small.data([8.0, 6.0, 9.0], seed=5)
    Yvar = None if noise is None else torch.full_like(Y, noise)
    before = model.marginals(9.0)
    new = model.condition_on_observations(X, Y, noise=Yvar)
    for one, two in zip(before, model.marginals(9.0), strict=True):
        assert torch.equal(one, two)
    assert (model.num_rows, new.num_rows) == (8, 11)
    # Neither learns of the other from here on.
    later = small.data([9.5], seed=6)
    new.observe(*later)
    model.observe(X, Y, Yvar)
    model.observe(*later)
    small.assert_same(new, model, small.rows(10), atol=1e-12)


def test_conditioning_on_batches_of_outcomes(small, model):
    X, _ = small.data([8.0, 9.0], seed=5)
    Y = torch.randn(4, 2, 2, 1, generator=torch.Generator().manual_seed(1))
    new = model.condition_on_observations(X, Y)
    assert new.batch_shape == (4, 2)
    posterior = new.posterior(small.rows(9))
    one = model.condition_on_observations(X, Y[3, 1])
    expected = one.posterior(small.rows(9))
    torch.testing.assert_close(posterior.mean[3, 1], expected.mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(posterior.variance[3, 1], expected.variance, rtol=0, atol=1e-12)


@pytest.mark.parametrize("own_kernels", [False, True])
def test_conditioning_a_batched_model(small, observed, own_kernels):
    kernel = small.rbf(torch.tensor([0.2, 0.6]), (2,)) if own_kernels else None
    model = small.streaming(RATE, kernel=kernel, batch_shape=torch.Size([2]))
    X, Y = observed
    model.observe(X, torch.stack([Y, -Y]))
    new_X, new_Y = small.data([8.0], seed=5)
    new = model.condition_on_observations(new_X, new_Y.expand(3, 2, 1, 1))
    model.observe(new_X, new_Y.expand(2, 1, 1))
    assert new.batch_shape == (3, 2)
    got, expected = new.posterior(small.rows(8)), model.posterior(small.rows(8))
    for k in range(3):
        torch.testing.assert_close(got.mean[k], expected.mean, rtol=0, atol=1e-12)
        torch.testing.assert_close(got.variance[k], expected.variance, rtol=0, atol=1e-12)


def test_fantasies(small, model):
    X = small.rows(8.0)[:4].reshape(2, 2, 3)
    fantasies = model.fantasize(X, sampler(3))
    assert fantasies.batch_shape == (3, 2)
    ahead = fantasies.posterior(small.rows(9))
    assert ahead.mean.shape == (3, 2, 9, 1)
    # Outcomes differ, what they tell does not; without noise they are certain.
    assert ahead.mean.std(dim=0).min() > 0
    torch.testing.assert_close(ahead.variance[0], ahead.variance[2], rtol=0, atol=1e-12)
    sure = model.fantasize(X, sampler(3), observation_noise=torch.full((2, 2, 1), 1e-9))
    assert sure.posterior(X).variance.max() < 1e-8
    assert model.num_rows == 8


@pytest.mark.parametrize("options", [{}, {"max_rows": 30}, {"max_lateness": 5.0}])
@pytest.mark.parametrize("rate", [0.0, 0.03])
def test_the_observations_held_are_the_training_data(small, rate, options):
    model = small.streaming(rate, batch_shape=torch.Size([2]), **options)
    X, Y = small.data(range(150))
    for part in torch.arange(150).split(2):
        model.observe(X[part], torch.stack([Y[part], -Y[part]]))
    held = model.num_rows
    assert held < 150 or not options
    assert torch.equal(model.train_inputs[0], X[-held:].expand(2, held, 3))
    expected = torch.stack([Y[-held:], -Y[-held:]]).squeeze(-1)
    torch.testing.assert_close(model.train_targets, expected, rtol=0, atol=1e-9)


def test_outcomes_that_are_no_longer_known(small):
    forward = small.streaming(RATE, max_lateness=0.0)
    forward.observe(*small.data(range(5)))
    with pytest.raises(InputDataError, match="max_lateness=0"):
        _ = forward.train_targets
    late = small.streaming(0.0, max_lateness=25.0)
    for t in range(30, 64):
        late.observe(*small.data([t]))
        late.observe(*small.data([t - 20.0]))
    # Some held are of earlier times than what was merged.
    assert late.train_inputs[0][:, -1].min() < late.earliest
    with pytest.raises(UnsupportedError):
        _ = late.train_targets
