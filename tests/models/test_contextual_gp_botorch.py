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
from botorch.models.transforms import Normalize
from botorch.optim import optimize_acqf, optimize_acqf_mixed
from botorch.sampling import SobolQMCNormalSampler

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
