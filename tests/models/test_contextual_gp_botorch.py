import pytest
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    PosteriorMean,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qUpperConfidenceBound,
)
from botorch.generation import MaxPosteriorSampling
from botorch.models.transforms import Normalize
from botorch.optim import optimize_acqf, optimize_acqf_discrete, optimize_acqf_mixed
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import RBFKernel

from tvbo.kernels import CovarianceMatrixKernel, IdentityKernel, TaskKernel
from tvbo.models import ContextualGP

pytestmark = [
    pytest.mark.usefixtures("double_by_default"),
    pytest.mark.draws_globally,  # BoTorch's optimizers and samplers do
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning"),
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.OptimizationWarning"),
]

CONTEXT, TIME = 0.7, 13.0
BOUNDS = torch.tensor([[-1.0, 0.0, 0.0, 0.0], [2.0, 5.0, 1.0, 12.0]], dtype=torch.float64)
MATRIX = torch.tensor([[1.0, 0.6, -0.2], [0.6, 1.5, 0.1], [-0.2, 0.1, 0.8]], dtype=torch.float64)


def make_model(normalized=False, batch_shape=(), time=True, structure="product"):
    """Rows [s1, s2, z, t], or [s1, s2, z], actions not in the unit square."""
    generator = torch.Generator().manual_seed(1)
    X = BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * torch.rand(*batch_shape, 12, 4, generator=generator)
    Y = -((X[..., :1] - X[..., 2:3]) ** 2) - ((X[..., 1:2] - 2) / 3) ** 2
    width = 4 if time else 3
    transform = None
    if normalized:
        transform = Normalize(width, indices=[0, 1, 2], bounds=BOUNDS[:, :width])
    return ContextualGP(
        X[..., :width],
        Y,
        context_features=[2],
        time_feature=3 if time else None,
        structure=structure,
        forgetting_rate=0.1 if time else None,
        input_transform=transform,
    )


def sampler(n):
    return SobolQMCNormalSampler(torch.Size([n]), seed=0)


def baseline(model):
    """The observations, in the user's units, for one trial or the trials of a batch."""
    return model.train_inputs[0][..., :3, :]


ACQUISITIONS = {
    "mean": PosteriorMean,
    "UCB": lambda model: UpperConfidenceBound(model, beta=2.0),
    "LogEI": lambda model: LogExpectedImprovement(model, best_f=0.5),
    "qLogEI": lambda model: qLogExpectedImprovement(model, best_f=0.5, sampler=sampler(16)),
    "qUCB": lambda model: qUpperConfidenceBound(model, 2.0, sampler=sampler(16)),
    "qLogNEI": lambda model: qLogNoisyExpectedImprovement(
        model, baseline(model), sampler=sampler(16), prune_baseline=False
    ),
    "qKG": lambda model: qKnowledgeGradient(model, num_fantasies=4, sampler=sampler(4)),
}
NOT_KG = [name for name in ACQUISITIONS if name != "qKG"]


@pytest.mark.parametrize("name", ACQUISITIONS)
@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_acquisitions_evaluate_batched_and_not(name, batch_shape):
    q = 1 + (4 if name == "qKG" else 0)
    model = make_model(batch_shape=batch_shape)
    acquisition = ACQUISITIONS[name](model)
    candidates = torch.rand(6, *(1,) * len(batch_shape), q, 4).expand(6, *batch_shape, q, 4)
    values = acquisition(candidates)
    assert values.shape == (6, *batch_shape)
    assert torch.isfinite(values).all()


@pytest.mark.parametrize("name", ACQUISITIONS)
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.combinations
def test_optimizes_with_context_and_time_held_fixed(name, normalized):
    model = make_model(normalized)
    acquisition = ACQUISITIONS[name](model)
    # Time lies outside its bounds: fixed features need not respect them.
    found, value = optimize_acqf(
        acquisition,
        BOUNDS,
        q=1,
        num_restarts=2,
        raw_samples=8,
        fixed_features={2: CONTEXT, 3: TIME},
        options={"maxiter": 8},
    )
    assert found.shape == (1, 4)
    assert found[0, 2:].tolist() == [CONTEXT, TIME]
    assert (BOUNDS[0, :2] <= found[0, :2]).all()
    assert (found[0, :2] <= BOUNDS[1, :2]).all()
    assert torch.isfinite(value).all()


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("structure", ["product", "additive", "both"])
@pytest.mark.combinations
def test_the_optimum_found_is_the_best_of_a_grid(normalized, structure):
    model = make_model(normalized, structure=structure)
    acquisition = UpperConfidenceBound(model, beta=2.0)
    found, value = optimize_acqf(
        acquisition,
        BOUNDS,
        q=1,
        num_restarts=4,
        raw_samples=32,
        fixed_features={2: CONTEXT, -1: TIME},
    )
    side = torch.linspace(0, 1, 31)
    grid = BOUNDS[0, :2] + torch.cartesian_prod(side, side) * (BOUNDS[1] - BOUNDS[0])[:2]
    rows = torch.cat([grid, torch.tensor([[CONTEXT, TIME]]).expand(len(grid), 2)], dim=-1)
    with torch.no_grad():
        assert value >= acquisition(rows.unsqueeze(-2)).max() - 1e-6
    assert found[0, 2:].tolist() == [CONTEXT, TIME]


def test_optimizes_without_time():
    model = make_model(time=False)
    found, _ = optimize_acqf(
        UpperConfidenceBound(model, beta=2.0),
        BOUNDS[:, :3],
        q=1,
        num_restarts=2,
        raw_samples=8,
        fixed_features={2: CONTEXT},
    )
    assert found.shape == (1, 3)
    assert found[0, 2] == CONTEXT


