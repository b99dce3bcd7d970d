import math

import pytest

from tvbo.acquisition import ConstantBeta, LogBeta


def test_log_schedule_is_clamped_at_zero():
    beta = LogBeta(c1=0.8, c2=0.4)
    assert [beta(t) for t in (1, 2)] == [0.0, 0.0]
    assert beta(3) == pytest.approx(0.8 * math.log(1.2))
    assert LogBeta()(10) == pytest.approx(0.8 * math.log(40))


@pytest.mark.parametrize(
    "make",
    [
        lambda: LogBeta(c1=-1),
        lambda: LogBeta(c2=0),
        lambda: ConstantBeta(-0.1),
        lambda: ConstantBeta(math.nan),
    ],
)
def test_bad_parameters(make):
    with pytest.raises(ValueError):
        make()
