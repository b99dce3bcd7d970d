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
from botorch.exceptions.errors import InputDataError, UnsupportedError
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