def test_optimizes_a_batch_of_candidates_at_one_context():
    found, _ = optimize_acqf(
        qUpperConfidenceBound(make_model(), 2.0, sampler=sampler(16)),
        BOUNDS,
        q=3,
        num_restarts=2,
        raw_samples=8,
        fixed_features={2: CONTEXT, 3: TIME},
        options={"maxiter": 8},
        sequential=True,
    )
    assert found.shape == (3, 4)
    assert (found[:, 2:] == torch.tensor([CONTEXT, TIME])).all()


def task_model(kernel):
    """Rows [s, task, t]."""
    generator = torch.Generator().manual_seed(2)
    X = torch.rand(15, 3, generator=generator)
    X[:, 1] = torch.arange(15) % 3
    X[:, 2] = torch.arange(15)
    Y = torch.sin(4 * X[:, :1] + X[:, 1:2])
    return ContextualGP(
        X,
        Y,
        context_features=[1],
        time_feature=2,
        forgetting_rate=0.05,
        context_kernel=kernel,
    )


@pytest.mark.parametrize(
    "kernel", [lambda: CovarianceMatrixKernel(MATRIX), lambda: TaskKernel(3), IdentityKernel]
)
def test_optimizes_over_tasks(kernel):
    model = task_model(kernel())
    bounds = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 15.0]])
    acquisition = UpperConfidenceBound(model, beta=2.0)
    options = {"q": 1, "num_restarts": 2, "raw_samples": 8}
    each = [{1: float(k), 2: 15.0} for k in range(3)]
    found, value = optimize_acqf_mixed(acquisition, bounds, fixed_features_list=each, **options)
    assert found[0, 1].item() in (0.0, 1.0, 2.0)
    assert found[0, 2] == 15.0
    for fixed in each:
        _, alone = optimize_acqf(acquisition, bounds, fixed_features=fixed, **options)
        assert value >= alone - 1e-4


def test_optimizes_over_arms():
    """Rows [arm, feature, t]: an arm in the list of fixed features, the context given."""
    generator = torch.Generator().manual_seed(3)
    X = torch.rand(32, 3, generator=generator)
    X[:, 0] = torch.arange(32) % 4
    X[:, 2] = torch.arange(32)
    # In large contexts the last arm is the best, in small ones the first.
    Y = (X[:, 1:2] - 0.5) * (X[:, :1] - 1.5)
    model = ContextualGP(
        X,
        Y,
        torch.full_like(Y, 1e-4),
        context_features=[1],
        time_feature=2,
        forgetting_rate=0.001,
        action_kernel=IdentityKernel(),
        context_kernel=RBFKernel(),
    )
    acquisition = PosteriorMean(model)
    for context, best in ((0.9, 3.0), (0.1, 0.0)):
        rows = torch.tensor([[float(arm), context, 32.0] for arm in range(4)])
        found, _ = optimize_acqf_mixed(
            acquisition,
            torch.tensor([[0.0, 0.0, 0.0], [3.0, 1.0, 20.0]]),
            q=1,
            num_restarts=1,
            raw_samples=2,
            fixed_features_list=[dict(enumerate(row)) for row in rows.tolist()],
        )
        discrete, _ = optimize_acqf_discrete(acquisition, q=1, choices=rows)
        assert torch.equal(found, discrete)
        assert found.tolist() == [[best, pytest.approx(context), 32.0]]


@pytest.mark.parametrize("name", NOT_KG)
@pytest.mark.parametrize("normalized", [False, True])
def test_optimizes_over_a_finite_set(name, normalized):
    model = make_model(normalized)
    acquisition = ACQUISITIONS[name](model)
    fixed = torch.tensor([[CONTEXT, TIME]]).expand(20, 2)
    choices = torch.cat([BOUNDS[1, :2] * torch.rand(20, 2), fixed], dim=-1)
    found, value = optimize_acqf_discrete(acquisition, q=1, choices=choices)
    with torch.no_grad():
        best = acquisition(choices.unsqueeze(-2))
    assert torch.equal(found, choices[best.argmax()].unsqueeze(0))
    assert value.item() == pytest.approx(best.max().item())


@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_thompson_sampling_on_candidates(batch_shape):
    model = make_model(batch_shape=batch_shape)
    fixed = torch.tensor([[CONTEXT, TIME]]).expand(20, 2)
    choices = torch.cat([BOUNDS[1, :2] * torch.rand(20, 2), fixed], dim=-1)
    rows = choices.expand(*batch_shape, 20, 4)
    draws = MaxPosteriorSampling(model, replacement=False)(rows, num_samples=3)
    assert draws.shape == (*batch_shape, 3, 4)
    # Of equal draws of one trial no two are the same row.
    for trial in draws.reshape(-1, 3, 4):
        assert all((choices == row).all(dim=-1).any() for row in trial)
        assert len(trial.unique(dim=0)) == 3


def test_normalizing_tells_the_model_nothing_new():
    """A length-scale in raw units is one in units of the bounds: the same posterior."""
    raw, normalized = make_model(), make_model(normalized=True)
    spread = (BOUNDS[1] - BOUNDS[0])[:3]
    scales = torch.tensor([0.9, 1.7, 0.4])
    for model, unit in ((raw, torch.ones(3)), (normalized, spread)):
        kernel = model.context_action_kernel
        kernel.action_kernel.base_kernel.lengthscale = (scales / unit)[:2]
        kernel.context_kernel.base_kernel.lengthscale = (scales / unit)[2:]
    rows = BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * torch.rand(6, 4)
    one, other = raw.posterior(rows), normalized.posterior(rows)
    torch.testing.assert_close(one.mean, other.mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(one.variance, other.variance, rtol=0, atol=1e-9)
