import dataclasses
import math

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from reference import matern
from torch.distributions import MultivariateNormal

from experiments.data.intel_lab import SensorDays, intel_lab_days
from experiments.krause.fig3 import ALGORITHMS, _play, krause_fig3
from experiments.krause.fig3_claims import (
    BEST_OF_TRAINING,
    CGP,
    DRIFTING,
    MERGED,
    difference,
    make_claims,
    regret_of_steps,
)
from experiments.krause.fig3_fit import (
    KroneckerLikelihood,
    Prior,
    fit_prior,
    matern_of_the_day,
)
from experiments.problems.time_of_day import TimeOfDayPanel, time_of_day
from tvbo.kernels import IdentityKernel

STEPS = 6
"""Of a made-up day, four hours each."""


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def scaled(kernel, lengthscale, outputscale=1.0):
    scaled = ScaleKernel(kernel).double()
    scaled.outputscale = outputscale
    scaled.base_kernel.lengthscale = lengthscale
    return scaled


def made_up(steps):
    """Three days of six sensors, drawn: the same course every day, and a little noise."""
    positions = 20 * torch.rand(
        6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    )
    times = 24 / steps * torch.arange(3 * steps, dtype=torch.float64)
    place = scaled(MaternKernel(nu=2.5), 8.0, 9.0)(positions).to_dense().detach()
    course = matern(0.8)(time_of_day(times[:steps])).to_dense().detach()
    jitter = 1e-9 * torch.eye(steps, dtype=torch.float64)
    draw = torch.linalg.cholesky(course + jitter) @ normal(steps, 6)
    values = (draw @ torch.linalg.cholesky(place).mT).repeat(3, 1)
    values = 20 + values + 0.1 * normal(3 * steps, 6, seed=1)
    return SensorDays(values, times, positions, [f"s{i}" for i in range(6)])


@pytest.fixture(scope="module")
def days():
    return made_up(STEPS)


@pytest.fixture(scope="module")
def short(days):
    return krause_fig3(days, trials=2, seed=4, per_step=2, progress=False)


# The likelihood.


def dense_log_likelihood(values, times, choices, action, context, rate, noise):
    """The covariance of all readings written out, and the mean by generalized least squares."""
    space = action(choices).to_dense()
    lags = (times[:, None] - times).abs()
    time = (-0.5 * rate * lags).exp()
    if context is not None:
        time = time * context(time_of_day(times)).to_dense()
    n, y = values.numel(), values.flatten()
    covar = torch.kron(time, space) + noise * torch.eye(n, dtype=torch.float64)
    ones = torch.ones(n, dtype=torch.float64)
    weights = torch.linalg.solve(covar, ones)
    mean = (weights @ y / weights.sum()).detach()
    return MultivariateNormal(mean * ones, covar).log_prob(y), mean.item()


@pytest.mark.parametrize("context", [matern(0.5), IdentityKernel(), None])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_likelihood_is_that_of_the_dense_normal(context, rate):
    values, choices = 3 + normal(7, 4), normal(4, 2, seed=1)
    # One time of day stands twice.
    times = torch.tensor([0.0, 0.5, 2.0, 3.0, 11.0, 24.0, 29.0], dtype=torch.float64)
    action = scaled(RBFKernel(), 0.9, 2.0)
    results = []
    for form in (KroneckerLikelihood, dense_log_likelihood):
        rho = torch.tensor(rate, dtype=torch.float64, requires_grad=True)
        noise = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
        parameters = [rho, noise, *action.parameters()]
        if isinstance(context, MaternKernel):
            parameters += list(context.parameters())
        if form is KroneckerLikelihood:
            value, mean = form(values, times, choices, action, context)(rho, noise)
        else:
            value, mean = form(values, times, choices, action, context, rho, noise)
        gradient = torch.autograd.grad(value, parameters)
        results.append((value.item(), mean, *(g.item() for g in gradient)))
    assert results[0] == pytest.approx(results[1], rel=1e-9, abs=1e-9)


def test_fit_finds_what_the_days_were_drawn_from():
    data = made_up(48)
    first = data.times < 24
    values, times = data.values[first], data.times[first]
    prior = fit_prior(values, times, data.positions, matern_of_the_day(), drifts=False)
    found = prior.settings()
    assert prior.forgetting_rate == 0
    assert found["noise_variance"] == pytest.approx(0.01, rel=0.3)
    assert found["lengthscale_time_of_day"] == pytest.approx(0.8, rel=0.3)
    # Six sensors tell little of space: within a factor of two and a half.
    assert 9 / 2.5 < found["signal_variance"] < 9 * 2.5
    assert 8 / 2.5 < found["lengthscale_metres"] < 8 * 2.5
    kernels = prior.action_kernel, prior.context_kernel
    likelihood = KroneckerLikelihood(values, times, data.positions, *kernels)
    zero = torch.zeros((), dtype=torch.float64)
    value, mean = likelihood(zero, zero + prior.noise_variance)
    assert (value.item(), mean) == pytest.approx((prior.log_likelihood, prior.mean))


