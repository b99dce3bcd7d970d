"""The multiplier of the deviation, chosen on later folds of the training stretch."""

import pytest
import torch

from tvbo.evaluation.exploration import play_tv_gp_ucb, tune_exploration
from tvbo.kernels import TemporalMaternKernel
from tvbo.logs import fit_panel


def panel(steps=48, arms=4):
    generator = torch.Generator().manual_seed(0)
    steps_of_walk = 0.3 * torch.randn(steps, arms, dtype=torch.float64, generator=generator)
    values = steps_of_walk.cumsum(0) + torch.arange(arms)
    noise = 0.1 * torch.randn(steps, arms, dtype=torch.float64, generator=generator)
    return values + noise, torch.arange(steps, dtype=torch.float64)


@pytest.fixture(scope="module")
def log():
    values, times = panel()
    return fit_panel(values, times, season=None), values, times


def test_folds_begin_after_all_that_is_fitted_and_cover_the_second_half(log):
    fit, values, times = log
    played = []

    def play(model, beta, part, later):
        played.append((model.num_times, beta, later))
        torch.testing.assert_close(part, values[later.long()])
        return torch.ones(len(later))

    tune_exploration(fit, values, times, multipliers=(0.5, 0.0), play=play)
    assert [number for number, *_ in played] == [24, 24, 32, 32, 40, 40]
    assert all(later[0] == number for number, _, later in played)
    assert [beta for _, beta, _ in played] == [0.0, 0.25] * 3
    assert torch.equal(torch.cat([later for *_, later in played[::2]]), times[24:])


@pytest.mark.parametrize(("gap", "expected"), [(0.01, 0.0), (10.0, 1.0)], ids=["near", "far"])
def test_the_smallest_within_one_standard_error_is_taken(log, gap, expected):
    fit, values, times = log
    wave = torch.sin(7 * times)

    def play(model, beta, part, later):
        worse = {0.0: gap, 1.0: 0.0, 4.0: 5.0}[beta]
        return 1 + worse + (0.5 if beta == 0 else 0.0) * wave[later.long()]

    found = tune_exploration(fit, values, times, multipliers=(0.0, 1.0, 2.0), play=play)
    assert found.multiplier == expected
    assert found.beta == expected**2
    assert found.difference[1.0] == 0.0
    assert found.standard_error[2.0] == pytest.approx(0.0, abs=1e-6)
    assert f"{expected:g}" in found.reason


def test_segments_are_played_from_their_beginning(log):
    values, _ = panel(60)
    times = torch.arange(10, dtype=torch.float64).repeat(6)
    segments = torch.arange(6).repeat_interleave(10)
    fit = fit_panel(values, times, segments=segments, season=None)
    stretches = []

    def play(model, beta, part, later):
        stretches.append((model.num_times, later))
        return torch.ones(len(later))

    tune_exploration(fit, values, times, segments=segments, multipliers=(0.0,), play=play)
    assert [number for number, _ in stretches] == [30, 40, 50]
    assert all(torch.equal(later, times[:10]) for _, later in stretches)


def test_a_fit_is_played_by_the_recipe(log):
    fit, values, times = log
    later = times[-1] + 1 + torch.arange(6, dtype=torch.float64)
    regret = play_tv_gp_ucb(fit, 0.04, values[:6], later)
    assert regret.shape == (6,)
    assert (regret >= 0).all()


def test_sums_of_components_are_played(log):
    values, times = panel()
    kernels = [TemporalMaternKernel(), TemporalMaternKernel(nu=2.5)]
    fit = fit_panel(values, times, season=None, temporal_kernel=kernels)
    later = times[-1] + 1 + torch.arange(6, dtype=torch.float64)
    assert (play_tv_gp_ucb(fit, 0.04, values[:6], later) >= 0).all()


def test_bad_arguments_are_refused(log):
    for options, message in [
        ({"multipliers": ()}, "multipliers of at least 0"),
        ({"multipliers": (-1.0,)}, "multipliers of at least 0"),
        ({"folds": 0}, "folds >= 1"),
        ({"folds": 20}, "room for"),
    ]:
        with pytest.raises(ValueError, match=message):
            tune_exploration(*log, **options)
