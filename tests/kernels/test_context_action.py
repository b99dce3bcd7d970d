import math

import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from gpytorch.kernels import (
    ConstantKernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    RBFKernel,
    ScaleKernel,
)

from tvbo.kernels import (
    ContextActionKernel,
    CovarianceMatrixKernel,
    IdentityKernel,
    TaskKernel,
)

pytestmark = pytest.mark.usefixtures("double_by_default")

STRUCTURES = ["product", "additive", "both"]
SCALES = (0.7, 1.3, 0.4)
MATRIX = torch.tensor([[1.0, 0.6, -0.2], [0.6, 1.5, 0.1], [-0.2, 0.1, 0.8]], dtype=torch.float64)
FACTOR = torch.tensor([[0.9, 0.1], [-0.4, 0.5], [0.3, 1.1]], dtype=torch.float64)
VARIANCES = torch.tensor([0.2, 0.05, 0.7], dtype=torch.float64)
SIZE = 7


def squared_exponential(**kwargs):
    kernel = RBFKernel(ard_num_dims=2, **kwargs)
    kernel.lengthscale = [0.4, 0.7]
    return kernel


def matern(**kwargs):
    kernel = MaternKernel(nu=2.5, ard_num_dims=2, **kwargs)
    kernel.lengthscale = [0.4, 0.7]
    return kernel


def linear(**kwargs):
    kernel = LinearKernel(**kwargs)
    kernel.variance = 0.6
    return kernel


def periodic(**kwargs):
    kernel = PeriodicKernel(**kwargs)
    kernel.period_length = 0.5
    kernel.lengthscale = 1.2
    return kernel


def task(**kwargs):
    kernel = TaskKernel(3, rank=2, **kwargs)
    kernel.initialize(covar_factor=FACTOR.expand_as(kernel.covar_factor), var=VARIANCES)
    return kernel


def scaled_distance(a, b):
    return math.sqrt(sum(((x - y) / s) ** 2 for x, y, s in zip(a, b, (0.4, 0.7), strict=True)))


def matern_formula(a, b):
    r = math.sqrt(5) * scaled_distance(a, b)
    return (1 + r + r**2 / 3) * math.exp(-r)


def task_formula(a, b):
    i, j = int(a[0]), int(b[0])
    shared = sum((FACTOR[i, r] * FACTOR[j, r]).item() for r in range(2))
    return shared + (VARIANCES[i].item() if i == j else 0.0)


# Name: a kernel, its formula over two rows of floats, and what its columns hold.
KERNELS = {
    "SE": (
        squared_exponential,
        lambda a, b: math.exp(-0.5 * scaled_distance(a, b) ** 2),
        "real",
    ),
    "Matern": (matern, matern_formula, "real"),
    "linear": (
        linear,
        lambda a, b: 0.6 * sum(x * y for x, y in zip(a, b, strict=True)),
        "real",
    ),
    "periodic": (
        periodic,
        lambda a, b: math.exp(
            -2 / 1.2 * sum(math.sin(math.pi * (x - y) / 0.5) ** 2 for x, y in zip(a, b))  # noqa: B905
        ),
        "real",
    ),
    "identity": (
        IdentityKernel,
        lambda a, b: float(all(x == y for x, y in zip(a, b, strict=True))),
        "few",
    ),
    "matrix": (
        lambda **kwargs: CovarianceMatrixKernel(MATRIX, **kwargs),
        lambda a, b: MATRIX[int(a[0]), int(b[0])].item(),
        "index",
    ),
    "task": (task, task_formula, "index"),
}


def columns(kind, n, generator):
    if kind == "real":
        return torch.rand(n, 2, generator=generator)
    if kind == "few":
        return torch.randint(2, (n, 2), generator=generator) / 2.0
    return torch.randint(3, (n, 1), generator=generator).double()


def composed(action, context, structure):
    if structure == "product":
        return action * context
    if structure == "additive":
        return action + context
    a, b, c = SCALES
    return a * action + b * context + c * action * context


def make(structure, **kwargs):
    """Actions in columns 0 and 1, one context column."""
    kernel = ContextActionKernel(
        squared_exponential(active_dims=[0, 1], **kwargs),
        RBFKernel(active_dims=[2], **kwargs),
        structure,
    )
    if structure == "both":
        kernel.outputscales = SCALES
    return kernel


@pytest.mark.parametrize("action", KERNELS)
@pytest.mark.parametrize("context", KERNELS)
@pytest.mark.combinations
def test_equals_the_double_loop(action, context, generator):
    make_action, formula_action, kind_action = KERNELS[action]
    make_context, formula_context, kind_context = KERNELS[context]
    S = columns(kind_action, 2 * SIZE, generator)
    Z = columns(kind_context, 2 * SIZE, generator)
    # Context first: columns are found by number, not by place.
    X1, X2 = torch.cat([Z, S], dim=-1).split(SIZE)
    width = Z.shape[-1]
    for structure in STRUCTURES:
        kernel = ContextActionKernel(
            make_action(),
            make_context(),
            structure,
            action_features=range(width, width + S.shape[-1]),
            context_features=range(width),
        )
        if structure == "both":
            kernel.outputscales = SCALES
        for one, other in ((X1, X1), (X1, X2)):
            covar = kernel(one, other).to_dense()
            expected = torch.empty(SIZE, SIZE)
            for i, p in enumerate(one.tolist()):
                for j, q in enumerate(other.tolist()):
                    expected[i, j] = composed(
                        formula_action(p[width:], q[width:]),
                        formula_context(p[:width], q[:width]),
                        structure,
                    )
            torch.testing.assert_close(covar, expected, rtol=0, atol=1e-12)
            diagonal = kernel(one, other, diag=True)
            torch.testing.assert_close(diagonal, expected.diagonal(), rtol=0, atol=1e-12)
        assert torch.linalg.eigvalsh(kernel(X1).to_dense()).min() > -1e-12


