"""Empirical covariances, with gaps and without."""

import math

import pytest
import torch
from botorch.exceptions.errors import InputDataError

from tvbo.logs import empirical_covariance

pytestmark = pytest.mark.usefixtures("double_by_default")


def test_without_gaps_it_is_about_one_mean(generator):
    values = torch.randn(7, 3, generator=generator) + 5
    covar = empirical_covariance(values)
    for i in range(3):
        for j in range(3):
            expected = sum(
                (values[t, i] - values.mean()) * (values[t, j] - values.mean()) for t in range(7)
            )
            assert covar[i, j].item() == pytest.approx(expected.item() / 7)


def test_days_are_one_sample_of_the_covariance(generator):
    days = torch.randn(4, 7, 3, generator=generator)
    torch.testing.assert_close(empirical_covariance(days), empirical_covariance(days.view(28, 3)))


def test_each_entry_is_from_the_times_that_have_both():
    values = torch.tensor([[1.0, 2.0], [3.0, math.nan], [5.0, 9.0]])
    covar = empirical_covariance(values)
    mean = 4.0
    first = ((1 - mean) ** 2 + (3 - mean) ** 2 + (5 - mean) ** 2) / 3
    both = ((1 - mean) * (2 - mean) + (5 - mean) * (9 - mean)) / 2
    assert covar[0, 0].item() == pytest.approx(first)
    assert covar[0, 1].item() == pytest.approx(both)


def test_the_result_is_a_covariance(generator):
    values = torch.randn(12, 8, generator=generator)
    values[torch.rand(12, 8, generator=generator) < 0.4] = math.nan
    covar = empirical_covariance(values)
    assert torch.linalg.eigvalsh(covar)[0] > -1e-12
    torch.testing.assert_close(covar, covar.mT)


def test_arms_never_read_together_are_named():
    values = torch.tensor([[1.0, math.nan, 2.0], [math.nan, 3.0, 4.0]])
    with pytest.raises(InputDataError):
        empirical_covariance(values)
