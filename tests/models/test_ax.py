"""Ax builds, fits and optimizes a ContextualGP by itself (``pip install botorch-tvbo[ax]``)."""

import pytest
import torch
from botorch.models.transforms import Normalize
from botorch.utils.datasets import SupervisedDataset
from gpytorch.kernels import MaternKernel

from tvbo.kernels import CovarianceMatrixKernel
from tvbo.models import ContextualGP, TimeVaryingGP

ax = pytest.importorskip("ax")

from ax.core.search_space import SearchSpaceDigest  # noqa: E402
from ax.generators.torch.botorch_modular.generator import BoTorchGenerator  # noqa: E402
from ax.generators.torch.botorch_modular.surrogate import SurrogateSpec  # noqa: E402
from ax.generators.torch.botorch_modular.utils import ModelConfig  # noqa: E402
from ax.generators.torch_base import TorchOptConfig  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("double_by_default"),
    pytest.mark.draws_globally,  # BoTorch's optimizers do
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning"),
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.OptimizationWarning"),
]

NAMES = ["s1", "s2", "z", "t"]
DIGEST = SearchSpaceDigest(
    feature_names=NAMES, bounds=[(0.0, 2.0), (0.0, 1.0), (0.0, 4.0), (0.0, 40.0)]
)
# Ax holds fixed features to the bounds, so that those of time must reach to the horizon.
FIXED = {2: 3.0, 3: 21.0}
CONTEXT_AND_TIME = {"context_features": [2], "time_feature": 3}


def data(tasks=None):
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(20, 4, generator=generator) * torch.tensor([2.0, 1.0, 4.0, 0.0])
    X[:, 3] = torch.arange(20)
    if tasks:
        X[:, 2] = torch.arange(20) % tasks
    # The best first action is half the context.
    Y = -((X[:, :1] - X[:, 2:3] / 2) ** 2) - (X[:, 1:2] - 0.5) ** 2
    return SupervisedDataset(
        X, Y, Yvar=torch.full_like(Y, 1e-3), feature_names=NAMES, outcome_names=["y"]
    )


def fitted(dataset, model_class=ContextualGP, options=CONTEXT_AND_TIME, **config):
    model_config = ModelConfig(botorch_model_class=model_class, model_options=options, **config)
    generator = BoTorchGenerator(surrogate_spec=SurrogateSpec(model_configs=[model_config]))
    generator.fit(datasets=[dataset], search_space_digest=DIGEST)
    return generator


def generate(generator, n=1, fixed=None):
    return generator.gen(
        n=n,
        search_space_digest=DIGEST,
        torch_opt_config=TorchOptConfig(
            objective_weights=torch.ones(1, 1),
            fixed_features=FIXED if fixed is None else fixed,
            model_gen_options={"optimizer_kwargs": {"num_restarts": 2, "raw_samples": 16}},
        ),
    ).points


LEAVE_TIME_ALONE = {
    "input_transform_classes": [Normalize],
    "input_transform_options": {"Normalize": {"indices": [0, 1, 2]}},
}
CONFIGS = {
    "no transform": {"input_transform_classes": None},
    "as Ax does by itself": {},
    "time left alone": LEAVE_TIME_ALONE,
}


@pytest.mark.parametrize("name", CONFIGS)
def test_fits_and_generates_with_context_and_time_held_fixed(name):
    generator = fitted(data(), **CONFIGS[name])
    model = generator.surrogate.model
    assert isinstance(model, ContextualGP)
    assert 0 < model.forgetting_rate.item() < 1
    assert hasattr(model, "input_transform") == (name != "no transform")
    points = generate(generator, n=2)
    assert points.shape == (2, 4)
    assert points[:, 2:].tolist() == [[3.0, 21.0]] * 2
    assert ((points[:, :2] >= 0) & (points[:, :2] <= torch.tensor([2.0, 1.0]))).all()
    # The context counts: the best first action is 1.5 here, and 0.5 in the other.
    assert points[0, 0] > 1
    assert generate(generator, fixed={2: 1.0, 3: 21.0})[0, 0] < 1
    mean, covariance = generator.predict(points)
    expected = model.posterior(points)
    torch.testing.assert_close(mean, expected.mean)
    torch.testing.assert_close(covariance.flatten(), expected.variance.flatten())


@pytest.mark.parametrize("structure", ["product", "additive", "both"])
def test_model_options_reach_the_model(structure):
    options = {**CONTEXT_AND_TIME, "structure": structure, "forgetting_rate": 0.02}
    model = fitted(data(), options=options, **LEAVE_TIME_ALONE).surrogate.model
    assert model.context_action_kernel.structure == structure
    assert model.forgetting_rate.item() == pytest.approx(0.02)
    assert model.context_action_kernel.context_kernel.base_kernel is not None


def test_kernels_may_be_given_and_are_not_shared_between_fits():
    matrix = torch.eye(3) + 0.5
    kernel = MaternKernel(ard_num_dims=2)
    before = kernel.raw_lengthscale.detach().clone()
    options = {
        **CONTEXT_AND_TIME,
        "action_kernel": kernel,
        "context_kernel": CovarianceMatrixKernel(matrix),
        "forgetting_rate": 0.02,
    }
    generator = fitted(data(tasks=3), options=options, input_transform_classes=None)
    kernels = generator.surrogate.model.context_action_kernel
    assert isinstance(kernels.action_kernel.base_kernel, MaternKernel)
    assert torch.equal(kernels.context_kernel.base_kernel.covar_matrix, matrix)
    # Ax builds a model for each fit and each fold: one must not train the next.
    assert torch.equal(kernel.raw_lengthscale, before)
    points = generate(generator, fixed={2: 1.0, 3: 21.0})
    assert points[0, 2:].tolist() == [1.0, 21.0]


def test_a_misspelt_option_is_refused():
    with pytest.raises(TypeError, match="contexts_features"):
        fitted(data(), options={"contexts_features": [2]}, input_transform_classes=None)


def test_a_time_varying_gp_as_well():
    generator = fitted(data(), TimeVaryingGP, {"time_feature": 3})
    assert isinstance(generator.surrogate.model, TimeVaryingGP)
    assert generate(generator, fixed={3: 21.0})[0, 3] == 21.0
