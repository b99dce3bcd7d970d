"""The tests that Optuna has for every sampler, on ours."""

import pytest

pytest.importorskip("optuna")

from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
)

from tvbo.integrations.optuna import TimeVaryingSampler


class TestSampler(BasicSamplerTestCase, RelativeSamplerTestCase, MultiObjectiveSamplerTestCase):
    """All of them but those of samplers of a single objective."""

    @pytest.fixture
    def sampler(self):
        return TimeVaryingSampler
