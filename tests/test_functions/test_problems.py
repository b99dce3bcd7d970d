import math

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from reference import rbf

from tvbo.test_functions import MovingPeak, PanelProblem, drifting_gp
from tvbo.test_functions.drifting_gp import drifting_gp_log, unit_grid


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


def islands(actions):
    """Copies of the actions, 40 of them, too far apart to have to do with one another."""
    return (actions + 100 * torch.arange(40.0).reshape(-1, 1, 1)).flatten(0, 1)


@pytest.mark.slow
def test_draws_have_the_covariance_of_the_model():
    """Over many draws: cov(f_s(x), f_t(x')) = k(x, x') (1 - ε)^(|s - t| / 2)."""
    choices = rows([0.0], [0.25], [0.9])
    draws = torch.cat(
        [
            drifting_gp(
                islands(choices),
                rbf(),
                0.2,
                horizon=4,
                generator=torch.Generator().manual_seed(seed),
            )
            .values.unflatten(-1, (40, 3))
            .transpose(0, 1)
            .flatten(1)
            for seed in range(100)
        ]
    )
    lag = torch.arange(4.0)[:, None] - torch.arange(4.0)
    expected = torch.kron(0.8 ** (lag.abs() / 2), rbf()(choices).to_dense().detach())
    sample = draws.mT @ draws / len(draws)
    # The standard error of an entry is at most sqrt(2 / 4000) = 0.022.
    assert (sample - expected).abs().max() < 0.1
    assert (sample - expected).square().mean().sqrt() < 0.022


def test_rate_zero_never_changes_and_rate_one_always():
    static = drifting_gp(unit_grid(4), rbf(), 0.0, horizon=5)
    assert torch.equal(static.values, static.values[:1].expand(5, -1))
    renewed = drifting_gp(unit_grid(4), rbf(), 1.0, horizon=400)
    successive = (renewed.values[1:] * renewed.values[:-1]).mean()
    assert abs(successive) < 0.15


def test_panel_gives_its_values_and_its_optimum():
    panel = PanelProblem(rows([1.0, 5.0], [7.0, 2.0]), times=torch.tensor([0.5, 3.0]))
    assert panel.evaluate_true(rows([1, 0.5], [0, 3.0], [1, 3.0])).tolist() == [5.0, 7.0, 2.0]
    assert panel.optimal_value(0.5) == 5.0
    assert panel.optimal_action(3.0).tolist() == [0.0]


def test_noise_has_the_stated_variance():
    panel = PanelProblem(torch.zeros(1, 1), noise_variance=4.0)
    sample = panel(rows([0.0, 1.0]).expand(20000, 2))
    assert sample.var().item() == pytest.approx(4.0, rel=0.05)
    assert PanelProblem(torch.zeros(1, 1))(rows([0.0, 1.0])).item() == 0.0


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: PanelProblem(torch.zeros(3)), BotorchTensorDimensionError),
        (lambda: PanelProblem(torch.full((2, 2), math.nan)), InputDataError),
        (
            lambda: PanelProblem(torch.zeros(2, 3), times=torch.arange(3.0)),
            BotorchTensorDimensionError,
        ),
        (
            lambda: PanelProblem(torch.zeros(2, 3), choices=torch.eye(2)),
            BotorchTensorDimensionError,
        ),
        (
            lambda: PanelProblem(torch.zeros(2, 3), times=torch.tensor([1.0, 1.0])),
            InputDataError,
        ),
        (lambda: PanelProblem(torch.zeros(1, 1), noise_variance=-1), ValueError),
        (lambda: drifting_gp(unit_grid(3), rbf(), 1.5, horizon=2), ValueError),
        (lambda: drifting_gp(unit_grid(3), rbf(), 0.5, horizon=0), ValueError),
        (lambda: unit_grid(1), ValueError),
        (lambda: MovingPeak(period=0), ValueError),
        (lambda: drifting_gp_log(torch.zeros(2, 2), rbf(), 0.1, -1.0), ValueError),
    ],
)
def test_bad_problems(make, error):
    with pytest.raises(error):
        make()


def test_a_time_that_was_not_recorded_is_refused():
    panel = PanelProblem(torch.zeros(3, 2))
    for t in (0.0, 1.5, 4.0):
        with pytest.raises(InputDataError):
            panel.evaluate_true(rows([0.0, t]))
    with pytest.raises(InputDataError):
        panel.evaluate_true(rows([5.0, 1.0]))
    with pytest.raises(BotorchTensorDimensionError):
        panel.evaluate_true(rows([5.0]))


def test_moving_peak_is_at_its_optimum():
    peak = MovingPeak(period=40)
    for t in (0.0, 3.7, 20.0):
        row = torch.cat([peak.optimal_action(t), rows(t).reshape(1)]).unsqueeze(0)
        assert peak.evaluate_true(row).item() == pytest.approx(peak.optimal_value(t))
        away = row + rows([0.1, 0.0, 0.0])
        assert peak.evaluate_true(away).item() < 1.0
