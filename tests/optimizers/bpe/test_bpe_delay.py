import heapq
import math

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import RBFKernel
from reference import rbf, rbf_posterior

from tvbo.optimizers import TrialError
from tvbo.optimizers.bpe import BPEDelay, FiniteSetWidth, SubExponentialDelay
from tvbo.optimizers.bpe.confidence import FixedWidth
from tvbo.optimizers.bpe.delays import (
    NO_DELAY,
    estimate_delay,
)
from tvbo.spaces import Box, FiniteSpace

NOISE = 0.04
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
POISSON = SubExponentialDelay.poisson(5)


def value(X):
    return (torch.sin(6 * X[..., 0]) * X[..., 1]).item()


def make(choices, kernel, horizon=100, delay=NO_DELAY, width=2.0, seed=0):
    return BPEDelay(
        FiniteSpace(choices), kernel, NOISE, horizon, delay=delay, width=FixedWidth(width),
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


def drive(optimizer, rounds, delays=None, seed=1):
    """Ask and tell; the outcome of the n-th ask is told before ask n + 1 + delay."""
    rng, coming, trials, outcomes = np.random.default_rng(seed), [], [], {}
    for n in range(1, rounds + 1):
        while coming and coming[0][0] <= n:
            _, trial_id = heapq.heappop(coming)
            optimizer.tell(trial_id, outcomes[trial_id])
        trial = optimizer.ask()
        trials.append(trial)
        outcomes[trial.id] = value(trial.X[0]) + NOISE**0.5 * rng.normal()
        late = 0 if delays is None else delays[n - 1]
        heapq.heappush(coming, (n + 1 + late, trial.id))
    return trials, outcomes


def points(trials):
    return torch.cat([trial.X for trial in trials])


@pytest.mark.parametrize("delay", [NO_DELAY, POISSON])
def test_whole_run_against_double_loops(choices, kernel, delay):
    """Each choice is the most uncertain survivor, and each round's survivors are those of (7)."""
    delays = np.random.default_rng(2).poisson(0 if delay is NO_DELAY else 5, 100)
    optimizer = make(choices, kernel, delay=delay)
    trials, outcomes = drive(optimizer, 100, delays)
    chosen = points(trials).numpy()
    left, last = choices.numpy(), 0
    rounds = optimizer.to_frame()
    assert len(rounds) >= 2
    for record in rounds.itertuples():
        first, last = last, last + record.length
        for k in range(first, last):
            place = np.flatnonzero((left == chosen[k]).all(axis=1)).item()
            before = chosen[first:k]
            variance = rbf_posterior(before, np.zeros(k - first), NOISE, left)[1]
            assert variance[place] >= variance.max() * (1 - 1e-7)
        arrived = [n for n in range(first, last) if n + delays[n] < last]
        Y = np.array([outcomes[n + 1] for n in arrived])
        noise = np.full(len(arrived), NOISE)
        mean, variance = rbf_posterior(chosen[arrived], Y, noise, left)
        upper, lower = mean + 2 * np.sqrt(variance), mean - 2 * np.sqrt(variance)
        kept = [all(upper[i] >= lower[z] for z in range(len(left))) for i in range(len(left))]
        assert record.num_arrived == len(arrived)
        assert record.num_chosen == record.length
        assert (record.size_before, record.size_after) == (len(left), sum(kept))
        left = left[kept]
    assert set(map(tuple, optimizer.survivors.tolist())) <= set(map(tuple, left))
    assert len(left) < 64


def test_outcomes_play_no_part_within_a_round(choices, kernel):
    one, two = make(choices, kernel), make(choices, kernel)
    assert one.plan.length == 10
    asked = []
    for optimizer, sign in ((one, 1.0), (two, -1.0)):
        trials = []
        for _ in range(10):
            trials.append(optimizer.ask())
            optimizer.tell(trials[-1], sign * value(trials[-1].X[0]))
        asked.append(points(trials))
    assert torch.equal(*asked)


def test_late_outcomes_of_earlier_rounds_are_not_used(choices, kernel):
    one, two = make(choices, kernel), make(choices, kernel)
    for optimizer in (one, two):
        first = [optimizer.ask() for _ in range(10)]
        for trial in first[:5]:
            optimizer.tell(trial, value(trial.X[0]))
        second = [optimizer.ask() for _ in range(32)]
        if optimizer is one:
            for trial in first[5:]:
                optimizer.tell(trial, 1e3)
        for trial in second:
            optimizer.tell(trial, value(trial.X[0]))
        optimizer.ask()
    assert one.open_trials[:-1] == ()
    assert len(two.open_trials) == 6
    assert one.to_frame().equals(two.to_frame())
    assert torch.equal(one.survivors, two.survivors)


def test_round_without_outcomes_removes_nothing(choices, kernel):
    optimizer = make(choices, kernel)
    for _ in range(11):
        optimizer.ask()
    (record,) = optimizer.to_frame().itertuples()
    assert (record.num_arrived, record.size_after) == (0, 64)
    assert optimizer.plan.number == 2


def test_lost_trials_keep_their_place(choices, kernel):
    """A point that failed or expired counts as chosen; its outcome never comes."""
    one, two = make(choices, kernel), make(choices, kernel)
    asked = []
    for optimizer in (one, two):
        trials = [optimizer.ask() for _ in range(4)]
        if optimizer is one:
            optimizer.fail(trials[0], "crash")
            optimizer.expire(trials[1])
        trials += [optimizer.ask() for _ in range(6)]
        for trial in trials[2:]:
            optimizer.tell(trial, value(trial.X[0]))
        trials += [optimizer.ask() for _ in range(5)]
        asked.append(points(trials))
    assert torch.equal(*asked)
    assert one.to_frame().equals(two.to_frame())
    assert one.to_frame()["num_arrived"].tolist() == [8]
    with pytest.raises(TrialError):
        one.tell(1, 0.0)


def test_order_of_arrival_changes_nothing(choices, kernel):
    left = []
    for order in (range(10), reversed(range(10))):
        optimizer = make(choices, kernel)
        trials = [optimizer.ask() for _ in range(10)]
        for i in order:
            optimizer.tell(trials[i], value(trials[i].X[0]))
        optimizer.ask()
        left.append(optimizer.survivors)
    assert torch.equal(*left)


def test_attached_trials_enter_no_bounds(choices, kernel):
    plain, other = make(choices, kernel), make(choices, kernel)
    attached = [optimizer.attach(choices[3], t=0.0) for optimizer in (plain, other)]
    for n in range(40):
        trials = [optimizer.ask() for optimizer in (plain, other)]
        assert torch.equal(trials[0].X, trials[1].X)
        for optimizer, trial in zip((plain, other), trials, strict=True):
            optimizer.tell(trial, value(trial.X[0]))
        if n == 3:
            plain.expire(attached[0])
            other.tell(attached[1], 1e3)
    assert torch.equal(plain.survivors, other.survivors)
    assert plain.to_frame().equals(other.to_frame())


def test_noise_of_zero_is_refused_and_the_trial_stays_open(choices, kernel):
    optimizer = make(choices, kernel)
    trial = optimizer.ask()
    for noise in (0.0, 1e-13):
        with pytest.raises(InputDataError):
            optimizer.tell(trial, 1.0, Yvar=noise)
    assert optimizer.open_trials == (trial,)
    optimizer.tell(trial, 1.0)


def test_survivors_are_those_of_all_outcomes_so_far(choices, kernel):
    optimizer = make(choices, kernel)
    assert len(optimizer.survivors) == 64
    for _ in range(10):
        trial = optimizer.ask()
        optimizer.tell(trial, value(trial.X[0]))
    expected = optimizer.survivors
    assert len(expected) < 64
    optimizer.ask()
    assert torch.equal(optimizer.survivors, expected)
    assert torch.equal(choices[optimizer.survives(choices)], expected)
    assert make(choices, kernel).to_frame().empty
    with pytest.raises(InputDataError):
        optimizer.survives(torch.tensor([[0.123, 0.5]]))


@pytest.mark.parametrize(("asks", "since"), [(4, 0), (10, 0), (11, 0), (20, 10)])
def test_the_recommendation_is_the_largest_mean_of_the_newest_round(choices, kernel, asks, since):
    """Within the first round, at its end, before an outcome of the second, and within it."""
    optimizer = make(choices, kernel)
    with pytest.raises(InputDataError):
        optimizer.recommend()
    trials = []
    for n in range(asks):
        trials.append(optimizer.ask())
        if n != 10 or asks > 11:
            optimizer.tell(trials[-1], value(trials[-1].X[0]))
    told = points(trials[since : None if asks != 11 else 10])
    left = optimizer.survivors
    Y = np.array([value(x) for x in told])
    mean, variance = rbf_posterior(told.numpy(), Y, NOISE, left.numpy())
    best = optimizer.recommend(t=99.5)
    assert best.X.tolist() == left[mean.argmax()].unsqueeze(0).tolist()
    assert best.mean == pytest.approx(mean.max(), abs=1e-10)
    assert best.standard_deviation == pytest.approx(variance[mean.argmax()] ** 0.5, abs=1e-10)
    assert best.t == 99.5
    with pytest.raises(BotorchTensorDimensionError):
        optimizer.recommend(context=torch.zeros(1))


def test_estimated_delay_at_the_start_of_each_round(choices, kernel):
    """By hand: delays in asks between, of what came, was lost and is awaited."""
    optimizer = make(choices, kernel, delay=None)
    assert optimizer.plan.length == optimizer.plan.q == 10
    trials = [optimizer.ask() for _ in range(5)]
    optimizer.tell(trials[4], 0.0)  # 0 asks after its own
    optimizer.tell(trials[1], 0.0)  # 3
    optimizer.fail(trials[0], "lost")  # waited for 4
    trials += [optimizer.ask() for _ in range(5)]
    optimizer.tell(trials[3], 0.0)  # 6
    optimizer.ask()
    # Awaited since trials 3, 6, 7, 8, 9, 10 were asked.
    expected = estimate_delay([0, 3, 6], [4, 7, 4, 3, 2, 1, 0]).upper_bound(100, 0.1)
    assert optimizer.plan.length == min(90, 32 + math.ceil(expected))
    # 10 + 32 + 57 of 100 without delay, and one more.
    assert optimizer.num_rounds == 4


def test_estimate_of_a_longer_round(choices, kernel):
    optimizer = make(choices, kernel, horizon=400, delay=None)
    trials = [optimizer.ask() for _ in range(19)]
    for n in (3, 7, 9, 10):
        optimizer.tell(trials[n], 0.0)  # 15, 11, 9 and 8 asks after their own
    optimizer.ask()
    optimizer.ask()
    estimate = estimate_delay([15, 11, 9, 8], [19 - n for n in range(20) if n not in (3, 7, 9, 10)])
    q = math.ceil(math.sqrt(400 * 20))
    assert optimizer.plan.length == q + math.ceil(estimate.upper_bound(400, 0.1))


def test_asks_beyond_the_horizon(choices, kernel):
    optimizer = make(choices, kernel, horizon=3)
    trials = [optimizer.ask() for _ in range(3)]
    with pytest.raises(ValueError):
        optimizer.ask()
    optimizer.tell(trials[2], 1.0)
    assert optimizer.recommend().mean != 0


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({"noise_variance": 0.0}, ValueError),
        ({"noise_variance": 0.9e-12}, InputDataError),
        ({"horizon": 0}, ValueError),
        ({"delta": 1.0}, ValueError),
        ({"delay": 50.0}, TypeError),
        ({"width": 6.0}, TypeError),
        ({"covar_module": RBFKernel(batch_shape=torch.Size([2]))}, BotorchTensorDimensionError),
    ],
)
def test_parameters_out_of_range(choices, kernel, parameters, error):
    given = {"covar_module": kernel, "noise_variance": NOISE, "horizon": 10} | parameters
    with pytest.raises(error):
        BPEDelay(FiniteSpace(choices), **given)