def test_fit_of_drift_is_at_least_as_likely_and_finds_the_rate():
    """Without a time of day, from a drifting function seen every quarter of an hour."""
    choices, T, rate = normal(5, 2, seed=8) * 5, 200, 0.2
    times = torch.arange(T, dtype=torch.float64) / 4
    place = torch.linalg.cholesky(scaled(MaternKernel(nu=2.5), 6.0)(choices).to_dense().detach())
    decay = (1 - rate) ** ((times[:, None] - times).abs() / 2)
    values = torch.linalg.cholesky(decay) @ normal(T, 5, seed=9) @ place.mT + 0.1 * normal(T, 5)
    static, drifting = (fit_prior(values, times, choices, None, drifts) for drifts in (False, True))
    assert static.forgetting_rate == 0
    assert drifting.log_likelihood > static.log_likelihood + 100
    # Fifty hours are about ten times the memory: a standard error of a fifth or so.
    assert 0.1 < drifting.forgetting_rate < 0.4
    assert drifting.settings()["lengthscale_time_of_day"] is None


# The run.


@pytest.mark.slow
def test_shapes_and_settings(short):
    assert list(short.regret) == [*ALGORITHMS, BEST_OF_TRAINING] == list(short.results)
    for name, rows in short.regret.items():
        assert rows.shape == (2, 2, 2 * STEPS)
        # The maximum of some readings is not below their average, nor above that of all.
        assert (rows >= 0).all()
        assert (rows[:, 0] <= rows[:, 1] + 1e-12).all()
        assert short.results[name]["maximum"] == pytest.approx(rows[:, 0].mean().item())
        assert short.results[name]["average"] == pytest.approx(rows[:, 1].mean().item())
        assert 0 <= short.results[name]["share_repeated"] <= 1
    settings = short.settings
    assert (settings["c1"], settings["c2"]) == (0.8, 0.4)
    assert (settings["train_steps"], settings["test_steps"]) == (STEPS, 2 * STEPS)
    assert settings["steps_fitted"] == STEPS // 2
    rates = [p["forgetting_rate_per_hour"] for p in settings["priors"][CGP]]
    assert rates == [0, 0]
    assert all(p["forgetting_rate_per_hour"] > 0 for p in settings["priors"][DRIFTING])


@pytest.mark.slow
def test_the_best_sensors_of_training_stand_beside_them(days, short):
    """Two of six, by the mean over the steps that the trial learned from, in every step."""
    for trial, seed in enumerate((4, 5)):
        learned = torch.randperm(STEPS, generator=torch.Generator().manual_seed(seed))[:3]
        means = days.values[learned].mean(dim=0).tolist()
        pair = sorted(range(6), key=lambda i: -means[i])[:2]
        later = days.values[STEPS:]
        best, readings = later.amax(dim=1), later[:, pair]
        rows = short.regret[BEST_OF_TRAINING][trial]
        torch.testing.assert_close(rows[0], best - readings.amax(dim=1))
        torch.testing.assert_close(rows[1], best - readings.mean(dim=1))


@pytest.mark.slow
def test_every_claim_has_its_figure(short):
    claims = short.to_dict()["claims"]
    assert len(claims) == 2 * (4 + 4 + 7)
    assert sum("one prior for all" in claim["claim"] for claim in claims) == 8
    assert sum("beyond the paper" in claim["claim"] for claim in claims) == 14
    assert sum(f"{BEST_OF_TRAINING} minus" in claim["claim"] for claim in claims) == 8
    assert all(claim["standard_error"] > 0 for claim in claims)


@pytest.mark.slow
def test_a_trial_depends_on_its_seed_alone(days, short):
    second = krause_fig3(days, trials=1, seed=5, per_step=2, progress=False)
    for name, rows in second.regret.items():
        assert torch.equal(rows[0], short.regret[name][1])
        if name in ALGORITHMS:
            assert second.settings["priors"][name] == short.settings["priors"][name][1:]
    assert not any(claim.held for claim in second.claims)


def test_nothing_is_claimed_of_days_that_were_not_run():
    hours = torch.arange(20, dtype=torch.float64)
    names = [*ALGORITHMS, BEST_OF_TRAINING]
    claims = make_claims({name: normal(2, 2, 20) for name in names}, hours)
    assert len(claims) == 2 * (3 + 3 + 6)
    assert not any("after the first day" in claim.claim for claim in claims)


