import math

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import RBFKernel

from experiments.problems.contextual_panel import ContextualPanelProblem
from experiments.problems.time_of_day import TimeOfDayPanel, time_of_day
from tvbo import recipes, run
from tvbo.spaces import InputLayout


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


# Three actions, two contexts, two times: the digits are time, action, context.
VALUES = tensor([[[111, 112], [121, 122], [131, 132]], [[211, 212], [291, 222], [231, 232]]])[0]
CONTEXTS = tensor([0.5, 7.0], [0.5, 8.0])


@pytest.fixture
def panel():
    return ContextualPanelProblem(VALUES, CONTEXTS, times=tensor(0.5, 3.0))


def test_gives_its_values_and_its_optimum(panel):
    assert panel.layout == InputLayout(1, 2)
    for i, t in enumerate((0.5, 3.0)):
        for action in range(3):
            for j, context in enumerate(CONTEXTS):
                row = panel.layout.rows(tensor([action]), t, context)
                assert panel.evaluate_true(row).item() == VALUES[i, action, j]
    assert panel.optimal_value(3.0, CONTEXTS[0]) == 291
    assert panel.optimal_value(3.0, CONTEXTS[1]) == 232
    assert panel.optimal_action(3.0, CONTEXTS[0]).tolist() == [1]
    assert panel.optimal_action(3.0, CONTEXTS[1]).tolist() == [2]
    assert panel.context(3.0) is None


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ([0, 0.5, 7.0, 1.0], InputDataError),
        ([0, 0.5, 9.0, 0.5], InputDataError),
        ([4, 0.5, 7.0, 0.5], InputDataError),
        ([0, 0.5, math.nan, 0.5], InputDataError),
        ([0, 0.5, 0.5], BotorchTensorDimensionError),
    ],
)
def test_bad_rows(panel, row, error):
    with pytest.raises(error):
        panel.evaluate_true(tensor(row))


def test_time_of_day_is_a_circle():
    points = time_of_day(tensor(0.0, 6.0, 12.0, 18.0))
    expected = tensor([1, 0], [0, 1], [-1, 0], [0, -1])
    assert (points - expected).abs().max() < 1e-15
    # Midnight is no edge: five minutes on either side of it are as near as anywhere.
    apart = 2 * math.sin(math.pi * (1 / 12) / 24)
    for t in (23 + 11 / 12, 7.3, 11.99):
        distance = (time_of_day(t + 1 / 12) - time_of_day(t)).norm().item()
        assert distance == pytest.approx(apart, abs=1e-9)
    assert time_of_day(3.0).shape == (2,)
    with pytest.raises(InputDataError):
        time_of_day(math.inf)


def test_the_same_time_of_another_day_is_the_same_point():
    steps = torch.arange(288, dtype=torch.float64)
    for day in range(1, 6):
        assert torch.equal(time_of_day((steps + 288 * day) / 12), time_of_day(steps / 12))
    assert torch.equal(time_of_day(tensor(-1.0)), time_of_day(tensor(23.0)))


@pytest.fixture
def days():
    """Two days of six steps of four hours, two arms, from four in the morning on."""
    times = 4 + 4 * torch.arange(12, dtype=torch.float64)
    return TimeOfDayPanel(torch.arange(24.0).reshape(12, 2), times, choices=tensor([5.0], [9.0]))


def test_a_panel_knows_its_context_from_its_time(days):
    assert days.layout == InputLayout(1, 2)
    for t in days.times.tolist():
        assert torch.equal(days.context(t), time_of_day(t))
    rows = days.layout.rows(days.choices, 12.0, days.context(12.0))
    assert days.evaluate_true(rows).tolist() == [4.0, 5.0]
    assert days.optimal_value(12.0, days.context(12.0)) == days.optimal_value(12.0) == 5.0
    assert days.optimal_action(12.0).tolist() == [9.0]
    assert torch.equal(days.contexts, time_of_day(tensor(0, 4, 8, 12, 16, 20)))


def test_a_panel_is_run_with_and_without_its_context(days):
    """Several rounds at a time."""
    shared = {"choices": days.choices, "covar_module": RBFKernel().double(), "noise_variance": 0.1}
    for optimizer in (recipes.cgp_ucb(contexts=days.contexts, **shared), recipes.gp_ucb(**shared)):
        times = days.times.repeat_interleave(2).tolist()
        history = run(days, optimizer, horizon=24, times=times, progress=False)
        seen = torch.stack([r.context for r in history.rounds])
        assert torch.equal(seen, time_of_day(torch.tensor(times)))
        best = days.values.amax(dim=1).repeat_interleave(2)
        torch.testing.assert_close(history.regret, best - history.reward)


def test_a_context_that_is_not_the_time_of_day_is_refused():
    problem = TimeOfDayPanel(torch.arange(72.0).reshape(24, 3), torch.arange(24.0))
    rows = problem.layout.rows(problem.choices[:1], 3.0, problem.context(3.0))
    assert problem(rows).shape == (1,)
    with pytest.raises(InputDataError):
        problem(problem.layout.rows(problem.choices[:1], 3.0, problem.context(15.0)))