@pytest.mark.slow
def test_maximizer_is_kept(kernel):
    """Functions of known norm, Theorem 6.1's width, Poisson delays: at least 1 - δ of 60 runs."""
    X = torch.linspace(0, 1, 100, dtype=torch.float64).unsqueeze(-1)
    covar = rbf(0.2)(X).to_dense().detach().numpy()
    kept, removed = 0, 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        centers, weights = rng.integers(0, 100, 15), rng.normal(size=15)
        f = covar[:, centers] @ weights
        norm = math.sqrt(weights @ covar[np.ix_(centers, centers)] @ weights)
        optimizer = BPEDelay(
            FiniteSpace(X), kernel, NOISE, 100, delay=POISSON,
            width=FiniteSetWidth(norm, NOISE**0.5),
            generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
        coming = []
        for n in range(1, 101):
            while coming and coming[0][0] <= n:
                _, trial_id, Y = heapq.heappop(coming)
                optimizer.tell(trial_id, Y)
            trial = optimizer.ask()
            Y = f[optimizer.search_space.index(trial.X).item()] + NOISE**0.5 * rng.normal()
            heapq.heappush(coming, (n + 1 + rng.poisson(5), trial.id, Y))
        for _, trial_id, Y in coming:
            optimizer.tell(trial_id, Y)
        left = optimizer.survivors
        kept += bool((left == X[f.argmax()]).all(dim=-1).any())
        removed += len(left) < 100
    assert kept >= 54
    # It is no feat where nothing is ever removed.
    assert removed >= 30


def objective(X):
    return torch.sin(5 * X[:, 0]) * torch.cos(4 * X[:, 1]) + X[:, 0]


def on_box(kernel, rounds, horizon, width, noise):
    """BPE on the unit square, its rounds of points and outcomes, and what was left of a grid."""
    optimizer = BPEDelay(
        Box(UNIT), kernel, noise, horizon, delay=NO_DELAY, width=FixedWidth(width),
        generator=torch.Generator().manual_seed(3),
    )  # fmt: skip
    draw, data = torch.Generator().manual_seed(4), []
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 60, dtype=torch.float64)] * 2)
    left = []
    for _ in range(rounds):
        trial = optimizer.ask()
        if optimizer.plan.number > len(data):
            data.append(([], []))
            left.append(grid[optimizer.survives(grid)])
            assert optimizer.survives(trial.X)
        Y = objective(trial.X).item() + noise**0.5 * torch.randn(1, generator=draw).item()
        data[-1][0].append(trial.X.numpy()[0])
        data[-1][1].append(Y)
        optimizer.tell(trial, Y)
    return optimizer, [(np.array(X), np.array(Y)) for X, Y in data], grid, left


