"""The acquisitions of BoTorch that sample whole functions, under the dense models."""

import pytest
import torch
from botorch.acquisition.joint_entropy_search import qJointEntropySearch
from botorch.acquisition.multi_objective.joint_entropy_search import (
    qLowerBoundMultiObjectiveJointEntropySearch,
)
from botorch.acquisition.multi_objective.max_value_entropy_search import (
    qLowerBoundMultiObjectiveMaxValueEntropySearch,
)
from botorch.acquisition.multi_objective.predictive_entropy_search import (
    qMultiObjectivePredictiveEntropySearch,
)
from botorch.acquisition.multi_objective.utils import compute_sample_box_decomposition
from botorch.acquisition.multi_objective.utils import sample_optimal_points as sample_points
from botorch.acquisition.predictive_entropy_search import qPredictiveEntropySearch
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.acquisition.utils import get_optimal_samples
from botorch.optim import optimize_acqf
from reference import rbf

from tvbo.models import ContextualGP, TimeVaryingGP
from tvbo.randomness import seeded

pytestmark = pytest.mark.usefixtures("double_by_default")

NOW = 12.0
# BoTorch takes an interval without a width for one of width one.
BOUNDS = torch.tensor([[0.0, 0.0, NOW], [1.0, 1.0, NOW + 1e-3]], dtype=torch.float64)


def make_model(kind, outputs):
    generator = torch.Generator().manual_seed(3)
    X = torch.rand(10, 3, generator=generator)
    X[:, 2] = torch.arange(1.0, 11.0)
    Y = torch.cat([torch.sin(5 * X[:, :1]) + 0.1 * X[:, 2:], torch.cos(3 * X[:, :1])], dim=-1)
    Y = Y[:, :outputs]
    if kind is TimeVaryingGP:
        return TimeVaryingGP(X, Y, forgetting_rate=0.05, covar_module=rbf(0.4)).eval()
    return ContextualGP(
        X,
        Y,
        context_features=[1],
        time_feature=2,
        structure="both",
        action_kernel=rbf(0.4),
        context_kernel=rbf(0.8),
        forgetting_rate=0.05,
    ).eval()


def thompson(model):
    return PathwiseThompsonSampling(model)


def joint(model):
    optima = get_optimal_samples(model, BOUNDS, num_optima=8, raw_samples=128, num_restarts=4)
    return qJointEntropySearch(model, *optima, estimation_type="LB")


def predictive(model):
    inputs, _ = get_optimal_samples(model, BOUNDS, num_optima=4, raw_samples=128, num_restarts=4)
    return qPredictiveEntropySearch(model, inputs, max_ep_iterations=20)


def fronts(model):
    """Pareto sets and fronts of four functions, and the boxes that they leave."""
    sets, values = sample_points(
        model, BOUNDS, num_samples=4, num_points=4, optimizer_kwargs={"pop_size": 256}
    )
    return sets, values, compute_sample_box_decomposition(values)


def multi_objective_max_value(model):
    return qLowerBoundMultiObjectiveMaxValueEntropySearch(model, fronts(model)[2])


def multi_objective_joint(model):
    return qLowerBoundMultiObjectiveJointEntropySearch(model, *fronts(model))


def multi_objective_predictive(model):
    return qMultiObjectivePredictiveEntropySearch(model, fronts(model)[0], max_ep_iterations=10)


ACQUISITIONS = {
    "PathwiseThompsonSampling": (thompson, 1),
    "qJES": (joint, 1),
    "qPES": (predictive, 1),
    "multi-objective MES": (multi_objective_max_value, 2),
    "multi-objective JES": (multi_objective_joint, 2),
    "multi-objective PES": (multi_objective_predictive, 2),
}


@pytest.mark.parametrize("kind", [TimeVaryingGP, ContextualGP])
@pytest.mark.parametrize(("make", "outputs"), ACQUISITIONS.values(), ids=ACQUISITIONS)
def test_it_is_maximized_at_the_present(make, outputs, kind, generator):
    """In a context, and no worse than at the other actions."""
    model = make_model(kind, outputs)
    fixed = {2: NOW} if kind is TimeVaryingGP else {1: 0.4, 2: NOW}
    with seeded(generator):
        acq_function = make(model)
        X, value = optimize_acqf(
            acq_function,
            BOUNDS,
            q=1,
            num_restarts=2,
            raw_samples=32,
            fixed_features=fixed,
            options={"maxiter": 20},
        )
    assert X[0, 2] == NOW
    assert ((BOUNDS[0] <= X) & (BOUNDS[1] >= X)).all()
    others = torch.rand(16, 1, 3, generator=generator)
    for column, fixed_value in fixed.items():
        others[..., column] = fixed_value
    with torch.no_grad():
        values = acq_function(others)
    assert values.isfinite().all()
    assert value >= values.median()
