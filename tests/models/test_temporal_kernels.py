"""Dense models with other temporal kernels than one decay, beside kernels made by hand."""

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.test_utils.mock import mock_optimize
from gpytorch.kernels import AdditiveKernel, MaternKernel, ProductKernel, RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from tvbo.kernels import (
    ConstantTemporalKernel,
    SeasonalKernel,
    TemporalDecayKernel,
    TemporalMaternKernel,
)
from tvbo.models import ContextualGP, TimeVaryingGP

pytestmark = pytest.mark.usefixtures("double_by_default")


@pytest.fixture
def data(generator):
    X = torch.rand(12, 3, generator=generator)
    X[:, 2] = 20 * X[:, 2].sort().values
    Y = torch.sin(4 * X[:, :1]) + torch.randn(12, 1, generator=generator) / 5
    return X, Y


def by_hand(data, covar_module):
    return SingleTaskGP(*data, torch.full_like(data[1], 0.04), covar_module=covar_module)


def same(model, reference, data, generator):
    X = torch.rand(5, data[0].shape[-1], generator=generator) * 2
    one, two = model.posterior(X), reference.posterior(X)
    torch.testing.assert_close(one.mean, two.mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(one.covariance_matrix, two.covariance_matrix, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        TemporalMaternKernel,
        lambda **kwargs: SeasonalKernel(period=6.0, **kwargs),
        ConstantTemporalKernel,
    ],
)
def test_one_temporal_kernel_is_a_factor(data, generator, make):
    covar_module = RBFKernel()
    model = TimeVaryingGP(
        *data, torch.full_like(data[1], 0.04), covar_module=covar_module, temporal_kernel=make()
    )
    reference = by_hand(data, RBFKernel(active_dims=[0, 1]) * make(active_dims=[2]))
    same(model, reference, data, generator)
    assert isinstance(model.temporal_kernel, type(make()))
    assert model.forgetting_rate is None


def test_a_decay_given_as_a_kernel_is_the_default(data, generator):
    kernel = TemporalDecayKernel()
    kernel.forgetting_rate = 0.2
    Yvar = torch.full_like(data[1], 0.04)
    model = TimeVaryingGP(*data, Yvar, temporal_kernel=kernel)
    same(model, TimeVaryingGP(*data, Yvar, forgetting_rate=0.2), data, generator)
    assert model.forgetting_rate.item() == pytest.approx(0.2)
    assert model.temporal_kernel is kernel
    # Alone in a list it needs no amplitude.
    listed = TimeVaryingGP(*data, Yvar, temporal_kernel=[kernel])
    assert {*dict(listed.named_parameters())} == {*dict(model.named_parameters())}


def test_several_temporal_kernels_share_one_kernel_with_amplitudes(data, generator):
    Yvar = torch.full_like(data[1], 0.04)
    temporal = [TemporalDecayKernel(), TemporalMaternKernel(nu=2.5)]
    model = TimeVaryingGP(*data, Yvar, covar_module=RBFKernel(), temporal_kernel=temporal)
    amplitudes = [part.outputscale.item() for part in model.covar_module.kernels[1].kernels]
    assert amplitudes == [0.5, 0.5]
    model.covar_module.kernels[1].kernels[0].outputscale = 0.3
    model.covar_module.kernels[1].kernels[1].outputscale = 0.9
    parts = [
        ScaleKernel(RBFKernel(active_dims=[0, 1]) * TemporalDecayKernel(active_dims=[2])),
        ScaleKernel(RBFKernel(active_dims=[0, 1]) * TemporalMaternKernel(nu=2.5, active_dims=[2])),
    ]
    parts[0].outputscale, parts[1].outputscale = 0.3, 0.9
    same(model, by_hand(data, AdditiveKernel(*parts)), data, generator)
    assert model.temporal_kernels == tuple(temporal)
    assert model.temporal_kernel is None
    assert model.forgetting_rate is None


def test_several_temporal_kernels_with_a_kernel_each(data, generator):
    Yvar = torch.full_like(data[1], 0.04)
    temporal = [TemporalDecayKernel(), SeasonalKernel(period=6.0), ConstantTemporalKernel()]
    kernels = [RBFKernel(), ScaleKernel(MaternKernel()), MaternKernel(nu=1.5)]
    model = TimeVaryingGP(*data, Yvar, covar_module=kernels, temporal_kernel=temporal)
    reference = AdditiveKernel(
        ProductKernel(RBFKernel(active_dims=[0, 1]), TemporalDecayKernel(active_dims=[2])),
        ProductKernel(
            ScaleKernel(MaternKernel(active_dims=[0, 1])),
            SeasonalKernel(period=6.0, active_dims=[2]),
        ),
        MaternKernel(nu=1.5, active_dims=[0, 1]),
    )
    same(model, by_hand(data, reference), data, generator)
    assert model.temporal_kernels == tuple(temporal)


def test_fit_learns_all_that_requires_gradients(data):
    model = TimeVaryingGP(
        *data,
        covar_module=RBFKernel(),
        temporal_kernel=[
            TemporalMaternKernel(),
            SeasonalKernel(period=6.0),
            TemporalDecayKernel(),
        ],
    )
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    fit_gpytorch_mll(
        ExactMarginalLogLikelihood(model.likelihood, model),
        optimizer_kwargs={"options": {"maxiter": 5}},
        max_attempts=1,
        warning_handler=lambda warning: True,
    )
    changed = {name for name, value in model.named_parameters() if not value.equal(before[name])}
    fixed = {name for name in before if "raw_period" in name}
    assert len(fixed) == 1
    assert changed == {*before} - fixed


@mock_optimize
@pytest.mark.parametrize(("batch", "several"), [((), True), ((2,), False)])
def test_batches_and_outputs(data, batch, several):
    X, Y = data
    X, Y = X.expand(*batch, -1, -1), torch.cat([Y, Y**2], dim=-1).expand(*batch, -1, -1)
    temporal = TemporalMaternKernel(batch_shape=torch.Size([*batch, 2]))
    model = TimeVaryingGP(
        X, Y, temporal_kernel=[temporal, ConstantTemporalKernel()] if several else temporal
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    posterior = model.posterior(X[..., :3, :])
    assert posterior.mean.shape == (*batch, 3, 2)
    part = model.subset_output([1]).posterior(X[..., :3, :])
    torch.testing.assert_close(part.mean.squeeze(-1), posterior.mean[..., 1])


def test_contextual_model(data, generator):
    Yvar = torch.full_like(data[1], 0.04)
    temporal = [TemporalDecayKernel(), ConstantTemporalKernel()]
    model = ContextualGP(
        *data,
        Yvar,
        context_features=[1],
        time_feature=2,
        action_kernel=RBFKernel(),
        context_kernel=MaternKernel(),
        temporal_kernel=temporal,
    )
    columns = RBFKernel(active_dims=[0]) * MaternKernel(active_dims=[1])
    half = (
        ScaleKernel(TemporalDecayKernel(active_dims=[2])),
        ScaleKernel(ConstantTemporalKernel(active_dims=[2])),
    )
    for each in half:
        each.outputscale = 0.5
    same(model, by_hand(data, columns * (half[0] + half[1])), data, generator)
    assert model.context_action_kernel.structure == "product"
    with pytest.raises(ValueError):
        ContextualGP(*data, context_features=[1], temporal_kernel=TemporalDecayKernel())
