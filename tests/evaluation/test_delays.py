"""Simulated delays."""

import math
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from scipy import stats

from tvbo.evaluation import RandomDelay
from tvbo.trial import Trial

LOG = torch.tensor([2.0, 7.5, 7.5, math.inf])


def trial(number):
    return Trial(number, torch.zeros(1, 1, dtype=torch.float64), float(number))


def draws(delay, num=2000):
    return np.array([delay(trial(i)) for i in range(1, num + 1)])


def poisson(generator=None, loss_probability=0.0):
    return RandomDelay(partial(torch.poisson, torch.tensor(5.0)), generator, loss_probability)


def expon(generator=None, loss_probability=0.0):
    return RandomDelay(stats.expon(scale=4.0), generator, loss_probability)


def test_draws_of_scipy_and_of_functions():
    assert stats.kstest(draws(expon()), stats.expon(scale=4.0).cdf).pvalue > 0.01
    counts = draws(RandomDelay(stats.geom(0.3, loc=-1)))
    assert stats.ks_1samp(counts + np.random.default_rng(0).uniform(size=2000), _cdf).pvalue > 0.01
    sample = draws(RandomDelay(lambda g: LOG[torch.randint(len(LOG), (), generator=g)]))
    share = [(sample == value).mean() for value in (2.0, 7.5, math.inf)]
    # 1,000 of 2,000 has a standard deviation of 22.
    assert share == pytest.approx([0.25, 0.5, 0.25], abs=0.04)


def _cdf(x):
    """Of a geometric variable plus a uniform one."""
    geometric, whole = stats.geom(0.3, loc=-1), np.floor(x)
    return geometric.cdf(whole - 1) + (x - whole) * geometric.pmf(whole)


@pytest.mark.parametrize("make", [poisson, expon, partial(poisson, loss_probability=0.5)])
def test_a_delay_depends_on_the_number_of_its_trial_only(make):
    """Not on the order in which trials are looked up, nor on how often."""

    def seeded(seed):
        return make(torch.Generator().manual_seed(seed))

    ahead, one = draws(seeded(1), 30), seeded(1)
    assert [one(trial(i)) for i in range(30, 0, -1)][::-1] == ahead.tolist()
    assert [one(trial(i)) for i in (4, 4)] == [ahead[3]] * 2
    assert draws(seeded(2), 30).tolist() != ahead.tolist()
    assert draws(make(None), 30).tolist() == draws(make(None), 30).tolist()
    assert draws(pickle.loads(pickle.dumps(one)), 40).tolist() == draws(one, 40).tolist()


@pytest.mark.parametrize(("make", "mean", "deviation"), [(poisson, 5, 5**0.5), (expon, 4, 4)])
def test_losses_are_as_frequent_as_asked_and_tell_nothing_of_the_delay(make, mean, deviation):
    lossy = draws(make(loss_probability=0.3))
    arrived = np.isfinite(lossy)
    assert arrived.mean() == pytest.approx(0.7, abs=3 * (0.21 / 2000) ** 0.5)
    assert (lossy[arrived] == draws(make())[arrived]).all()
    error = deviation / arrived.sum() ** 0.5
    assert lossy[arrived].mean() == pytest.approx(mean, abs=3 * error)


@pytest.mark.parametrize(("probability", "lost"), [(0.0, 0), (1.0, 50)])
def test_nothing_or_everything_lost(probability, lost):
    assert np.isinf(draws(expon(loss_probability=probability), 50)).sum() == lost


@pytest.mark.parametrize("probability", [-0.1, 1.1, math.nan])
def test_probabilities_that_are_refused(probability):
    with pytest.raises(ValueError, match=str(probability)):
        expon(loss_probability=probability)


def test_distributions_that_are_refused():
    with pytest.raises(TypeError, match=r"5\.0"):
        RandomDelay(5.0)
    for below in (stats.norm(-9.0), lambda generator: math.nan):
        with pytest.raises(InputDataError):
            RandomDelay(below)(trial(1))
