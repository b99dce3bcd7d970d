import math

import pytest

from tvbo.acquisition import ConstantBeta, LogBeta
from tvbo.acquisition.analytic import ResettingBeta, TimeVaryingBeta


def test_log_schedule_is_clamped_at_zero():
    beta = LogBeta(c1=0.8, c2=0.4)
    assert [beta(t) for t in (1, 2)] == [0.0, 0.0]
    assert beta(3) == pytest.approx(0.8 * math.log(1.2))
    assert LogBeta()(10) == pytest.approx(0.8 * math.log(40))


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


@pytest.mark.parametrize(
    "make",
    [
        lambda: LogBeta(c1=-1),
        lambda: LogBeta(c2=0),
        lambda: ConstantBeta(-0.1),
        lambda: TimeVaryingBeta(dim=2, delta=1.0),
        lambda: ResettingBeta(dim=0),
        lambda: ResettingBeta(dim=1, a=0.5),
    ],
)
def test_bad_parameters(make):
    with pytest.raises(ValueError):
        make()


def test_early_rounds_of_the_theoretical_schedule_are_not_negative():
    # A tiny cube makes the second logarithm negative: β is a squared width all the same.
    assert TimeVaryingBeta(dim=2, side=1e-6)(1) == 0.0
