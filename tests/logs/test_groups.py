import json
import math
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import RBFKernel

from tvbo.logs import fit_drift, fit_drift_by, fit_panel, fit_panels
from tvbo.logs.groups import GroupedDriftFit
from tvbo.test_functions.drifting_gp import drifting_gp_log

pytestmark = pytest.mark.usefixtures("double_by_default")


OPTIONS = {
    "covar_module": RBFKernel().double().requires_grad_(False),
    "mean": 0.0,
    "num_starts": 1,
}


def draw(rate, seed, n=50):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, generator=generator)
    X[:, 1] = torch.arange(n)
    kernel = RBFKernel().double()
    return X, drifting_gp_log(X, kernel, rate, 0.01, generator=generator)


@pytest.fixture(scope="module")
def log():
    """Rows of two machines in turn, of which the mill drifts fast and has an outlier."""
    (slow_X, slow_Y), (fast_X, fast_Y) = draw(0.01, 0), draw(0.5, 1)
    fast_Y[20] += 100.0
    X = torch.stack([slow_X, fast_X], dim=1).reshape(-1, 2)
    Y = torch.stack([slow_Y, fast_Y], dim=1).reshape(-1, 1)
    return X, Y, ["lathe", "mill"] * len(slow_X)


@pytest.fixture(scope="module")
def fit(log):
    return fit_drift_by(*log, **OPTIONS)


def test_each_group_is_fitted_alone(fit, log):
    X, Y, groups = log
    lathe = torch.tensor([group == "lathe" for group in groups])
    alone = fit_drift(X[lathe], Y[lathe], **OPTIONS)
    assert fit.groups["lathe"].to_dict() == alone.to_dict()
    assert list(fit.groups) == ["lathe", "mill"]


def test_together_the_groups_are_segments_with_one_rate(fit, log):
    X, Y, groups = log
    numbers = torch.tensor([float(group == "mill") for group in groups])
    whole = fit_drift(X, Y, segments=numbers, **OPTIONS)
    assert fit.together.to_dict() == whole.to_dict()
    rates = [part.forgetting_rate for part in fit.groups.values()]
    assert min(rates) < fit.together.forgetting_rate < max(rates)


def test_tables_and_lists_are_rows_and_labels(fit, log):
    X, Y, groups = log
    given = pd.DataFrame(X.numpy()), Y.tolist(), pd.Series(groups)
    assert fit_drift_by(*given, **OPTIONS).to_dict() == fit.to_dict()
    whole = fit_drift(X, Y, segments=[int(group == "mill") for group in groups], **OPTIONS)
    assert whole.to_dict() == fit.together.to_dict()


def test_an_executor_gives_the_same(fit, log):
    with ThreadPoolExecutor(2) as executor:
        assert fit_drift_by(*log, executor=executor, **OPTIONS).to_dict() == fit.to_dict()


def test_outliers_are_named_by_their_row_of_the_whole_log(fit):
    assert [row for row, _ in fit.groups["mill"].outliers] == [41]
    assert "row 41 (" in fit.groups["mill"].messages[0]
    assert 41 in [row for row, _ in fit.together.outliers]


def test_the_table_has_a_row_for_each_group_and_one_for_all(fit, tmp_path):
    frame = fit.to_frame()
    assert frame.group.tolist() == ["lathe", "mill", "all"]
    assert frame.rows.tolist()[:2] == [50, 49]
    assert frame.forgetting_rate[1] == fit.groups["mill"].forgetting_rate
    fit.to_json(tmp_path / "fit.json")
    saved = json.loads((tmp_path / "fit.json").read_text())
    assert saved["groups"]["mill"]["forgetting_rate"] == fit.groups["mill"].forgetting_rate
    assert saved["together"]["n_observations"] == fit.together.n_observations
    fit.save(tmp_path / "all.json")
    assert GroupedDriftFit.load(tmp_path / "all.json").to_dict() == fit.to_dict()


def test_a_group_with_one_row_is_refused_by_name(log):
    X, Y, groups = log
    with pytest.raises(InputDataError):
        fit_drift_by(X, Y, ["drill", *groups[1:]])


def test_a_group_that_cannot_be_fitted_is_named(log):
    X, Y, groups = log
    Y = torch.where(torch.tensor([g == "mill" for g in groups])[:, None], 0.0, Y)
    with pytest.raises(InputDataError):
        fit_drift_by(X, Y, groups, **OPTIONS)


def test_every_row_has_one_of_several_groups(log):
    X, Y, groups = log
    with pytest.raises(InputDataError):
        fit_drift_by(X, Y, ["a"] * len(X))
    with pytest.raises(BotorchTensorDimensionError):
        fit_drift_by(X, Y, groups[1:])
    with pytest.raises(InputDataError):
        fit_drift_by(X, Y, [math.nan, *groups[1:]])


def test_panels_are_fitted_by_name_on_an_executor():
    generator = torch.Generator().manual_seed(0)
    panels = {
        name: (torch.randn(20, 2, generator=generator).cumsum(0), torch.arange(20.0))
        for name in ("north", "south")
    }
    options = {"temporal_kernel": "exponential", "season": None}
    with ThreadPoolExecutor(2) as executor:
        fits = fit_panels(panels, executor=executor, **options)
    assert list(fits) == ["north", "south"]
    assert fits["south"].to_dict() == fit_panel(*panels["south"], **options).to_dict()
    with pytest.raises(InputDataError, match="south"):
        fit_panels(panels | {"south": (torch.ones(20, 2), torch.arange(20.0))}, **options)
