"""What GPyTorch asks of a kernel, of each of ours, in single and double precision."""

import pickle
from copy import deepcopy

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.priors import GammaPrior, UniformPrior
from kernel_cases import CASES, STEP
from torch import nn

from tvbo.kernels import (
    IdentityKernel,
    SeasonalKernel,
    TemporalDecayKernel,
    TemporalMaternKernel,
)

BATCH = (3, 2)
COMPOSED = [name for name in CASES if " * " in name or " + " in name or "products" in name]
SCALED = ("RBFKernel * (two temporal kernels)", "ScaleKernel(TemporalDecayKernel)")
"""With GPyTorch's ScaleKernel, which takes over the columns of its base, and indexes them."""
SINGLE = [name for name in CASES if name not in COMPOSED]

every_kernel = pytest.mark.parametrize("name", CASES)
both_types = pytest.mark.parametrize(
    "dtype",
    [pytest.param(torch.float32, marks=pytest.mark.slow), torch.float64],
    ids=["f32", "f64"],
)


@pytest.fixture
def dtype_by_default(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)


def in_each(test):
    return every_kernel(both_types(pytest.mark.usefixtures("dtype_by_default")(test)))


def close(actual, expected):
    # Single precision has 1e-7; the kernels add and multiply a few numbers of the order of one.
    tolerance = 1e-5 if expected.dtype == torch.float32 else 1e-12
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def rows_of(name, generator):
    return (CASES[name].rows(n, generator=generator) for n in (5, 3))


@in_each
def test_diagonals_and_parts_are_those_of_the_matrix(name, dtype, generator):
    kernel = CASES[name].kernel()
    x, z = rows_of(name, generator)
    covar = kernel(x).to_dense()
    assert covar.dtype == kernel(x).dtype == kernel(x, diag=True).dtype == dtype
    close(covar, covar.mT)
    close(kernel(x, diag=True), covar.diagonal())
    close(kernel(x).diagonal(), covar.diagonal())
    cross = kernel(x, z).to_dense()
    assert cross.shape == (5, 3)
    close(cross, kernel(torch.cat([x, z])).to_dense()[:5, 5:])
    close(kernel(x[:3], z, diag=True), cross[:3].diagonal())
    close(kernel(x, z)[1:4, [0, 2]].to_dense(), cross[1:4, [0, 2]])
    close(kernel(x)[3:, :2].to_dense(), covar[3:, :2])
    assert kernel(x[:0]).to_dense().shape == (0, 0)
    assert kernel(x[:0], z).to_dense().shape == (0, 3)


@in_each
def test_each_element_of_a_batch_is_a_kernel_of_its_own(name, dtype, generator):
    case = CASES[name]
    kernel = case.kernel(batch_shape=BATCH)
    assert kernel.batch_shape == BATCH
    x, one = case.rows(*BATCH, 4, generator=generator), case.rows(4, generator=generator)
    covar, diag = kernel(x).to_dense(), kernel(x, diag=True)
    assert covar.shape == (*BATCH, 4, 4)
    assert diag.shape == (*BATCH, 4)
    for i in range(BATCH[0]):
        if name != "RBFKernel * (two temporal kernels)":
            part = kernel[i, 1]
            assert part.batch_shape == ()
            close(part(x[i, 1]).to_dense(), covar[i, 1])
        close(diag[i, 1], covar[i, 1].diagonal())
    # Rows without a batch, and with a batch of one more dimension.
    assert kernel(one).shape == kernel(one).to_dense().shape == (*BATCH, 4, 4)
    close(kernel(x.expand(2, *x.shape)).to_dense(), covar.expand(2, *covar.shape))
    close(kernel(x.expand(2, *x.shape), diag=True), diag.expand(2, *diag.shape))
    first = case.kernel(batch_shape=(2,))
    close(first[:1](one).to_dense(), first(one).to_dense()[:1])


@pytest.mark.parametrize("name", SINGLE)
@both_types
@pytest.mark.usefixtures("dtype_by_default")
def test_expands_to_a_batch(name, dtype, generator):
    case = CASES[name]
    kernel, x = case.kernel(), case.rows(4, generator=generator)
    columns = [1, 0] if case.width == 2 else [2]
    wide = case.rows(4, width=3, generator=generator)
    selecting = case.kernel(columns)
    # GPyTorch's ScaleKernel takes over the columns of its base kernel, and expands them.
    selected = [] if isinstance(kernel, ScaleKernel) else [(selecting, wide)]
    for each, rows in [(kernel, x), *selected]:
        expanded = each.expand_batch(*BATCH)
        assert expanded.batch_shape == BATCH
        assert each.batch_shape == ()
        expected = each(rows).to_dense()
        close(expanded(rows).to_dense(), expected.expand(*BATCH, 4, 4))
        close(expanded[2, 0](rows).to_dense(), expected)
    batched = case.kernel(batch_shape=(2,))
    close(batched.expand_batch(3, 2)(x).to_dense()[1], batched(x).to_dense())


@in_each
def test_sees_the_columns_that_it_is_given(name, dtype, generator):
    case = CASES[name]
    x = case.rows(5, width=4, generator=generator)
    columns = [3, 1][: case.width]
    close(case.kernel(columns)(x).to_dense(), case.kernel()(x[:, columns]).to_dense())
    batched = case.kernel(columns, batch_shape=(2,))
    if name not in SCALED:
        close(batched[1](x).to_dense(), batched(x).to_dense()[1])


@pytest.mark.parametrize("diag", [False, True])
def test_last_dimension_is_no_batch(diag):
    with pytest.raises(UnsupportedError):
        IdentityKernel()(torch.zeros(4, 2), diag=diag, last_dim_is_batch=True)