@pytest.mark.parametrize(("scales", "limit"), [((0, 0, 1), "product"), ((1, 1, 0), "additive")])
def test_both_holds_the_others_as_limits(generator, scales, limit):
    X = torch.rand(SIZE, 3, generator=generator)
    kernel = make("both")
    kernel.outputscales = scales
    expected = make(limit)(X).to_dense()
    torch.testing.assert_close(kernel(X).to_dense(), expected, rtol=0, atol=1e-12)


def test_a_constant_context_kernel_leaves_the_action_kernel(generator):
    X = torch.rand(SIZE, 3, generator=generator)
    constant = ConstantKernel(active_dims=[2])
    constant.constant = torch.tensor(1.0)
    kernel = ContextActionKernel(squared_exponential(active_dims=[0, 1]), constant)
    expected = squared_exponential()(X[:, :2]).to_dense()
    torch.testing.assert_close(kernel(X).to_dense(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("context", ["SE", "linear", "identity", "matrix", "task"])
def test_one_context_is_no_context(structure, context, generator):
    make_context, formula, kind = KERNELS[context]
    z = columns(kind, 1, generator)
    S = torch.rand(SIZE, 2, generator=generator)
    X = torch.cat([S, z.expand(SIZE, -1)], dim=-1)
    kernel = ContextActionKernel(
        squared_exponential(),
        make_context(),
        structure,
        action_features=[0, 1],
        context_features=range(2, X.shape[-1]),
    )
    if structure == "both":
        kernel.outputscales = SCALES
    of_context = formula(z[0].tolist(), z[0].tolist())
    expected = composed(squared_exponential()(S).to_dense(), of_context, structure)
    torch.testing.assert_close(kernel(X).to_dense(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_kernels_without_parameters_have_the_precision_of_what_they_hold(default):
    torch.set_default_dtype(default)  # the fixture resets it
    X = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    kernel = ContextActionKernel(
        IdentityKernel(), CovarianceMatrixKernel(MATRIX), action_features=[0], context_features=[1]
    )
    assert kernel(X).to_dense().dtype == torch.float64
    assert kernel.dtype == torch.float64
    assert kernel(X).dtype == torch.float64


def test_active_dims_and_features_say_the_same(generator):
    X = torch.rand(SIZE, 4, generator=generator)
    by_dims = ContextActionKernel(
        squared_exponential(active_dims=[3, 1]), RBFKernel(active_dims=[0, 2])
    )
    by_features = ContextActionKernel(
        squared_exponential(), RBFKernel(), action_features=[3, 1], context_features=[0, 2]
    )
    mixed = ContextActionKernel(
        squared_exponential(), RBFKernel(active_dims=[0, 2]), action_features=[3, 1]
    )
    expected = by_dims(X).to_dense()
    assert torch.equal(by_features(X).to_dense(), expected)
    assert torch.equal(mixed(X).to_dense(), expected)


def test_active_dims_inside_a_part(generator):
    X = torch.rand(SIZE, 4, generator=generator)
    action = ScaleKernel(RBFKernel(active_dims=[0]) + MaternKernel(active_dims=[2]))
    kernel = ContextActionKernel(action, RBFKernel(active_dims=[1, 3]))
    expected = action.outputscale * (
        RBFKernel()(X[:, [0]]).to_dense() + MaternKernel()(X[:, [2]]).to_dense()
    )
    expected = expected * RBFKernel()(X[:, [1, 3]]).to_dense()
    torch.testing.assert_close(kernel(X).to_dense(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("column", [0, 2])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_inputs_must_be_finite(structure, column, bad):
    kernel = ContextActionKernel(
        RBFKernel(), RBFKernel(), structure, action_features=[0, 1], context_features=[2]
    )
    X = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    X[2, column] = bad
    with pytest.raises(InputDataError):
        kernel(X).to_dense()


@pytest.mark.parametrize("scales", [(1.0, -0.1, 1.0), (1.0, 1.0, math.nan), (1.0, 1.0)])
def test_outputscales_are_three_that_are_not_negative(scales):
    with pytest.raises((ValueError, InputDataError)):
        make("both").outputscales = scales
    with pytest.raises(UnsupportedError):
        make("product").outputscales = SCALES


FIRST, SECOND = RBFKernel(active_dims=[0, 1]), RBFKernel(active_dims=[1, 2])


@pytest.mark.parametrize(
    ("kernels", "options"),
    [
        ((FIRST, RBFKernel(active_dims=[2])), {"structure": "sum"}),
        ((FIRST, SECOND), {}),
        ((ScaleKernel(RBFKernel(active_dims=[0]) + RBFKernel(active_dims=[1])), SECOND), {}),
        ((RBFKernel(), SECOND), {}),
        ((RBFKernel(), RBFKernel()), {"action_features": [0, 1], "context_features": [1, 2]}),
        ((RBFKernel(), RBFKernel()), {"action_features": [0], "context_features": [-1]}),
        ((RBFKernel(), RBFKernel()), {"action_features": [], "context_features": [1]}),
    ],
)
def test_columns_and_structures_that_are_refused(kernels, options):
    with pytest.raises(ValueError):
        ContextActionKernel(*kernels, **options)
