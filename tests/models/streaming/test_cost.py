"""The cost model against models that were run."""

import math

import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo.models import StreamingGP
from tvbo.models.streaming.cost import streaming_cost, streaming_rows


@pytest.mark.parametrize(
    ("rate", "rows"), [(0.03, 908), (0.5, 40), (0.0, math.inf), (1.0, 1), (1e-3, 27618)]
)
def test_rows_that_weigh(rate, rows):
    assert streaming_rows(rate, 1e-12) == rows


@pytest.mark.parametrize(
    ("n", "rate", "trials", "max_lateness"),
    [
        pytest.param(400, 0.1, 1, 0.0, marks=pytest.mark.slow),
        (400, 0.3, 3, 20.0),
        (100, 0.0, 1, 0.0),
        pytest.param(100, 1e-3, 2, 10.0, marks=pytest.mark.slow),
    ],
)
def test_memory_and_rows_of_a_long_run(n, rate, trials, max_lateness):
    cost = streaming_cost(n, rate, batch_size=trials, max_lateness=max_lateness)
    model = StreamingGP(
        torch.linspace(0, 1, n).unsqueeze(-1),
        RBFKernel(),
        rate,
        0.1,
        batch_shape=torch.Size([trials]),
        max_lateness=max_lateness,
    )
    generator = torch.Generator().manual_seed(0)
    held = []
    for t in range(1, 700):
        arm = torch.randint(n, (trials,), generator=generator)
        rows = torch.cat([model.choices[arm], torch.full((trials, 1), float(t))], dim=-1)
        model.observe(rows.unsqueeze(1), torch.randn(trials, 1, 1, generator=generator).double())
        held.append(model.num_rows)
    size = sum(
        x.numel() * x.element_size()
        for x in model.state_dict().values()
        if isinstance(x, torch.Tensor)
    )
    assert cost.merged == (model.innovations.evicted.merged is not None)
    # The model is a rule of thumb: within a third.
    assert sum(held[-300:]) / 300 == pytest.approx(cost.rows, rel=0.35)
    assert size == pytest.approx(cost.memory, rel=0.35)
