import itertools
import math
import pickle
from copy import deepcopy

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
from torch import nn

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


def test_two_contexts_that_share_nothing_are_two_kernels(generator):
    S = torch.rand(SIZE, 2, generator=generator)
    z = torch.arange(SIZE).remainder(2).unsqueeze(-1)
    kernel = ContextActionKernel(
        squared_exponential(), IdentityKernel(), action_features=[0, 1], context_features=[2]
    )
    covar = kernel(torch.cat([S, z], dim=-1)).to_dense()
    assert (covar[z.flatten() == 0][:, z.flatten() == 1] == 0).all()


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("kernel_batch", [(), (2,)])
@pytest.mark.parametrize("input_batch", [(), (2,), (3, 2)])
def test_batches_of_kernels_and_of_inputs(structure, kernel_batch, input_batch, generator):
    kernel = make(structure, batch_shape=torch.Size(kernel_batch))
    if kernel_batch:
        kernel.context_kernel.lengthscale = torch.tensor([0.3, 0.9]).reshape(2, 1, 1)
        if structure == "both":
            kernel.outputscales = torch.tensor([[0.7, 1.3, 0.4], [0.1, 0.2, 2.0]])
    assert kernel.batch_shape == kernel_batch
    X1 = torch.rand(*input_batch, 4, 3, generator=generator)
    X2 = torch.rand(*input_batch, 5, 3, generator=generator)
    shape = torch.broadcast_shapes(kernel_batch, input_batch)
    lazy = kernel(X1, X2)
    covar = lazy.to_dense()
    assert lazy.shape == covar.shape == (*shape, 4, 5)
    assert kernel(X1, diag=True).shape == (*shape, 4)
    torch.testing.assert_close(
        kernel(X1, diag=True), kernel(X1).to_dense().diagonal(dim1=-2, dim2=-1)
    )
    for place in itertools.product(*map(range, shape)):
        single = make(structure)
        if kernel_batch:
            single.context_kernel.lengthscale = kernel.context_kernel.lengthscale[place[-1]]
            if structure == "both":
                single.outputscales = kernel.outputscales[place[-1]]
        at = place[-len(input_batch) :] if input_batch else ()
        expected = single(X1[at], X2[at]).to_dense()
        torch.testing.assert_close(covar[place], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("context", ["SE", "matrix", "task"])
def test_a_part_of_the_batch(structure, context, generator):
    make_context, _, kind = KERNELS[context]
    shape = torch.Size([2])
    action = RBFKernel(batch_shape=shape)
    action.lengthscale = torch.tensor([0.3, 0.9]).reshape(2, 1, 1)
    kernel = ContextActionKernel(
        action,
        # A context kernel that is one for all, and one for each.
        make_context(batch_shape=shape) if context == "SE" else make_context(),
        structure,
        action_features=[0, 1],
        context_features=[2, 3] if kind == "real" else [2],
    )
    if structure == "both":
        kernel.outputscales = torch.tensor([[0.7, 1.3, 0.4], [0.1, 0.2, 2.0]])
    X = torch.rand(2, SIZE, 4, generator=generator)
    if kind == "index":
        X[..., 2] = torch.arange(SIZE) % 3
    whole = kernel(X).to_dense()
    for b in range(2):
        part = kernel[b]
        assert part.batch_shape == ()
        torch.testing.assert_close(part(X[b]).to_dense(), whole[b], rtol=0, atol=1e-12)
        torch.testing.assert_close(kernel(X)[b].to_dense(), whole[b], rtol=0, atol=1e-12)
        assert part.state_dict().keys() == kernel.state_dict().keys()
    torch.testing.assert_close(kernel(X)[0, 2:4, 3:].to_dense(), whole[0, 2:4, 3:])


@pytest.mark.parametrize("structure", STRUCTURES)
def test_one_batched_part_makes_a_batch(structure, generator):
    action = squared_exponential(batch_shape=torch.Size([2]))
    kernel = ContextActionKernel(
        action,
        CovarianceMatrixKernel(MATRIX),
        structure,
        action_features=[0, 1],
        context_features=[2],
    )
    if structure == "both":
        assert kernel.outputscales.shape == (2, 3)
    X = torch.rand(SIZE, 3, generator=generator)
    X[:, 2] = torch.arange(SIZE) % 3
    assert kernel(X).shape == kernel(X).to_dense().shape == (2, SIZE, SIZE)
    one, two = kernel(X).to_dense()
    torch.testing.assert_close(one, two, rtol=0, atol=1e-13)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_is_kept(structure, dtype, generator):
    X = torch.rand(SIZE, 3, generator=generator).to(dtype)
    kernel = make(structure).to(dtype)
    assert kernel(X).dtype == kernel(X).to_dense().dtype == dtype
    assert kernel(X, diag=True).dtype == dtype


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


class Dense(nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, X):
        return self.kernel(X).to_dense()


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("context", ["SE", "linear", "periodic", "task"])
def test_gradient_in_every_parameter(structure, context, generator):
    make_context, _, kind = KERNELS[context]
    # Every task, or the gradient in one of them is zero.
    Z = torch.tensor([[0.0], [1.0], [2.0], [1.0]])
    if kind != "index":
        Z = columns(kind, 4, generator)
    X = torch.cat([torch.rand(4, 2, generator=generator), Z], dim=-1)
    kernel = ContextActionKernel(
        ScaleKernel(matern()),
        make_context(),
        structure,
        action_features=[0, 1],
        context_features=range(2, X.shape[-1]),
    )
    dense = Dense(kernel)
    names, values = zip(*dense.named_parameters(), strict=True)
    assert any("raw_outputscales" in name for name in names) == (structure == "both")
    values = [value.detach().clone().requires_grad_() for value in values]

    def covar(*values):
        return torch.func.functional_call(dense, dict(zip(names, values, strict=True)), (X,))

    assert torch.autograd.gradcheck(covar, values)
    for gradient in torch.autograd.grad(covar(*values).square().sum(), values):
        assert (gradient != 0).all()


@pytest.mark.parametrize("structure", STRUCTURES)
def test_gradient_in_the_inputs(structure, generator):
    X = torch.rand(4, 3, generator=generator, requires_grad=True)
    other = torch.rand(3, 3, generator=generator)
    assert torch.autograd.gradcheck(lambda X: make(structure)(X, other).to_dense(), (X,))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_pickles_copies_and_restores(structure, generator):
    X = torch.rand(SIZE, 3, generator=generator)
    kernel = make(structure)
    kernel.context_kernel.lengthscale = 0.21
    expected = kernel(X).to_dense()
    assert torch.equal(pickle.loads(pickle.dumps(kernel))(X).to_dense(), expected)
    assert torch.equal(deepcopy(kernel)(X).to_dense(), expected)
    fresh = ContextActionKernel(
        RBFKernel(ard_num_dims=2, active_dims=[0, 1]), RBFKernel(active_dims=[2]), structure
    )
    fresh.load_state_dict(kernel.state_dict())
    assert torch.equal(fresh(X).to_dense(), expected)


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


def test_a_column_that_neither_sees_does_not_matter(generator):
    X = torch.rand(SIZE, 4, generator=generator)
    other = X.clone()
    other[:, 3] = torch.nan
    kernel = make("both")
    assert torch.equal(kernel(X).to_dense(), kernel(other).to_dense())


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
@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_components_add_up(structure, batch_shape, generator):
    kernel = make(structure, batch_shape=torch.Size(batch_shape))
    if batch_shape and structure == "both":
        kernel.outputscales = torch.tensor([[0.7, 1.3, 0.4], [0.0, 0.2, 2.0]])
    X = torch.rand(*batch_shape, SIZE, 3, generator=generator)
    parts = kernel.components()
    assert (
        list(parts)
        == {
            "product": ["interaction"],
            "additive": ["action", "context"],
            "both": ["action", "context", "interaction"],
        }[structure]
    )
    total = sum(part(X).to_dense() for part in parts.values())
    torch.testing.assert_close(total, kernel(X).to_dense(), rtol=0, atol=1e-12)
    diagonal = sum(part(X, diag=True) for part in parts.values())
    torch.testing.assert_close(diagonal, kernel(X, diag=True), rtol=0, atol=1e-12)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_components_are_copies(structure, generator):
    X = torch.rand(SIZE, 3, generator=generator)
    kernel = make(structure)
    before = kernel(X).to_dense()
    for part in kernel.components().values():
        for parameter in part.parameters():
            with torch.no_grad():
                parameter.add_(1.0)
    assert torch.equal(kernel(X).to_dense(), before)


def test_components_name_what_they_are(generator):
    X = torch.rand(SIZE, 3, generator=generator)
    parts = make("both").components()
    action, context = squared_exponential()(X[:, :2]).to_dense(), RBFKernel()(X[:, 2:]).to_dense()
    for name, expected in (
        ("action", 0.7 * action),
        ("context", 1.3 * context),
        ("interaction", 0.4 * action * context),
    ):
        torch.testing.assert_close(parts[name](X).to_dense(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_given_kernels_are_used_and_left_as_they_are(structure, generator):
    action, context = squared_exponential(), RBFKernel()
    before = {k: v.clone() for k, v in (action.state_dict() | context.state_dict()).items()}
    kernel = ContextActionKernel(
        action, context, structure, action_features=[0, 1], context_features=[2]
    )
    kernel(torch.rand(SIZE, 3, generator=generator)).to_dense()
    assert action.active_dims is None
    assert context.active_dims is None
    after = action.state_dict() | context.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    parameters = list(kernel.parameters())
    for given in (*action.parameters(), *context.parameters()):
        assert any(given is parameter for parameter in parameters)


def test_outputscales_start_at_one_in_a_box_that_lbfgs_sees():
    kernel = make("both")
    fresh = ContextActionKernel(RBFKernel(active_dims=[0]), RBFKernel(active_dims=[1]), "both")
    assert fresh.outputscales.tolist() == [1.0, 1.0, 1.0]
    assert not fresh.raw_outputscales_constraint.enforced
    assert fresh.raw_outputscales_constraint.lower_bound.item() == 0
    assert kernel.outputscales.tolist() == pytest.approx(SCALES)


def test_is_stationary_if_both_parts_are():
    assert make("product").is_stationary
    assert not ContextActionKernel(
        RBFKernel(active_dims=[0]), LinearKernel(active_dims=[1])
    ).is_stationary


@pytest.mark.parametrize("structure", ["product", "additive"])
def test_only_both_has_outputscales(structure):
    kernel = make(structure)
    with pytest.raises(UnsupportedError):
        kernel.outputscales  # noqa: B018
    with pytest.raises(UnsupportedError):
        kernel.outputscales = SCALES


def test_outputscales_must_not_be_negative():
    with pytest.raises(ValueError):
        make("both").outputscales = (1.0, -0.1, 1.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_outputscales_must_be_finite(bad):
    with pytest.raises(InputDataError):
        make("both").outputscales = (1.0, 1.0, bad)


def test_outputscales_are_three():
    with pytest.raises(ValueError):
        make("both").outputscales = (1.0, 1.0)


@pytest.mark.parametrize("bad", ["sum", "Product", "", None])
def test_structure_must_be_one_of_three(bad):
    with pytest.raises(ValueError, match=repr(bad)):
        ContextActionKernel(RBFKernel(active_dims=[0]), RBFKernel(active_dims=[1]), bad)


@pytest.mark.parametrize(
    ("action", "context"),
    [
        (lambda: RBFKernel(active_dims=[0, 1]), lambda: RBFKernel(active_dims=[1, 2])),
        (
            lambda: ScaleKernel(RBFKernel(active_dims=[0]) + RBFKernel(active_dims=[1])),
            lambda: RBFKernel(active_dims=[1]),
        ),
        (
            lambda: RBFKernel(active_dims=[1]),
            lambda: RBFKernel(active_dims=[2]) * ScaleKernel(MaternKernel(active_dims=[1])),
        ),
    ],
    ids=["plain", "sum inside a scale", "scale inside a product"],
)
def test_columns_must_not_overlap(action, context):
    with pytest.raises(ValueError):
        ContextActionKernel(action(), context())


def test_features_must_not_overlap():
    with pytest.raises(ValueError):
        ContextActionKernel(
            RBFKernel(), RBFKernel(), action_features=[0, 1], context_features=[1, 2]
        )


@pytest.mark.parametrize(
    ("action", "context", "blind"),
    [
        (RBFKernel(), RBFKernel(active_dims=[1]), "action kernel"),
        (RBFKernel(active_dims=[1]), ScaleKernel(RBFKernel()), "context kernel"),
        (RBFKernel(), RBFKernel(), "action and context kernel"),
        (
            RBFKernel(active_dims=[0]),
            RBFKernel(active_dims=[1]) + RBFKernel(),
            "context kernel",
        ),
    ],
)
def test_kernels_must_say_their_columns(action, context, blind):
    with pytest.raises(ValueError):
        ContextActionKernel(action, context)


@pytest.mark.parametrize("name", ["action_features", "context_features"])
@pytest.mark.parametrize("bad", [[-1], [], [1, 1]])
def test_features_must_be_columns(name, bad):
    # Negative ones cannot be compared with others while the width is unknown.
    features = {"action_features": [0], "context_features": [3]} | {name: bad}
    with pytest.raises(ValueError):
        ContextActionKernel(RBFKernel(), RBFKernel(), **features)


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


def test_inputs_must_be_finite_where_columns_are_active_dims():
    X = torch.zeros(3, 3)
    X[1, 2] = torch.nan
    with pytest.raises(InputDataError):
        make("product")(X).to_dense()