@pytest.mark.slow
def test_region_of_a_box_against_dense_formulas(kernel):
    optimizer, data, grid, left = on_box(kernel, 60, 60, 3.0, 0.01)
    assert len(data) == len(left) == 3
    for (X, Y), now, later in zip(data, left, left[1:], strict=False):
        # Nearly the most uncertain point is chosen: four fifths of the largest variance of a grid.
        for k in range(1, len(X)):
            there = rbf_posterior(X[:k], np.zeros(k), 0.01, X[k : k + 1])[1].item()
            assert there >= 0.8 * rbf_posterior(X[:k], np.zeros(k), 0.01, now.numpy())[1].max()
        mean, variance = rbf_posterior(X, Y, 0.01, now.numpy())
        lower, upper = mean - 3 * np.sqrt(variance), mean + 3 * np.sqrt(variance)
        kept = (now.unsqueeze(1) == later).all(dim=-1).any(dim=-1).numpy()
        # The largest lower bound that was found may lie between the points of the grid.
        assert (upper[kept] >= lower.max() - 1e-9).all()
        assert kept[upper >= lower.max() + 0.05].all()
        assert 0 < kept.sum() < len(now)
    assert (left[-1] == grid[objective(grid).argmax()]).all(dim=-1).any()
    sizes = optimizer.to_frame()
    assert sizes["size_after"].iloc[-1] == pytest.approx(len(left[-1]) / len(grid), abs=0.03)
    best = optimizer.recommend()
    there = grid[optimizer.survives(grid)]
    X, Y = data[-1]
    assert best.mean >= rbf_posterior(X, Y, 0.01, there.numpy())[0].max() - 1e-6
    assert optimizer.survives(best.X)


def test_a_small_region_is_still_looked_at(kernel):
    """With almost no width only a neighbourhood of the peak is left, with hardly a Sobol point."""
    optimizer, *_ = on_box(kernel, 8, 40, 1e-3, 1e-4)
    assert optimizer.to_frame()["size_after"].iloc[0] < 0.001
    left = optimizer.survivors
    assert len(left) >= 1024
    assert optimizer.survives(left).all()
    spread = left.amax(dim=0) - left.amin(dim=0)
    assert ((spread > 0) & (spread < 0.05)).all()
    with pytest.raises(InputDataError):
        optimizer.survives(torch.tensor([[2.0, 0.0]]))
