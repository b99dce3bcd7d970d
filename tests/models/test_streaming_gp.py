import math

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import ConstantKernel, RBFKernel, ScaleKernel
from gpytorch.means import LinearMean

from tvbo.kernels import CovarianceMatrixKernel
from tvbo.models import StreamingGP

pytestmark = pytest.mark.usefixtures("double_by_default")

RATES = [0.0, 1e-3, 0.03, 0.5, 1.0]
# Unequal steps, several at one time, and late ones in the second half.
TIMES = [0, 0, 0, 1, 1.5, 4, 4, 7, 8, 8.25, 9, 12, 3, 12.5, 11, 11, 13, 1.25, 13, 13]


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("blocks", [[1] * 20, [20], [3, 1, 9, 7]])
@pytest.mark.parametrize("own_noise", [False, True])
@pytest.mark.combinations
def test_equals_the_dense_model(small, rate, blocks, own_noise):
    X, Y = small.data(TIMES)
    X[6] = X[5]  # a repeat
    generator = torch.Generator().manual_seed(2)
    Yvar = 0.01 + torch.rand(20, 1, generator=generator) if own_noise else None
    model = small.streaming(rate)
    for part in torch.arange(20).split(blocks):
        model.observe(X[part], Y[part], None if Yvar is None else Yvar[part])
    other = small.dense(X, Y, rate, small.noise if Yvar is None else Yvar)
    for t in (13.0, 13.75, 40.0):
        small.assert_same(model, other, small.rows(t))
    # Different future times in one joint posterior.
    mixed = small.rows(13.0)
    mixed[:, -1] += torch.tensor([0.0, 1, 1, 2, 0.5, 0, 7, 3, 100])
    small.assert_same(model, other, mixed)
    mean, variance = model.marginals(14.0)
    posterior = model.posterior(small.rows(14.0))
    torch.testing.assert_close(mean, posterior.mean[:, 0], rtol=0, atol=1e-12)
    torch.testing.assert_close(variance, posterior.variance[:, 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("rate", RATES)
def test_equals_the_papers_formula(small, rate):
    """Equations (7)-(8) by double loops."""
    X, Y = small.data(TIMES)
    n = len(X)

    def covariance(a, b):
        space = math.exp(-(a[:2] - b[:2]).square().sum().item() / (2 * 0.4**2))
        return space * (1 - rate) ** (abs(a[2] - b[2]).item() / 2)

    K = torch.tensor([[covariance(X[i], X[j]) for j in range(n)] for i in range(n)])
    inverse = torch.linalg.inv(K + small.noise * torch.eye(n))
    model = small.streaming(rate)
    model.observe(X, Y)
    for x in small.rows(14.5):
        k = torch.tensor([covariance(X[i], x) for i in range(n)])
        posterior = model.posterior(x.unsqueeze(0))
        assert posterior.mean.item() == pytest.approx((k @ inverse @ Y).item(), abs=1e-10)
        assert posterior.variance.item() == pytest.approx((1 - k @ inverse @ k).item(), abs=1e-10)


def test_more_at_once_than_a_block(small):
    generator = torch.Generator().manual_seed(1)
    X, Y = small.data(50 * torch.rand(600, generator=generator))
    model = small.streaming(0.03)
    model.observe(X, Y)
    small.assert_same(model, small.dense(X, Y, 0.03), small.rows(51))


def test_an_event_before_the_first_is_exact(small):
    X, Y = small.data([5.0, 6.0, -3.0, 1.0])
    model = small.streaming(0.1)
    for i in range(4):
        model.observe(X[i : i + 1], Y[i : i + 1])
    assert model.now == 6.0
    assert model.earliest == -math.inf
    small.assert_same(model, small.dense(X, Y, 0.1), small.rows(6.5))


def test_no_observations_is_the_prior(small):
    model = small.streaming(0.1)
    covar = small.rbf()(small.choices).to_dense().detach()
    model.observe(torch.empty(0, 3), torch.empty(0, 1))
    posterior = model.posterior(small.rows(-5.0))
    assert torch.equal(posterior.mean, torch.zeros(9, 1))
    torch.testing.assert_close(posterior.distribution.covariance_matrix, covar)
    assert model.num_rows == 0


@pytest.mark.draws_globally  # LinearMean does
def test_mean_and_kernel_are_used_as_they_stood(small):
    mean, kernel = LinearMean(3), small.rbf()
    torch.nn.init.constant_(mean.weights, 0.5)
    torch.nn.init.constant_(mean.bias, 0.2)
    X, Y = small.data(TIMES)
    model = small.streaming(0.03, kernel=kernel, mean_module=mean)
    plain = small.streaming(0.03)
    kernel.lengthscale = 3.0
    shift = 0.2 + 0.5 * X.sum(-1, keepdim=True)
    model.observe(X, Y + shift)
    plain.observe(X, Y)
    ahead = small.rows(14)
    expected = plain.posterior(ahead).mean + 0.2 + 0.5 * ahead.sum(-1, keepdim=True)
    torch.testing.assert_close(model.posterior(ahead).mean, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(model.marginals(14.0)[0], expected[:, 0], rtol=0, atol=1e-10)


def test_arms_that_cannot_be_told_apart(small):
    X, Y = small.data(TIMES)
    kernel = ConstantKernel()
    model = small.streaming(0.03, kernel=kernel)
    for i in range(len(X)):
        model.observe(X[i : i + 1], Y[i : i + 1])
    small.assert_same(model, small.dense(X, Y, 0.03, kernel=kernel), small.rows(14))
    arms = torch.arange(3.0).unsqueeze(-1)
    covar = torch.tensor([[1.0, 1.0, 0.2], [1.0, 1.0, 0.2], [0.2, 0.2, 1.0]])
    twins = StreamingGP(arms, CovarianceMatrixKernel(covar), 0.0, 0.1)
    twins.observe(torch.tensor([[0.0, 1.0], [1.0, 2.0]]), torch.ones(2, 1))
    mean, variance = twins.marginals(3.0)
    assert mean[0].item() == pytest.approx(2 / 2.1, abs=1e-12)
    assert variance[:2].tolist() == pytest.approx([0.1 / 2.1] * 2, abs=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tol": 0.0}, r"tol in \(0, 1\). Got 0"),
        ({"tol": 1.0}, r"tol in \(0, 1\). Got 1"),
        ({"max_rows": 0}, "max_rows >= 1. Got 0"),
        ({"max_lateness": -1.0}, "max_lateness >= 0. Got -1"),
        ({"max_lateness": math.nan}, "max_lateness >= 0. Got nan"),
        ({"noise": -0.1}, "noise_variance >= 0, finite. Got -0.1"),
        ({"noise": math.inf}, "noise_variance >= 0, finite. Got inf"),
        ({"rate": 1.5}, r"forgetting_rate in \[0, 1\]. Got 1.5"),
        ({"rate": math.nan}, r"forgetting_rate in \[0, 1\]. Got nan"),
        ({"rate": torch.rand(2), "noise": torch.rand(3)}, r"that broadcast. Got .*\(2,\), \(3,\)"),
        ({"kernel": ScaleKernel(RBFKernel()), "rate": 0.1}, None),
    ],
)
def test_bad_parameters(small, options, message):
    options = {"rate": 0.1, **options}
    if message is None:
        options["kernel"].raw_outputscale.data.fill_(math.nan)
        message = "finite variances >= 0 on the choices. Got variances from nan"
    with pytest.raises(ValueError):
        small.streaming(**options)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"X": [[0.3, 0.0, 1.0]]}, InputDataError),
        ({"X": [[0.0, 0.0, math.nan]]}, InputDataError),
        ({"X": [[math.nan, 0.0, 1.0]]}, InputDataError),
        ({"X": [[0.0, 1.0]]}, BotorchTensorDimensionError),
        ({"X": [0.0, 0.0, 1.0]}, BotorchTensorDimensionError),
        ({"X": [[[0.0, 0.0, 1.0]]] * 2}, BotorchTensorDimensionError),
        ({"Y": [[math.inf]]}, InputDataError),
        ({"Y": [[1.0, 1.0]]}, BotorchTensorDimensionError),
        ({"Y": [[[1.0]]] * 2}, BotorchTensorDimensionError),
        ({"Yvar": [[-0.5]]}, InputDataError),
        ({"Yvar": [[math.nan]]}, InputDataError),
        ({"Yvar": [0.5]}, BotorchTensorDimensionError),
    ],
)
def test_bad_observations_leave_the_model_as_it_was(small, change, error):
    model = small.streaming(0.1)
    model.observe(*small.data([0.0]))
    before = model.marginals(1.0)
    given = {"X": [[0.0, 0.0, 1.0]], "Y": [[1.0]], **change}
    with pytest.raises(error):
        model.observe(**{name: torch.tensor(value) for name, value in given.items()})
    assert model.num_rows == 1
    for one, two in zip(before, model.marginals(1.0), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("choices", "error"),
    [
        (torch.zeros(2, 2), InputDataError),
        (torch.tensor([[math.nan]]), InputDataError),
        (torch.zeros(3), BotorchTensorDimensionError),
    ],
)
def test_bad_choices(choices, error):
    with pytest.raises(error):
        StreamingGP(choices, RBFKernel(), 0.1, 0.1)
