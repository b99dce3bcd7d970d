import math
from dataclasses import replace

import pytest

from tvbo.optimizers.bpe import FiniteSetWidth
from tvbo.optimizers.bpe.confidence import Exploration, PriorDrawWidth, Width

FINITE = Exploration(
    delta=0.1,
    num_rounds=4,
    num_arrived=20,
    noise_variance=0.04,
    dim=2,
    num_points=2500,
    max_variance=1.0,
    horizon=1000,
)
BOX = replace(FINITE, num_points=None)


def test_finite_set_by_hand():
    """2 + √(2 log 400000), and half of the root where σ = λ / 2."""
    equal = FiniteSetWidth(rkhs_norm=2.0, noise_sd=0.2)(FINITE)
    half = FiniteSetWidth(rkhs_norm=2.0, noise_sd=0.1)(FINITE)
    assert equal.multiplier == pytest.approx(7.0792164407692096, rel=1e-15)
    assert half.multiplier == pytest.approx(4.5396082203846048, rel=1e-15)
    assert equal.offset == half.offset == 0


def test_prior_draw_by_hand():
    assert PriorDrawWidth()(FINITE) == Width(pytest.approx(4.9408648323001457, rel=1e-15))
    expected = math.sqrt(2 * math.log(2 * 4 * 1000**2 / 0.1))
    assert PriorDrawWidth()(BOX).multiplier == pytest.approx(expected, rel=1e-15)


def test_prior_draw_fails_seldom_enough():
    """The Gaussian tails of all actions and rounds, on both sides, add up to δ / 2 at most."""
    beta = PriorDrawWidth()(FINITE).multiplier
    assert 4 * 2500 * math.erfc(beta / math.sqrt(2)) <= 0.1 / 2
