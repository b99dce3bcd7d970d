import math
import pickle

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import RBFKernel
from scipy import stats
from torch.distributions import Gamma, Independent, LogNormal, Normal, Pareto, VonMises

from tvbo import recipes, run
from tvbo.evaluation import (
    ConstantDelay,
    DistributionDelay,
    ExponentialDelay,
    GeometricDelay,
    LossyDelay,
    PoissonDelay,
    ResampledDelay,
)
from tvbo.optimizers import EstimatedDelay
from tvbo.test_functions import ExampleFunction
from tvbo.trial import Trial

NUM = 4000


def trial(number):
    return Trial(number, torch.zeros(1, 1, dtype=torch.float64), float(number))


def draws(delay, num=NUM):
    return np.array([delay(trial(i)) for i in range(1, num + 1)])


def whole_number_test(sample, distribution):
    """p-value of a χ² test on the values that are expected at least five times."""
    values = np.arange(int(sample.max()) + 2)
    expected = NUM * distribution.pmf(values)
    common = expected >= 5
    counts = np.array([(sample == k).sum() for k in values[common]])
    counts = np.append(counts, NUM - counts.sum())
    expected = np.append(expected[common], NUM - expected[common].sum())
    return stats.chisquare(counts, expected).pvalue


@pytest.mark.parametrize("rate", [0.7, 25.0])
def test_poisson_draws(rate):
    assert whole_number_test(draws(PoissonDelay(rate)), stats.poisson(rate)) > 0.01


@pytest.mark.parametrize("p", [0.05, 0.6])
def test_geometric_draws_count_from_0(p):
    """scipy's counts from 1."""
    assert whole_number_test(draws(GeometricDelay(p)), stats.geom(p, loc=-1)) > 0.01


def test_exponential_draws():
    sample = draws(ExponentialDelay(0.25))
    assert stats.kstest(sample, stats.expon(scale=4.0).cdf).pvalue > 0.01


def test_draws_of_any_distribution():
    sample = draws(DistributionDelay(Gamma(3.0, 0.5)), 1000)
    assert stats.kstest(sample, stats.gamma(3.0, scale=2.0).cdf).pvalue > 0.01


def test_resampled_draws_have_the_frequencies_of_the_log():
    sample = draws(ResampledDelay([2.0, 7.5, 7.5, math.inf]))
    share = [(sample == value).mean() for value in (2.0, 7.5, math.inf)]
    # 2,000 of 4,000 has a standard deviation of 32.
    assert share == pytest.approx([0.25, 0.5, 0.25], abs=0.03)


def test_constant_draws():
    assert set(draws(ConstantDelay(3), 5)) == {3.0}


@pytest.mark.parametrize(
    ("delay", "mean"),
    [
        (ConstantDelay(3), 3.0),
        (PoissonDelay(50), 50.0),
        (GeometricDelay(0.2), 4.0),
        (ExponentialDelay(0.1), 10.0),
        (DistributionDelay(Gamma(3.0, 0.5)), 6.0),
        (DistributionDelay(Pareto(1.0, 0.5)), math.inf),
        (DistributionDelay(Normal(math.nan, 1.0, validate_args=False)), None),
        (ResampledDelay([1.0, 2.0, 6.0]), 3.0),
        (ResampledDelay([1.0, math.inf]), math.inf),
        (LossyDelay(PoissonDelay(50), 0.0), 50.0),
        (LossyDelay(PoissonDelay(50), 0.1), math.inf),
    ],
    ids=str,
)
def test_means(delay, mean):
    assert delay.mean == (None if mean is None else pytest.approx(mean, rel=1e-12))


def test_a_distribution_that_does_not_know_its_mean():
    class Silent(Gamma):
        @property
        def mean(self):
            raise NotImplementedError

    assert DistributionDelay(Silent(1.0, 1.0)).mean is None


@pytest.mark.parametrize(
    "make",
    [
        lambda g: PoissonDelay(5, generator=g),
        lambda g: GeometricDelay(0.1, generator=g),
        lambda g: ExponentialDelay(0.2, generator=g),
        lambda g: DistributionDelay(LogNormal(1.0, 0.5), generator=g),
        lambda g: ResampledDelay(range(100), generator=g),
        lambda g: LossyDelay(PoissonDelay(5), 0.5, generator=g),
    ],
    ids=["Poisson", "geometric", "exponential", "distribution", "resampled", "lossy"],
)
def test_a_delay_depends_on_the_number_of_its_trial_only(make):
    """Not on the order in which trials are looked up, nor on how often."""

    def seeded(seed):
        return make(torch.Generator().manual_seed(seed))

    ahead = draws(seeded(1), 30)
    one = seeded(1)
    backwards = [one(trial(i)) for i in range(30, 0, -1)]
    assert backwards[::-1] == ahead.tolist()
    assert [one(trial(i)) for i in (4, 4)] == [ahead[3]] * 2
    assert draws(seeded(2), 30).tolist() != ahead.tolist()
    assert draws(make(None), 30).tolist() == draws(make(None), 30).tolist()


def test_a_delay_goes_to_another_process_and_continues_there():
    delay = PoissonDelay(5, generator=torch.Generator().manual_seed(3))
    delay(trial(10))
    assert draws(pickle.loads(pickle.dumps(delay)), 40).tolist() == draws(delay, 40).tolist()


