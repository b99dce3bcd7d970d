import math

import pytest
import torch
from gpytorch.kernels import RBFKernel

from experiments.theory.greedy import greedy_information_gain
from experiments.theory.information_orders import (
    linear_information_order,
    matern_information_order,
    squared_exponential_information_order,
)
from experiments.theory.orders import (
    bpe_delay_order,
    lower_bound_order,
    r_gp_ucb_order,
    tv_gp_ucb_order,
)
from experiments.theory.regret_bounds import information_gain_by_blocks


def test_squared_exponential():
    assert r_gp_ucb_order().horizon_exponent == tv_gp_ucb_order().horizon_exponent == 0.5
    assert r_gp_ucb_order().rate_exponent == pytest.approx(1 / 8)
    assert tv_gp_ucb_order(dim=7).rate_exponent == pytest.approx(1 / 6)
    assert tv_gp_ucb_order()(200, 0.01) == pytest.approx(200 * 0.01 ** (1 / 6))
    assert tv_gp_ucb_order()(200, 0.0) == pytest.approx(math.sqrt(200))


def test_matern():
    # d = 2, ν = 2.5 gives c = 6 / 11.
    resetting, forgetting = r_gp_ucb_order(dim=2, nu=2.5), tv_gp_ucb_order(dim=2, nu=2.5)
    assert resetting.horizon_exponent == forgetting.horizon_exponent == pytest.approx(17 / 22)
    assert resetting.rate_exponent == pytest.approx(5 / 76)
    assert forgetting.rate_exponent == pytest.approx(5 / 54)


def test_sharper_matern():
    # d = 2, ν = 2.5 gives c = 2 / 7.
    resetting = r_gp_ucb_order(dim=2, nu=2.5, sharper=True)
    forgetting = tv_gp_ucb_order(dim=2, nu=2.5, sharper=True)
    assert resetting.horizon_exponent == forgetting.horizon_exponent == pytest.approx(9 / 14)
    assert resetting.rate_exponent == pytest.approx(5 / 52)
    assert forgetting.rate_exponent == pytest.approx(5 / 38)
    assert tv_gp_ucb_order(sharper=True) == tv_gp_ucb_order()


def test_bpe_delay_of_corollary_6_3():
    log = math.log(1000)
    # (11), d = 2, ν = 2.5: (2.5 + 2) / 7.
    matern = bpe_delay_order(matern_information_order(2, 2.5, sharper=True), dim=2)
    assert matern.horizon_exponent == pytest.approx(4.5 / 7)
    # (12), with the power of Theorem 6.2, which is not above the one printed.
    for dim in (1, 2, 6):
        smooth = bpe_delay_order(squared_exponential_information_order(dim), dim=dim)
        theorem = math.sqrt(dim * log) * math.log(log) * math.sqrt(1000 * log ** (dim + 1))
        assert smooth(1000, 7.5) == pytest.approx(theorem + 7.5)
        assert smooth.horizon_exponent == 0.5
        assert smooth.log_exponent <= dim + 1
    # (13)
    linear = bpe_delay_order(linear_information_order(4), dim=4)
    assert linear(1000, 50.0) == pytest.approx(4 * math.sqrt(1000) * log * math.log(log) + 50)


@pytest.mark.parametrize("nu", [2.5, 4.5, math.inf])
def test_forgetting_smoothly_is_better_and_neither_beats_the_lower_bound(nu):
    resetting, forgetting = r_gp_ucb_order(dim=2, nu=nu), tv_gp_ucb_order(dim=2, nu=nu)
    for rate in (1e-6, 1e-3, 0.1):
        lower = lower_bound_order(1e4, rate)
        assert lower == 1e4 * rate
        assert lower <= forgetting(1e4, rate) <= resetting(1e4, rate)


def test_rate_exponent_from_the_bound_itself():
    """The least of (46) over the block, per round, falls with ε at least as fast as ε^(1/3).

    Its root is what (21) is made of, hence ε^(1/6).
    """
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.5
    points = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1)
    horizon = 20_000
    gains = greedy_information_gain(kernel(points).to_dense().detach(), 2000, 1.0).information

    def per_round(rate):
        return min(
            information_gain_by_blocks(
                horizon=horizon,
                block=block,
                static_gain=gains[block - 1].item(),
                noise_variance=1.0,
                forgetting_rate=rate,
            )
            for block in range(1, 2001)
        )

    exponent = math.log(per_round(1e-4) / per_round(1e-6)) / math.log(100)
    assert exponent > 1 / 3 - 0.05
