"""The panel likelihood against the dense one, and its gradient against differences."""

import pytest
import torch

from tvbo.kernels import CovarianceMatrixKernel
from tvbo.logs import Panel
from tvbo.logs.dataset import DriftLog
from tvbo.logs.likelihood import LogLikelihood
from tvbo.logs.panel import PanelLikelihood, panel_rows, panel_segments

pytestmark = pytest.mark.usefixtures("double_by_default")

RATES = [0.0, 1e-9, 1e-3, 0.03, 2.0, 1e9]


@pytest.fixture
def rows(generator):
    values = torch.randn(9, 5, generator=generator)
    times = torch.tensor([0, 1, 2, 2.5, 4, 7, 7.25, 9, 14.0])
    return panel_rows(values, times)


def check_against_dense(log, kernel_of, evaluate, rate, mean=None):
    panel = Panel.from_log(log)
    dense = evaluate(lambda k: LogLikelihood(log, k, mean), kernel_of(), rate)
    modes = evaluate(lambda k: PanelLikelihood(panel, k, mean), kernel_of(), rate)
    assert modes[0] == pytest.approx(dense[0], rel=1e-11)
    assert modes[1] == pytest.approx(dense[1], abs=1e-9)
    torch.testing.assert_close(modes[2], dense[2], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mean", [None, 0.3])
@pytest.mark.parametrize("rate", RATES)
def test_equals_dense(rows, make_kernel, evaluate, rate, mean):
    check_against_dense(DriftLog.from_rows(*rows, None, -1), make_kernel, evaluate, rate, mean)


@pytest.mark.parametrize("rate", RATES)
def test_segments_equal_dense(make_kernel, evaluate, generator, rate):
    values = torch.randn(10, 4, generator=generator)
    # Two days by their own clocks, unequal steps, and a day of one time.
    times = torch.tensor([0, 1, 2, 2.5, 0, 1, 4, 5, 6, 2.0])
    days = torch.tensor([4, 4, 4, 4, 9, 9, 9, 9, 9, 5])
    log = DriftLog.from_rows(*panel_rows(values, times), None, -1, panel_segments(values, days))
    check_against_dense(log, make_kernel, evaluate, rate)


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_singular_spatial_covariance(rows, evaluate, rate):
    log = DriftLog.from_rows(*rows, None, -1)
    check_against_dense(log, lambda: CovarianceMatrixKernel(torch.ones(5, 5)), evaluate, rate)


@pytest.mark.parametrize("rate", [1e-3, 0.1, 2.0])
def test_gradient_equals_differences(rows, make_kernel, evaluate, differences, rate):
    panel = Panel.from_log(DriftLog.from_rows(*rows, None, -1))

    def likelihood_of(kernel):
        return PanelLikelihood(panel, kernel, None)

    gradient = evaluate(likelihood_of, make_kernel(), rate)[2]
    expected = differences(likelihood_of, make_kernel(), rate)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-4)
