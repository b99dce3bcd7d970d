"""The streaming posterior at times before the newest observation, against the dense model."""

import pytest
import torch

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
