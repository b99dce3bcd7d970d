"""Every acquisition function of BoTorch is maximized under every model, or refused in words."""

import importlib
import inspect
import pkgutil
from pathlib import Path

import botorch.acquisition
import pytest
from acquisition_cases import CASES, NEEDS_PATHS, outcome
from botorch.acquisition.acquisition import AcquisitionFunction
from every_model import DENSE, MODELS

pytestmark = [
    pytest.mark.usefixtures("double_by_default"),
    pytest.mark.draws_globally,  # BoTorch's optimizers and samplers do
    pytest.mark.filterwarnings("ignore"),  # BoTorch's, of all its acquisition functions
]

OF_OTHER_MODELS = ("qBayesianActiveLearningByDisagreement", "AnalyticExpectedUtilityOfBestOption")
"""Fully Bayesian ones, and PairwiseGP: not SingleTaskGP either."""

KNOWN_NOISE = ("NoisyExpectedImprovement", "LogNoisyExpectedImprovement")
PERTURBED = (
    "ExpectationPosteriorTransform",
    "VaR",
    "CVaR",
    "WorstCase",
    "Expectation",
    "MVaR",
)
PAGE = Path(__file__).parents[2] / "experiments" / "docs" / "acquisitions.md"


@pytest.mark.parametrize("name", [name for name in CASES if name not in OF_OTHER_MODELS])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.combinations
def test_maximized_or_refused(model, name):
    expected = "yes"
    if model not in DENSE:
        expected = {
            **dict.fromkeys(KNOWN_NOISE, "refused"),
            **dict.fromkeys(PERTURBED, "no option"),
        }
        expected = expected.get(name, "yes")
    result = outcome(name, model)
    if name in NEEDS_PATHS:
        assert result.split(":")[0] in ("yes", "refused"), result
    else:
        assert result.split(":")[0] == expected, result


def test_none_is_missing():
    """Neither among the cases nor on the page that ``benchmarks/acquisitions.py`` writes."""
    modules = pkgutil.walk_packages(botorch.acquisition.__path__, "botorch.acquisition.")
    names = {
        name
        for module in modules
        for name, kind in vars(importlib.import_module(module.name)).items()
        if inspect.isclass(kind)
        and issubclass(kind, AcquisitionFunction)
        and kind.__module__ == module.name
        and not inspect.isabstract(kind)
    }
    assert names <= {name.split(",")[0] for name in CASES}
    page = PAGE.read_text()
    assert [name for name in CASES if f"`{name}`" not in page] == []
