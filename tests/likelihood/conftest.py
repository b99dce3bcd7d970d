import pytest
import torch


@pytest.fixture(autouse=True)
def _double_by_default():
    """Brevity in tests of mathematics; the loop is tested under torch's own default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
