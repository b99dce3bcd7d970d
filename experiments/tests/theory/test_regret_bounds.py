import math

import pytest
import torch
from gpytorch.kernels import RBFKernel

from experiments.theory.greedy import greedy_information_gain
from experiments.theory.information import drifting_covariance, mutual_information
from experiments.theory.regret_bounds import (
    information_gain_by_blocks,
    r_gp_ucb_regret_bound,
    resetting_mismatch,
    tv_gp_ucb_regret_bound,
)
from experiments.theory.smoothness import tail_constants

RESETTING = {
    "horizon": 200,
    "block": 38,
    "beta": 90.0,
    "static_gain": 30.0,
    "noise_variance": 0.01,
    "forgetting_rate": 0.01,
    "delta": 0.1,
    "a0": 20.0,
    "b0": 2.0,
}
TRACKING = {"horizon": 200, "beta": 90.0, "information_gain": 150.0, "noise_variance": 0.01}
BLOCKS = {
    "horizon": 200,
    "block": 10,
    "static_gain": 15.0,
    "noise_variance": 0.01,
    "forgetting_rate": 0.01,
}


def but(options, **changes):
    return {**options, **changes}


def test_equation_20():
    # C1 = 8 / log 101; 8 * 200 * 90 * 150 / log 101 = 4.6803e6, whose root is 2163.4.
    assert tv_gp_ucb_regret_bound(**TRACKING) == pytest.approx(2163.4 + 2, abs=0.1)
    exact = math.sqrt(8 / math.log(1 + 0.01**-1) * 200 * 90 * 150) + 2
    assert tv_gp_ucb_regret_bound(**TRACKING) == pytest.approx(exact, rel=1e-12)


def test_equation_46_with_the_half_and_the_noise():
    moved = 0.01 * math.sqrt(10 * 99 / 6)
    expected = (200 / 10 + 1) * (15 + 5 * math.log(1 + 100 * moved))
    assert information_gain_by_blocks(**BLOCKS) == pytest.approx(expected, rel=1e-12)


def test_equation_18_twice():
    drift = 38**3 * 0.01
    width = math.sqrt(90 * (3 * 100 + 10_000) * drift)
    reward = (2 + 2) * math.sqrt(math.log(2 * 21 * math.pi**2 * 200**2 / 0.3))
    printed = width + (100 + 10_000) * drift * reward
    options = {name: value for name, value in RESETTING.items() if name != "static_gain"}
    assert resetting_mismatch(**options) == pytest.approx(2 * printed, rel=1e-12)
    # By hand: the width is 22,554; the mean 5,542,072 times 4 times the root of 17.828.
    assert printed == pytest.approx(22_554 + 5_542_072 * 16.889, rel=1e-4)


def test_equation_17():
    options = {name: value for name, value in RESETTING.items() if name != "static_gain"}
    expected = (
        math.sqrt(8 / math.log(101) * 200 * 90 * (200 / 38 + 1) * 30)
        + 2
        + 200 * resetting_mismatch(**options)
    )
    assert r_gp_ucb_regret_bound(**RESETTING) == pytest.approx(expected, rel=1e-12)


def test_without_drift_both_are_the_bound_of_gp_ucb():
    static = but(RESETTING, forgetting_rate=0.0)
    blocks = (200 / 38 + 1) * 30
    same = tv_gp_ucb_regret_bound(**but(TRACKING, information_gain=blocks))
    assert r_gp_ucb_regret_bound(**static) == pytest.approx(same)
    assert information_gain_by_blocks(**but(BLOCKS, forgetting_rate=0.0)) == pytest.approx(21 * 15)


def test_very_noisy_rewards_are_larger():
    options = {name: value for name, value in RESETTING.items() if name != "static_gain"}
    noisy = resetting_mismatch(**but(options, noise_variance=8.0))
    drift = 38**3 * 0.01
    reward = (4 + 2) * math.sqrt(math.log(2 * 21 * math.pi**2 * 200**2 / 0.3))
    expected = 2 * math.sqrt(90 * (3 / 8 + 1 / 64) * drift) + 2 * (1 / 8 + 1 / 64) * drift * reward
    assert noisy == pytest.approx(expected)


@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("noise", [1e-6, 0.01, 1.0])
def test_equation_46_bounds_the_gain_for_every_block(generator, rate, noise):
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.3
    points = torch.rand(15, 2, dtype=torch.float64, generator=generator)
    covar = kernel(points).to_dense().detach()
    gained = greedy_information_gain(covar, 60, noise, rate).information[-1]
    static = greedy_information_gain(covar, 60, noise).ceiling
    for block in range(1, 61):
        bound = information_gain_by_blocks(
            horizon=60,
            block=block,
            static_gain=static[block - 1].item(),
            noise_variance=noise,
            forgetting_rate=rate,
        )
        assert gained <= bound


def test_equation_46_as_printed_fails_where_noise_is_small():
    """One point, so that all gains are known exactly: no maximum is approximated."""
    horizon, rate, noise = 100, 0.01, 1e-6
    covar = drifting_covariance(torch.ones(horizon, horizon), torch.arange(1.0, 101.0), rate)
    gain = mutual_information(covar, noise).item()
    static = [0.5 * math.log(1 + block / noise) for block in range(1, horizon + 1)]
    printed, corrected = [], []
    for block, static_gain in enumerate(static, start=1):
        printed.append((horizon / block + 1) * (static_gain + block**3 * rate))
        corrected.append(
            information_gain_by_blocks(
                horizon=horizon,
                block=block,
                static_gain=static_gain,
                noise_variance=noise,
                forgetting_rate=rate,
            )
        )
    assert min(printed) < 0.4 * gain
    assert gain <= min(corrected)


def test_tail_constants_in_one_dimension():
    # One Gaussian variable: E|g| = sqrt(2 / π) s, and its tail is known.
    deviation = 1.7
    for slack in (0.1, 1.0, 5.0):
        a, b = tail_constants(math.sqrt(2 / math.pi) * deviation, deviation, slack)
        assert a >= 1
        for level in (0.0, 0.5, 1.0, 2.0, 4.0, 8.0):
            tail = math.erfc(level / deviation / math.sqrt(2))
            assert tail <= a * math.exp(-((level / b) ** 2)) + 1e-15
    assert tail_constants(3.0, 2.0) == pytest.approx((math.exp(9 / 8), 4.0))
