"""Random features: their products are the kernel's values, on average over draws of features."""

import math

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.sampling.pathwise import gen_kernel_features
from gpytorch.kernels import (
    AdditiveKernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    ProductKernel,
    ScaleKernel,
)
from reference import matern, rbf

from tvbo.kernels import (
    ConstantTemporalKernel,
    ContextActionKernel,
    IdentityKernel,
    SeasonalKernel,
    TaskKernel,
    TemporalDecayKernel,
    TemporalMaternKernel,
)
from tvbo.kernels.batch import ColumnKernel
from tvbo.kernels.features import has_features
from tvbo.randomness import seeded

pytestmark = pytest.mark.usefixtures("double_by_default")

DECAY, SMOOTH = TemporalDecayKernel, TemporalMaternKernel
ARD = torch.tensor([[0.4, 0.9]], dtype=torch.float64)


def scaled(kernel, variance):
    new = ScaleKernel(kernel).double()
    new.outputscale = torch.tensor(variance, dtype=torch.float64)
    return new


def context_action(structure):
    return ContextActionKernel(rbf(0.5), matern(0.8), structure, [0, 1], [2]).double()


# Over rows [two numbers | context | time].
KERNELS = {
    "decay": lambda: DECAY(active_dims=[3]),
    "Matern-3/2 in time": lambda: SMOOTH(1.5, active_dims=[3]),
    "Matern-5/2 in time": lambda: SMOOTH(2.5, active_dims=[3]),
    "season": lambda: SeasonalKernel(4.0, active_dims=[3]),
    "constant": lambda: ConstantTemporalKernel(active_dims=[3]),
    "product": lambda: rbf(ARD, ard_num_dims=2, active_dims=[0, 1]) * DECAY(active_dims=[3]),
    "product over the same columns": lambda: rbf(0.5, active_dims=[0]) * matern(active_dims=[0, 1]),
    "scaled inside": lambda: scaled(rbf(0.5, active_dims=[1]), 2.5) * SMOOTH(active_dims=[3]),
    "scaled outside": lambda: scaled(rbf(0.5, active_dims=[1]) * DECAY(active_dims=[3]), 2.5),
    "scaled columns": lambda: scaled(ColumnKernel(matern(0.8), [3, 1]), 0.3),
    "columns of columns": lambda: ColumnKernel(rbf(0.5, active_dims=[1]), [2, 0]),
    "sum": lambda: AdditiveKernel(
        rbf(0.5, active_dims=[0]) * DECAY(active_dims=[3]),
        matern(0.8, active_dims=[2]),
        scaled(SeasonalKernel(4.0, active_dims=[3]), 0.2),
    ),
    "sum in a product": lambda: ProductKernel(
        rbf(0.5, active_dims=[0]),
        AdditiveKernel(DECAY(active_dims=[3]), ConstantTemporalKernel(active_dims=[3])),
    ),
    "action times context": lambda: context_action("product"),
    "action and context": lambda: context_action("additive"),
    "both": lambda: context_action("both"),
}


def make_rows(generator, n=6):
    X = torch.rand(n, 4, generator=generator)
    X[:, 2] = torch.arange(n) % 3
    X[:, 3] *= 10
    return X


@pytest.mark.parametrize("make", KERNELS.values(), ids=KERNELS)
def test_their_mean_is_the_kernel(make, generator):
    """Each entry within five standard errors, over 100 draws of 64 features."""
    X, kernel = make_rows(generator), make().double()
    assert has_features(kernel)
    with seeded(generator), torch.no_grad():
        drawn = [gen_kernel_features(kernel, num_inputs=4, num_outputs=64) for _ in range(100)]
        features = torch.stack([each(X) for each in drawn])
        expected = kernel(X).to_dense()
    assert features.shape == (100, 6, 64)
    products = features @ features.mT
    error = products.mean(dim=0) - expected
    bound = 5 * products.std(dim=0) / math.sqrt(100) + 1e-9
    assert (error.abs() <= bound).all()


def test_the_variance_is_exact(generator):
    """Sines and cosines in pairs, whatever the frequencies."""
    X, kernel = make_rows(generator), KERNELS["scaled inside"]().double()
    with seeded(generator), torch.no_grad():
        features = gen_kernel_features(kernel, num_inputs=4, num_outputs=10)(X)
    torch.testing.assert_close(features.square().sum(dim=-1), torch.full((6,), 2.5))


def test_each_of_a_batch_has_its_own(generator):
    kernel = rbf(torch.tensor([[[0.2]], [[2.0]]]), batch_shape=torch.Size([2]), active_dims=[0])
    kernel = kernel * DECAY(batch_shape=torch.Size([2]), active_dims=[3]).double()
    X = make_rows(generator)
    with seeded(generator), torch.no_grad():
        drawn = gen_kernel_features(kernel, num_inputs=4, num_outputs=4096)
        features, expected = drawn(X), kernel(X).to_dense()
    assert drawn.num_outputs == 4096
    torch.testing.assert_close(features @ features.mT, expected, atol=0.1, rtol=0.0)


def test_a_rate_of_one_forgets_everything(generator):
    kernel = TemporalDecayKernel().double()
    kernel.raw_forgetting_rate_constraint.upper_bound.fill_(1.0)
    kernel.forgetting_rate = 1.0
    with seeded(generator), torch.no_grad():
        drawn = gen_kernel_features(kernel, num_inputs=1, num_outputs=4096)
        features = drawn(torch.tensor([[1.0], [2.0], [2.0]]))
    expected = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    torch.testing.assert_close(features @ features.mT, expected, atol=0.1, rtol=0.0)


@pytest.mark.parametrize(
    "kernel", [LinearKernel(), IdentityKernel(), PeriodicKernel(), TaskKernel(3)]
)
def test_kernels_without(kernel, generator):
    product = ProductKernel(TemporalDecayKernel(active_dims=[1]), kernel)
    assert not has_features(product)
    with seeded(generator), pytest.raises(NotImplementedError):
        gen_kernel_features(product, num_inputs=2, num_outputs=8)


def test_what_cannot_be_divided():
    kernel = KERNELS["sum"]()
    with pytest.raises(UnsupportedError, match="4"):
        gen_kernel_features(kernel, num_inputs=4, num_outputs=4)
    with pytest.raises(UnsupportedError, match="7"):
        gen_kernel_features(kernel, num_inputs=4, num_outputs=7)


def test_botorch_still_has_its_own_rules(generator):
    """Kernels for which it has one are left to it."""
    with seeded(generator):
        for kernel in (rbf(), MaternKernel(), ScaleKernel(rbf())):
            features = gen_kernel_features(kernel, num_inputs=2, num_outputs=8)
            assert type(features).__module__ == "botorch.sampling.pathwise.features.maps"
