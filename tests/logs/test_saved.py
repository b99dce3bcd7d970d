import json
import math
from dataclasses import replace

import pytest
import torch
from botorch.models.kernels import CategoricalKernel
from gpytorch.constraints import Interval, Positive
from gpytorch.kernels import (
    CosineKernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    RBFKernel,
    ScaleKernel,
)

from tvbo import recipes
from tvbo.kernels import (
    ConstantTemporalKernel,
    ContextActionKernel,
    CovarianceMatrixKernel,
    IdentityKernel,
    SeasonalKernel,
    TaskKernel,
    TemporalDecayKernel,
    TemporalMaternKernel,
)
from tvbo.logs import DriftFit, empirical_covariance, fit_drift
from tvbo.serialize import SerializationError, kernel_from_data, kernel_to_data
from tvbo.test_functions.drifting_gp import drifting_gp_log

pytestmark = pytest.mark.usefixtures("double_by_default")


def kernels():
    yield ScaleKernel(RBFKernel(ard_num_dims=2, active_dims=[0, 2]))
    yield MaternKernel(nu=1.5, ard_num_dims=3) * LinearKernel()
    yield MaternKernel(nu=1.5, active_dims=[1]) + PeriodicKernel(active_dims=[2])
    yield ScaleKernel(RBFKernel(lengthscale_constraint=Interval(0.1, 0.3)))
    yield ScaleKernel(
        RBFKernel(), outputscale_constraint=Positive(transform=torch.exp, inv_transform=torch.log)
    )
    yield ContextActionKernel(
        RBFKernel(), MaternKernel(), "both", action_features=[1], context_features=[0, 2]
    )
    yield CategoricalKernel(ard_num_dims=1, active_dims=[2]) * IdentityKernel(active_dims=[0])
    yield TaskKernel(3, rank=2, active_dims=[2])
    yield ScaleKernel(CovarianceMatrixKernel(empirical_covariance(torch.eye(4)), active_dims=[2]))


def temporal_kernels():
    yield ConstantTemporalKernel()
    yield SeasonalKernel(period=24.0, num_harmonics=2)
    yield TemporalDecayKernel()
    yield TemporalMaternKernel(nu=2.5)


@pytest.mark.parametrize("kernel", temporal_kernels())
def test_a_temporal_kernel_is_the_same_after_json(kernel, generator):
    kernel = kernel.double()
    for parameter in kernel.parameters():
        parameter.data.uniform_(1e-3, 0.9, generator=generator)
    again = kernel_from_data(json.loads(json.dumps(kernel_to_data(kernel))))
    lags = torch.arange(5.0)
    assert torch.equal(again.correlation(lags), kernel.correlation(lags))


@pytest.mark.parametrize("kernel", kernels())
def test_a_kernel_is_the_same_after_json(kernel, generator):
    kernel = kernel.double()
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter.add_(0.1 * torch.rand(parameter.shape, generator=generator))
    next(kernel.parameters()).requires_grad_(False) if list(kernel.parameters()) else None
    again = kernel_from_data(json.loads(json.dumps(kernel_to_data(kernel))))
    X = torch.rand(6, 3, generator=generator)
    X[:, 2] = torch.tensor([0, 1, 2, 2, 1, 0])
    torch.testing.assert_close(again(X).to_dense(), kernel(X).to_dense(), rtol=0, atol=0)
    pairs = zip(again.named_parameters(), kernel.named_parameters(), strict=True)
    assert all(a[0] == b[0] and a[1].requires_grad == b[1].requires_grad for a, b in pairs)
    for a, b in zip(again.constraints(), kernel.constraints(), strict=True):
        assert type(a) is type(b)
        raw = torch.tensor(0.3)
        assert torch.equal(a.transform(raw), b.transform(raw))


def test_a_kernel_of_another_class_is_not_saved():
    with pytest.raises(SerializationError, match="CosineKernel"):
        kernel_to_data(ScaleKernel(CosineKernel()))


@pytest.fixture(scope="module")
def fit():
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(50, 2, generator=generator, dtype=torch.float64)
    X[:, 1] = torch.arange(50)
    kernel = RBFKernel().double()
    Y = drifting_gp_log(X, kernel, 0.05, 0.01, generator=generator)
    Y[7] += 100.0
    return fit_drift(X, Y, num_starts=1, time_unit="min")


def test_a_fit_is_the_same_after_a_file(fit, tmp_path):
    fit.save(tmp_path / "fit.json")
    again = DriftFit.load(tmp_path / "fit.json")
    assert again.to_dict() == fit.to_dict()
    assert [row for row, _ in again.outliers] == [7]
    X = torch.rand(5, 1, generator=torch.Generator().manual_seed(1))
    assert torch.equal(again.covar_module(X).to_dense(), fit.covar_module(X).to_dense())
    forever = replace(fit, half_life=math.inf)
    forever.save(tmp_path / "forever.json")
    assert DriftFit.load(tmp_path / "forever.json").half_life == math.inf


def test_settings_make_a_tuner(fit, tmp_path):
    fit.save(tmp_path / "fit.json")
    asked = [
        recipes.tv_gp_ucb(bounds=[(0.0, 1.0)], **source.settings()).ask(t=50.0).X
        for source in (fit, DriftFit.load(tmp_path / "fit.json"))
    ]
    assert torch.equal(*asked)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "tvbo.PanelFit"},
        {"version": 6, "tvbo": "9.1"},
        {"fit": {}},
    ],
)
def test_another_file_is_refused_in_words(fit, change, tmp_path):
    fit.save(tmp_path / "fit.json")
    content = json.loads((tmp_path / "fit.json").read_text())
    (tmp_path / "other.json").write_text(json.dumps({**content, **change}))
    with pytest.raises(SerializationError):
        DriftFit.load(tmp_path / "other.json")


@pytest.mark.parametrize("content", [b"\x80\x04.", b"[" * 100_000, b'{"format": NaN}', b"1e999"])
def test_no_json_is_refused(content, tmp_path):
    (tmp_path / "fit.json").write_bytes(content)
    with pytest.raises(SerializationError):
        DriftFit.load(tmp_path / "fit.json")


ODD = [None, -1.0, 2**62, 10**400, math.nan, math.inf, "word", [], {}, [[[]]]]


@pytest.mark.parametrize(
    "place",
    [
        ("fit", "forgetting_rate"),
        ("fit", "profile", 0),
        ("fit", "messages"),
        ("fit", "n_observations"),
        ("fit", "covar_module", "arguments", "base_kernel", "arguments", "ard_num_dims"),
        ("fit", "covar_module", "arguments", "base_kernel"),
        ("fit", "covar_module", "class"),
        ("fit", "covar_module", "parameters", "raw_outputscale", "raw"),
        ("fit", "covar_module", "parameters", "raw_outputscale", "constraint"),
    ],
    ids=lambda place: place[-1],
)
def test_odd_values_are_refused(fit, place, tmp_path):
    """Or are of the right type: then the fit that they make can be used and saved."""
    fit.save(tmp_path / "fit.json")
    for odd in ODD:
        content = json.loads((tmp_path / "fit.json").read_text())
        inner = content
        for name in place[:-1]:
            inner = inner[name]
        inner[place[-1]] = odd
        (tmp_path / "odd.json").write_text(json.dumps(content))
        try:
            loaded = DriftFit.load(tmp_path / "odd.json")
        except SerializationError:
            continue
        assert type(odd) in (int, float, list, type(None))
        loaded.save(tmp_path / "again.json")
        assert torch.isfinite(loaded.covar_module(torch.ones(1, 1)).to_dense()).all()