@every_kernel
def test_takes_another_type_and_keeps_it(name, generator):
    case = CASES[name]
    kernel, x = case.kernel(), case.rows(4, generator=generator)
    for dtype in (torch.float64, torch.float32):
        kernel = kernel.to(dtype)
        covar = kernel(x.to(dtype))
        assert kernel.dtype == covar.dtype == covar.to_dense().dtype == dtype
        assert kernel(x.to(dtype), diag=True).dtype == dtype
        assert kernel.device == torch.device("cpu")


@in_each
def test_pickles_copies_and_restores(name, dtype, generator):
    case = CASES[name]
    kernel, x = case.kernel(), case.rows(4, generator=generator)
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter.add_(STEP)
    expected = kernel(x).to_dense()
    fresh = case.kernel()
    fresh.load_state_dict(kernel.state_dict())
    for again in (pickle.loads(pickle.dumps(kernel)), deepcopy(kernel), fresh):
        assert torch.equal(again(x).to_dense(), expected)
        assert again.dtype == dtype


@in_each
def test_adds_and_multiplies(name, dtype, generator):
    kernel, x = CASES[name].kernel(), CASES[name].rows(4, generator=generator)
    covar, constant = kernel(x).to_dense(), IdentityKernel()
    same = constant(x).to_dense()
    close((kernel + constant)(x).to_dense(), covar + same)
    close((kernel * constant)(x).to_dense(), covar * same)
    close((kernel + kernel)(x, x[1:]).to_dense(), 2 * covar[:, 1:])
    close((kernel * kernel)(x, diag=True), covar.diagonal().square())


class Dense(nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, x, z):
        return self.kernel(x, z).to_dense()


@every_kernel
def test_gradients_in_parameters_and_rows(name, generator, double_by_default):
    case = CASES[name]
    dense = Dense(case.kernel())
    x, z = rows_of(name, generator)
    named = {k: v for k, v in dense.named_parameters() if v.requires_grad}
    values = [value.detach().clone().requires_grad_() for value in named.values()]
    rows = [row.requires_grad_(case.has_gradient) for row in (x, z)]

    def covar(x, z, *values):
        return torch.func.functional_call(dense, dict(zip(named, values, strict=True)), (x, z))

    if values or case.has_gradient:
        assert torch.autograd.gradcheck(covar, (*rows, *values))
    else:
        assert not covar(x, z).requires_grad


@pytest.mark.parametrize("name", CASES)
def test_gradients_in_single_precision_are_those_in_double(name, generator):
    case = CASES[name]
    x = case.rows(5, generator=generator, dtype=torch.float64)
    gradients = []
    for dtype in (torch.float64, torch.float32):
        kernel = case.kernel().to(dtype)
        # With itself: at a lag of zero, where distances have no derivative.
        rows = x.detach().to(dtype).requires_grad_(case.has_gradient)
        total = (kernel(rows).to_dense() * torch.arange(25).reshape(5, 5)).sum()
        leaves = [p for p in kernel.parameters() if p.requires_grad]
        leaves += [rows] if case.has_gradient else []
        given = torch.autograd.grad(total, leaves) if leaves else []
        assert leaves or not total.requires_grad
        gradients.append([g.double() for g in given])
    for exact, single in zip(*gradients, strict=True):
        assert exact.isfinite().all()
        torch.testing.assert_close(single, exact, rtol=1e-3, atol=1e-3)


RATE, LENGTH = UniformPrior(0.1, 0.2), GammaPrior(3.0, 6.0)
PRIORS = {
    "TemporalDecayKernel": lambda: TemporalDecayKernel(forgetting_rate_prior=RATE),
    "TemporalMaternKernel": lambda: TemporalMaternKernel(lengthscale_prior=LENGTH),
    "SeasonalKernel": lambda: SeasonalKernel(
        7.0, lengthscale_prior=LENGTH, period_prior=UniformPrior(6.0, 8.0)
    ),
}


@pytest.mark.draws_globally  # priors do
@pytest.mark.parametrize("make", PRIORS.values(), ids=PRIORS)
@both_types
@pytest.mark.usefixtures("dtype_by_default")
def test_priors_are_drawn_from_and_set_the_parameter(make, dtype):
    kernel: Kernel = pickle.loads(pickle.dumps(make().to(dtype)))
    priors = list(kernel.named_priors())
    assert priors
    for full_name, module, prior, closure, _ in priors:
        before = closure(module).clone()
        kernel.sample_from_prior(full_name)
        drawn = closure(module)
        assert drawn.shape == before.shape
        assert drawn.dtype == dtype
        assert (drawn != before).all()
        assert prior.log_prob(drawn).isfinite().all()


@both_types
@pytest.mark.usefixtures("dtype_by_default")
def test_parameters_are_initialized_by_name_within_their_constraints(dtype):
    kernel = SeasonalKernel(
        7.0,
        lengthscale_constraint=Interval(0.1, 0.4),
        period_constraint=Interval(5.0, 9.0),
        batch_shape=torch.Size([2]),
    )
    kernel.initialize(lengthscale=0.3, period=torch.tensor([[6.0], [8.0]], dtype=dtype))
    close(kernel.lengthscale, torch.full((2, 1, 1), 0.3, dtype=dtype))
    close(kernel.period, torch.tensor([[6.0], [8.0]], dtype=dtype))
    with pytest.raises(RuntimeError, match="constraint"):
        TemporalDecayKernel().initialize(raw_forgetting_rate=1.5)
