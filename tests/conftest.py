import os
from pathlib import Path

import pytest
import torch
from rounding import OtherRounding

# Two workers on two cores: more threads would only wait for one another.
torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _rounding():
    """Round otherwise than this CPU does, where TVBO_TEST_ROUNDING names a seed."""
    seed = os.environ.get("TVBO_TEST_ROUNDING")
    if not seed:
        yield
        return
    with OtherRounding(int(seed)):
        yield


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def data_folder():
    folder = os.environ.get("TVBO_DATA")
    if not folder:
        pytest.skip("TVBO_DATA names no folder of recorded data")
    return Path(folder)


@pytest.fixture(autouse=True)
def _global_random_state_untouched(request):
    """Nothing in the library draws from torch's global generator; a test may say that it does."""
    if "draws_globally" in request.keywords:
        torch.manual_seed(0)
        yield
        return
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state()), "torch's global generator was used"


@pytest.fixture
def double_by_default():
    """Brevity in tests of mathematics; the loop is tested under torch's own default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
