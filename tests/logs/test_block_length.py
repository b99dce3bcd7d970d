import math

import pytest

from tvbo.logs.block_length import block_length


def test_rule_of_the_paper():
    assert block_length(0.01, 200) == math.ceil(12 * 0.01**-0.25) == 38
    assert block_length(0.001, 200) == math.ceil(12 * 0.001**-0.25) == 68
    # Matérn: d = 2, ν = 2.5 gives c = 6 / 11.
    c = 6 / 11
    assert block_length(0.03, 200, dim=2, nu=2.5) == math.ceil(24 * 0.03 ** (-1 / (4 - c)))


def test_never_longer_than_the_horizon():
    assert block_length(1e-9, 200) == 200
    assert block_length(0.0, 200) == 200
    assert block_length(1.0, 200) == 12


@pytest.mark.parametrize("args", [(-0.1, 10), (1.1, 10), (0.1, 0)])
def test_bad_arguments(args):
    with pytest.raises(ValueError, match=r"forgetting_rate in \[0, 1\], horizon >= 1"):
        block_length(*args)
