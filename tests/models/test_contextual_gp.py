import itertools
import math
import pickle

import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.datasets import SupervisedDataset
from gpytorch.constraints import Interval
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import UniformPrior
from reference import rbf

from tvbo.kernels import (
    ContextActionKernel,
    CovarianceMatrixKernel,
    IdentityKernel,
    TaskKernel,
    TemporalDecayKernel,
)
from tvbo.logs import fit_drift
from tvbo.models import ContextualGP, StreamingGP, TimeVaryingGP
from tvbo.test_functions import drifting_gp_log

pytestmark = [
    pytest.mark.usefixtures("double_by_default"),
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning"),
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.OptimizationWarning"),
]

STRUCTURES = ["product", "additive", "both"]
MATRIX = torch.tensor([[1.0, 0.6, -0.2], [0.6, 1.5, 0.1], [-0.2, 0.1, 0.8]], dtype=torch.float64)
RAW = {"mean_module": None, "outcome_transform": None}


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
@pytest.mark.parametrize("time", [False, True])
def test_equals_a_plain_model_with_the_kernel_built_by_hand(structure, time):
    X, Y = make_data()
    action, context = rbf(0.4, active_dims=[0, 1]), matern(active_dims=[2])
    if structure == "both":
        parts = [ScaleKernel(action), ScaleKernel(context), ScaleKernel(action * context)]
        for part, scale in zip(parts, (0.7, 1.3, 0.4), strict=True):
            part.outputscale = scale
        kernel = parts[0] + parts[1] + parts[2]
    else:
        kernel = action * context if structure == "product" else action + context
    if time:
        temporal = TemporalDecayKernel(active_dims=[3])
        temporal.forgetting_rate = 0.1
        kernel = kernel * temporal
    for transform in (None, Standardize(m=1)):
        # The mean is learned, and the noise: both as BoTorch has them.
        model = contextual(X, Y, time=time, structure=structure) if transform is None else None
        mean = ZeroMean() if transform is None else None
        if model is None:
            model = contextual(
                X, Y, time=time, structure=structure, outcome_transform=transform, mean_module=None
            )
        plain = SingleTaskGP(
            X[:, : 4 if time else 3],
            Y,
            torch.full_like(Y, 0.04),
            covar_module=kernel,
            mean_module=mean,
            outcome_transform=None if transform is None else Standardize(m=1),
        )
        rows = candidates()[:, : 4 if time else 3]
        assert_same(model.posterior(rows), plain.posterior(rows))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_rate_zero_is_a_model_without_time(structure):
    X, Y = make_data()
    drifts = contextual(X, Y, rate=0.0, structure=structure)
    static = contextual(X, Y, time=False, structure=structure)
    assert_same(drifts.posterior(candidates()), static.posterior(candidates()[:, :3]))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_rate_one_forgets_all_but_the_present(structure):
    X, Y = make_data()
    model = contextual(X, Y, rate=1.0, structure=structure)
    new = candidates(t=20.0)
    new[:, 3] = 20.0
    prior = model.context_action_kernel(new[:, :3]).to_dense()
    posterior = model.posterior(new)
    torch.testing.assert_close(posterior.mean, torch.zeros(5, 1), rtol=0, atol=1e-12)
    torch.testing.assert_close(posterior.distribution.covariance_matrix, prior, rtol=0, atol=1e-10)
    now = X[:, 3] == 0
    new[:, 3] = 0.0
    of_now = contextual(X[now], Y[now], time=False, structure=structure)
    assert_same(model.posterior(new), of_now.posterior(new[:, :3]))


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
@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("context", ["matrix", "task", "tasks", "identity"])
@pytest.mark.combinations
def test_subset_output_with_a_users_kernel(structure, m, context):
    # As many tasks as outputs: shapes alone do not tell one from the other.
    X, Y = make_data(m=m)
    X[:, 2] = torch.arange(12) % m
    kernel = {
        "matrix": lambda: CovarianceMatrixKernel(MATRIX[:m, :m]),
        "task": lambda: TaskKernel(m),
        "tasks": lambda: TaskKernel(m, batch_shape=torch.Size([m])),
        "identity": IdentityKernel,
    }[context]()
    shared = matern()
    for action in (None, shared):
        model = ContextualGP(
            X,
            Y,
            context_features=[2],
            time_feature=3,
            structure=structure,
            action_kernel=action,
            context_kernel=kernel,
        )
        if structure == "both":
            scales = model.context_action_kernel.raw_outputscales
            with torch.no_grad():
                scales.copy_(torch.arange(1.0, 1 + scales.numel()).reshape(scales.shape))
        whole = model.posterior(X)
        for output in range(m):
            part = model.subset_output([output]).posterior(X)
            torch.testing.assert_close(part.mean, whole.mean[:, [output]])
            torch.testing.assert_close(part.variance, whole.variance[:, [output]])


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("training", [False, True])
def test_one_trial_of_a_batch(structure, training):
    X, Y = make_data((3,))
    model = ContextualGP(X, Y, context_features=[2], time_feature=3, structure=structure)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(torch.linspace(0.5, 1, parameter.numel()).reshape(parameter.shape))
    model.train(training)
    # Sliced before it is evaluated: the kernel itself is asked for its part.
    rows = X if training else X + 0.25
    whole = model(rows).covariance_matrix
    for trial in range(3):
        part = model(rows)[trial].covariance_matrix
        torch.testing.assert_close(part, whole[trial], rtol=0, atol=1e-10)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_kernels_without_parameters_whatever_the_default_precision(structure, default):
    torch.set_default_dtype(default)  # the fixture resets it
    X = torch.tensor([[0.0, 1], [1, 0], [2, 2], [0, 2]], dtype=torch.float64)
    Y = torch.tensor([[1.0], [-1.0], [0.5], [0.7]], dtype=torch.float64)
    for context in (CovarianceMatrixKernel(MATRIX), IdentityKernel()):
        model = ContextualGP(
            X,
            Y,
            torch.full_like(Y, 0.1),
            context_features=[1],
            structure=structure,
            action_kernel=IdentityKernel(),
            context_kernel=context,
            mean_module=ZeroMean(),
            outcome_transform=None,
        )
        K = model.context_action_kernel(X).to_dense().detach()
        new = torch.tensor([[1.0, 2.0], [2.0, 0.0]], dtype=torch.float64)
        k = model.context_action_kernel(new, X).to_dense().detach()
        expected = k @ torch.linalg.solve(K + 0.1 * torch.eye(4, dtype=torch.float64), Y)
        posterior = model.posterior(new)
        assert posterior.dtype == posterior.mean.dtype == posterior.variance.dtype == torch.float64
        torch.testing.assert_close(posterior.mean, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_no_observations_is_the_prior(structure):
    X, Y = make_data(n=0)
    model = contextual(X, Y, torch.empty(0, 1), structure=structure)
    rows = candidates().unsqueeze(-2)
    posterior = model.posterior(rows)
    assert torch.equal(posterior.mean, torch.zeros(5, 1, 1))
    expected = torch.full((5, 1, 1), composed(1.0, 1.0, structure))
    torch.testing.assert_close(posterior.variance, expected)


@pytest.mark.parametrize("time", [False, True])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_conditioning_equals_a_model_of_all_the_data(time, structure):
    X, Y = make_data()
    noise = torch.full_like(Y, 0.04)
    options = {"time": time, "structure": structure}
    width = 4 if time else 3
    model = contextual(X[:9], Y[:9], noise[:9], **options)
    rows = candidates()[:, :width]
    model.posterior(rows)
    more = model.condition_on_observations(X[9:, :width], Y[9:], noise=noise[9:])
    whole = contextual(X, Y, noise, **options)
    assert_same(more.posterior(rows), whole.posterior(rows), atol=1e-9)


@pytest.mark.draws_globally
def test_fantasizes():
    X, Y = make_data()
    model = contextual(X, Y)
    fantasies = model.fantasize(candidates(2), SobolQMCNormalSampler(torch.Size([3]), seed=0))
    assert fantasies.posterior(candidates(4)).mean.shape == (3, 4, 1)


@pytest.mark.parametrize("time", [False, True])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_pickles_and_restores(time, structure):
    X, Y = make_data()
    options = {"context_features": [2], "structure": structure}
    if time:
        options["time_feature"] = 3
    rows, X = candidates()[:, : 4 if time else 3], X[:, : 4 if time else 3]
    model = ContextualGP(X, Y, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    model.posterior(rows)
    expected = model.posterior(rows)
    again = pickle.loads(pickle.dumps(model)).posterior(rows)
    assert torch.equal(again.mean, expected.mean)
    fresh = ContextualGP(X, Y, **options)
    assert not torch.allclose(fresh.posterior(rows).mean, expected.mean)
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(fresh.posterior(rows).mean, expected.mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(fresh.posterior(rows).variance, expected.variance)


def test_gradient_of_the_likelihood_in_every_parameter():
    X, Y = make_data()
    for structure in STRUCTURES:
        model = ContextualGP(X, Y, context_features=[2], time_feature=3, structure=structure)
        model.train()
        mll = ExactMarginalLogLikelihood(model.likelihood, model)

        def value(model=model, mll=mll):
            return mll(model(*model.train_inputs), model.train_targets)

        value().backward()
        for name, parameter in model.named_parameters():
            for i in range(parameter.numel()):
                step = torch.zeros(parameter.numel())
                step[i] = 1e-6
                step = step.reshape(parameter.shape)
                ends = []
                for sign in (1, -1):
                    with torch.no_grad():
                        parameter.add_(sign * step)
                        ends.append(value().item())
                        parameter.sub_(sign * step)
                slope = (ends[0] - ends[1]) / 2e-6
                gradient = parameter.grad.flatten()[i].item()
                assert gradient == pytest.approx(slope, rel=1e-5, abs=1e-7), name


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


def test_default_scales():
    """Prior variance one at the start, whichever the structure, as BoTorch's default model."""
    X, Y = make_data()
    for structure in STRUCTURES:
        model = ContextualGP(X, Y, context_features=[2], time_feature=3, structure=structure)
        prior = model.covar_module(candidates(), diag=True)
        torch.testing.assert_close(prior, torch.ones(5), rtol=0, atol=1e-12)


@pytest.mark.draws_globally
def test_user_prior_and_constraint_reach_the_kernel():
    X, Y = make_data()
    constraint = Interval(0.2, 0.3, transform=None, initial_value=0.25)
    model = ContextualGP(
        X,
        Y,
        context_features=[2],
        time_feature=3,
        forgetting_rate_prior=UniformPrior(0.2, 0.3),
        forgetting_rate_constraint=constraint,
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert 0.2 <= model.forgetting_rate.item() <= 0.3
    assert any("forgetting_rate_prior" in name for name, *_ in model.named_priors())


def test_likelihood_is_that_given():
    X, Y = make_data()
    likelihood = GaussianLikelihood()
    model = ContextualGP(X, Y, context_features=[2], likelihood=likelihood)
    assert model.likelihood is likelihood


def test_without_time_there_is_no_rate():
    X, Y = make_data()
    model = ContextualGP(X, Y, context_features=[2])
    assert model.forgetting_rate is None
    assert model.temporal_kernel is None
    assert model.context_action_kernel.structure == "product"
    # The fourth column is one more action.
    assert model.context_action_kernel.action_kernel.active_dims.tolist() == [0, 1, 3]


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


def test_constructed_with_copies_of_the_kernels():
    """One set of options serves many models, of which none trains another's kernel."""
    X, Y = make_data()
    data = SupervisedDataset(X, Y, feature_names=["s1", "s2", "z", "t"], outcome_names=["y"])
    given = {"action_kernel": rbf(0.4), "context_kernel": matern()}
    inputs = ContextualGP.construct_inputs(data, context_features=[2], **given)
    for name, kernel in given.items():
        assert inputs[name] is not kernel
        assert torch.equal(inputs[name].lengthscale, kernel.lengthscale)


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


def test_streams_on_tasks():
    choices = torch.cartesian_prod(torch.arange(4.0), torch.arange(3.0))
    X = torch.cat([choices[[0, 5, 7, 11, 2]], torch.arange(5.0).unsqueeze(-1)], dim=-1)
    Y = torch.tensor([[1.0], [0.3], [-1.0], [0.2], [0.7]])
    dense = ContextualGP(
        X,
        Y,
        torch.full_like(Y, 0.1),
        context_features=[1],
        time_feature=2,
        action_kernel=IdentityKernel(),
        context_kernel=TaskKernel(3),
        forgetting_rate=0.1,
        outcome_transform=None,
        mean_module=ZeroMean(),
    )
    model = StreamingGP.from_model(dense, choices)
    model.observe(X, Y)
    rows = torch.cat([choices, torch.full((12, 1), 6.0)], dim=-1)
    with torch.no_grad():
        assert_same(model.posterior(rows), dense.posterior(rows), atol=1e-8)


def test_streaming_needs_time():
    X, Y = make_data()
    model = contextual(X, Y, time=False)
    with pytest.raises(UnsupportedError):
        StreamingGP.from_model(model, torch.rand(4, 3, generator=torch.Generator()))


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


@pytest.mark.draws_globally
def test_recovers_rate_and_lengthscales(drawn):
    """One draw: each within the factor stated, of about three standard errors."""
    X, Y = drawn
    action, context = RBFKernel(), RBFKernel()
    model = ContextualGP(
        X,
        Y,
        torch.full_like(Y, NOISE),
        context_features=[1],
        time_feature=2,
        action_kernel=action,
        context_kernel=context,
        mean_module=ZeroMean(),
        outcome_transform=None,
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    for estimate, truth, factor in (
        (model.forgetting_rate, RATE, 1.5),
        (action.lengthscale, ACTION_SCALE, 1.25),
        (context.lengthscale, CONTEXT_SCALE, 1.25),
    ):
        assert truth / factor < estimate.item() < truth * factor


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
    assert message.startswith(f"The noise variance {NOISE:g} was given")
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


def test_noise_must_be_finite():
    X, Y = make_data()
    Yvar = torch.full_like(Y, 0.1)
    Yvar[3] = torch.nan
    with pytest.raises(InputDataError):
        ContextualGP(X, Y, Yvar, context_features=[2])


@pytest.mark.parametrize("column", [0, 2, 3])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_candidate_must_be_finite(column, bad):
    X, Y = make_data()
    model = ContextualGP(X, Y, context_features=[2], time_feature=3)
    rows = candidates()
    rows[1, column] = bad
    with pytest.raises(InputDataError):
        model.posterior(rows).variance  # noqa: B018 (evaluated lazily)


@pytest.mark.parametrize("width", [3, 5])
@pytest.mark.parametrize("time", [False, True])
def test_a_candidate_must_have_the_width_of_a_row(width, time):
    X, Y = make_data()
    model = ContextualGP(X, Y, context_features=[2], time_feature=3 if time else None)
    rows = torch.cat([candidates(), candidates()], dim=-1)[:, :width]
    # GPyTorch's error, as in any SingleTaskGP.
    with pytest.raises(RuntimeError):
        model.posterior(rows).variance  # noqa: B018 (evaluated lazily)


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
    "columns",
    [
        {"context_features": [2], "time_feature": 2},
        {"context_features": [2, 2]},
        {"context_features": [3], "time_feature": -1},
        {"context_features": [2, -2], "time_feature": 3},
    ],
)
def test_columns_must_not_overlap(columns):
    X, Y = make_data()
    with pytest.raises(ValueError):
        ContextualGP(X, Y, **columns)


@pytest.mark.parametrize(
    "columns",
    [
        {"context_features": [0, 1, 2], "time_feature": 3},
        {"context_features": [0, 1, 2, 3]},
        {"context_features": []},
        {"context_features": [], "time_feature": 3},
    ],
)
def test_there_must_be_an_action_and_a_context(columns):
    X, Y = make_data()
    with pytest.raises(
        BotorchTensorDimensionError,
        match="context_features=",
    ):
        ContextualGP(X, Y, **columns)


@pytest.mark.parametrize(
    "columns", [{"context_features": [4]}, {"context_features": [2], "time_feature": -5}]
)
def test_features_must_be_columns(columns):
    X, Y = make_data()
    with pytest.raises(ValueError):
        ContextualGP(X, Y, **columns)


@pytest.mark.parametrize(
    "about_time",
    [
        {"forgetting_rate": 0.1},
        {"forgetting_rate": 0.0},
        {"forgetting_rate_prior": UniformPrior(0, 1)},
        {"forgetting_rate_constraint": Interval(0.1, 0.2)},
    ],
)
def test_forgetting_needs_time(about_time):
    X, Y = make_data()
    with pytest.raises(ValueError):
        ContextualGP(X, Y, context_features=[2], **about_time)


@pytest.mark.parametrize("bad", [-0.01, 1.5, float("nan")])
def test_fixed_rate_must_be_a_share(bad):
    X, Y = make_data()
    with pytest.raises(ValueError, match=str(bad)):
        ContextualGP(X, Y, context_features=[2], time_feature=3, forgetting_rate=bad)


def test_fixed_rate_takes_no_prior():
    X, Y = make_data()
    with pytest.raises(ValueError):
        ContextualGP(
            X,
            Y,
            context_features=[2],
            time_feature=3,
            forgetting_rate=0.1,
            forgetting_rate_prior=UniformPrior(0, 1),
        )


@pytest.mark.parametrize("bad", ["sum", "Both", None])
@pytest.mark.parametrize("given", [False, True])
def test_structure_must_be_one_of_three(bad, given):
    X, Y = make_data()
    kernels = {"action_kernel": rbf(0.4), "context_kernel": rbf(0.4)} if given else {}
    with pytest.raises(ValueError, match=repr(bad)):
        ContextualGP(X, Y, context_features=[2], structure=bad, **kernels)


def test_shapes_must_agree():
    X, Y = make_data()
    for wrong in (Y[:4], Y[:, 0]):
        with pytest.raises(BotorchTensorDimensionError):
            ContextualGP(X, wrong, context_features=[2])
    with pytest.raises(BotorchTensorDimensionError):
        ContextualGP(X, Y, torch.ones(4, 1), context_features=[2])
