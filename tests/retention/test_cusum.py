import math
from itertools import product

import numpy as np
import pytest

from tvbo.retention import EventReset
from tvbo.retention.event_reset import (
    average_run_length,
    cusum_step,
    cusum_threshold,
)


def detection_probability(threshold, step, probability, within):
    """Probability of an alarm among the first outcomes, by powers of the chain."""
    chain = np.zeros((threshold, threshold))
    for g in range(threshold):
        chain[g, max(0, g - 1)] += 1 - probability
        if g + step < threshold:
            chain[g, g + step] += probability
    return 1 - np.linalg.matrix_power(chain, within)[0].sum()


def run_lengths(threshold, step, probability, count, seed):
    """Simulated charts, all at once."""
    rng = np.random.default_rng(seed)
    statistic = np.zeros(count, dtype=int)
    length = np.zeros(count, dtype=int)
    running = np.ones(count, dtype=bool)
    while running.any():
        move = np.where(rng.random(running.sum()) < probability, step, -1)
        statistic[running] = np.maximum(0, statistic[running] + move)
        length[running] += 1
        running &= statistic < threshold
    return length


@pytest.mark.parametrize("p", [0.05, 0.5, 1.0])
def test_run_length_by_hand(p):
    q = 1 - p
    assert average_run_length(1, 3, p) == pytest.approx(1 / p, rel=1e-13)
    assert average_run_length(2, 1, p) == pytest.approx((1 + p) / p**2, rel=1e-12)
    by_hand = (1 + p + p * q) / (p * (1 - q**2))
    assert average_run_length(3, 2, p) == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("p", [0.01, 0.3, 0.5, 0.8])
def test_run_length_of_unit_steps(p):
    """From g to g + 1 it takes d_g = (1 + (1 - p) d_{g-1}) / p outcomes, d_0 = 1 / p."""
    d = [1 / p]
    for _ in range(19):
        d.append((1 + (1 - p) * d[-1]) / p)
    assert average_run_length(20, 1, p) == pytest.approx(math.fsum(d), rel=1e-13)


@pytest.mark.parametrize(("threshold", "step", "p"), [(10, 4, 0.05), (17, 6, 0.05), (12, 3, 0.6)])
def test_run_length_against_the_linear_system(threshold, step, p):
    """(I - Q) L = 1, solved dense."""
    system = np.eye(threshold)
    for g in range(threshold):
        system[g, max(0, g - 1)] -= 1 - p
        if g + step < threshold:
            system[g, g + step] -= p
    dense = np.linalg.solve(system, np.ones(threshold))[0]
    assert average_run_length(threshold, step, p) == pytest.approx(dense, rel=1e-11)


@pytest.mark.parametrize(("threshold", "step", "p"), [(5, 4, 0.05), (10, 4, 0.05), (10, 4, 0.5)])
def test_run_length_against_simulation(threshold, step, p):
    lengths = run_lengths(threshold, step, p, count=4000, seed=1)
    error = lengths.std() / math.sqrt(len(lengths))
    assert abs(lengths.mean() - average_run_length(threshold, step, p)) < 3 * error


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("within", [1, 4, 11])
def test_detection_probability_by_listing_every_sequence(p, within):
    threshold, step = 7, 3
    total = 0.0
    for events in product([False, True], repeat=within):
        statistic, alarm = 0, False
        for event in events:
            statistic = max(0, statistic + (step if event else -1))
            alarm = alarm or statistic >= threshold
        total += alarm * p ** sum(events) * (1 - p) ** (within - sum(events))
    found = detection_probability(threshold, step, p, within)
    assert found == pytest.approx(total, abs=1e-13)


def test_detection_probability_against_simulation():
    lengths = run_lengths(10, 4, 0.5, count=20_000, seed=2)
    for within in (3, 8, 14):
        expected = detection_probability(10, 4, 0.5, within)
        error = math.sqrt(expected * (1 - expected) / len(lengths))
        assert abs((lengths <= within).mean() - expected) < 3 * error


def test_mean_run_length_is_the_sum_of_survival():
    survival = [1 - detection_probability(10, 4, 0.4, n) for n in range(1, 400)]
    assert 1 + math.fsum(survival) == pytest.approx(average_run_length(10, 4, 0.4), rel=1e-12)


@pytest.mark.parametrize("quantile", [0.05, 0.5, 0.95, 0.999])
def test_delay_is_the_first_number_of_outcomes_that_is_enough(quantile):
    policy = EventReset(1e-3, band=0.95, outside=0.5)
    assert (policy.threshold, policy.step) == (10, 4)
    delay = policy.detection_delay(quantile)
    assert detection_probability(10, 4, 0.5, delay) >= quantile
    assert detection_probability(10, 4, 0.5, delay - 1) < quantile


def test_when_every_outcome_is_an_event_the_run_length_is_certain():
    assert average_run_length(10, 4, 1.0) == pytest.approx(3, rel=1e-13)


@pytest.mark.parametrize("rate", [0.3, 1e-2, 1e-3, 1e-6, 1e-100])
@pytest.mark.parametrize(("step", "p"), [(4, 0.05), (6, 0.05), (1, 0.3)])
def test_threshold_is_the_smallest_that_keeps_the_rate(rate, step, p):
    threshold = cusum_threshold(rate, step, p)
    assert 1 / average_run_length(threshold, step, p) <= rate
    assert threshold == 1 or 1 / average_run_length(threshold - 1, step, p) > rate


def test_false_alarms_of_a_long_run_of_charts():
    """One chart after another: their number has the rate 1 / ARL."""
    rng = np.random.default_rng(3)
    statistic, alarms, n = 0, 0, 200_000
    for outside in rng.random(n) < 0.05:
        statistic = max(0, statistic + (4 if outside else -1))
        if statistic >= 7:
            alarms, statistic = alarms + 1, 0
    expected = n / average_run_length(7, 4, 0.05)
    assert abs(alarms - expected) < 3 * math.sqrt(expected)


def test_step_is_the_ratio_of_log_likelihood_ratios():
    assert math.log(0.5 / 0.05) / math.log(0.95 / 0.5) == pytest.approx(3.587, abs=1e-3)
    assert cusum_step(0.05, 0.5) == 4
    assert math.log(0.3 / 0.05) / math.log(0.95 / 0.7) == pytest.approx(5.867, abs=1e-3)
    assert cusum_step(0.05, 0.3) == 6
    assert cusum_step(0.05, 0.99) == 1


def test_step_falls_before_the_change_and_rises_after_it():
    # The ratio is 1.45; with step 1 the statistic would fall after the change, too.
    assert math.log(0.487 / 0.331) / math.log(0.669 / 0.513) == pytest.approx(1.45, abs=0.01)
    assert cusum_step(0.331, 0.487) == 2
    for before in (0.01, 0.05, 0.2, 0.32):
        for after in (0.45, 0.6, 0.9, 0.999):
            step = cusum_step(before, after)
            assert step * before - (1 - before) < 0 < step * after - (1 - after)


@pytest.mark.parametrize("pair", [(0.5, 0.6), (0.2, 0.25), (0.05, 0.0501)])
def test_probabilities_that_whole_steps_do_not_tell_apart(pair):
    with pytest.raises(ValueError):
        cusum_step(*pair)
