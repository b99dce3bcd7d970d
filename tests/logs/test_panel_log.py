"""Panels as rows of a log."""

import math

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError

from tvbo.logs.dataset import panel_rows, panel_segments

pytestmark = pytest.mark.usefixtures("double_by_default")


def test_cells_without_a_reading_give_no_rows():
    values = torch.tensor([[1.0, math.nan], [3.0, 4.0]])
    X, Y = panel_rows(values, torch.tensor([0.0, 5.0]))
    assert X.tolist() == [[0.0, 0.0], [0.0, 5.0], [1.0, 5.0]]
    assert Y.flatten().tolist() == [1.0, 3.0, 4.0]
    assert panel_segments(values, torch.tensor([7, 8])).tolist() == [7, 8, 8]
    same, _ = panel_rows(values.numpy(), [0, 5])
    assert same.tolist() == X.tolist()


def test_one_time_and_one_label_per_row():
    with pytest.raises(BotorchTensorDimensionError):
        panel_rows(torch.zeros(4, 3), torch.zeros(5))
    with pytest.raises(BotorchTensorDimensionError):
        panel_segments(torch.zeros(4, 3), torch.zeros(5))
