import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP
from gpytorch.kernels import ScaleKernel
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood

from tvbo.kernels import ContextActionKernel, IdentityKernel, TaskKernel

pytestmark = pytest.mark.usefixtures("double_by_default")

TASKS = torch.tensor([[0.0], [2.0], [1.0], [2.0], [0.0]], dtype=torch.float64)


def kernel_with(factor, variances, **kwargs):
    factor = torch.as_tensor(factor)
    kernel = TaskKernel(factor.shape[-2], rank=factor.shape[-1], **kwargs)
    kernel.initialize(covar_factor=factor, var=torch.as_tensor(variances))
    return kernel


@pytest.fixture
def kernel():
    return kernel_with([[0.9, 0.1], [-0.4, 0.5], [0.3, 1.1]], [0.2, 0.05, 0.7])


def test_equals_the_double_loop(kernel):
    factor, variances = kernel.covar_factor.tolist(), kernel.var.tolist()
    other = TASKS[1:4]
    covar = kernel(TASKS, other).to_dense()
    for a, i in enumerate(int(t) for t in TASKS):
        for b, j in enumerate(int(t) for t in other):
            expected = sum(factor[i][r] * factor[j][r] for r in range(2))
            expected += variances[i] if i == j else 0.0
            assert covar[a, b].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("num_tasks", [1, 2, 3, 8])
@pytest.mark.parametrize("rank", [1, 2, 8])
def test_starts_at_unit_variances_and_correlations_near_one_half(num_tasks, rank):
    if rank > num_tasks:
        return
    tasks = torch.arange(float(num_tasks)).unsqueeze(-1)
    covar = TaskKernel(num_tasks, rank)(tasks).to_dense().detach()
    torch.testing.assert_close(covar.diagonal(), torch.ones(num_tasks), rtol=0, atol=1e-12)
    apart = covar[~torch.eye(num_tasks, dtype=torch.bool)]
    assert ((apart > 0.4) & (apart <= 0.5 + 1e-12)).all()
    # Columns of the factor that were alike would be learned alike.
    assert torch.linalg.matrix_rank(TaskKernel(num_tasks, rank).covar_factor) == rank


@pytest.mark.draws_globally
def test_starts_the_same_whatever_the_global_generator():
    kernels = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        kernels.append(TaskKernel(3, 2))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(kernels[0].covar_factor, kernels[1].covar_factor)
    assert torch.equal(kernels[0].var, kernels[1].var)


def test_learns_a_known_correlation(generator):
    # Panels of tasks that share nothing else: the maximum of the likelihood is the second moment
    # of the panels less the noise, exactly, for a factor of full rank.
    truth = torch.tensor([[1.0, 0.9, -0.5], [0.9, 1.2, -0.3], [-0.5, -0.3, 0.8]])
    panels, noise = 60, 0.01
    F = torch.randn(panels, 3, generator=generator) @ torch.linalg.cholesky(truth).mT
    Y = F + noise**0.5 * torch.randn(panels, 3, generator=generator)
    rows = torch.cartesian_prod(torch.arange(float(panels)), torch.arange(3.0))
    kernel = TaskKernel(3, rank=3)
    model = SingleTaskGP(
        rows,
        Y.reshape(-1, 1),
        torch.full((3 * panels, 1), noise),
        covar_module=ContextActionKernel(
            IdentityKernel(), kernel, action_features=[0], context_features=[1]
        ),
        mean_module=ZeroMean(),
        outcome_transform=None,
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    learned = kernel(torch.arange(3.0).unsqueeze(-1)).to_dense().detach()
    expected = Y.mT @ Y / panels - noise * torch.eye(3)
    torch.testing.assert_close(learned, expected, rtol=0, atol=0.02)
    # And so within three standard errors of a Gaussian second moment from what drew the data.
    error = ((truth.diagonal().outer(truth.diagonal()) + truth**2) / panels).sqrt()
    assert ((learned - truth).abs() < 3 * error).all()


@pytest.mark.parametrize("bad", [3.0, -1.0, 0.5, 1e10])
def test_an_unknown_task_is_refused(kernel, bad):
    for pair in ((torch.tensor([[bad]]), TASKS), (TASKS, torch.tensor([[bad]]))):
        with pytest.raises(InputDataError, match=str(bad)):
            kernel(*pair).to_dense()
    with pytest.raises(InputDataError):
        ScaleKernel(kernel)(torch.tensor([[0.0], [bad]]), diag=True)


@pytest.mark.parametrize(("tasks", "rank"), [(3, 0), (3, 4), (3, -1), (0, 1)])
def test_tasks_and_rank_must_be_possible(tasks, rank):
    with pytest.raises(ValueError):
        TaskKernel(tasks, rank)
