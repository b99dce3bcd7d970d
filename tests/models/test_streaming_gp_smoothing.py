"""The streaming posterior at times before the newest observation, against the dense model."""

import pytest
import torch
from gpytorch.kernels import RBFKernel
from gpytorch.means import ConstantMean

from tvbo.kernels import TemporalMaternKernel
from tvbo.models import StreamingGP, TimeVaryingGP
from tvbo.models.stream_preview import Amendments, StreamPreview, amended
from tvbo.spaces.observations import Observations

pytestmark = pytest.mark.usefixtures("double_by_default")


def rows_at(small, times):
    """Some choices, each at a time of its own."""
    times = torch.as_tensor(times, dtype=torch.float64)
    return torch.cat([small.rows(0.0)[: len(times), :2], times.unsqueeze(-1)], dim=-1)


@pytest.mark.parametrize("rate", [0.0, 0.1])
@pytest.mark.parametrize("n", [6, 40, 120])
def test_equal_to_the_dense_model(small, rate, n):
    X, Y = small.data(range(n))
    order = torch.arange(n)
    order[[1, 4]] = order[[4, 1]]  # two of them arrive late
    model = small.streaming(rate, max_lateness=20.0)
    for row in order:
        model.observe(X[row, None], Y[row, None])
    dense = small.dense(X, Y, rate)
    first = max(0, n - 15)
    asked = rows_at(small, [first, first + 1.5, n - 1.0, n + 2.0, first + 3.0, n - 2.5])
    small.assert_same(model, dense, asked, atol=1e-8)
    small.assert_same(model, dense, asked.reshape(3, 2, 3), atol=1e-8)
    small.assert_same(model, dense, asked.unsqueeze(-2), atol=1e-8)


def test_smooth_drift_and_a_prior_mean(small):
    kernel = TemporalMaternKernel(nu=2.5).double()
    kernel.lengthscale = 4.0
    mean = ConstantMean().double().initialize(constant=2.0)
    X, Y = small.data(range(20))
    options = {"temporal_kernel": kernel, "mean_module": mean}
    model = StreamingGP(small.choices, small.rbf(), noise_variance=small.noise, **options)
    model.observe(X, Y)
    dense = TimeVaryingGP(
        X,
        Y,
        torch.full_like(Y, small.noise),
        covar_module=small.rbf(),
        outcome_transform=None,
        **options,
    )
    small.assert_same(model, dense, rows_at(small, [5.0, 18.5, 19.0, 25.0]), atol=1e-8)


def test_a_batch(small):
    rates = torch.tensor([0.02, 0.2])
    model = small.streaming(rates)
    X, Y = small.data(range(12))
    model.observe(X, torch.stack([Y, -Y]))
    asked = rows_at(small, [3.0, 11.5, 20.0, 8.0]).reshape(2, 1, 2, 3)
    got = model.posterior(asked)
    assert got.mean.shape == (2, 2, 2, 1)
    for i in range(2):
        dense = small.dense(X, Y if i == 0 else -Y, rates[i].item()).eval()
        for j in range(2):
            expected = dense.posterior(asked[j, 0])
            torch.testing.assert_close(got.mean[j, i], expected.mean, rtol=0, atol=1e-8)
            torch.testing.assert_close(
                got.distribution[j, i].covariance_matrix,
                expected.distribution.covariance_matrix,
                rtol=0,
                atol=1e-8,
            )


def test_after_amendments(small):
    """A preview has no rows, without which the past cannot be told."""
    X, Y = small.data(range(12))
    model = small.streaming(0.1)
    model.observe(X, Y)
    sums = amended(model, Amendments({}, [], Observations.empty(3)))
    preview = StreamPreview(small.streaming(0.1), sums, Observations(X, Y))
    for asked in (rows_at(small, [3.0]), rows_at(small, [3.0, 20.0])):
        small.assert_same(preview, model, asked)


def test_batch_elements_in_blocks():
    """Rows that are expanded against the batch ask for one element after the other."""
    choices = torch.tensor([[0.0], [0.4], [1.0]])
    generator = torch.Generator().manual_seed(2)
    both = StreamingGP(choices, RBFKernel(), 0.1, 0.04, batch_shape=torch.Size([2]))
    alone = [StreamingGP(choices, RBFKernel(), 0.1, 0.04) for _ in range(2)]
    for t in range(6):
        X = torch.cat([choices[[t % 3]], torch.tensor([[float(t)]])], dim=-1)
        Y = torch.randn(2, 1, 1, generator=generator)
        both.observe(X.expand(2, 1, 2), Y)
        for model, of_model in zip(alone, Y, strict=True):
            model.observe(X, of_model)
    asked = torch.tensor([[0.4, 2.5], [1.0, 3.0], [0.0, 7.0]]).unsqueeze(-2)  # 3 x 1 x 2
    one_by_one = torch.stack([model.posterior(asked).mean for model in alone])
    in_blocks = asked.expand(2, 3, 1, 2).transpose(0, 1)  # 3 x 2 x 1 x 2
    torch.testing.assert_close(both.posterior(in_blocks).mean, one_by_one.transpose(0, 1))
    apart = StreamingGP(choices, RBFKernel(), 0.1, 0.04, batch_shape=torch.Size([2, 1]))
    for t in range(6):
        X = torch.cat([choices[[t % 3]], torch.tensor([[float(t)]])], dim=-1)
        Y = torch.stack([model.posterior(X).mean for model in alone]).unsqueeze(1)
        apart.observe(X.expand(2, 1, 1, 2), Y)
    means = apart.posterior(asked).mean
    for element, mean in enumerate(means):
        single = StreamingGP(choices, RBFKernel(), 0.1, 0.04)
        for t in range(6):
            X = torch.cat([choices[[t % 3]], torch.tensor([[float(t)]])], dim=-1)
            single.observe(X, alone[element].posterior(X).mean)
        torch.testing.assert_close(mean, single.posterior(asked).mean)
