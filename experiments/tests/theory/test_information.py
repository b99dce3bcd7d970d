import math

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel

from experiments.theory.information import (
    drifting_covariance,
    effective_dimension,
    information_by_round,
    mutual_information,
)

NOISE = 0.05
RATES = (0.0, 1e-3, 0.1, 0.9, 1.0)


def random_covariance(generator, n=25, kernel=RBFKernel):
    points = torch.rand(n, 2, dtype=torch.float64, generator=generator)
    made = kernel().double()
    made.lengthscale = 0.3
    return made(points).to_dense().detach()


@pytest.mark.parametrize("kernel", [RBFKernel, MaternKernel])
@pytest.mark.parametrize("rate", RATES)
def test_determinant_is_the_sum_over_rounds(generator, rate, kernel):
    times = torch.rand(25, dtype=torch.float64, generator=generator).sort().values * 40
    covar = drifting_covariance(random_covariance(generator, kernel=kernel), times, rate)
    whole = mutual_information(covar, NOISE)
    by_round = information_by_round(covar, NOISE)
    torch.testing.assert_close(by_round[-1], whole, rtol=1e-10, atol=1e-10)
    for n in (1, 2, 17):
        part = mutual_information(covar[:n, :n], NOISE)
        torch.testing.assert_close(by_round[n - 1], part, rtol=1e-10, atol=1e-10)


def test_equation_26_in_a_plain_loop(generator):
    covar = drifting_covariance(random_covariance(generator, n=9), torch.arange(9.0), 0.2)
    total = 0.0
    for t in range(9):
        before, cross = covar[:t, :t], covar[:t, t]
        inverse = torch.linalg.inv(before + NOISE * torch.eye(t, dtype=torch.float64))
        variance = covar[t, t] - cross @ inverse @ cross
        total += 0.5 * math.log(1 + variance / NOISE)
    assert mutual_information(covar, NOISE).item() == pytest.approx(total, abs=1e-10)


def test_covariance_under_drift_in_a_plain_loop(generator):
    covar = random_covariance(generator, n=5)
    times = [1.0, 1.0, 2.5, 7.0, 7.0]
    for rate in RATES:
        drifting = drifting_covariance(covar, times, rate)
        for i in range(5):
            for j in range(5):
                decay = (1 - rate) ** (abs(times[i] - times[j]) / 2)
                assert drifting[i, j].item() == pytest.approx(covar[i, j].item() * decay)


def test_batches(generator):
    covar = torch.stack([random_covariance(generator, n=6) for _ in range(3)])
    assert mutual_information(covar, NOISE).shape == (3,)
    assert information_by_round(covar, NOISE).shape == (3, 6)
    one = information_by_round(covar[1], NOISE)
    torch.testing.assert_close(information_by_round(covar, NOISE)[1], one)


def test_effective_dimension_is_the_trace_of_the_smoother(generator):
    covar = torch.stack([random_covariance(generator, n=6) for _ in range(3)])
    noisy = covar + NOISE * torch.eye(6, dtype=torch.float64)
    expected = (covar @ torch.linalg.inv(noisy)).diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    torch.testing.assert_close(effective_dimension(covar, NOISE), expected)
    # Unrelated values, one each: n v / (v + λ²). One value again and again: one dimension at most.
    assert effective_dimension(2 * torch.eye(5), 0.5).item() == pytest.approx(4.0)
    assert effective_dimension(torch.ones(50, 50), 0.5).item() == pytest.approx(50 / 50.5)


@pytest.mark.parametrize("noise", [1e-4, 0.1, 1.0, 100.0])
def test_effective_dimension_is_the_information_up_to_a_logarithm(generator, noise):
    covar = random_covariance(generator, n=8)
    dimension = effective_dimension(covar, noise).item()
    information = mutual_information(covar, noise).item()
    largest = torch.linalg.eigvalsh(covar).max().item()
    assert dimension <= 2 * information <= dimension * (1 + math.log(1 + largest / noise))


def test_effective_dimension_may_exceed_the_information():
    """The paper says that it does not: one value, variance 1, noise 10."""
    covar = torch.ones(1, 1)
    assert effective_dimension(covar, 10.0).item() == pytest.approx(1 / 11)
    assert mutual_information(covar, 10.0).item() == pytest.approx(0.5 * math.log(1.1))
    assert effective_dimension(covar, 10.0) > 1.9 * mutual_information(covar, 10.0)
