"""Each model of the same few observations, beside BoTorch's SingleTaskGP."""

import torch
from botorch.models import SingleTaskGP
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from reference import rbf
from torch import Size

from tvbo.models import ContextualGP, EnsembleGP, StreamingGP, TimeVaryingGP
from tvbo.models.closed_form import HyperparameterSets

NOISE, RATE, N, T = 0.04, 0.03, 8, 9.0
SIDE = torch.linspace(0, 1, 3, dtype=torch.float64)
CHOICES = torch.cartesian_prod(SIDE, SIDE)


def data(n=N, seed=0):
    """Rows [x1, x2, t] of choices at times before ``T``, and outcomes."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.randperm(len(CHOICES), generator=generator)[:n]
    t = torch.arange(n, dtype=torch.float64).unsqueeze(-1)
    Y = torch.randn(n, 1, dtype=torch.float64, generator=generator)
    return torch.cat([CHOICES[place], t], dim=-1), Y


def ahead(*shape, seed=1, t=T):
    """Rows of distinct choices at one time, ``shape x 3``."""
    generator = torch.Generator().manual_seed(seed)
    b = Size(shape[:-1]).numel()
    each = [torch.randperm(len(CHOICES), generator=generator)[: shape[-1]] for _ in range(b)]
    rows = CHOICES[torch.stack(each)].reshape(*shape, 2)
    return torch.cat([rows, torch.full((*shape, 1), t, dtype=torch.float64)], dim=-1)


def later(n, seed=0):
    """New observations at the present time."""
    generator = torch.Generator().manual_seed(50 + seed)
    Y = torch.randn(n, 1, dtype=torch.float64, generator=generator)
    return ahead(n, seed=seed + 20), Y


def dense(kind, seed, known_noise=False, **options):
    """A dense model, with the noise known for each observation or for all."""
    X, Y = data(seed=seed)
    noise = {"train_Yvar": torch.full_like(Y, NOISE)}
    if not known_noise:
        likelihood = GaussianLikelihood().to(X)
        likelihood.noise = NOISE
        noise = {"likelihood": likelihood}
    return kind(X, Y, outcome_transform=None, **noise, **options).eval()


def single_task(seed=0, **options):
    # With its own kernel: SingleTaskGP subsets no other.
    return dense(SingleTaskGP, seed, **options)


def time_varying(seed=0, **options):
    fixed = {"forgetting_rate": RATE, "covar_module": rbf(), "mean_module": ZeroMean()}
    return dense(TimeVaryingGP, seed, **fixed, **options)


def contextual(seed=0, **options):
    columns = {"context_features": [1], "time_feature": 2}
    return dense(ContextualGP, seed, forgetting_rate=RATE, **columns, **options)


def streaming(seed=0):
    model = StreamingGP(CHOICES, rbf(), RATE, NOISE)
    model.observe(*data(seed=seed))
    return model


def incremental(seed=0):
    model = EnsembleGP(time_varying().covar_module, NOISE)
    return model.condition_on_observations(*data(seed=seed))


def averaged(seed=0):
    sets = HyperparameterSets(
        kernel="RBFKernel",
        num_actions=2,
        lengthscales=torch.tensor([[0.2, 0.5], [0.7, 0.4]], dtype=torch.float64),
        rates=-0.5 * torch.tensor([0.02, 0.3], dtype=torch.float64).neg().log1p(),
        is_smooth=torch.zeros(2, dtype=torch.float64),
        variance=torch.ones(2, dtype=torch.float64),
        mean=torch.tensor([-0.4, 0.6], dtype=torch.float64),
        noise=torch.tensor([NOISE, 2 * NOISE], dtype=torch.float64),
        log_weights=torch.tensor([-1.0, -1.5], dtype=torch.float64),
        shares=torch.ones(2, 1, dtype=torch.float64),
    )
    return EnsembleGP.from_sets(sets, *data(seed=seed))


MODELS = {
    "SingleTaskGP": single_task,
    "TimeVaryingGP": time_varying,
    "ContextualGP": contextual,
    "StreamingGP": streaming,
    "EnsembleGP": incremental,
    "EnsembleGP of sets": averaged,
}
DENSE = ("SingleTaskGP", "TimeVaryingGP", "ContextualGP")
