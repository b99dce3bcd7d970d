"""Which logs are panels, and panels as rows."""

import math

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError

from tvbo.logs import Panel
from tvbo.logs.dataset import DriftLog
from tvbo.logs.panel import panel_rows, panel_segments

pytestmark = pytest.mark.usefixtures("double_by_default")


def test_rows_in_any_order_form_the_same_panel(rows, generator):
    X, Y = rows
    order = torch.randperm(len(X), generator=generator)
    one = Panel.from_log(DriftLog.from_rows(X, Y, None, -1))
    other = Panel.from_log(DriftLog.from_rows(X[order], Y[order], None, -1))
    assert torch.equal(one.values, other.values)
    assert torch.equal(one.gaps, other.gaps)


def test_a_missing_or_repeated_cell_is_no_panel(rows):
    X, Y = rows
    assert Panel.from_log(DriftLog.from_rows(X[1:], Y[1:], None, -1)) is None
    twice = torch.cat([X[1:], X[1:2]])
    assert Panel.from_log(DriftLog.from_rows(twice, Y, None, -1)) is None


def test_known_noise_is_no_panel(rows):
    X, Y = rows
    assert Panel.from_log(DriftLog.from_rows(X, Y, torch.ones_like(Y), -1)) is None


def test_segments_are_infinitely_far_apart(generator):
    values = torch.randn(4, 3, generator=generator)
    days = torch.tensor([2, 2, 1, 1])
    log = DriftLog.from_rows(
        *panel_rows(values, torch.tensor([0.0, 1.0, 0.0, 3.0])),
        None,
        -1,
        panel_segments(values, days),
    )
    panel = Panel.from_log(log)
    assert panel.gaps.tolist() == [3.0, math.inf, 1.0]
    assert torch.equal(panel.values, values[[2, 3, 0, 1]])


def test_cells_without_a_reading_give_no_rows():
    values = torch.tensor([[1.0, math.nan], [3.0, 4.0]])
    X, Y = panel_rows(values, torch.tensor([0.0, 5.0]))
    assert X.tolist() == [[0.0, 0.0], [0.0, 5.0], [1.0, 5.0]]
    assert Y.flatten().tolist() == [1.0, 3.0, 4.0]
    assert panel_segments(values, torch.tensor([7, 8])).tolist() == [7, 8, 8]


def test_one_time_and_one_label_per_row():
    with pytest.raises(BotorchTensorDimensionError):
        panel_rows(torch.zeros(4, 3), torch.zeros(5))
    with pytest.raises(BotorchTensorDimensionError):
        panel_segments(torch.zeros(4, 3), torch.zeros(5))
