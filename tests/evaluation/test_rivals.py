"""SW-UCB and D-UCB against the sums of the paper, and the rules that explore nothing."""

import math

import pytest
import torch

from tvbo.evaluation import backtest
from tvbo.evaluation.backtesting.rivals import (
    SHARES,
    BestOfHour,
    DriftUCB,
    LastBest,
    WeightedMeans,
    d_ucb_discount,
    sw_ucb_window,
)
from tvbo.spaces import FiniteSpace

K = 4
ARMS = torch.arange(float(K)).unsqueeze(-1)
BOUNDS = (-1.0, 3.0)
B = BOUNDS[1] - BOUNDS[0]


def bandit(seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    given = {"reward_bounds": BOUNDS, "generator": generator}
    return DriftUCB(FiniteSpace(ARMS), **given | options)


def paper_index(plays, t, weight, padding):
    """The index of each arm by the formulas of Section 3, or None of an arm without weight."""
    index = []
    weights = [weight(t - s) for s, _, _ in plays]
    n = sum(weights)
    for arm in range(K):
        of_arm = [(w, y) for w, (_, i, y) in zip(weights, plays, strict=True) if i == arm]
        count = sum(w for w, _ in of_arm)
        if count == 0:
            index.append(None)
            continue
        mean = sum(w * y for w, y in of_arm) / count
        index.append(mean + padding * B * math.sqrt(0.5 * math.log(max(n, 1.0)) / count))
    return index


RULES = {
    "sw_ucb": ({"window": 9}, lambda age: float(age <= 9), 1),
    "d_ucb": ({"discount": 0.8}, lambda age: 0.8**age, 2),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("seed", range(3))
def test_plays_the_largest_index_of_the_paper(name, seed):
    options, weight, padding = RULES[name]
    optimizer = bandit(seed, **options)
    noise = torch.Generator().manual_seed(seed)
    plays = []
    # Steps of unequal length; the window empties of all arms once.
    for t in [*range(1, 60), 75.5, 76, *range(78, 100, 2)]:
        trial = optimizer.ask(t=float(t))
        arm = int(trial.X.item())
        index = paper_index(plays, t, weight, padding)
        if None in index:
            assert index[arm] is None
        else:
            assert index[arm] >= max(index) - 1e-9
        outcome = math.sin(0.1 * t + arm) + torch.randn(1, generator=noise).item()
        optimizer.tell(trial, outcome)
        plays.append((t, arm, outcome))


@pytest.mark.parametrize("name", RULES)
def test_outcomes_count_from_when_they_were_asked_whenever_they_come(name):
    options, weight, _ = RULES[name]
    in_order, late = bandit(**options), bandit(**options)
    plays = [(float(t), t % K, 0.1 * t) for t in range(1, 12)]
    for order, optimizer in ((plays, in_order), (plays[6:] + plays[:6], late)):
        for t, arm, outcome in order:
            optimizer.tell(optimizer.attach(ARMS[arm], t), outcome)
        counts, totals = optimizer.weighted_sums(12.0)
        for arm in range(K):
            of_arm = [(weight(12 - t), y) for t, i, y in plays if i == arm]
            assert counts[arm].item() == pytest.approx(sum(w for w, _ in of_arm))
            scaled = sum(w * (y - BOUNDS[0]) / B for w, y in of_arm)
            assert totals[arm].item() == pytest.approx(scaled)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("seed", range(2))
def test_follows_a_change_of_the_best_arm(name, seed):
    options = {"sw_ucb": {"window": 60}, "d_ucb": {"discount": 0.97}}[name]
    optimizer = bandit(seed, reward_bounds=(0.0, 0.6), **options)
    chosen = []
    for t in range(1, 501):
        best = 1 if t <= 250 else 3
        trial = optimizer.ask()
        chosen.append(int(trial.X.item()))
        optimizer.tell(trial, 2.0 if trial.X.item() == best else 0.0)
    assert chosen[150:250].count(1) > 60
    assert chosen[400:].count(3) > 60


def test_tuning_is_the_papers():
    assert sw_ucb_window(1000) == pytest.approx(2 * math.sqrt(1000 * math.log(1000)))
    assert d_ucb_discount(1000) == pytest.approx(1 - math.sqrt(1 / 1000) / 4)
    assert sw_ucb_window(1) == 1


@pytest.mark.parametrize("seed", range(3))
def test_last_best_takes_the_arm_whose_newest_outcome_is_the_largest(seed):
    optimizer = LastBest(FiniteSpace(ARMS), torch.Generator().manual_seed(seed))
    tried = set()
    for arm_number in range(K):
        trial = optimizer.ask()
        tried.add(int(trial.X.item()))
        optimizer.tell(trial, float(trial.X.item()))
        assert len(tried) == arm_number + 1
    for outcome, following in [(3.5, 3), (1.5, 2), (0.5, 3), (0.2, 1)]:
        trial = optimizer.ask()
        optimizer.tell(trial, outcome)
        assert optimizer.ask().X.item() == following
    # An outcome of an earlier time than the newest one is no news.
    optimizer.tell(optimizer.attach(ARMS[0], 0.5), 99.0)
    assert optimizer.ask().X.item() == 1


def log(steps=48, seed=0):
    """Values and times of a log, every half hour, with missing cells."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(steps, K, dtype=torch.float64, generator=generator)
    values[torch.rand(values.shape, generator=generator) < 0.1] = math.nan
    return values, torch.arange(steps, dtype=torch.float64) / 2


def test_without_a_unit_of_time_there_is_no_best_of_the_hour():
    values = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    names = ["best_of_hour", "always_best"]
    result = backtest(values, None, names, train=slice(0, 40), progress=False)
    assert torch.equal(result.regret["best_of_hour"], result.regret["always_best"])
    assert "hours" in result.labels["best_of_hour"]


def test_best_of_hour_is_that_of_training_at_the_same_time_of_day():
    values, times = log(120)
    rule = BestOfHour(FiniteSpace(ARMS), values, times, 24.0)
    for hour in (0.0, 5.5, 23.0):
        rows = values[(times % 24).floor() == math.floor(hour)]
        trial = rule.ask(t=24.0 * 9 + hour)
        assert trial.X.item() == rows.nanmean(dim=0).nan_to_num(nan=-9).argmax().item()
        rule.tell(trial, -99.0)
    # Without a day all times are the same.
    rule = BestOfHour(FiniteSpace(ARMS), values, times, math.inf)
    assert rule.ask(t=1e6).X.item() == values.nanmean(dim=0).argmax().item()


def test_weighted_means_move_by_a_share_of_each_difference():
    values, _ = log()
    rule = WeightedMeans(FiniteSpace(ARMS), values)
    means = values.nanmean(dim=0)
    for row in values:
        means = torch.where(row.isnan(), means, means + rule.share * (row - means))
    for outcome in (-3.0, 2.0, None, 0.5):
        trial = rule.ask()
        arm = int(means.argmax())
        assert trial.X.item() == arm
        if outcome is None:
            rule.fail(trial, "no reading")
        else:
            rule.tell(trial, outcome)
            means[arm] += rule.share * (outcome - means[arm])


@pytest.mark.parametrize("seed", range(3))
def test_the_share_of_weighted_means_is_the_one_that_plays_the_last_third_best(seed):
    values, _ = log(60, seed)
    lost = {}
    for share in SHARES:
        means, total = values[:40].nanmean(dim=0), 0.0
        for t, row in enumerate(values):
            arm = int(means.argmax())
            if t < 40:
                means = torch.where(row.isnan(), means, means + share * (row - means))
            elif row[arm].isnan():
                total += row.nan_to_num(nan=-9).max() - row.nan_to_num(nan=9).min()
            else:
                total += row.nan_to_num(nan=-9).max() - row[arm]
                means[arm] += share * (row[arm] - means[arm])
        lost[share] = float(total)
    assert lost[WeightedMeans(FiniteSpace(ARMS), values).share] == pytest.approx(min(lost.values()))
