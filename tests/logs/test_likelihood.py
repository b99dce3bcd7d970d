"""The likelihood of a log against a double loop, of a long one against conditional densities."""

import math

import pytest
import torch
from linear_operator.utils.errors import NotPSDError
from scipy.stats import multivariate_normal

from tvbo.logs.dataset import DriftLog
from tvbo.logs.likelihood import LogLikelihood

pytestmark = pytest.mark.usefixtures("double_by_default")


def loop_likelihood(X, Y, rate, noise, kernel, mean, segments=None):
    """(24), written from the paper, or of contrasts."""
    n = len(X)
    covar = torch.zeros(n, n)
    for i in range(n):
        for j in range(n):
            if segments is not None and segments[i] != segments[j]:
                continue
            k = kernel(X[i : i + 1, :1], X[j : j + 1, :1]).to_dense().item()
            covar[i, j] = k * math.exp(-0.5 * rate * abs(X[i, 1] - X[j, 1]).item())
    covar += noise * torch.eye(n)
    if mean is None:
        # Integrated over the mean, it is the density of n - 1 orthonormal contrasts, over √n.
        contrasts = torch.linalg.qr(torch.ones(n, 1), mode="complete").Q[:, 1:]
        normal = multivariate_normal(cov=contrasts.T @ covar @ contrasts)
        weights = torch.linalg.inv(covar).sum(0)
        mean = ((weights @ Y) / weights.sum()).item()
        return normal.logpdf((contrasts.T @ Y).squeeze(-1)) - 0.5 * math.log(n), mean
    residual = Y.squeeze(-1) - mean
    value = -0.5 * residual @ torch.linalg.inv(covar) @ residual
    return (value - 0.5 * torch.logdet(covar) - n / 2 * math.log(2 * math.pi)).item(), mean


@pytest.mark.slow
@pytest.mark.parametrize("mean", [None, 0.3])
@pytest.mark.parametrize("rate", [0.0, 0.05, 2.0, 1e9])
@pytest.mark.combinations
def test_equals_the_double_loop(rows, make_kernel, evaluate, rate, mean):
    expected, expected_mean = loop_likelihood(*rows, rate, 0.2, make_kernel(), mean)
    log = DriftLog.from_rows(*rows, None, -1)
    value, used_mean, _ = evaluate(lambda k: LogLikelihood(log, k, mean), make_kernel(), rate)
    assert value == pytest.approx(expected, rel=1e-10)
    assert used_mean == pytest.approx(expected_mean, abs=1e-8)


def test_segments_share_nothing(rows, make_kernel, evaluate):
    segments = torch.arange(45) % 3
    expected, _ = loop_likelihood(*rows, 0.0, 0.2, make_kernel(), None, segments)
    log = DriftLog.from_rows(*rows, None, -1, segments)
    value, _, gradient = evaluate(lambda k: LogLikelihood(log, k, None), make_kernel(), 0.0)
    assert value == pytest.approx(expected, rel=1e-10)
    assert torch.isfinite(gradient).all()


def test_gradient_equals_differences(rows, make_kernel, evaluate, differences):
    log = DriftLog.from_rows(*rows, None, -1)

    def likelihood_of(kernel):
        return LogLikelihood(log, kernel, None)

    gradient = evaluate(likelihood_of, make_kernel(), 0.1)[2]
    expected = differences(likelihood_of, make_kernel(), 0.1)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-5)


def long_log(generator):
    """Rows in two segments, at times of their own, which do not fit in one block."""
    X = torch.rand(1080, 2, generator=generator)
    X[:, 1] *= 100
    Y, days = torch.randn(1080, 1, generator=generator), (torch.arange(1080) < 80).double()
    return DriftLog.from_rows(X, Y, None, -1, days)


def test_a_long_log_has_the_density_of_each_block_given_its_rows(make_kernel, evaluate, generator):
    log = long_log(generator)
    likelihood = LogLikelihood(log, make_kernel(), 0.3)
    first, *later, other_day = (given for _, given in likelihood.windows)
    assert first == other_day == 0
    assert all(50 < given < 100 for given in later)
    expected = 0.0
    for part, num_given in likelihood.windows:
        lags = (part.times[:, None] - part.times).abs()
        covar = make_kernel()(part.actions).to_dense() * torch.exp(-0.05 * lags)
        covar = (covar * (part.segments[:, None] == part.segments)).detach() + 0.2 * torch.eye(
            len(lags)
        )
        for size, sign in ((len(part), 1), (num_given, -1)):
            normal = (
                multivariate_normal(torch.full((size,), 0.3), covar[:size, :size]) if size else None
            )
            expected += sign * normal.logpdf(part.Y[:size]) if size else 0.0
    value, _, _ = evaluate(lambda k: LogLikelihood(log, k, 0.3), make_kernel(), 0.1)
    assert value == pytest.approx(expected, rel=1e-10)
    # Each row is in one block, once.
    assert sum(len(part) - given for part, given in likelihood.windows) == 1080


def test_gradient_of_a_long_log_equals_differences(make_kernel, evaluate, differences, generator):
    log = long_log(generator)

    def likelihood_of(kernel):
        return LogLikelihood(log, kernel, None)

    gradient = evaluate(likelihood_of, make_kernel(), 0.1)[2]
    expected = differences(likelihood_of, make_kernel(), 0.1)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-4)


def test_known_noise_takes_the_place_of_learned(rows, make_kernel):
    X, Y = rows
    noise = torch.linspace(0.1, 0.5, len(Y)).unsqueeze(-1)
    log = DriftLog.from_rows(X, Y, noise, -1)
    same = DriftLog.from_rows(X, Y, torch.full_like(Y, 0.2), -1)
    plain = DriftLog.from_rows(X, Y, None, -1)
    rate, unused = torch.tensor(0.1), torch.tensor(123.0)
    expected = LogLikelihood(plain, make_kernel(), 0.0)(rate, torch.tensor(0.2))[0]
    torch.testing.assert_close(LogLikelihood(same, make_kernel(), 0.0)(rate, unused)[0], expected)
    assert LogLikelihood(log, make_kernel(), 0.0)(rate, unused)[0] != expected


def test_a_singular_log_is_said_to_be_singular(make_kernel):
    X, Y = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 2.0]]), torch.tensor([[1.0], [2.0], [3.0]])
    log = DriftLog.from_rows(X, Y, torch.zeros(3, 1), -1)
    with pytest.raises(NotPSDError):
        LogLikelihood(log, make_kernel(), None)(torch.tensor(0.1), torch.tensor(1.0))
