import math
from functools import partial

import numpy as np
import pytest
from scipy import stats

from experiments.theory.delays import SubExponentialTail, exponential_delay, geometric_delay
from tvbo.optimizers.bpe import SubExponentialDelay


def log_moment(distribution, eta):
    """Logarithm of the centred moment generating function, by summing over the outcomes."""
    mean = distribution.mean()
    k = np.arange(0, int(distribution.ppf(1 - 1e-13)) * 6 + 200)
    log_terms = distribution.logpmf(k) + eta * (k - mean)
    top = log_terms.max()
    return top + math.log(math.fsum(np.exp(log_terms - top)))


def exponential_log_moment(mean, eta):
    """The same by Riemann sum over a very fine grid."""
    x = (np.arange(400_000) + 0.5) * (100 * mean / 400_000)
    log_density = -math.log(mean) - x / mean + eta * (x - mean)
    return math.log(np.exp(log_density).sum() * (x[1] - x[0]))


def cases():
    for rate in (0.5, 25, 50):
        moment = partial(log_moment, stats.poisson(rate))
        for b in (0.5, 1, 7):
            delay = SubExponentialDelay.poisson(rate, b)
            yield pytest.param(delay, moment, id=f"poisson-{rate}-{b}")
    for p in (0.1, 0.5, 0.9):
        moment = partial(log_moment, stats.geom(p, loc=-1))
        yield pytest.param(geometric_delay(p), moment, id=f"geometric-{p}")
    for mean in (0.2, 5.0):
        moment = partial(exponential_log_moment, mean)
        yield pytest.param(exponential_delay(mean), moment, id=f"exponential-{mean}")


@pytest.mark.parametrize(("delay", "moment"), cases())
def test_moment_condition_holds_and_is_tight(delay, moment):
    for eta in np.linspace(-1, 1, 13) / delay.b:
        assert moment(eta) <= eta**2 * delay.xi**2 / 2 + 1e-9
    assert moment(1 / delay.b) == pytest.approx(delay.xi**2 / delay.b**2 / 2, rel=1e-6)


def test_means():
    assert SubExponentialDelay.poisson(7.5).mean == 7.5
    assert exponential_delay(3.0).mean == 3.0
    assert geometric_delay(0.2).mean == pytest.approx(4.0, rel=1e-15)
    assert SubExponentialDelay.constant(4.0) == SubExponentialDelay(4.0, 0.0, 0.0)


def test_the_papers_parameters_are_valid_up_to_a_rate_of_56():
    assert SubExponentialDelay.poisson(56).xi < 9 < SubExponentialDelay.poisson(57).xi


def test_upper_bound_by_hand():
    delay = SubExponentialDelay(mean=50, xi=9, b=1)
    # log(3 · 1000 / (2 · 0.005)) = log 300000, and 2 b log is the smaller term.
    assert delay.upper_bound(1000, 0.01) == pytest.approx(50 + 25.2230755072766757, rel=1e-15)
    assert SubExponentialTail(delay).upper_bound(1000, 0.01) == pytest.approx(
        50 + 45.2003220794875659, rel=1e-15
    )


def test_upper_bound_where_the_root_is_smaller():
    delay = SubExponentialDelay(mean=5, xi=2, b=3)
    root = math.sqrt(8 * math.log(1500))
    assert root == pytest.approx(7.64890600, rel=1e-8)
    assert delay.upper_bound(100, 0.2) == pytest.approx(5 + root, rel=1e-15)
    assert SubExponentialTail(delay).upper_bound(100, 0.1) == pytest.approx(
        5 + 6 * math.log(3000), rel=1e-15
    )


def test_constant_delay_is_its_own_bound():
    delay = SubExponentialDelay.constant(12.0)
    assert delay.upper_bound(10**6, 1e-9) == 12.0


def test_printed_formula_is_no_bound_and_the_larger_term_is():
    """T = 1000 Poisson delays of mean 50, δ = 0.01: the claim is a probability of 0.995."""
    delay = SubExponentialDelay(mean=50, xi=9, b=1)
    all_in_time = [
        stats.poisson(50).cdf(math.floor(u)) ** 1000
        for u in (delay.upper_bound(1000, 0.01), SubExponentialTail(delay).upper_bound(1000, 0.01))
    ]
    assert all_in_time[0] == pytest.approx(0.689, abs=5e-4)
    assert all_in_time[1] > 0.99999


@pytest.mark.parametrize("delta", [0.5, 0.1, 0.001])
@pytest.mark.parametrize("horizon", [1, 30, 10_000])
@pytest.mark.parametrize(
    ("delay", "truth"),
    [
        (SubExponentialDelay.poisson(2), stats.poisson(2)),
        (SubExponentialDelay.poisson(50, b=4), stats.poisson(50)),
        (geometric_delay(0.05), stats.geom(0.05, loc=-1)),
        (exponential_delay(3.0), stats.expon(scale=3.0)),
    ],
)
def test_tail_bounds_all_delays_at_once(delay, truth, horizon, delta):
    bound = SubExponentialTail(delay).upper_bound(horizon, delta)
    assert horizon * truth.logcdf(bound) >= math.log1p(-delta / 3)
