import math

import pytest

from experiments.theory.beta import (
    CompactBeta,
    FiniteBeta,
    ResettingBeta,
    RKHSBeta,
    TimeVaryingBeta,
)
from tvbo.acquisition import LogBeta
from tvbo.acquisition.ucb import as_beta_schedule

NAN = math.nan


def test_finite_beta_is_setting_1():
    t, pairs, delta = 7, 5 * 46, 0.05
    expected = 2 * math.log(pairs * t**2 * math.pi**2 / (6 * delta))
    assert FiniteBeta(pairs, delta)(t) == pytest.approx(expected, rel=1e-14)
    # By hand: 230 * 49 * 9.8696 / 0.3 = 370,768.9.
    assert FiniteBeta(pairs, delta)(t) == pytest.approx(2 * math.log(370_768.9), abs=1e-5)


def test_finite_beta_fails_with_probability_delta_in_all():
    """Union bound: the sum over rounds and pairs of exp(-β / 2) is δ."""
    beta = FiniteBeta(12, 0.1)
    rounds = 100_000
    total = sum(12 * math.exp(-beta(t) / 2) for t in range(1, rounds + 1))
    # What is left of the sum of 1 / t² after T rounds is below 1 / T.
    assert total == pytest.approx(0.1, rel=1 / rounds)
    assert total < 0.1


def test_compact_beta_is_setting_2():
    t, delta, d, r, a, b = 7, 0.05, 3, 2.0, 1.5, 0.7
    expected = 2 * math.log(t**2 * 2 * math.pi**2 / (3 * delta)) + 2 * d * math.log(
        t**2 * d * b * r * math.sqrt(math.log(4 * d * a / delta))
    )
    assert CompactBeta(dim=d, delta=delta, side=r, a=a, b=b)(t) == pytest.approx(
        expected, rel=1e-14
    )


def test_compact_beta_needs_a_grid_of_one_point_at_least():
    """A flat function: without the clamp β would fall below what one point needs."""
    flat = CompactBeta(dim=4, b=1e-6)
    assert flat(1) == pytest.approx(2 * math.log(2 * math.pi**2 / 0.3), rel=1e-14)
    assert [flat(t) for t in range(1, 50)] == sorted(flat(t) for t in range(1, 50))


def test_rkhs_beta_is_setting_3():
    beta = RKHSBeta(norm_bound=1.5, information_gain=lambda t: 2.0 * t, delta=0.1)
    assert beta(4) == pytest.approx(2 * 1.5**2 + 300 * 8.0 * math.log(40) ** 3, rel=1e-14)
    # By hand: 4.5 + 2400 * 50.1976, where 50.1976 is 3.688879³.
    assert beta(4) == pytest.approx(120_478.8, abs=0.5)
    nothing_to_learn = RKHSBeta(norm_bound=2.0, information_gain=lambda t: 0.0)
    assert nothing_to_learn(100) == 8.0


@pytest.mark.parametrize(
    "beta",
    [FiniteBeta(1, 0.99), CompactBeta(1, 0.99, side=1e-3), RKHSBeta(0.0, math.log1p, 0.99)],
    ids=["finite", "compact", "rkhs"],
)
def test_schedules_are_positive_and_never_fall(beta):
    values = [as_beta_schedule(beta)(t) for t in range(1, 200)]
    assert values[0] > 0
    assert values == sorted(values)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FiniteBeta(0),
        lambda: TimeVaryingBeta(dim=2, delta=1.0),
        lambda: ResettingBeta(dim=0),
        lambda: ResettingBeta(dim=1, a=0.5),
        lambda: FiniteBeta(2.5),
        lambda: FiniteBeta(NAN),
        lambda: FiniteBeta(3, 1.0),
        lambda: CompactBeta(0),
        lambda: CompactBeta(2, delta=0.0),
        lambda: CompactBeta(2, side=0.0),
        lambda: CompactBeta(2, b=math.inf),
        lambda: CompactBeta(2, a=0.5),
        lambda: CompactBeta(2, a=NAN),
        lambda: RKHSBeta(-1.0, float),
        lambda: RKHSBeta(NAN, float),
        lambda: RKHSBeta(1.0, float, delta=2.0),
    ],
)
def test_bad_arguments(make):
    with pytest.raises(ValueError):
        make()


def test_resetting_beta_is_equation_16():
    t, delta, d, r, a, b = 7, 0.05, 3, 2.0, 1.5, 0.7
    expected = 2 * math.log(2 * math.pi**2 * t**2 / (3 * delta)) + 2 * d * math.log(
        r * d * b * t**2 * math.sqrt(math.log(2 * d * a * math.pi**2 * t**2 / (3 * delta)))
    )
    assert ResettingBeta(dim=d, delta=delta, side=r, a=a, b=b)(t) == pytest.approx(expected)


def test_time_varying_beta_is_equation_19():
    t, delta, d, r, a, b = 7, 0.05, 3, 2.0, 1.5, 0.7
    expected = 2 * math.log(math.pi**2 * t**2 / (2 * delta)) + 2 * d * math.log(
        r * d * b * t**2 * math.sqrt(math.log(d * a * math.pi**2 * t**2 / (2 * delta)))
    )
    assert TimeVaryingBeta(dim=d, delta=delta, side=r, a=a, b=b)(t) == pytest.approx(expected)


def test_theory_is_far_more_cautious_than_practice():
    assert TimeVaryingBeta(dim=2)(100) > 10 * LogBeta()(100)


def test_early_rounds_of_the_theoretical_schedule_are_not_negative():
    # A tiny cube makes the second logarithm negative: β is a squared width all the same.
    assert TimeVaryingBeta(dim=2, side=1e-6)(1) == 0.0
