import numpy as np
import pytest

from tvbo.optimizers.bpe import SubExponentialDelay
from tvbo.optimizers.bpe.delays import estimate_delay


@pytest.mark.parametrize(
    ("arrived", "awaited", "values", "probabilities"),
    [
        # At 1: 1 of 5. At 2: 2 of 3. The rest, waited for 3 rounds, is put at 4.
        ([1, 2, 2], [1, 3], [1, 2, 4], [1 / 5, 4 / 5 * 2 / 3, 4 / 5 / 3]),
        ([3, 0, 3, 7], [], [0, 3, 7], [0.25, 0.5, 0.25]),
    ],
)
def test_product_limit_by_hand(arrived, awaited, values, probabilities):
    """Mean and deviation of what was calculated by hand."""
    found, mean = estimate_delay(arrived, awaited), np.dot(values, probabilities)
    assert found.mean == pytest.approx(mean, rel=1e-14)
    variance = np.dot(np.square(np.array(values) - mean), probabilities)
    assert found.b == pytest.approx(variance**0.5, rel=1e-14)


def test_nothing_arrived():
    assert estimate_delay([], [0, 1, 2]) == SubExponentialDelay.constant(3.0)


def test_waiting_is_not_ignored():
    """Geometric delays of mean 9, looked at after waits of 0 to 79 rounds."""
    rng = np.random.default_rng(0)
    delays, waits = rng.geometric(0.1, 8000) - 1, rng.integers(0, 80, 8000)
    came = delays <= waits
    found = estimate_delay(delays[came], waits[~came])
    # Standard error of the mean about 0.11.
    assert found.mean == pytest.approx(9, abs=0.35)
    assert delays[came].mean() < 8.2


def test_moment_condition_of_the_estimate():
    rng = np.random.default_rng(1)
    delays = rng.poisson(6, 500)
    found = estimate_delay(delays, [])
    assert found.mean == pytest.approx(delays.mean(), rel=1e-12)
    assert found.b == pytest.approx(delays.std(), rel=1e-12)
    for eta in np.linspace(-1, 1, 1000) / found.b:
        moment = np.exp(eta * (delays - delays.mean())).mean()
        assert np.log(moment) <= eta**2 * found.xi**2 / 2 * (1 + 1e-4)


def test_skew_to_the_left_counts_as_well():
    delays = [0] + [10] * 9
    found = estimate_delay(delays, [])
    at = -1 / found.b
    moment = np.exp(at * (np.array(delays) - 9.0)).mean()
    assert found.xi**2 == pytest.approx(2 * np.log(moment) / at**2, rel=1e-12)


def test_estimates_the_papers_wait():
    """From 2000 Poisson delays of mean 50 the wait is near what the true parameters give."""
    delays = np.random.default_rng(2).poisson(50, 2000)
    truth = SubExponentialDelay.poisson(50, b=50**0.5)
    found = estimate_delay(delays, [])
    assert found.upper_bound(1000, 0.01) == pytest.approx(truth.upper_bound(1000, 0.01), abs=3)


def test_no_delay_at_all():
    with pytest.raises(ValueError):
        estimate_delay([], [])
