import math

import pytest
import torch

from experiments.theory.information_orders import (
    InformationOrder,
    linear_information_order,
    matern_information_order,
    squared_exponential_information_order,
)


def test_orders_of_section_5_2():
    horizon = 1000
    log = math.log(horizon)
    assert linear_information_order(4)(horizon) == pytest.approx(4 * log)
    assert squared_exponential_information_order(2)(horizon) == pytest.approx(log**3)
    # d = 2, ν = 2.5: 6 / 11.
    assert matern_information_order(2, 2.5)(horizon) == pytest.approx(horizon ** (6 / 11) * log)


def test_sharper_matern_order():
    # d = 2, ν = 2.5: 2 / 7 and 5 / 7.
    order = matern_information_order(2, 2.5, sharper=True)
    assert order(1000) == pytest.approx(1000 ** (2 / 7) * math.log(1000) ** (5 / 7))
    for dim in (1, 2, 5):
        for nu in (1.5, 2.5, 10.0):
            sharper = matern_information_order(dim, nu, sharper=True)
            older = matern_information_order(dim, nu)
            assert sharper.horizon_exponent < older.horizon_exponent
            assert sharper.log_exponent < older.log_exponent
            assert sharper(1000) < older(1000)


@pytest.mark.parametrize(("dim", "nu"), [(1, 1.5), (1, 2.5), (2, 2.5)])
def test_sharper_matern_order_from_the_decay_of_eigenvalues(dim, nu):
    """Eigenvalues m^(-(2ν + d) / d), T observations of each: no power of T above d / (2ν + d)."""
    decay = (2 * nu + dim) / dim
    eigenvalues = torch.arange(1, 200_001, dtype=torch.float64) ** -decay

    def information(horizon):
        return 0.5 * torch.log1p(horizon * eigenvalues).sum().item()

    power = math.log10(information(1e8) / information(1e7))
    expected = matern_information_order(dim, nu, sharper=True).horizon_exponent
    assert power == pytest.approx(expected, abs=0.02)
    assert power < matern_information_order(dim, nu).horizon_exponent - 0.05


def test_linear_times_squared_exponential():
    """d1 (log T)^(d2 + 1), the paper's example."""
    order = squared_exponential_information_order(3).times_rank(5)
    assert order == InformationOrder(horizon_exponent=0.0, log_exponent=4.0, factor=5.0)
    assert order(200) == pytest.approx(5 * math.log(200) ** 4)
    assert linear_information_order(2).times_rank(3) == linear_information_order(6)
