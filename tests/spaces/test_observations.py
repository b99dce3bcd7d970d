import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError

from tvbo.spaces import Box, InputLayout
from tvbo.spaces.observations import Observations

X = torch.tensor([[0.1, 0.2], [0.3, 0.4]], dtype=torch.float64)


def test_rows_are_action_context_time():
    layout = InputLayout(2, 2)
    rows = layout.rows(X, 3.5, torch.tensor([7.0, 8.0]))
    assert rows.tolist() == [[0.1, 0.2, 7, 8, 3.5], [0.3, 0.4, 7, 8, 3.5]]
    assert rows.dtype == torch.float64
    assert (layout.num_columns, layout.time_feature, layout.context_features) == (5, 4, [2, 3])
    batch = layout.rows(X.expand(3, 2, 2), 3.5, torch.tensor([[7.0, 8.0]]))
    assert torch.equal(batch, rows.expand(3, 2, 5))


def test_rows_without_context():
    assert InputLayout(2).rows(X, 1).tolist() == [[0.1, 0.2, 1], [0.3, 0.4, 1]]
    assert InputLayout(2).context_features == []


def test_context_bounds_may_be_constant():
    constant = [(1, 1), (0, 2)]
    assert Box(constant, name="context").bounds.tolist() == [[1.0, 0.0], [1.0, 2.0]]
    with pytest.raises(InputDataError):
        Box([(3, 0), (4, 1)], name="context")
    with pytest.raises(InputDataError):
        Box([(0, 0), (1, 1)], name="context")


def test_columns_refuse_a_context_that_does_not_fit():
    with pytest.raises(BotorchTensorDimensionError):
        InputLayout(2, 1).rows(torch.zeros(3, 2), 0.0)
    with pytest.raises(BotorchTensorDimensionError):
        InputLayout(2, 1).rows(torch.zeros(3, 2), 0.0, torch.zeros(2))
    with pytest.raises(BotorchTensorDimensionError):
        InputLayout(2).rows(torch.zeros(3, 4), 0.0)


def test_observations_append_and_select():
    first = Observations(torch.zeros(2, 3), torch.zeros(2, 1), torch.ones(2, 1))
    both = first.append(Observations(torch.ones(1, 3), torch.ones(1, 1), torch.zeros(1, 1)))
    assert len(both) == 3
    assert both[torch.tensor([False, True, True])].Y.flatten().tolist() == [0.0, 1.0]
    assert both[2:].Yvar.tolist() == [[0.0]]
    assert len(Observations.empty(3).append(first)) == 2
