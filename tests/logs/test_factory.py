"""The likelihood follows the shape of the log."""

import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo.logs import (
    BlockLikelihood,
    DenseLikelihood,
    DriftLog,
    PanelLikelihood,
    VecchiaLikelihood,
    make_likelihood,
    panel_rows,
)
from tvbo.logs.drift_fit import MAX_DENSE

pytestmark = pytest.mark.usefixtures("double_by_default")


def chosen(X, Y, Yvar=None):
    kernel = RBFKernel().double()
    return type(make_likelihood(DriftLog.from_rows(X, Y, Yvar, -1), kernel, None))


def test_a_full_panel_goes_by_modes(generator):
    X, Y = panel_rows(torch.randn(20, 3, generator=generator), torch.arange(20.0))
    assert chosen(X, Y) is PanelLikelihood


def test_one_arm_gains_nothing_from_modes(generator):
    X, Y = panel_rows(torch.randn(20, 1, generator=generator), torch.arange(20.0))
    assert chosen(X, Y) is DenseLikelihood


def test_a_panel_with_a_gap_or_known_noise_goes_by_blocks_if_long(generator):
    X, Y = panel_rows(torch.randn(100, 3, generator=generator), torch.arange(100.0))
    assert chosen(X[1:], Y[1:]) is BlockLikelihood
    assert chosen(X, Y, torch.ones_like(Y)) is BlockLikelihood
    assert chosen(X[1:60], Y[1:60]) is DenseLikelihood


@pytest.mark.parametrize(
    ("n", "kind"), [(500, DenseLikelihood), (MAX_DENSE + 1, VecchiaLikelihood)]
)
def test_many_actions_are_dense_until_too_long(generator, n, kind):
    X = torch.stack([torch.rand(n, generator=generator), torch.arange(float(n))], dim=-1)
    assert chosen(X, torch.randn(n, 1, generator=generator)) is kind
