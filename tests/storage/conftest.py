import pytest


@pytest.fixture
def run(tmp_path):
    """The name of a run that does not exist yet."""
    return tmp_path / "run.db"