def plain_loop(values, positions, times, action, context, rate, noise, per_step, first):
    """Rule (2) with the posterior of all readings solved again for every ask.

    The first sensors are ties, of which one is given.
    """
    arms, steps, y, chosen = [], [], [], []
    space = action(positions).to_dense().detach()
    time = (1 - rate) ** ((times[:, None] - times).abs() / 2)
    if context is not None:
        time = time * context(time_of_day(times)).to_dense().detach()
    for step in range(len(times)):
        for _ in range(per_step):
            a, s = torch.tensor(arms, dtype=torch.long), torch.tensor(steps, dtype=torch.long)
            mean, variance = torch.zeros(len(positions)).double(), space.diagonal()
            if arms:
                K = space[a][:, a] * time[s][:, s] + noise * torch.eye(len(a)).double()
                k = space[:, a] * time[step, s]
                mean = k @ torch.linalg.solve(K, torch.stack(y))
                variance = variance - (k * torch.linalg.solve(K, k.mT).mT).sum(dim=1)
            beta = 0.8 * max(0.0, math.log(0.4 * (len(arms) + 1)))
            best = int((mean + (beta * variance).sqrt()).argmax()) if arms else first
            arms.append(best)
            steps.append(step)
            y.append(values[step, best])
        chosen.append(arms[-per_step:])
    return torch.tensor(chosen)


@pytest.mark.parametrize(
    ("name", "context", "rate"),
    [(CGP, matern(0.8), 0.0), (DRIFTING, matern(0.8), 0.1), (MERGED, None, 0.0)],
)
def test_rounds_follow_a_plain_loop(days, name, context, rate):
    action = scaled(MaternKernel(nu=2.5), 8.0, 9.0)
    prior = Prior(action, context, rate, 0.05, 20.0, 0.0)
    panel = TimeOfDayPanel(days.values - 20, days.times, days.positions)
    optimizer = ALGORITHMS[name].make(panel, prior, torch.Generator().manual_seed(0))
    chosen = _play(panel, optimizer, 3)
    values, first = days.values - 20, int(chosen[0, 0])
    expected = plain_loop(values, days.positions, days.times, action, context, rate, 0.05, 3, first)
    assert torch.equal(chosen, expected)


# The measures.


def test_regret_of_maximum_and_average():
    values = torch.tensor([[1.0, 5.0, 3.0], [4.0, 2.0, 0.0]], dtype=torch.float64)
    chosen = torch.tensor([[0, 2], [0, 0]])
    assert regret_of_steps(values, chosen).tolist() == [[2, 0], [3, 0]]


def test_a_difference_is_of_the_nearest_pair_with_the_larger_error():
    level = {"a": 5.0, "b": 3.0, "c": 1.0, "d": 2.0}
    curves = {name: torch.full((4, 32), x, dtype=torch.float64) for name, x in level.items()}
    curves["d"][:, 16:] = 100.0  # outside the stretch
    stretch = torch.arange(32) < 16
    claim = difference("x", curves, stretch, ["a", "b"], ["c", "d"])
    assert claim.claim == "x: b minus d: above two standard errors"
    assert (claim.figure, claim.standard_error, claim.held) == (1.0, 0.0, True)
    # Blocks of two steps, of means 0 and 2 in turn: over time 2 / sqrt(7) / sqrt(8) x ..., not 0.
    wave = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64).repeat(8)
    curves["b"] = curves["b"] + wave
    claim = difference("x", curves, stretch, ["b"], ["d"])
    assert claim.figure == pytest.approx(1.0)
    assert claim.standard_error == pytest.approx(math.sqrt(8 / 7) / math.sqrt(8))
    # A trial that differs by much: over trials.
    curves["b"][0] += 8.0
    claim = difference("x", curves, stretch, ["b"], ["d"])
    assert claim.figure == pytest.approx(3.0)
    assert claim.standard_error == pytest.approx(2.0)
    assert not claim.held


@pytest.mark.slow
def test_short_on_the_recorded_days(data_folder):
    """Every fourth step, to the second hour of the run."""
    data = intel_lab_days(data_folder)
    kept = torch.arange(0, 288 + 24, 4)
    data = dataclasses.replace(data, values=data.values[kept], times=data.times[kept])
    result = krause_fig3(data, trials=1, per_step=2, progress=False)
    assert result.settings["steps_fitted"] == 36
    prior = result.settings["priors"][CGP][0]
    assert 5 < prior["lengthscale_metres"] < 20
    assert 0.001 < prior["noise_variance"] < 0.1
    for rows in result.regret.values():
        assert rows.shape == (1, 2, 6)
        # At midnight the laboratory's temperatures lie within a few degrees.
        assert (rows < 5).all()
