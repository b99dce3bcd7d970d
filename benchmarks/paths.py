"""Functions drawn from the posteriors of models: their moments, and how many features they need.

Of many paths, each with features of its own, the means at six rows, and the variances and
covariances of these, are compared with the exact posterior's: at times before, among and after
those of ten observations, or twenty where hyperparameters are averaged. A score is an error divided
by its standard error; all scores of a model together exceed the bound with a probability of at most
1 % (Bonferroni).

One path has few features. By how much the standard deviation is wrong, given the features, is the
second table: its ratio to the exact one, at five rows one unit of time after 60 observations.

    python benchmarks/paths.py --paths 10000 --json docs/results/paths.json
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from botorch.models.model import Model
from botorch.sampling.pathwise import gen_kernel_features
from gpytorch.kernels import RBFKernel
from report import parser, show
from rich.progress import track
from scipy.stats import norm
from torch import Generator, Tensor

from tvbo import recipes
from tvbo.kernels import (
    CovarianceMatrixKernel,
    SeasonalKernel,
    TemporalDecayKernel,
    TemporalMaternKernel,
)
from tvbo.models import AveragedGP, ContextualGP, IncrementalGP, TimeVaryingGP, draw_path
from tvbo.randomness import seeded

SIGNIFICANCE = 0.01
DRAWS = 200
NUM_FEATURES = (64, 256, 1024, 4096)
COVAR = torch.tensor([[1.0, 0.7, -0.5], [0.7, 1.0, 0.1], [-0.5, 0.1, 0.8]], dtype=torch.float64)


def rbf(lengthscale: float = 0.3, **options: object) -> RBFKernel:
    """Return a squared exponential."""
    kernel = RBFKernel(**options).double()
    kernel.lengthscale = lengthscale
    return kernel


def observations(n: int = 10) -> tuple[Tensor, Tensor]:
    """Return rows [number | index of three | time], and outcomes."""
    X = torch.rand(n, 3, dtype=torch.float64, generator=Generator().manual_seed(3))
    X[:, 1] = torch.arange(n) % 3
    X[:, 2] = torch.arange(1.0, n + 1)
    return X, 3 * torch.sin(5 * X[:, :1]) + 0.1 * X[:, 2:] + 10


def contexts() -> Model:
    """Return a model over actions and three contexts, with main effects and interaction."""
    X, Y = observations()
    return ContextualGP(
        X,
        Y,
        context_features=[1],
        time_feature=2,
        structure="both",
        action_kernel=rbf(),
        context_kernel=CovarianceMatrixKernel(COVAR),
        forgetting_rate=0.05,
    )


def averaged() -> Model:
    """Return the model behind an ask of `tv_gp_ucb` with two trials pending."""
    optimizer = recipes.tv_gp_ucb(bounds=[(0.0, 1.0), (0.0, 2.0)], initial=0)
    for row, y in zip(*observations(20), strict=True):
        trial = optimizer.attach(row[:2], row[2].item())
        if trial.t <= 18:
            optimizer.tell(trial, y.item())
    optimizer.ask(21.0)
    model = optimizer.model
    assert isinstance(model, AveragedGP)
    return model


MODELS: dict[str, Callable[[], Model]] = {
    "exponential decay": lambda: TimeVaryingGP(
        *observations(), forgetting_rate=0.05, covar_module=rbf()
    ),
    "Matérn and season": lambda: TimeVaryingGP(
        *observations(),
        covar_module=rbf(),
        temporal_kernel=[TemporalMaternKernel(), SeasonalKernel(7.0)],
    ),
    "two functions": lambda: TimeVaryingGP(
        *observations(),
        covar_module=[rbf(0.2), rbf(1.0)],
        temporal_kernel=[TemporalDecayKernel(), TemporalMaternKernel()],
    ),
    "contexts": contexts,
    "averaged, pending": averaged,
}


def moments(name: str, count: int) -> dict[str, object]:
    """Return how many entries are beyond the bound, and the largest."""
    generator, model = Generator().manual_seed(0), MODELS[name]().eval()
    X = torch.rand(6, 3, dtype=torch.float64, generator=Generator().manual_seed(4))
    X[:, 1] = torch.arange(6) % 3
    X[:, 2] = torch.tensor([-2.0, 4.5, 10.0, 21.0, 21.0, 25.0])
    with torch.no_grad():
        paths = track(range(count), description=name)
        drawn = torch.stack([draw_path(model, generator)(X) for _ in paths])
        posterior = model.posterior(X)
        mean, covar = posterior.mean.squeeze(-1), posterior.distribution.covariance_matrix
    centered = drawn - mean
    upper = torch.triu_indices(6, 6)
    products = (centered.unsqueeze(-1) * centered.unsqueeze(-2))[:, *upper]
    entries = torch.cat([centered, products - covar[*upper]], dim=-1)
    scores = (entries.mean(dim=0) / entries.std(dim=0) * math.sqrt(count)).abs()
    bound = float(norm.isf(SIGNIFICANCE / 2 / len(scores)))
    return {
        "model": name,
        "paths": count,
        "entries": len(scores),
        "bound": bound,
        "beyond": int((scores > bound).sum()),
        "largest": scores.max().item(),
    }


def ratios(count: int) -> dict[str, float]:
    """Return how far the standard deviation is off, given this number of features."""
    generator = Generator().manual_seed(0)
    X = torch.rand(65, 3, dtype=torch.float64, generator=generator)
    X[:, 2] = torch.cat([torch.arange(1.0, 61.0), torch.full((5,), 61.0)])
    X, at = X.split([60, 5])
    kernel = rbf(active_dims=[0, 1]) * TemporalDecayKernel(active_dims=[2]).double()
    model = IncrementalGP(kernel, 0.05)
    model.observe(X, X[:, :1])
    found = []
    with torch.no_grad(), seeded(generator):
        noisy = kernel(X).to_dense() + 0.05 * torch.eye(60, dtype=torch.float64)
        weights = torch.linalg.solve(noisy, kernel(X, at).to_dense()).mT
        exact = model.posterior(at).variance.squeeze(-1)
        began = time.process_time()
        for _ in range(DRAWS):
            features = gen_kernel_features(kernel, num_inputs=3, num_outputs=count)
            left = features(at) - weights @ features(X)
            variance = left.square().sum(dim=-1) + 0.05 * weights.square().sum(dim=-1)
            found.append((variance / exact).sqrt())
        seconds = (time.process_time() - began) / DRAWS
    ratio = torch.stack(found)
    return {
        "features": count,
        "spread": ratio.std().item(),
        "largest": (ratio - 1).abs().max().item(),
        "milliseconds": 1000 * seconds,
    }


def main() -> None:
    """Run the benchmark, print tables, save JSON."""
    options = parser(__doc__)
    options.add_argument("--paths", type=int, default=10_000)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    measured = [moments(name, chosen.paths) for name in MODELS]
    by_features = [ratios(count) for count in NUM_FEATURES]
    figures = {"moments": measured, "features": by_features}
    show(
        f"mean, variance and covariance across times, {chosen.paths} paths",
        ("model", "entries", "bound", "largest", "beyond"),
        [
            (
                m["model"],
                str(m["entries"]),
                f"{m['bound']:.2f}",
                f"{m['largest']:.2f}",
                f"{m['beyond']}",
            )
            for m in measured
        ],
        figures,
        None,
    )
    show(
        f"standard deviation given the features, as a share of the exact one, {DRAWS} draws",
        ("features", "spread", "furthest from 1", "ms a draw"),
        [
            (f"{r['features']}", *(f"{r[k]:.3f}" for k in ("spread", "largest", "milliseconds")))
            for r in by_features
        ],
        figures,
        chosen.json,
    )


if __name__ == "__main__":
    main()
