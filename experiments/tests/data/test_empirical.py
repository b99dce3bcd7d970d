import pytest
import torch

from experiments.data.empirical import EmpiricalPanel
from tvbo.logs import empirical_covariance


def test_the_kernel_is_that_of_the_training_stretch(generator):
    train, test = torch.randn(2, 9, 3, generator=generator, dtype=torch.float64)
    panel = EmpiricalPanel(train, test + 100, arms=["a", "b", "c"], time_unit="1h")
    assert panel.mean == pytest.approx(train.mean().item())
    arms = torch.arange(3, dtype=torch.float64).unsqueeze(-1)
    torch.testing.assert_close(
        panel.covar_module(arms).to_dense().detach(), empirical_covariance(train)
    )
