import itertools
import math

import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
)
from botorch.models.transforms import Normalize, Standardize
from botorch.utils.datasets import SupervisedDataset
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from reference import rbf

from tvbo.kernels import (
    ContextActionKernel,
    CovarianceMatrixKernel,
    TaskKernel,
)
from tvbo.logs import fit_drift
from tvbo.models import ContextualGP, StreamingGP, TimeVaryingGP
from tvbo.test_functions.drifting_gp import drifting_gp_log

pytestmark = [
    pytest.mark.usefixtures("double_by_default"),
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning"),
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.OptimizationWarning"),
]

STRUCTURES = ["product", "additive", "both"]
MATRIX = torch.tensor([[1.0, 0.6, -0.2], [0.6, 1.5, 0.1], [-0.2, 0.1, 0.8]], dtype=torch.float64)


def make_data(batch_shape=(), n=12, m=1, dtype=torch.float64, seed=1):
    """Rows [s1, s2, z, t] at unequal times, several at one, and outcomes."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(*batch_shape, n, 4, generator=generator, dtype=dtype)
    X[..., 3] = torch.tensor([0, 0, 0, 1, 1.5, 4, 4, 7, 8, 8.25, 9, 12][:n], dtype=dtype)
    Y = torch.stack([torch.sin(3 * X[..., 0] + k) + X[..., 2] ** 2 for k in range(m)], dim=-1)
    return X, Y


def candidates(n=5, t=13.0, seed=2):
    X = torch.rand(n, 4, generator=torch.Generator().manual_seed(seed))
    X[:, 3] = t + torch.arange(n) / 2
    return X


def matern(lengthscale=0.7, **kwargs):
    kernel = MaternKernel(nu=1.5, **kwargs)
    kernel.lengthscale = lengthscale
    return kernel


def contextual(X, Y, Yvar=None, *, time=True, rate=0.1, structure="product", **options):
    """With given kernels, without transforms; columns [s1, s2, z] and, if so, t."""
    settings = {
        "context_features": [2],
        "time_feature": 3 if time else None,
        "structure": structure,
        "action_kernel": rbf(0.4),
        "context_kernel": matern(),
        "forgetting_rate": rate if time else None,
        "mean_module": ZeroMean(),
        "outcome_transform": None,
    } | options
    model = ContextualGP(
        X if time else X[..., :3],
        Y,
        torch.full_like(Y, 0.04) if Yvar is None else Yvar,
        **settings,
    )
    if structure == "both":
        model.context_action_kernel.outputscales = (0.7, 1.3, 0.4)
    return model


def composed(action, context, structure):
    if structure == "product":
        return action * context
    if structure == "additive":
        return action + context
    return 0.7 * action + 1.3 * context + 0.4 * action * context


def assert_same(one, other, atol=1e-10):
    """Mean and joint covariance of two posteriors."""
    torch.testing.assert_close(one.mean, other.mean, rtol=0, atol=atol)
    torch.testing.assert_close(
        one.distribution.covariance_matrix,
        other.distribution.covariance_matrix,
        rtol=0,
        atol=atol,
    )


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("rate", [0.0, 0.03, 0.5, 1.0])
def test_posterior_equals_the_paper(structure, rate):
    """Equations (7)-(8) by double loops, with the kernel of actions and contexts in place of k."""
    X, Y = make_data()
    model = contextual(X, Y, rate=rate, structure=structure)

    def kernel(p, q):
        squared = ((p[0] - q[0]) ** 2 + (p[1] - q[1]) ** 2) / 0.4**2
        r = math.sqrt(3) * abs(p[2] - q[2]) / 0.7
        space = composed(math.exp(-squared / 2), (1 + r) * math.exp(-r), structure)
        return space * (1 - rate) ** (abs(p[3] - q[3]) / 2)

    rows, n = X.tolist(), len(X)
    K = torch.tensor([[kernel(p, q) for q in rows] for p in rows]) + 0.04 * torch.eye(n)
    inverse = torch.linalg.inv(K)
    # Beyond the newest observation, at it, and between earlier ones.
    for t in (15.0, 12.0, 5.0):
        x = [0.3, 0.6, 0.8, t]
        k = torch.tensor([kernel(row, x) for row in rows])
        posterior = model.posterior(torch.tensor([x]))
        mean, variance = k @ inverse @ Y[:, 0], kernel(x, x) - k @ inverse @ k
        assert posterior.mean.item() == pytest.approx(mean.item(), abs=1e-10)
        assert posterior.variance.item() == pytest.approx(variance.item(), abs=1e-10)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_equals_a_time_varying_gp_with_the_composed_kernel(structure):
    X, Y = make_data()
    kernel = ContextActionKernel(
        rbf(0.4), matern(), structure, action_features=[0, 1], context_features=[2]
    )
    if structure == "both":
        kernel.outputscales = (0.7, 1.3, 0.4)
    other = TimeVaryingGP(
        X,
        Y,
        torch.full_like(Y, 0.04),
        forgetting_rate=0.1,
        covar_module=kernel,
        mean_module=ZeroMean(),
        outcome_transform=None,
    )
    model = contextual(X, Y, structure=structure)
    assert_same(model.posterior(candidates()), other.posterior(candidates()))
    assert model.forgetting_rate.item() == other.forgetting_rate.item() == pytest.approx(0.1)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[1::3])
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("time", [False, True])
@pytest.mark.combinations
def test_columns_may_stand_in_any_order(order, negative, time):
    """Two contexts, with a length-scale each, in the order in which they are named."""
    X, Y = make_data()
    action, context = matern(), rbf([0.2, 0.9], ard_num_dims=2)
    kernels = {"action_kernel": action, "context_kernel": context, "structure": "both"}
    # [s, z1, z2, t], or without t two actions.
    base = contextual(X, Y, context_features=[1, 2], **kernels) if time else None
    if base is None:
        base = contextual(
            torch.cat([X, X], dim=-1), Y, time=False, context_features=[1, 2], **kernels
        )
        order = [i for i in order if i < 3]
    place = [order.index(i) - (len(order) if negative else 0) for i in range(len(order))]
    model = ContextualGP(
        X[:, order],
        Y,
        torch.full_like(Y, 0.04),
        context_features=[place[1], place[2]],
        time_feature=place[3] if time else None,
        forgetting_rate=0.1 if time else None,
        mean_module=ZeroMean(),
        outcome_transform=None,
        **kernels,
    )
    model.context_action_kernel.outputscales = (0.7, 1.3, 0.4)
    rows = candidates()[:, : len(order)]
    assert_same(model.posterior(rows[:, order]), base.posterior(rows))
    # Named the other way round, the length-scales change places.
    swapped = ContextualGP(
        X[:, order],
        Y,
        torch.full_like(Y, 0.04),
        context_features=[place[2], place[1]],
        time_feature=place[3] if time else None,
        forgetting_rate=0.1 if time else None,
        mean_module=ZeroMean(),
        outcome_transform=None,
        **kernels,
    )
    assert (swapped.posterior(rows[:, order]).mean - base.posterior(rows).mean).abs().max() > 1e-3


@pytest.mark.draws_globally
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("batch_shape", [(), (2,)])
@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("fixed_noise", [False, True])
@pytest.mark.parametrize("transforms", [False, True])
@pytest.mark.combinations
def test_shapes_and_transforms(structure, batch_shape, m, fixed_noise, transforms):
    for dtype in (torch.float32, torch.float64):
        X, Y = make_data(batch_shape, m=m, dtype=dtype)
        model = ContextualGP(
            X,
            Y,
            torch.full_like(Y, 0.01) if fixed_noise else None,
            context_features=[2],
            time_feature=3,
            structure=structure,
            outcome_transform=Standardize(m=m, batch_shape=torch.Size(batch_shape))
            if transforms
            else None,
            input_transform=Normalize(
                4, indices=[0, 1, 2], bounds=torch.tensor([[0.0] * 4, [1, 1, 1, 1]], dtype=dtype)
            )
            if transforms
            else None,
        )
        test_X = torch.rand(*batch_shape, 5, 4, dtype=dtype)
        posterior = model.posterior(test_X)
        assert posterior.mean.shape == (*batch_shape, 5, m)
        assert posterior.mean.dtype == dtype
        noisy = model.posterior(test_X, observation_noise=True).variance
        assert noisy.shape == (*batch_shape, 5, m)
        assert (noisy > posterior.variance).all()
        assert all(parameter.dtype == dtype for parameter in model.parameters())
        if structure == "both":
            aug = batch_shape + ((m,) if m > 1 else ())
            assert model.context_action_kernel.outputscales.shape == (*aug, 3)
        if m > 1:
            one = model.subset_output([1])
            torch.testing.assert_close(one.posterior(test_X).mean, posterior.mean[..., 1:2])
            torch.testing.assert_close(one.posterior(test_X).variance, posterior.variance[..., 1:2])


@pytest.mark.parametrize("structure", STRUCTURES)
def test_no_observations_is_the_prior(structure):
    X, Y = make_data(n=0)
    model = contextual(X, Y, torch.empty(0, 1), structure=structure)
    rows = candidates().unsqueeze(-2)
    posterior = model.posterior(rows)
    assert torch.equal(posterior.mean, torch.zeros(5, 1, 1))
    expected = torch.full((5, 1, 1), composed(1.0, 1.0, structure))
    torch.testing.assert_close(posterior.variance, expected)


@pytest.mark.draws_globally
@pytest.mark.parametrize("structure", STRUCTURES)
def test_fit_learns_every_parameter(structure):
    generator = torch.Generator().manual_seed(3)
    X = torch.rand(40, 3, generator=generator)
    X[:, 2] = torch.arange(40)
    Y = torch.sin(2 * torch.pi * X[:, 2:] / 40) * X[:, :1] + X[:, 1:2] ** 2
    Y = Y + 0.05 * torch.randn(40, 1, generator=generator)
    model = ContextualGP(X, Y, context_features=[1], time_feature=2, structure=structure)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    model.train()
    start = mll(model(*model.train_inputs), model.train_targets).item()
    fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": 20}})
    model.train()
    assert mll(model(*model.train_inputs), model.train_targets).item() > start + 0.1
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad, name
        assert torch.isfinite(parameter).all(), name
        assert (parameter != before[name]).all(), name
    assert model.forgetting_rate.item() > 1e-3


@pytest.mark.draws_globally
@pytest.mark.parametrize("structure", STRUCTURES)
def test_users_kernels_are_the_objects_that_are_trained(structure):
    X, Y = make_data()
    action, context = ScaleKernel(MaternKernel(ard_num_dims=2)), ScaleKernel(LinearKernel())
    model = ContextualGP(
        X,
        Y,
        context_features=[2],
        time_feature=3,
        structure=structure,
        action_kernel=action,
        context_kernel=context,
        forgetting_rate=0.2,
    )
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": 10}})
    assert action.base_kernel.lengthscale.flatten().tolist() != [math.log(2)] * 2
    assert context.base_kernel.variance.item() != pytest.approx(math.log(2))
    assert action.active_dims is None
    assert context.active_dims is None
    assert model.forgetting_rate.item() == pytest.approx(0.2)


@pytest.mark.parametrize("options", [{}, {"time_feature": 3, "forgetting_rate": 0.2}])
def test_constructed_from_a_data_set(options):
    X, Y = make_data()
    data = SupervisedDataset(X, Y, feature_names=["s1", "s2", "z", "t"], outcome_names=["y"])
    inputs = ContextualGP.construct_inputs(
        data, context_features=[2], structure="additive", **options
    )
    model = ContextualGP(**inputs)
    assert model.context_action_kernel.structure == "additive"
    expected = ContextualGP(X, Y, context_features=[2], structure="additive", **options)
    assert_same(model.posterior(candidates()), expected.posterior(candidates()))


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("standardized", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.05, 1.0])
@pytest.mark.combinations
def test_streams_on_actions_and_contexts(structure, standardized, rate):
    """StreamingGP over choices [action | context] has the posterior of the dense model."""
    side = torch.linspace(0, 1, 3)
    choices = torch.cartesian_prod(side, side, torch.tensor([0.0, 1.0]))
    generator = torch.Generator().manual_seed(5)
    X = choices[torch.randint(len(choices), (20,), generator=generator)]
    X = torch.cat([X, torch.arange(20.0).unsqueeze(-1)], dim=-1)
    Y = 3 + 2 * torch.randn(20, 1, generator=generator)
    options = {"outcome_transform": Standardize(m=1), "mean_module": None} if standardized else {}
    dense = contextual(X, Y, rate=rate, structure=structure, **options)
    with torch.no_grad():
        model = StreamingGP.from_model(dense, choices)
        for start in range(0, 20, 3):
            model.observe(X[start : start + 3], Y[start : start + 3])
        for t in (19.0, 21.5):
            rows = torch.cat([choices, torch.full((len(choices), 1), t)], dim=-1)
            assert_same(model.posterior(rows), dense.posterior(rows), atol=1e-8)


RATE, ACTION_SCALE, CONTEXT_SCALE, NOISE = 0.03, 0.25, 0.5, 0.01


@pytest.fixture(scope="module")
def drawn():
    """A draw of the joint model at 300 random rows [s, z, t], 2 at each time."""
    generator = torch.Generator().manual_seed(11)
    X = torch.rand(300, 3, generator=generator, dtype=torch.float64)
    X[:, 2] = torch.arange(300) // 2
    kernel = ContextActionKernel(
        rbf(ACTION_SCALE), rbf(CONTEXT_SCALE), action_features=[0], context_features=[1]
    ).double()
    return X, drifting_gp_log(X, kernel, RATE, NOISE, generator=generator)


@pytest.mark.slow
def test_a_log_with_contexts_tells_the_rate(drawn):
    X, Y = drawn
    kernel = ContextActionKernel(
        RBFKernel(), RBFKernel(), action_features=[0], context_features=[1]
    )
    fit = fit_drift(X, Y, covar_module=kernel, noise_variance=NOISE, mean=0.0, num_starts=1)
    low, high = fit.forgetting_rate_interval
    assert low < RATE < high
    assert high < 3 * low
    [message] = fit.messages
    assert f"{fit.forgetting_rate:.3g} with {NOISE:g}" in message
    # Action before context, the order in which the kernel holds them.
    learned = fit.covar_module
    assert fit.lengthscales == [
        learned.action_kernel.base_kernel.lengthscale.item(),
        learned.context_kernel.base_kernel.lengthscale.item(),
    ]
    assert ACTION_SCALE / 1.25 < fit.lengthscales[0] < ACTION_SCALE * 1.25
    assert CONTEXT_SCALE / 1.25 < fit.lengthscales[1] < CONTEXT_SCALE * 1.25
    # The kernel that was given is not the one that was moved.
    assert kernel.action_kernel.base_kernel.lengthscale.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("which", ["train_X", "train_Y", "context", "time"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_must_be_finite(which, bad):
    X, Y = make_data()
    if which == "train_Y":
        Y[3] = bad
    else:
        X[3, {"train_X": 0, "context": 2, "time": 3}[which]] = bad
    with pytest.raises(InputDataError):
        ContextualGP(X, Y, context_features=[2], time_feature=3)


@pytest.mark.parametrize("kernel", [lambda: TaskKernel(3), lambda: CovarianceMatrixKernel(MATRIX)])
@pytest.mark.parametrize("bad", [3.0, -1.0, 0.5])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_task_must_exist(kernel, bad, structure):
    X, Y = make_data()
    X[:, 2] = torch.arange(12) % 3
    options = {"context_features": [2], "time_feature": 3, "structure": structure}
    model = ContextualGP(X, Y, context_kernel=kernel(), **options)
    rows = X.clone()
    rows[4, 2] = bad
    with pytest.raises(InputDataError):
        model.posterior(rows).variance  # noqa: B018 (evaluated lazily)
    with pytest.raises(InputDataError):
        ContextualGP(rows, Y, context_kernel=kernel(), **options)


@pytest.mark.parametrize(
    "options",
    [
        {"context_features": [2], "time_feature": 2},
        {"context_features": []},
        {"context_features": [0, 1, 2], "time_feature": 3},
        {"context_features": [4]},
        {"context_features": [2], "forgetting_rate": 0.1},
        {"context_features": [2], "time_feature": 3, "forgetting_rate": 1.5},
        {"context_features": [2], "time_feature": 3, "structure": "sum"},
    ],
)
def test_options_that_do_not_fit_are_refused(options):
    with pytest.raises((ValueError, BotorchTensorDimensionError)):
        ContextualGP(*make_data(), **options)
