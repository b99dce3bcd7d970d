import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError

from tvbo.spaces import InputLayout
from tvbo.spaces.observations import Observations


def test_columns_place_context_and_time():
    layout = InputLayout(num_actions=2, num_contexts=1)
    rows = layout.rows(torch.zeros(3, 2), t=4.0, context=torch.tensor([0.5]))
    assert rows.tolist() == [[0.0, 0.0, 0.5, 4.0]] * 3
    assert layout.fixed_features(4.0, torch.tensor([0.5])) == {2: 0.5, 3: 4.0}
    assert layout.time_feature == 3
    assert layout.context_features == [2]


def test_columns_refuse_a_context_that_does_not_fit():
    with pytest.raises(BotorchTensorDimensionError):
        InputLayout(2, 1).rows(torch.zeros(3, 2), 0.0)
    with pytest.raises(BotorchTensorDimensionError):
        InputLayout(2, 1).rows(torch.zeros(3, 2), 0.0, torch.zeros(2))
    with pytest.raises(InputDataError):
        InputLayout(2, 1).fixed_features(0.0, torch.tensor([float("nan")]))
    with pytest.raises(BotorchTensorDimensionError):
        InputLayout(2).rows(torch.zeros(3, 4), 0.0)


def test_observations_append_and_select():
    first = Observations(torch.zeros(2, 3), torch.zeros(2, 1), torch.ones(2, 1))
    both = first.append(Observations(torch.ones(1, 3), torch.ones(1, 1), torch.zeros(1, 1)))
    assert len(both) == 3
    assert both[torch.tensor([False, True, True])].Y.flatten().tolist() == [0.0, 1.0]
    assert both[2:].Yvar.tolist() == [[0.0]]
    assert len(Observations.empty(3).append(first)) == 2


@pytest.mark.parametrize(
    ("X", "Y", "Yvar", "error"),
    [
        (torch.zeros(2), torch.zeros(2, 1), None, BotorchTensorDimensionError),
        (torch.zeros(2, 1), torch.zeros(2), None, BotorchTensorDimensionError),
        (torch.zeros(2, 1), torch.zeros(2, 1), torch.zeros(1, 1), BotorchTensorDimensionError),
        (torch.full((1, 1), torch.nan), torch.zeros(1, 1), None, InputDataError),
        (torch.zeros(1, 1), torch.full((1, 1), torch.inf), None, InputDataError),
        (torch.zeros(1, 1), torch.zeros(1, 1), -torch.ones(1, 1), InputDataError),
    ],
)
def test_bad_observations(X, Y, Yvar, error):
    with pytest.raises(error):
        Observations(X, Y, Yvar)
