"""Time as drift, as a feature, as a fidelity and as a task: predictions of the next round.

One outcome in each of 60 rounds at a random action in [0, 1], noise 0.1 (standard deviation, known
to nobody). The function is drawn from a GP over actions and time: RBF of lengthscale 0.2 over
actions, and over time exponential decay with ε = 0.05, Matérn-3/2 or RBF of lengthscale 15 rounds,
or none. Each model is fitted with `fit_gpytorch_mll` to the rounds, and predicts the function at 50
actions in round 61: root mean squared error, and log density of the values of the function.

    OMP_NUM_THREADS=1 python benchmarks/time_as.py --seeds 10 --json docs/results/time_as.json
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import MultiTaskGP, SingleTaskGP, SingleTaskMultiFidelityGP
from botorch.models.model import Model
from botorch.models.transforms import Normalize
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from rich.progress import track
from shared import compared, mean_error, parser, show
from torch import Generator, Tensor

from tvbo.kernels import ConstantTemporalKernel, TemporalDecayKernel, TemporalMaternKernel
from tvbo.models import TimeVaryingGP

ROUNDS, ACTIONS, NOISE, BLOCK = 60, 50, 0.1, 12
LAST = ROUNDS + 1
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, LAST]], dtype=torch.float64)


def in_time(kernel: Kernel, lengthscale: float) -> Kernel:
    """Return a kernel with a lengthscale in rounds."""
    kernel.lengthscale = lengthscale
    return kernel


TRUTHS: dict[str, Callable[[], Kernel]] = {
    "decay, ε = 0.05": lambda: TemporalDecayKernel(),
    "Matérn-3/2": lambda: in_time(MaternKernel(nu=1.5), 15.0),
    "RBF": lambda: in_time(RBFKernel(), 15.0),
    "no drift": lambda: ConstantTemporalKernel(),
}


def scaled() -> Normalize:
    """Return the scaling of both columns to [0, 1], up to the next round."""
    return Normalize(2, bounds=BOUNDS)


def with_blocks(rows: Tensor) -> Tensor:
    """Return rows with the number of the block of rounds in place of time; the last is open."""
    block = ((rows[:, 1:] - 1) / BLOCK).floor().clamp_max(ROUNDS // BLOCK - 1)
    return torch.cat([rows[:, :1], block], dim=-1)


def as_is(rows: Tensor) -> Tensor:
    """Return rows unchanged."""
    return rows


Build = Callable[[Tensor, Tensor], Model]
MODELS: dict[str, tuple[Callable[[Tensor], Tensor], Build]] = {
    "SingleTaskGP on (x, t)": (
        as_is,
        lambda X, Y: SingleTaskGP(X, Y, input_transform=scaled()),
    ),
    "TimeVaryingGP": (as_is, lambda X, Y: TimeVaryingGP(X, Y)),
    "TimeVaryingGP, Matérn-3/2 in time": (
        as_is,
        lambda X, Y: TimeVaryingGP(X, Y, temporal_kernel=TemporalMaternKernel()),
    ),
    "SingleTaskMultiFidelityGP, data fidelity": (
        as_is,
        lambda X, Y: SingleTaskMultiFidelityGP(X, Y, data_fidelities=[1], input_transform=scaled()),
    ),
    "SingleTaskMultiFidelityGP, iteration fidelity": (
        as_is,
        lambda X, Y: SingleTaskMultiFidelityGP(
            X, Y, iteration_fidelity=1, linear_truncated=False, input_transform=scaled()
        ),
    ),
    f"MultiTaskGP, {BLOCK} rounds a task": (
        with_blocks,
        lambda X, Y: MultiTaskGP(X, Y, task_feature=1, output_tasks=[ROUNDS // BLOCK - 1], rank=1),
    ),
    "SingleTaskGP on x": (lambda rows: rows[:, :1], lambda X, Y: SingleTaskGP(X, Y)),
}


def draw(over_time: Kernel, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return rows and noisy outcomes of the rounds, and rows and values of the next one."""
    generator = Generator().manual_seed(seed)
    x = torch.rand(ROUNDS + ACTIONS, 1, dtype=torch.float64, generator=generator)
    t = torch.arange(1, LAST + 1, dtype=torch.float64).unsqueeze(-1)
    t = torch.cat([t, t[-1:].expand(ACTIONS - 1, 1)])
    over_x = in_time(RBFKernel(), 0.2).double()
    covar = (over_x(x).to_dense() * over_time.double()(t).to_dense()).detach()
    covar = covar + 1e-8 * torch.eye(len(x), dtype=torch.float64)
    normal = torch.randn(len(x), 1, dtype=torch.float64, generator=generator)
    values = torch.linalg.cholesky(covar) @ normal
    noise = NOISE * torch.randn(ROUNDS, 1, dtype=torch.float64, generator=generator)
    rows = torch.cat([x, t], dim=-1)
    return rows[:ROUNDS], values[:ROUNDS] + noise, rows[ROUNDS:], values[ROUNDS:]


def score(model: Model, rows: Tensor, values: Tensor) -> tuple[float, float]:
    """Return root mean squared error and mean log density of the values of the function."""
    with torch.no_grad():
        posterior = model.posterior(rows.unsqueeze(-2))
        mean, variance = posterior.mean.squeeze(-1), posterior.variance.squeeze(-1)
    error = (values - mean).square()
    density = -0.5 * (error / variance + variance.log() + math.log(2 * math.pi))
    return error.mean().sqrt().item(), density.mean().item()


def main() -> None:
    """Print errors and log densities of each model, for each drift."""
    chosen = parser(__doc__, seeds=10).parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    records: list[dict[str, Any]] = []
    for truth, over_time in TRUTHS.items():
        drawn = [draw(over_time(), seed) for seed in range(chosen.seeds)]
        error, density, cpu = {}, {}, {}
        for name, (prepare, build) in track(MODELS.items(), truth):
            began, scores = time.process_time(), []
            for X, Y, new_X, values in drawn:
                with torch.random.fork_rng():
                    torch.manual_seed(0)
                    model = build(prepare(X), Y)
                    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
                scores.append(score(model, prepare(new_X), values))
            cpu[name] = (time.process_time() - began) / chosen.seeds
            error[name], densities = zip(*scores, strict=True)
            density[name] = mean_error(densities)
        of_models = compared(error, density=density, cpu_seconds=cpu)
        records += [{"drift": truth, **record} for record in of_models]
    columns = {
        "drift": "{drift}",
        "model": "{method}",
        "error": "{regret:.2f} ± {error:.2f}",
        "log density": "{density[0]:.2f} ± {density[1]:.2f}",
        "CPU s": "{cpu_seconds:.2f}",
        "more error than with time as a feature": "{more:.3f} ± {more_error:.3f}",
    }
    show(f"round {LAST}, {chosen.seeds} seeds", columns, records, chosen.json)


if __name__ == "__main__":
    main()
