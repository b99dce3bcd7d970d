import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from gpytorch.kernels import RBFKernel

from experiments.theory.exploration_regret import (
    CompactSetWidth,
    bpe_delay_regret_bound,
    surviving_regret_bound,
)
from experiments.theory.greedy import greedy_information_gain
from tvbo.optimizers.bpe import FiniteSetWidth
from tvbo.optimizers.bpe.bpe_delay import exploration_rounds
from tvbo.optimizers.bpe.confidence import Exploration, Width
from tvbo.test_functions.drifting_gp import unit_grid

SURVIVING = {"num_outcomes": 32, "information_gain": 20.0, "noise_variance": 0.01}
RUN = {
    "horizon": 1000,
    "upper_bound": 60.5,
    "delta": 0.1,
    "information_gain": [5 * math.log(1 + t) for t in range(1, 1001)],
    "largest_regret": 20.0,
    "noise_variance": 0.01,
    "dim": 2,
    "num_points": 225,
}
NORM, NOISE_SD = 10.0, 0.1
BOX = Exploration(
    delta=0.1,
    num_rounds=4,
    num_arrived=20,
    noise_variance=0.04,
    dim=2,
    num_points=None,
    max_variance=1.0,
    horizon=1000,
)


def squared_exponential(side, lengthscale):
    kernel = RBFKernel().double()
    kernel.lengthscale = lengthscale
    return kernel(unit_grid(side)).to_dense().detach()


def test_equation_25():
    c1 = 2 / math.log(1 + 1 / 0.01)
    printed = 4 * 7.5 * math.sqrt(c1 * 20 / 32)
    assert surviving_regret_bound(Width(7.5), **SURVIVING) == pytest.approx(printed, rel=1e-12)


def test_equation_26():
    """The width of a box with q outcomes, put in as the paper does."""
    exploration = Exploration(0.1, 5, 32, 0.01, 2, None, 1.0, 1000)
    width = CompactSetWidth(NORM, NOISE_SD, cover=1.0)(exploration)
    beta, q = width.multiplier, 32
    c1 = 2 / math.log(1 + 1 / 0.01)
    printed = 8 / q + 4 * beta * (math.sqrt(c1 * 20 / q) + 2 / math.sqrt(q))
    assert surviving_regret_bound(width, **SURVIVING) == pytest.approx(printed, rel=1e-12)


def test_compact_set_by_hand():
    """From Lemma 4.3 with δ / 16, one formula after the other at 30 digits."""
    width = CompactSetWidth(rkhs_norm=1.5, noise_sd=0.1, cover=3.0)(BOX)
    assert width.multiplier == pytest.approx(4.8199053403948333, rel=1e-14)
    assert width.offset == pytest.approx(2.2555271972474221, rel=1e-14)


def test_compact_set_of_a_large_kernel():
    """k_max replaces σ where it is larger."""
    rule = CompactSetWidth(rkhs_norm=1.5, noise_sd=0.1, cover=3.0)
    assert rule(replace(BOX, max_variance=0.05)) == rule(replace(BOX, max_variance=0.1))
    assert rule(replace(BOX, max_variance=2.0)).multiplier > rule(BOX).multiplier


@pytest.mark.parametrize("noise", [1e-4, 0.01, 1.0])
@pytest.mark.parametrize("variance", [0.3, 1.0, 5.0])
def test_step_1_variances_after_q_points(noise, variance):
    """(22): what is known after q points of largest variance, against the posterior itself."""
    covar = variance * squared_exponential(8, 0.3)
    gain = greedy_information_gain(covar, 40, noise)
    for q in (1, 5, 40):
        held = gain.points[:q]
        K = covar[held][:, held] + noise * torch.eye(q, dtype=torch.float64)
        posterior = covar - covar[:, held] @ torch.linalg.solve(K, covar[held])
        bound = surviving_regret_bound(
            Width(0.25),
            num_outcomes=q,
            information_gain=gain.information[q - 1].item(),
            noise_variance=noise,
            max_variance=variance,
        )
        assert posterior.diagonal().max() <= bound**2 * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("upper_bound", [0.0, 60.5])
def test_step_3_on_a_finite_set(upper_bound):
    horizon, gains = 1000, RUN["information_gain"]
    lengths, qs, q = [], [], 1
    while sum(lengths) < horizon:
        q = math.ceil(math.sqrt(horizon * q))
        qs.append(q)
        lengths.append(min(math.ceil(q + upper_bound), horizon - sum(lengths)))
    beta = NORM + math.sqrt(2 * math.log(4 * len(lengths) * 225 / 0.1))
    c1 = 2 / math.log(1 + 1 / 0.01)
    expected = lengths[0] * 20.0
    for length, before in zip(lengths[1:], qs[:-1], strict=True):
        expected += length * 4 * beta * math.sqrt(c1 * gains[before - 1] / before)
    bound = bpe_delay_regret_bound(
        FiniteSetWidth(NORM, NOISE_SD), **{**RUN, "upper_bound": upper_bound}
    )
    assert bound == pytest.approx(expected, rel=1e-12)


def test_step_3_of_a_box_takes_the_worst_number_of_outcomes():
    rule = CompactSetWidth(NORM, NOISE_SD, cover=1.0)
    options = {**RUN, "num_points": None}
    rounds = exploration_rounds(1000, 60.5)
    c1 = 2 / math.log(1 + 1 / 0.01)
    with_q = rounds[0].length * 20.0
    for before, current in pairwise(rounds):
        exploration = Exploration(0.1, len(rounds), before.q, 0.01, 2, None, 1.0, 1000)
        beta, q = rule(exploration).multiplier, before.q
        deviation = math.sqrt(c1 * RUN["information_gain"][q - 1] / q)
        with_q += current.length * (8 / q + 4 * beta * (deviation + 2 / math.sqrt(q)))
    bound = bpe_delay_regret_bound(rule, **options)
    assert with_q <= bound <= 1.2 * with_q
