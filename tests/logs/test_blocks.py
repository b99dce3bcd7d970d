"""Blocks against the dense likelihood: gaps, irregular times, repeats, known noise, segments."""

import pytest
import torch
from linear_operator.utils.errors import NotPSDError

from tvbo.logs.dataset import DriftLog, panel_rows
from tvbo.logs.likelihood import BlockLikelihood, LogLikelihood

pytestmark = pytest.mark.usefixtures("double_by_default")

RATES = [0.0, 1e-9, 1e-3, 0.03, 1.0, 1e9]


@pytest.fixture
def irregular(generator):
    """Rows over seven actions: many at one time, one of them twice."""
    n = 90
    arm = torch.randint(7, (n,), generator=generator)
    times = torch.sort(30 * torch.rand(n, generator=generator)).values
    times[20:35] = times[20]
    arm[22] = arm[23]
    actions = torch.rand(7, 2, generator=generator)
    X = torch.cat([actions[arm], times.unsqueeze(-1)], dim=-1)
    return X[torch.randperm(n, generator=generator)], torch.randn(n, 1, generator=generator)


@pytest.fixture
def gappy(generator):
    """A panel with a fifth of its cells missing, at unequal steps."""
    values = torch.randn(20, 6, generator=generator)
    values[torch.rand(20, 6, generator=generator) < 0.2] = float("nan")
    times = torch.cumsum(0.1 + torch.rand(20, generator=generator), 0)
    return panel_rows(values, times)


def check_against_dense(log, make_kernel, evaluate, rate, mean, block):
    columns = log.actions.shape[-1]
    dense = evaluate(lambda k: LogLikelihood(log, k, mean), make_kernel(columns), rate)
    blocks = evaluate(lambda k: BlockLikelihood(log, k, mean, block), make_kernel(columns), rate)
    assert blocks[0] == pytest.approx(dense[0], rel=1e-11)
    assert blocks[1] == pytest.approx(dense[1], abs=1e-9)
    torch.testing.assert_close(blocks[2], dense[2], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("block", "mean"), [(1, None), (7, 0.3), (40, None), (500, 0.3)])
@pytest.mark.parametrize("rate", RATES)
def test_irregular_log(irregular, make_kernel, evaluate, rate, mean, block):
    log = DriftLog.from_rows(*irregular, None, -1)
    check_against_dense(log, make_kernel, evaluate, rate, mean, block)


@pytest.mark.parametrize("rate", RATES)
def test_panel_with_gaps(gappy, make_kernel, evaluate, rate):
    log = DriftLog.from_rows(*gappy, None, -1)
    check_against_dense(log, make_kernel, evaluate, rate, None, 16)


@pytest.mark.parametrize("rate", RATES)
def test_known_noise(irregular, make_kernel, evaluate, rate, generator):
    Yvar = 0.01 + 0.3 * torch.rand(len(irregular[1]), 1, generator=generator)
    log = DriftLog.from_rows(*irregular, Yvar, -1)
    check_against_dense(log, make_kernel, evaluate, rate, None, 16)


@pytest.mark.parametrize("rate", RATES)
def test_segments(irregular, make_kernel, evaluate, rate, generator):
    labels = torch.tensor([7.5, -1.0, 3.0])[torch.randint(3, (90,), generator=generator)]
    log = DriftLog.from_rows(*irregular, None, -1, labels)
    check_against_dense(log, make_kernel, evaluate, rate, None, 16)


def test_a_singular_log_is_said_to_be_singular(make_kernel):
    X, Y = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 2.0]]), torch.tensor([[1.0], [2.0], [3.0]])
    log = DriftLog.from_rows(X, Y, torch.zeros(3, 1), -1)
    with pytest.raises(NotPSDError):
        BlockLikelihood(log, make_kernel(), None)(torch.tensor(0.1), torch.tensor(1.0))