def test_losses_are_as_frequent_as_asked_and_move_no_other_delay():
    whole = draws(PoissonDelay(5))
    lossy = draws(LossyDelay(PoissonDelay(5), 0.3))
    arrived = np.isfinite(lossy)
    # Standard deviation 0.0072.
    assert arrived.mean() == pytest.approx(0.7, abs=0.022)
    assert (lossy[arrived] == whole[arrived]).all()
    # Losses tell nothing of the delay: two means with standard errors of 0.04 and 0.06.
    assert whole[arrived].mean() == pytest.approx(whole[~arrived].mean(), abs=0.25)


@pytest.mark.parametrize(
    ("delay", "mean", "deviation"),
    [
        (ExponentialDelay(1.0), 1.0, 1.0),
        (GeometricDelay(0.1), 9.0, 90**0.5),
    ],
    ids=["exponential", "geometric"],
)
def test_losses_tell_nothing_of_the_delay_by_default(delay, mean, deviation):
    """The mean of the outcomes that arrive, within three standard errors."""
    lossy = draws(LossyDelay(delay, 0.5))
    arrived = lossy[np.isfinite(lossy)]
    assert arrived.mean() == pytest.approx(mean, abs=3 * deviation / len(arrived) ** 0.5)
    lost = np.isinf(lossy)
    assert lost.mean() == pytest.approx(0.5, abs=3 * 0.5 / NUM**0.5)


@pytest.mark.parametrize("make", [lambda g: g, lambda g: torch.Generator().manual_seed(3)])
def test_losses_and_delays_from_one_stream(make):
    """One generator, or two with one seed: losses would go with the delays."""
    generator = torch.Generator().manual_seed(3)
    with pytest.raises(ValueError, match="generator of their own for losses. Got one in the state"):
        LossyDelay(ExponentialDelay(1.0, generator=make(generator)), 0.5, generator=generator)


@pytest.mark.parametrize("inner", [5.0, LossyDelay(ConstantDelay(1), 0.2)], ids=["number", "lossy"])
def test_losses_of_what_is_no_delay_or_lossy(inner):
    with pytest.raises(TypeError, match="Expected a delay that loses nothing. Got "):
        LossyDelay(inner, 0.2)


@pytest.mark.parametrize(("probability", "lost"), [(0.0, 0), (1.0, 50)])
def test_nothing_or_everything_lost(probability, lost):
    assert np.isinf(draws(LossyDelay(ConstantDelay(1), probability), 50)).sum() == lost


def test_an_extreme_geometric_delay():
    assert set(draws(GeometricDelay(1.0), 20)) == {0.0}


@pytest.mark.parametrize("tau", [0, 1, 3])
def test_bpe_delay_counts_the_delays_that_a_run_simulates(tau):
    """Of a round of L asks, L - τ outcomes are there at its end, and each is seen as τ late."""
    problem = ExampleFunction()
    seen = []

    class Rule(EstimatedDelay):
        def wait(self, horizon, delta, arrived, awaited):
            seen.append((list(arrived), list(awaited)))
            return 0.0

    optimizer = recipes.bpe_delay(
        choices=problem.choices,
        covar_module=RBFKernel(),
        noise_variance=0.01,
        horizon=100,
        delay=Rule(),
    )
    run(problem, optimizer, horizon=11, delay=ConstantDelay(tau), progress=False)
    assert optimizer.rounds[0].length == 10
    assert optimizer.rounds[0].num_arrived == 10 - tau
    # At the start, and at the end of the first round.
    assert seen == [([], []), ([tau] * (10 - tau), list(range(tau))[::-1])]


def test_in_a_run_outcomes_arrive_when_their_delay_says():
    log = [0.0, 2.0, 5.0, 1.0]
    delay = ResampledDelay(log, generator=torch.Generator().manual_seed(0))
    problem = ExampleFunction()
    optimizer = recipes.random_search(choices=problem.choices)
    history = run(problem, optimizer, horizon=30, delay=delay, progress=False)
    arrived = torch.tensor([t + delay(trial(t)) <= 30 for t in range(1, 31)])
    assert 0 < (~arrived).sum() < 5
    assert torch.equal(~history.reward.isnan(), arrived)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ConstantDelay(-1.0),
        lambda: ConstantDelay(math.inf),
        lambda: PoissonDelay(-1.0),
        lambda: PoissonDelay(math.nan),
        lambda: GeometricDelay(0.0),
        lambda: GeometricDelay(1.1),
        lambda: ExponentialDelay(0.0),
        lambda: ExponentialDelay(math.inf),
        lambda: LossyDelay(ConstantDelay(1), -0.1),
        lambda: LossyDelay(ConstantDelay(1), math.nan),
    ],
)
def test_bad_parameters(make):
    with pytest.raises(ValueError, match=r"Expected .*\. Got "):
        make()


@pytest.mark.parametrize("log", [[], [1.0, -2.0], [math.nan]])
def test_bad_log(log):
    with pytest.raises(InputDataError, match="Expected at least one delay, all >= 0"):
        ResampledDelay(log)


def test_a_number_in_place_of_a_distribution():
    with pytest.raises(TypeError, match="Expected a distribution of torch. Got 5.0"):
        DistributionDelay(5.0)


def test_a_distribution_of_two_numbers():
    with pytest.raises(
        BotorchTensorDimensionError, match=r"of one number. Got one of shape \(2,\)"
    ):
        DistributionDelay(Independent(Gamma(torch.ones(2), torch.ones(2)), 1))


def test_a_distribution_that_goes_below_0():
    with pytest.raises(InputDataError, match="Expected delays >= 0. Got -"):
        DistributionDelay(VonMises(-1.0, 100.0))(trial(1))
