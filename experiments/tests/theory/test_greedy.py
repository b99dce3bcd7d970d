import itertools
import math

import pytest
import torch
from gpytorch.kernels import RBFKernel

from experiments.theory.greedy import greedy_information_gain
from experiments.theory.information import drifting_covariance, mutual_information

NOISE = 0.1


def random_covariance(generator, n, lengthscale=0.4):
    kernel = RBFKernel().double()
    kernel.lengthscale = lengthscale
    points = torch.rand(n, 2, dtype=torch.float64, generator=generator)
    scale = 0.3 + torch.rand(n, dtype=torch.float64, generator=generator)
    return kernel(points).to_dense().detach() * scale * scale.unsqueeze(-1)


def information(covar, points, rate):
    """(14) for given points, without any recursion."""
    chosen = covar[points][:, points]
    times = torch.arange(len(points), dtype=torch.float64)
    return mutual_information(drifting_covariance(chosen, times, rate), NOISE).item()


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.5, 1.0])
def test_incremental_is_the_log_determinant_of_what_was_chosen(generator, rate):
    covar = random_covariance(generator, 30)
    gain = greedy_information_gain(covar, 40, NOISE, rate)
    for t in (1, 2, 13, 40):
        expected = information(covar, gain.points[:t], rate)
        assert gain.information[t - 1].item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.4, 1.0])
@pytest.mark.parametrize("horizon", [1, 2, 4])
@pytest.mark.combinations
def test_against_every_choice_there_is(generator, rate, horizon):
    covar = random_covariance(generator, 6)
    best = max(
        information(covar, list(points), rate)
        for points in itertools.product(range(6), repeat=horizon)
    )
    gain = greedy_information_gain(covar, horizon, NOISE, rate)
    found = gain.information[-1].item()
    assert gain.share == (1 - 1 / math.e if rate == 0 else 0.5)
    assert gain.share * best <= found <= best + 1e-12
    assert gain.ceiling[-1] >= best - 1e-12
    if horizon == 1 or rate == 1:
        assert found == pytest.approx(best)


def test_greedy_is_not_always_best_but_keeps_its_promise():
    # The middle point tells most at first; the best pair is the other two.
    covar = torch.tensor([[1.0, 0.0, 0.74], [0.0, 1.0, 0.67], [0.74, 0.67, 1.01]])
    gain = greedy_information_gain(covar, 2, NOISE)
    best = information(covar.double(), [0, 1], 0.0)
    assert gain.points[0] == 2
    assert (1 - 1 / math.e) * best < gain.information[-1] < best < gain.ceiling[-1]


def test_limits_of_drift(generator):
    covar = random_covariance(generator, 20)
    one_point = 0.5 * math.log(1 + covar.diagonal().max().item() / NOISE)
    gains = [greedy_information_gain(covar, 15, NOISE, rate) for rate in (0.0, 1e-12, 0.1, 1.0)]
    static, barely, drifting, forgetting = (gain.information for gain in gains)
    torch.testing.assert_close(static, barely, rtol=1e-6, atol=1e-6)
    rounds = torch.arange(1, 16, dtype=torch.float64)
    torch.testing.assert_close(forgetting, one_point * rounds)
    torch.testing.assert_close(gains[-1].ceiling, one_point * rounds)
    assert (static[1:] < drifting[1:]).all()
    assert (drifting[1:] < forgetting[1:]).all()
